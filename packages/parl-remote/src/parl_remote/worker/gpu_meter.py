"""Looks after a node's GPUs in a thread of its own: the driver may take a second to answer, and the node cannot wait.

thread --every two seconds--> Nvml.look --> latest() --> Heartbeat
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from parl_remote.messages.links import GpuUse

__all__ = ["GpuMeter"]

_log = logging.getLogger("parl.remote")

_INTERVAL_S = 2.0


class Gpus(Protocol):
    """What tells of GPUs; see `Nvml`."""

    def look(self) -> tuple[GpuUse, ...]:
        """The GPUs as they are now."""

    def close(self) -> None:
        """Let go of the driver."""


class GpuMeter:
    """The GPUs' use as it was seen last.

    Args:
        names: As CUDA_VISIBLE_DEVICES names them; no thread is started if there are none.
        connect: Opens the way to the driver.
    """

    def __init__(self, names: tuple[str, ...], connect: Callable[[tuple[str, ...]], Gpus] | None = None) -> None:
        self._names = names
        self._connect = connect or _nvml
        self._latest: tuple[GpuUse, ...] = ()
        self._over = threading.Event()
        if names:
            threading.Thread(target=self._run, name="parl-gpu-meter", daemon=True).start()

    def latest(self) -> tuple[GpuUse, ...]:
        """What was seen last; empty before, and where there is no driver."""
        return self._latest

    def close(self) -> None:
        """Stop looking, soon."""
        self._over.set()

    def _run(self) -> None:
        try:
            gpus = self._connect(self._names)
        except OSError as error:
            _log.info("nobody will see how busy the GPUs are: %s", error)
            return
        try:
            while not self._over.is_set():
                self._latest = gpus.look()
                self._over.wait(_INTERVAL_S)
        finally:
            self._latest = ()
            gpus.close()


def _nvml(names: tuple[str, ...]) -> Gpus:
    from parl_remote.system.nvml import Nvml  # ctypes is for those who have GPUs

    return Nvml(names)

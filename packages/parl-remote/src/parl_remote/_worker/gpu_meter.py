"""Sampling of a node's GPUs in a thread of its own, because the driver may take a second to answer.

thread --every two seconds--> Nvml.look --> latest() --> Heartbeat

The numbers come from the driver's own library (NVML), which is there wherever the driver is, so nothing has to be
installed. Its documentation: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote._messages.links import GpuUse

if TYPE_CHECKING:
    from parl_remote._messages.links import GpuUse

__all__ = ["GpuMeter", "Nvml"]


_log = logging.getLogger("parl.remote")

_INTERVAL_S = 2.0


class Gpus(Protocol):
    """A source of GPU use; see `Nvml`."""

    def look(self) -> tuple[GpuUse, ...]:
        """Return the current state of the GPUs."""

    def close(self) -> None:
        """Close the connection to the driver."""


class GpuMeter:
    """The last sampled utilization of the GPUs.

    Args:
        names: As CUDA_VISIBLE_DEVICES names them; no thread is started if there are none.
        connect: Opens the connection to the driver.
    """

    def __init__(self, names: tuple[str, ...], connect: Callable[[tuple[str, ...]], Gpus] | None = None) -> None:
        self._names = names
        self._connect = connect or Nvml
        self._latest: tuple[GpuUse, ...] = ()
        self._over = threading.Event()
        if names:
            threading.Thread(target=self._run, name="parl-gpu-meter", daemon=True).start()

    def latest(self) -> tuple[GpuUse, ...]:
        """Return the last sample; empty before the first one, and without a driver."""
        return self._latest

    def close(self) -> None:
        """Stop sampling soon."""
        self._over.set()

    def _run(self) -> None:
        try:
            gpus = self._connect(self._names)
        except OSError as error:
            _log.info("the utilization of the GPUs is not reported: %s", error)
            return
        try:
            while not self._over.is_set():
                self._latest = gpus.look()
                self._over.wait(_INTERVAL_S)
        finally:
            self._latest = ()
            gpus.close()


_LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """An open connection to the driver.

    Args:
        names: The GPUs to query, as CUDA_VISIBLE_DEVICES names them: numbers or prefixes of UUIDs.
        library: The library; the system's if None.

    Raises:
        OSError: There is no such library, or the driver does not answer.
    """

    def __init__(self, names: tuple[str, ...], library: Any = None) -> None:
        self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        self._call("nvmlInit_v2")
        self._devices = [(name, self._find(name)) for name in names]

    def look(self) -> tuple[GpuUse, ...]:
        """Return the current state of the GPUs; values that a GPU does not report are None."""
        return tuple(self._look_at(name, device) for name, device in self._devices if device is not None)

    def close(self) -> None:
        """Close the connection to the driver."""
        self._library.nvmlShutdown()

    def _look_at(self, name: str, device: ctypes.c_void_p) -> GpuUse:
        use, memory = _Utilization(), _Memory()
        knows_use = self._succeeds("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use))
        knows_memory = self._succeeds("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return GpuUse(
            name=name,
            model=self._text("nvmlDeviceGetName", device),
            busy=min(1.0, use.gpu / 100) if knows_use else None,
            memory_used=memory.used if knows_memory else None,
            memory_total=memory.total if knows_memory else None,
        )

    def _find(self, name: str) -> ctypes.c_void_p | None:
        device = ctypes.c_void_p()
        if name.isascii() and name.isdigit():
            index = ctypes.c_uint(int(name))
            return device if self._succeeds("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) else None
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for number in range(count.value):
            index = ctypes.c_uint(number)
            if self._succeeds("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) and self._text(
                "nvmlDeviceGetUUID", device
            ).startswith(name):
                return device
        return None

    def _text(self, function: str, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT)
        known = self._succeeds(function, device, text, ctypes.c_uint(_TEXT))
        return text.value.decode(errors="replace") if known else ""

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        return int(getattr(self._library, function)(*arguments)) == 0

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code:
            raise OSError(f"{function} of {_LIBRARY} failed with {code}")

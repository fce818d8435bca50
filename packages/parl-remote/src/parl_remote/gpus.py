"""Which of a node's GPUs goes to which actor.

Whole GPUs go to one actor each; fractions share the fullest GPU that still has room, so that whole ones stay free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["GpuShares", "visible_gpus"]

_THOUSANDTHS = 1000


class GpuShares:
    """What is free of each GPU, in thousandths.

    Args:
        names: The GPUs, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._free = dict.fromkeys(names, _THOUSANDTHS)

    def take(self, amount: float) -> tuple[str, ...]:
        """GPUs for one actor; the master has checked that there are enough, so a lack gives fewer, never an error."""
        if amount <= 0:
            return ()
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            shared = sorted((free, name) for name, free in self._free.items() if free >= need)
            chosen = [name for _, name in shared[:1]]
        else:
            need = _THOUSANDTHS
            chosen = [name for name, free in self._free.items() if free == _THOUSANDTHS][: int(amount)]
        for name in chosen:
            self._free[name] -= need
        return tuple(chosen)

    def give(self, names: tuple[str, ...], amount: float) -> None:
        """Give back what `take(amount)` gave."""
        need = round(amount * _THOUSANDTHS) if amount < 1 else _THOUSANDTHS
        for name in names:
            self._free[name] += need


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, else all NVIDIA devices of the host."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() and name.strip() != "-1")
    try:
        devices = os.listdir("/dev")
    except OSError:
        return ()
    return tuple(sorted((m[1] for d in devices if (m := re.fullmatch(r"nvidia(\d+)", d))), key=int))

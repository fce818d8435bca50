"""Which GPUs this host has for actors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["visible_gpus"]


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

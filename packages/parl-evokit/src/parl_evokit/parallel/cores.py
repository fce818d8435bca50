"""How many cores this process may use."""

import os

__all__ = ["available_cores"]


def available_cores() -> int:
    """Those of its affinity mask where the system has one, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

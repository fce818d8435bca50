"""How much memory this host has left, and whether the kernel has begun to kill for it.

Nobody is told why the kernel sent SIGKILL. What can be seen is that its counter of such kills went up, or that there
was next to nothing left just before: so whoever asks gets a hint, and says "probably".
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from parl_remote.system.facilities import is_portable

__all__ = ["HostMemory", "OutOfMemoryHint", "host_memory", "usable_memory"]

_MIB = 2**20
_NEXT_TO_NOTHING = 0.03  # of the host; the kernel kills well below, after it has slowed down everything
_ROOT = Path("/")


class HostMemory(NamedTuple):
    """Bytes of a host's memory, 0 where that cannot be seen; `available` is what it could still give."""

    available: int
    total: int


def host_memory(root: Path = _ROOT) -> HostMemory:
    """This host's memory now."""
    if root is _ROOT and is_portable():
        from parl_remote.portable.processes import memory_of_host

        return HostMemory(*memory_of_host())
    try:
        with open(root / "proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return HostMemory(*(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal")))
    except (OSError, ValueError, LookupError):
        return HostMemory(0, 0)


def usable_memory(root: Path = _ROOT) -> int:
    """Bytes that this host has, or that the container around this process may use; 0 if that cannot be seen."""
    usable = host_memory(root).total
    for limit in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is no such limit, or it is "max"
            usable = min(usable, int((root / limit).read_text()))
    return usable


class OutOfMemoryHint:
    """Looks now and then, so that it can tell afterwards what was just before a process ended.

    Args:
        root: Where /proc and /sys are.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._counters = _counters(root)
        self._kills = self._count()
        self._scarce = ""

    def look(self) -> None:
        """Note how things stand; costs some tens of microseconds."""
        self._kills = self._count()
        free, total = host_memory(self._root)
        is_scarce = 0 < free < total * _NEXT_TO_NOTHING
        self._scarce = f"only {free / _MIB:.0f} of its {total / _MIB:.0f} MiB were available just before" * is_scarce

    def __call__(self) -> str:
        """Why a SIGKILL just now was probably the kernel's, in words; empty if nothing speaks for it."""
        kills = self._count()
        more = sum(kills.get(path, 0) > before for path, before in self._kills.items())
        self._kills = kills
        return "the kernel has just killed for lack of memory" if more else self._scarce

    def _count(self) -> dict[Path, int]:
        return {path: count for path in self._counters if (count := _oom_kills(path)) is not None}


def _counters(root: Path) -> list[Path]:
    """Files with a line `oom_kill <count>`: of the whole host, and of the control group that this process is in."""
    found = [root / "proc/vmstat"]
    with contextlib.suppress(OSError), open(root / "proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            group = path.lstrip("/")
            if not controllers:
                found.append(root / "sys/fs/cgroup" / group / "memory.events")
            elif "memory" in controllers.split(","):
                found.append(root / "sys/fs/cgroup/memory" / group / "memory.oom_control")
    return [path for path in found if _oom_kills(path) is not None]


def _oom_kills(path: Path) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None

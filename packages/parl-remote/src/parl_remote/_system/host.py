"""The load, the available memory and the GPUs of this host.

The reason for a SIGKILL by the kernel is not reported. Visible signs are that its counter of such kills has increased,
or that almost no memory was left just before: `OutOfMemoryHint` reports these, and messages say "probably".
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from parl_remote._portable import processes as portable
from parl_remote._system.facilities import is_portable

__all__ = [
    "HostLoad",
    "OutOfMemoryHint",
    "host_memory",
    "load_average",
    "shared_memory_free",
    "usable_memory",
    "visible_gpus",
    "write_error",
]


_MIB = 2**20
# share of the host's memory; the kernel kills far below it, after the whole host has become slow
_NEXT_TO_NOTHING = 0.03
_ROOT = Path("/")


class HostMemory(NamedTuple):
    """A host's memory in bytes, 0 if unknown; `available` is the amount still available to processes."""

    available: int
    total: int


def host_memory(root: Path = _ROOT) -> HostMemory:
    """Return this host's current memory."""
    if root is _ROOT and is_portable():
        return HostMemory(*portable.memory_of_host())
    try:
        with open(root / "proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return HostMemory(*(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal")))
    except (OSError, ValueError, LookupError):
        return HostMemory(0, 0)


def usable_memory(root: Path = _ROOT) -> int:
    """Return the memory of this host, or of the container around this process, in bytes; 0 if unknown."""
    usable = host_memory(root).total
    for limit in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is no such limit, or it is "max"
            usable = min(usable, int((root / limit).read_text()))
    return usable


class OutOfMemoryHint:
    """Samples the memory, to report the state just before a process ended.

    Args:
        root: The directory of /proc and /sys.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._counters = _counters(root)
        self._kills = self._latest = self._count()
        self._scarce = ""

    def look(self) -> None:
        """Take a sample; costs some tens of microseconds."""
        self._kills = self._latest  # not this one: a process that the kernel kills ends only when its memory is free
        self._latest = self._count()
        free, total = host_memory(self._root)
        is_scarce = 0 < free < total * _NEXT_TO_NOTHING
        self._scarce = f"only {free / _MIB:.0f} of its {total / _MIB:.0f} MiB were available just before" * is_scarce

    def __call__(self) -> str:
        """Return the text on why a recent SIGKILL was probably the kernel's; empty if there is no sign of it."""
        kills = self._count()
        more = sum(kills.get(path, 0) > before for path, before in self._kills.items())
        self._kills = self._latest = kills
        return "the kernel has just killed for lack of memory" if more else self._scarce

    def _count(self) -> dict[Path, int]:
        return {path: count for path in self._counters if (count := _oom_kills(path)) is not None}


def _counters(root: Path) -> list[Path]:
    """Return the files with a line `oom_kill <count>`: of this process's control group, without one of the host.

    The host's count has those of all its groups, such as other containers; a group's has the host's own in it.
    """
    found = []
    with contextlib.suppress(OSError), open(root / "proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            group = path.lstrip("/")
            if not controllers:
                found.append(root / "sys/fs/cgroup" / group / "memory.events")
            elif "memory" in controllers.split(","):
                found.append(root / "sys/fs/cgroup/memory" / group / "memory.oom_control")
    return [path for path in found if _oom_kills(path) is not None] or [root / "proc/vmstat"]


def _oom_kills(path: Path) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


_IDLE = slice(3, 5)  # positions in the first line of /proc/stat: idle, and waiting for a disk
_COUNTED = slice(0, 8)  # the rest repeats what is in these


class HostLoad:
    """The utilization of the CPUs between two calls."""

    def __init__(self) -> None:
        self._idle, self._total = _times()

    def busy(self) -> float:
        """Return the share of all CPUs that was busy since the last call, 0 to 1."""
        idle, total = _times()
        passed, idled = total - self._total, idle - self._idle
        self._idle, self._total = idle, total
        return round(min(1.0, max(0.0, 1.0 - idled / passed)), 3) if passed > 0 else 0.0


def load_average() -> float:
    """Return the average number of runnable processes over the last minute."""
    if hasattr(os, "getloadavg"):
        return os.getloadavg()[0]
    return portable.load_average()


def _times() -> tuple[int, int]:
    if is_portable():
        return portable.host_times()
    try:
        with open("/proc/stat", encoding="ascii") as file:
            numbers = [int(field) for field in file.readline().split()[1:]]
    except (OSError, ValueError):
        return 0, 0
    return sum(numbers[_IDLE]), sum(numbers[_COUNTED])


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, else all NVIDIA devices of the host.

    CUDA counts the devices that a process has from 0, also in a container that has only /dev/nvidia3.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip() and name.strip() != "-1")
    try:
        devices = os.listdir("/dev")
    except OSError:
        return ()
    return tuple(str(number) for number in range(sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in devices)))


def write_error(directory: Path) -> str:
    """Return why a small file cannot be written to a directory; empty if it can."""
    path = directory / f".parl-check-{os.getpid()}-{threading.get_ident()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)  # some file systems promise space that they do not have
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def shared_memory_free() -> int:
    """Return the free bytes in /dev/shm, -1 if there is none."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return -1

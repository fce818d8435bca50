"""How busy this host's CPUs are."""

from __future__ import annotations

import os

from parl_remote.system.facilities import is_portable

__all__ = ["HostLoad", "load_average"]

_IDLE = slice(3, 5)  # of the numbers of /proc/stat's first line: idle, and waiting for a disk
_COUNTED = slice(0, 8)  # the rest repeats what is in these


class HostLoad:
    """Shares of CPU time between one question and the next."""

    def __init__(self) -> None:
        self._idle, self._total = _times()

    def busy(self) -> float:
        """The share of all CPUs that was busy since the last call, 0 to 1."""
        idle, total = _times()
        passed, idled = total - self._total, idle - self._idle
        self._idle, self._total = idle, total
        return round(min(1.0, max(0.0, 1.0 - idled / passed)), 3) if passed > 0 else 0.0


def load_average() -> float:
    """How many processes have wanted to run at once over the last minute, on average."""
    if hasattr(os, "getloadavg"):
        return os.getloadavg()[0]
    from parl_remote.portable.processes import load_average as counted

    return counted()


def _times() -> tuple[int, int]:
    if is_portable():
        from parl_remote.portable.processes import host_times

        return host_times()
    try:
        with open("/proc/stat", encoding="ascii") as file:
            numbers = [int(field) for field in file.readline().split()[1:]]
    except (OSError, ValueError):
        return 0, 0
    return sum(numbers[_IDLE]), sum(numbers[_COUNTED])

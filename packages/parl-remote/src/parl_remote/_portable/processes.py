"""The portable part of `system.processes` and `system.host`: psutil takes the place of /proc and pidfd."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

__all__ = [
    "cpu_seconds",
    "descendants",
    "ended_within",
    "is_stopped",
    "listener_at",
    "resident_bytes",
    "send_signal",
    "started",
    "state_of",
]

_LOOK_AGAIN_S = 0.05
_PER_SECOND = 100  # start times are kept as hundredths, as Linux counts them


@functools.cache
def _psutil() -> Any:
    """Import psutil on first use, because it costs 10 ms and is not needed on Linux."""
    import psutil

    return psutil


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal."""
    psutil = _psutil()
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def state_of(pid: int) -> str:
    """Return the state of the process in one word."""
    psutil = _psutil()
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, without shared memory where known; 0 if it is gone."""
    psutil = _psutil()
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds; 0 if it is gone."""
    psutil = _psutil()
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return round(float(times.user + times.system), 2)


def host_times() -> tuple[int, int]:
    """Return the idle time and the total time of the host's CPUs, in hundredths of a second."""
    psutil = _psutil()
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in `user` already
    return round(idle * _PER_SECOND), round((sum(times) - guests) * _PER_SECOND)


def load_average() -> float:
    """Return how many processes wanted to run at once over the last minute, counted by psutil if need be."""
    psutil = _psutil()
    return float(psutil.getloadavg()[0])


def memory_of_host() -> tuple[int, int]:
    """Return the available and the total memory in bytes."""
    psutil = _psutil()
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def started(pid: int) -> int:
    """Return the start time of a process, which together with the pid identifies it on this host.

    Raises:
        ProcessLookupError: There is no such process, or it has ended.
    """
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise ProcessLookupError(f"process {pid} has ended")
        return round(float(process.create_time()) * _PER_SECOND)
    except psutil.Error as error:
        raise ProcessLookupError(f"there is no process {pid}") from error


def ended_within(pid: int, began: int, seconds: float | None) -> bool:
    """Wait for the end of the process with that start time; an unreaped process counts as ended."""
    psutil = _psutil()
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        try:
            if started(pid) != began:
                return True
            left_s = _LOOK_AGAIN_S if deadline is None else min(_LOOK_AGAIN_S, deadline - time.monotonic())
            if left_s <= 0:
                return False
            psutil.Process(pid).wait(left_s)
        except psutil.TimeoutExpired:
            continue
        except (psutil.Error, ProcessLookupError):
            return True


def send_signal(pid: int, began: int, number: int) -> bool:
    """Send a signal to the process with that start time; return False if it has ended. Windows always ends it."""
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        if started(pid) != began:
            return False
        process.send_signal(number)  # psutil looks once more whether it is the same process
    except psutil.AccessDenied as error:
        raise PermissionError(f"process {pid} is not this user's") from error
    except (psutil.Error, ProcessLookupError):
        return False
    return True


def descendants(pid: int) -> Iterator[int]:
    """Yield the running descendants of a process."""
    psutil = _psutil()
    try:
        for child in psutil.Process(pid).children(recursive=True):
            yield int(child.pid)
    except psutil.Error:
        return


def listener_at(port: int) -> str:
    """Return the process that listens at a port, as "by name (process 12)", as far as this user may see it."""
    psutil = _psutil()
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                if connection.pid is None:
                    return "by a process of another user"
                return f"by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""

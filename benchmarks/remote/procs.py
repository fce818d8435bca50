"""Observation of the processes of a measurement, identified by an environment variable; Linux only."""

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "PARL_BENCHMARK_RUN"  # inherited by all processes of a peer, whatever their parents


def marked(mark: str) -> list[int]:
    """Return the ids of the processes of a run."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has just ended, or belongs to another user
            continue
    return found


def pss_mb(pid: int) -> float:
    """Return the proportional memory (PSS) of a process in MB (10^6 bytes); 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0


class Watched:
    """Waits for the end of processes; to be created while they are alive."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors = [os.pidfd_open(pid) for pid in pids]

    def seconds_until_gone(self, limit_s: float) -> float:
        """Return the seconds until the last one has ended; `inf` after the limit."""
        start = time.perf_counter()
        for descriptor in self._descriptors:
            left = limit_s - (time.perf_counter() - start)
            if not select.select([descriptor], [], [], max(0.0, left))[0]:
                return float("inf")
        return time.perf_counter() - start


def end_all(mark: str) -> int:
    """Kill the remaining processes of a run, and return their number."""
    left = marked(mark)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(left)

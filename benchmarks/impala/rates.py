"""Timing of a contender, which reports every update and stops when the measurement is complete."""

import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "remote"))

from procs import MARK, end_all, marked
from tasks import sampled_steps

__all__ = ["MARK", "Rates", "end_all"]


class _Seen(NamedTuple):
    seconds: float
    sampled: int
    trained: int
    cpu_s: float = 0.0


class Rates:
    """Rates after the warm-up.

    Args:
        warm_up_s: Seconds from the first update that are not measured.
        seconds: Seconds to measure.
    """

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._first: float | None = None
        self._began: _Seen | None = None
        self._ended: _Seen | None = None

    def update(self, trained: int) -> bool:
        """Record the number of steps learned from so far; return True when the measurement is complete."""
        now = _Seen(time.perf_counter(), 0, trained)
        self._first = now.seconds if self._first is None else self._first
        if self._began is None:
            if now.seconds - self._first >= self._warm_up_s:
                self._began = now._replace(sampled=sampled_steps(), cpu_s=_cpu_s())
        elif now.seconds - self._began.seconds >= self._seconds:
            self._ended = now._replace(sampled=sampled_steps(), cpu_s=_cpu_s())
        return self._ended is not None

    def print(self) -> None:
        """Print a line of JSON: steps played and learned from per second, and CPU milliseconds of all processes.

        CPU time is that of 1000 steps learned from.
        """
        assert self._began is not None, "it ended during the warm-up"
        assert self._ended is not None, "it ended before the measurement was complete"
        seconds, sampled, trained, cpu_s = (end - begin for end, begin in zip(self._ended, self._began, strict=True))
        rates = {"sampled": sampled / seconds, "trained": trained / seconds, "cpu_ms": 1e6 * cpu_s / trained}
        print(json.dumps(rates), flush=True)


def _cpu_s() -> float:
    """Return the CPU time so far of the run's processes, none of which ends meanwhile; 0 if they are not marked."""
    ticks = 0
    for pid in marked(os.environ[MARK]) if MARK in os.environ else []:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        ticks += int(fields[11]) + int(fields[12])  # of user and of system
    return ticks / os.sysconf("SC_CLK_TCK")

"""Measurements side by side: contenders take short turns, one after the other, and their best turns count."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Table", "clock", "in_turns", "percentiles"]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock: Callable[[], float] = time.perf_counter


def use_clock(name: str) -> None:
    """Select the clock: `wall`, or `cpu` for the processor time of all threads of this process."""
    global clock
    clock = CLOCKS[name]


def in_turns(calls: Mapping[str, Callable[[], object]], turns: int = 7, seconds: float = 0.25) -> dict[str, float]:
    """Return the seconds per call of each contender: the minimum over several alternating turns.

    A turn repeats its call for some time; the machine's other load affects all contenders alike.
    """
    for call in calls.values():
        call()
        call()
    best = dict.fromkeys(calls, float("inf"))
    gc.collect()
    for _ in range(turns):
        for name, call in calls.items():
            count, start, end = 0, clock(), time.perf_counter() + seconds / turns
            while count == 0 or time.perf_counter() < end:
                call()
                count += 1
            best[name] = min(best[name], (clock() - start) / count)
    return best


def percentiles(call: Callable[[], object], seconds: float = 0.5) -> tuple[float, float]:
    """Return the median and the 99th percentile of the seconds of single calls."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        start = clock()
        call()
        times.append(clock() - start)
    times.sort()
    return times[len(times) // 2], times[int(0.99 * len(times))]


@dataclass
class Table:
    """A table whose rows are printed as soon as they are measured, so that an interrupted run has shown its results."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def head(self) -> None:
        """Print the head of the table."""
        print(
            "| what | parl-evokit | peers | ratio to the best | target |\n| --- | --- | --- | --- | --- |", flush=True
        )

    def row(
        self,
        what: str,
        unit: str,
        ours: float | tuple[float, ...],
        peers: Mapping[str, float] | None = None,
        target: str = "",
    ) -> None:
        """Add a line; the numbers are already in `unit`, which is printed after them."""
        mine = ours if isinstance(ours, tuple) else (ours,)
        others = ", ".join(f"{name} {value:.3g}" for name, value in (peers or {}).items())
        ratio = f"{mine[0] / min(peers.values()):.2f}" if peers else ""
        cells = (what, f"{' / '.join(f'{value:.3g}' for value in mine)} {unit}", others, ratio, target)
        self.rows.append(cells)
        print(f"| {' | '.join(cells)} |", flush=True)


def load() -> str:
    """Return the load average of the machine."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"

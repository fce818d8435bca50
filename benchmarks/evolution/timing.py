"""Measuring side by side: everybody gets short turns, one after the other, and counts by the best of them."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Table", "clock", "in_turns", "percentiles"]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock: Callable[[], float] = time.perf_counter


def use_clock(name: str) -> None:
    """Measure by this clock from now on: `wall`, or `cpu` for the processor time of all threads of this process."""
    global clock
    clock = CLOCKS[name]


def in_turns(calls: Mapping[str, Callable[[], object]], turns: int = 7, seconds: float = 0.25) -> dict[str, float]:
    """The seconds that one call takes, for each: the least of several turns, which go round.

    A turn repeats its call for a while; what else runs on the machine hits all of them alike.
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
    """Median and 99th percentile of the seconds that single calls take."""
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
    """Rows as they are measured; printed at once, so that a run that is cut short has shown what it had."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def head(self) -> None:
        """Begin the table."""
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
        """One line; `unit` stands after the numbers, which are in it already."""
        mine = ours if isinstance(ours, tuple) else (ours,)
        others = ", ".join(f"{name} {value:.3g}" for name, value in (peers or {}).items())
        ratio = f"{mine[0] / min(peers.values()):.2f}" if peers else ""
        cells = (what, f"{' / '.join(f'{value:.3g}' for value in mine)} {unit}", others, ratio, target)
        self.rows.append(cells)
        print(f"| {' | '.join(cells)} |", flush=True)


def load() -> str:
    """Return the load average of the machine."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"

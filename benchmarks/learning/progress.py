"""Progress of the runs: lines for a log, or one updated line for a terminal."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from one_run import result_file
from side_by_side import Outcome, Run

from parl_core.training.results import read_result

__all__ = ["Progress"]


class Progress:
    """Prints the progress of the runs.

    The remaining time of a run is estimated from its progress, or from results of the same gate and backend.

    Args:
        runs: All runs.
        folder: Folder of the results.
        jobs: Number of parallel runs.
    """

    def __init__(self, runs: Sequence[Run], folder: Path, jobs: int) -> None:
        self._runs, self._folder, self._jobs = runs, folder, jobs
        self._number = {id(run): number for number, run in enumerate(runs, 1)}
        self._usual = {(run.gate, run.backend): self._seconds_before(run) for run in runs}
        self._live = sys.stdout.isatty()

    def changed(self, run: Run) -> None:
        """Report that a run has begun or ended."""
        if run.outcome is Outcome.DONE:
            self._usual[run.gate, run.backend] = self._seconds_before(run)
        what = f"{self._number[id(run)]}/{len(self._runs)} {run}"
        if run.outcome is not Outcome.RUNNING:
            what += f": {run.outcome.value} after {_spell(time.monotonic() - run.began)}"
        print(f"{self._erased()}{what}; {self._left()}", flush=True)

    def tick(self) -> None:
        """Update the terminal's line."""
        if self._live:
            running = [f"{run} {run.progress:.0%}" for run in self._runs if run.outcome is Outcome.RUNNING]
            print(f"{self._erased()}{' | '.join(running)}; {self._left()}"[:200], end="", flush=True)

    def seconds_left(self) -> tuple[float, bool]:
        """Return the seconds until all runs are over, and whether that omits runs which are the first of their kind."""
        left, unknown = 0.0, False
        for run in self._runs:
            usual = self._usual[run.gate, run.backend]
            if run.outcome is Outcome.RUNNING:
                spent = time.monotonic() - run.began
                if run.progress > 0.0:
                    usual = spent / run.progress
                left += 0.0 if usual is None else max(usual - spent, 0.0)
                unknown |= usual is None
            elif run.outcome is Outcome.WAITING:
                usual = usual or self._like(run)
                left += usual or 0.0
                unknown |= usual is None
        return left / self._jobs, unknown

    def _like(self, run: Run) -> float | None:
        """Return the estimated seconds of an unfinished run of the same kind."""
        for other in self._runs:
            if (other.gate, other.backend) == (run.gate, run.backend) and other.outcome is Outcome.RUNNING:
                return (time.monotonic() - other.began) / other.progress if other.progress else None
        return None

    def _seconds_before(self, run: Run) -> float | None:
        pattern = result_file(self._folder, run.gate, run.backend, 0).name.replace("-0.", "-*.")
        found = []
        for path in (self._folder / run.gate).glob(pattern):
            with suppress(ValueError):  # the report names files that are no results
                found.append(float(read_result(path)["wall_s"]))
        return median(found) if found else None

    def _left(self) -> str:
        seconds, unknown = self.seconds_left()
        waiting = sum(run.outcome is Outcome.WAITING for run in self._runs)
        if unknown and not seconds:
            return f"{waiting} waiting, remaining time unknown"
        return f"{waiting} waiting, about {_spell(seconds)}{' or more' if unknown else ''} left"

    def _erased(self) -> str:
        return "\r\033[K" if self._live else ""


def _spell(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

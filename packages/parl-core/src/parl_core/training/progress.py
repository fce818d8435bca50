"""The progress of a loop on the terminal: a bar where a person watches, plain lines where a file does."""

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from parl_core.training.events import Callback, Ended, Evaluation, Update

__all__ = ["Progress"]

# A log that is read later wants a line now and then, not one an update.
SECONDS_BETWEEN_LINES = 5.0


class Progress(Callback):
    """Shows steps, the mean return of the latest training episodes, the latest evaluation, the speed and the time left.

    Args:
        out: where to; default: standard error.
        window: training episodes whose returns are averaged.
        clock: seconds from an arbitrary zero.
    """

    def __init__(
        self, out: TextIO | None = None, window: int = 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._returns: deque[float] = deque(maxlen=window)
        self._evaluated: float | None = None
        self._bar: Any = None
        self._printed_at = -float("inf")
        self._step, self._total = 0, 0
        self._began_at: tuple[int, float] | None = None  # steps and seconds of a run when this program took it up
        self._seconds = 0.0

    def on_update(self, update: Update) -> None:
        self._returns.extend(episode.episode_return for episode in update.episodes)
        self._step, self._total, self._seconds = update.step, update.total_steps, update.seconds
        if self._began_at is None:
            self._began_at = 0, 0.0
        if self._out.isatty():
            self._draw(update)
        elif self._clock() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._print()

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluated = evaluation.mean
        if evaluation.step > self._step:
            self._step, self._seconds = evaluation.step, evaluation.seconds
        if self._bar is None:
            self._print()
        else:
            self._bar.set_postfix_str(self._figures())

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        place = {"step": self._step, "total": self._total, "seconds": self._seconds}
        return {"returns": list(self._returns), "evaluated": self._evaluated, **place}

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned."""
        self._returns.extend(state["returns"])
        self._evaluated = state["evaluated"]
        self._step, self._total, self._seconds = state["step"], state["total"], state["seconds"]
        self._began_at = self._step, self._seconds

    def on_end(self, ended: Ended) -> None:
        if self._bar is not None:
            self._bar.close()
        print(f"Stopped after {ended.step} steps and {ended.seconds:.1f} s: {ended.reason}", file=self._out, flush=True)

    def _draw(self, update: Update) -> None:
        if self._bar is None:
            initial = 0 if self._began_at is None else self._began_at[0]
            size = _bar_size(self._out)
            self._bar = _bar_class()(total=update.total_steps, initial=initial, unit="step", file=self._out, **size)
        self._bar.set_postfix_str(self._figures(), refresh=False)
        self._bar.update(update.step - self._bar.n)

    def _print(self) -> None:
        self._printed_at = self._clock()
        of_all = f"/{self._total}" if self._total else ""  # an evaluation may come before the first report
        print(f"step {self._step}{of_all}  {self._figures()}{self._pace()}", file=self._out, flush=True)

    def _figures(self) -> str:
        parts = [f"return {sum(self._returns) / len(self._returns):.1f}"] if self._returns else []
        if self._evaluated is not None:
            parts.append(f"evaluated {self._evaluated:.1f}")
        return "  ".join(parts) or "no episode has ended yet"

    def _pace(self) -> str:
        """Steps a second and time left; a bar shows them by itself."""
        steps, seconds = self._began_at or (0, 0.0)
        if not self._total or self._seconds <= seconds or self._step <= steps:
            return ""
        speed = (self._step - steps) / (self._seconds - seconds)
        return f"  {_rounded(speed)} steps/s  {_duration((self._total - self._step) / speed)} left"


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.2g}"


def _duration(seconds: float) -> str:
    whole = math.ceil(max(seconds, 0.0))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _bar_size(out: TextIO) -> dict[str, Any]:
    """How large a bar may be; a terminal that knows no size (a container's, that of `script`) would show none."""
    try:
        columns, rows = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):  # nothing that has a file descriptor
        return {"dynamic_ncols": True}
    return {"dynamic_ncols": True} if columns and rows else {"ncols": columns or 100, "nrows": rows or 24}


def _bar_class() -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in its stubs only
        """A bar with a lock of its own: tqdm's default one is shared with other processes and may start one."""

    Bar.set_lock(threading.RLock())
    return Bar

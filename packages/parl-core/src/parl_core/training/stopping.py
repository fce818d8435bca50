"""Callbacks that end a loop before its budget, and the one that keeps the best weights."""

import math
from collections import deque
from typing import Any, Protocol

from parl_core.checks import check_int, check_positive
from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.run import Run

__all__ = ["ConfirmedReturn", "KeepBest", "TimeBudget"]


class ConfirmedReturn(Callback):
    """Stops when several evaluations in a row reach a mean return; one may be luck.

    Args:
        threshold: mean return that counts as solved.
        times: evaluations in a row, at least 1.
    """

    def __init__(self, threshold: float, times: int = 2) -> None:
        self._threshold = threshold
        self._latest: deque[float] = deque(maxlen=check_int("times", times))

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        self._latest.append(evaluation.mean)
        if len(self._latest) < (self._latest.maxlen or 1) or min(self._latest) < self._threshold:
            return None
        found = ", ".join(f"{mean:.1f}" for mean in self._latest)
        return f"evaluations in a row reached {self._threshold:g}: {found}"


class TimeBudget(Callback):
    """Stops after the first update that ends later than `seconds` into the loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = check_positive("seconds", seconds)

    def on_update(self, update: Update) -> str | None:
        if update.seconds < self._seconds:
            return None
        return f"the time budget of {self._seconds:g} s is used up"


class SavableAgent(Protocol):
    """What keeping the best needs of an agent."""

    def get_weights(self) -> Any: ...

    def set_weights(self, weights: Any, /) -> None: ...

    def save(self, path: Any, /) -> Any: ...

    def restore(self, path: Any, /) -> Any: ...


class KeepBest(Callback):
    """Keeps the agent of the best evaluation, and puts it back when training is over.

    Of equally good evaluations the latest counts, because its agent has seen the most. When an error or Ctrl-C ends
    the loop, the agent in memory stays as it is; the file is whole and holds the best so far.

    Args:
        agent: whose weights.
        run: where `name` is saved after every improvement, optimizer and all; None keeps the weights in memory only.
        name: of the file in the run's folder.
    """

    def __init__(self, agent: SavableAgent, run: Run | None = None, name: str = "best.ckpt") -> None:
        self._agent, self._run, self._name = agent, run, name
        self._best = -math.inf
        self._weights: Any = None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.mean < self._best:
            return
        self._best = evaluation.mean
        if self._run is None:
            self._weights = self._agent.get_weights()
        else:
            what = f"agent after {evaluation.step} steps, evaluated return {evaluation.mean:.1f}"
            self._run.save(self._agent, self._name, what)

    def on_end(self, ended: Ended) -> None:
        if self._best == -math.inf or ended.stop not in (Stop.BUDGET, Stop.CALLBACK):
            return
        if self._run is None:
            self._agent.set_weights(self._weights)
        else:
            self._agent.restore(self._run.path / self._name)

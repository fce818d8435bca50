"""Callbacks that end a loop before its budget, and those that keep weights: the best ones, and the latest."""

import math
from collections import deque
from typing import Any, Protocol

from parl_core.checks import check_int, check_non_negative, check_positive, check_real
from parl_core.stats import statistics_of
from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.run import Run

__all__ = ["ConfirmedReturn", "KeepBest", "KeepLatest", "NoImprovement", "StepBudget", "TimeBudget"]


class ConfirmedReturn(Callback):
    """Stops when several evaluations in a row reach a mean return; one may be luck.

    Args:
        threshold: mean return that counts as solved.
        times: evaluations in a row, at least 1.

    Raises:
        HyperparameterError: a number is out of its range, or NaN.
    """

    def __init__(self, threshold: float, times: int = 2) -> None:
        self._threshold = check_real("threshold", threshold)
        self._latest: deque[float] = deque(maxlen=check_int("times", times))

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        self._latest.append(evaluation.mean)
        return self.on_resume()

    def on_resume(self) -> str | None:
        """Why the run is over, if it is: a run that was killed while it ended does not train on."""
        if len(self._latest) < (self._latest.maxlen or 1) or min(self._latest) < self._threshold:
            return None
        found = ", ".join(f"{mean:.1f}" for mean in self._latest)
        return f"evaluations in a row reached {self._threshold:g}: {found}"

    def get_state(self) -> list[float]:
        """What a checkpoint holds."""
        return list(self._latest)

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned."""
        self._latest.extend(state)


class NoImprovement(Callback):
    """Stops when the best evaluation is long ago: learning has come to its end, or to a dead one.

    Args:
        evaluations: how many in a row may bring no improvement, at least 1.
        by: a mean return counts as better when it is more than this above the best, at least 0.
    """

    def __init__(self, evaluations: int = 10, by: float = 0.0) -> None:
        self._patience, self._by = check_int("evaluations", evaluations), check_non_negative("by", by)
        self._best, self._since = -math.inf, 0

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        if evaluation.mean > self._best + self._by:
            self._best, self._since = evaluation.mean, 0
            return None
        self._since += 1
        return self.on_resume()

    def on_resume(self) -> str | None:
        """Why the run is over, if it is."""
        if self._since < self._patience:
            return None
        return f"{self._since} evaluations in a row were no better than {self._best:.1f}"

    def get_state(self) -> dict[str, float]:
        """What a checkpoint holds."""
        return {"best": self._best, "since": self._since}

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned."""
        self._best, self._since = state["best"], state["since"]


class TimeBudget(Callback):
    """Stops after the first update that ends later than `seconds` into the loop; a resumed run goes on counting."""

    def __init__(self, seconds: float) -> None:
        self._seconds = check_positive("seconds", seconds)

    def on_update(self, update: Update) -> str | None:
        if update.seconds < self._seconds:
            return None
        return f"the time budget of {self._seconds:g} s is used up"


class StepBudget(Callback):
    """Stops after the first update at or after a step, without touching schedules that go over the whole budget.

    A run that is to be trained in portions stops here, and `Run.resume` goes on with it later.
    """

    def __init__(self, steps: int) -> None:
        self._steps = check_int("steps", steps)

    def on_update(self, update: Update) -> str | None:
        return f"the portion of {self._steps} steps is done" if update.step >= self._steps else None


class SavableAgent(Protocol):
    """What keeping weights needs of an agent."""

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
        normalization: the environment whose running statistics belong to the agent; they are kept and put back with it.
    """

    def __init__(
        self,
        agent: SavableAgent,
        run: Run | None = None,
        name: str = "best.ckpt",
        *,
        normalization: Any = None,
    ) -> None:
        self._agent, self._run, self._name = agent, run, name
        self._normalization = normalization
        self._statistics: Any = None
        self._best = -math.inf
        self._weights: Any = None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if not evaluation.mean >= self._best:  # NaN is no better than anything
            return
        self._best = evaluation.mean
        if self._run is None:
            self._weights = self._agent.get_weights()
            if self._normalization is not None:
                self._statistics = statistics_of(self._normalization).get_state()
        else:
            what = f"agent after {evaluation.step} steps, evaluated return {evaluation.mean:.1f}"
            self._run.save(self._agent, self._name, what, normalization=self._normalization)

    def on_end(self, ended: Ended) -> None:
        if self._best == -math.inf or ended.stop not in (Stop.BUDGET, Stop.CALLBACK):
            return
        if self._run is None:
            self._agent.set_weights(self._weights)
            if self._statistics is not None:
                statistics_of(self._normalization).set_state(self._statistics)
        else:
            agent: Any = self._agent  # which knows the option where it is given
            options = {} if self._normalization is None else {"normalization": self._normalization}
            agent.restore(self._run.path / self._name, **options)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds; of a run with a folder the weights are in its file."""
        return {"best": self._best, "weights": self._weights, "statistics": self._statistics}

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned; a best file that somebody removed is no best any more."""
        if self._run is not None and state["best"] != -math.inf:
            path = self._run.path / self._name
            if not path.exists():
                return
            self._run.saved(path, f"agent with the evaluated return {state['best']:.1f}")
        self._best, self._weights = state["best"], state["weights"]
        self._statistics = state.get("statistics")


class KeepLatest(Callback):
    """Saves the agent after every evaluation, and as it is when training ends.

    It is for looking at and for use; going on needs a checkpoint (`parl_core.training.checkpoints`). Put it before
    `KeepBest`, which puts the best weights back at the end. An agent that an error has left is not saved.

    Args:
        agent: whose weights.
        run: whose folder takes the file.
        name: of the file.
        normalization: the environment whose running statistics belong to the agent.
    """

    def __init__(self, agent: SavableAgent, run: Run, name: str = "last.ckpt", *, normalization: Any = None) -> None:
        self._agent, self._run, self._name = agent, run, name
        self._normalization = normalization

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._save(evaluation.step)

    def on_end(self, ended: Ended) -> None:
        if ended.stop in (Stop.BUDGET, Stop.CALLBACK):
            self._save(ended.step)

    def _save(self, step: int) -> None:
        what = f"latest agent, after {step} steps"
        self._run.save(self._agent, self._name, what, normalization=self._normalization)

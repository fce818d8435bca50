"""Callbacks of the training loops: progress on the terminal, early ends, and weights to keep.

`standard_callbacks` returns those that most runs use.
"""

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from parl_core.checks import check_int, check_non_negative, check_positive, check_real
from parl_core.stats import statistics_of
from parl_core.training.curves import LearningCurve
from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.logs import CsvTables, JsonLines, TensorBoard
from parl_core.training.run import Run

__all__ = [
    "ConfirmedReturn",
    "KeepBest",
    "KeepLatest",
    "NoImprovement",
    "Progress",
    "SavableAgent",
    "StepBudget",
    "TimeBudget",
    "standard_callbacks",
]

# Seconds between two lines of a log, which would be too long with one line per update.
SECONDS_BETWEEN_LINES = 5.0


class ConfirmedReturn(Callback):
    """Stops when several evaluations in a row reach a mean return, because a single one may be luck.

    Args:
        threshold: Mean return that counts as solved.
        times: Evaluations in a row, at least 1.

    Raises:
        HyperparameterError: A number is out of its range, or NaN.
    """

    needs_evaluations = True

    def __init__(self, threshold: float, times: int = 2) -> None:
        self._threshold = check_real("threshold", threshold)
        self._latest: deque[float] = deque(maxlen=check_int("times", times))

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        self._latest.append(evaluation.mean)
        return self.on_resume()

    def on_resume(self) -> str | None:
        """Return the reason why the run is over, or None; a run killed at its end does not continue training."""
        if len(self._latest) < (self._latest.maxlen or 1) or min(self._latest) < self._threshold:
            return None
        found = ", ".join(f"{mean:.1f}" for mean in self._latest)
        return f"evaluations in a row reached {self._threshold:g}: {found}"

    def get_state(self) -> list[float]:
        """Return the state for a checkpoint."""
        return list(self._latest)

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._latest.extend(state)


class NoImprovement(Callback):
    """Stops when the best evaluation is too long ago, because learning has finished or stalled.

    Args:
        evaluations: Number of evaluations in a row that may bring no improvement, at least 1.
        by: An improvement is a mean return that exceeds the best by more than this; at least 0.
    """

    needs_evaluations = True

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
        """Return the reason why the run is over, or None."""
        if self._since < self._patience:
            return None
        return f"{self._since} evaluations in a row were no better than {self._best:.1f}"

    def get_state(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"best": self._best, "since": self._since}

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._best, self._since = state["best"], state["since"]


class TimeBudget(Callback):
    """Stops at the first step (or rollout) that ends later than `seconds` into the loop, resumed runs included."""

    def __init__(self, seconds: float) -> None:
        self._seconds = check_positive("seconds", seconds)

    def on_advance(self, step: int, seconds: float) -> str | None:  # noqa: ARG002  # what every callback is given
        return f"the time budget of {self._seconds:g} s is used up" if seconds >= self._seconds else None


class StepBudget(Callback):
    """Stops at a step, or right after it, without touching schedules that go over the whole budget.

    Loops count a step of all environments at once; `train_on_policy` counts a rollout.

    Use it to train a run in portions: `Run.resume` continues the run later.
    """

    def __init__(self, steps: int) -> None:
        self._steps = check_int("steps", steps)

    def on_advance(self, step: int, seconds: float) -> str | None:  # noqa: ARG002  # what every callback is given
        return f"the portion of {self._steps} steps is done" if step >= self._steps else None


class SavableAgent(Protocol):
    """An agent whose weights can be saved."""

    def get_weights(self) -> Any: ...

    def set_weights(self, weights: Any, /) -> None: ...

    def save(self, path: Any, /) -> Any: ...

    def restore(self, path: Any, /) -> Any: ...


class KeepBest(Callback):
    """Callback that keeps the agent of the best evaluation, and restores it when training is over.

    Among equally good evaluations it keeps the latest, whose agent has the most experience. When an error
    or Ctrl-C ends the loop, the agent in memory does not change; the file is complete and has the best agent so far.

    Args:
        agent: The agent to keep.
        run: The run in whose folder `name` is saved after every improvement, with the optimizer; None keeps the weights
            in memory only.
        name: Name of the file in the run's folder.
        normalization: The environment whose running statistics belong to the agent; they are kept and restored with it.
    """

    needs_evaluations = True

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
            agent: Any = self._agent  # custom agents need not have this option
            options = {} if self._normalization is None else {"normalization": self._normalization}
            agent.restore(self._run.path / self._name, **options)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; of a run with a folder the weights are in its file."""
        return {"best": self._best, "weights": self._weights, "statistics": self._statistics}

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned; a best file that has been removed no longer counts."""
        if self._run is not None and state["best"] != -math.inf:
            path = self._run.path / self._name
            if not path.exists():
                return
            self._run.saved(path, f"agent with the evaluated return {state['best']:.1f}")
        self._best, self._weights = state["best"], state["weights"]
        self._statistics = state.get("statistics")


class KeepLatest(Callback):
    """Saves the agent after every evaluation, and at the end of training.

    The file is for inspection and for use; a run continues from a checkpoint (`parl_core.training.checkpoints`). Put
    this callback before `KeepBest`, which restores the best weights at the end. After an error the agent is not saved.

    Args:
        agent: The agent to save.
        run: The run whose folder receives the file.
        name: Name of the file.
        normalization: The environment whose running statistics belong to the agent.
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


class Progress(Callback):
    """Shows steps, the mean return of the latest training episodes, the latest evaluation, the speed and the time left.

    Args:
        out: The stream to write to; default: standard error.
        window: Number of training episodes whose returns are averaged.
        clock: The function that returns seconds from an arbitrary zero.
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
        """Return the state for a checkpoint."""
        place = {"step": self._step, "total": self._total, "seconds": self._seconds}
        return {"returns": list(self._returns), "evaluated": self._evaluated, **place}

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._returns.extend(state["returns"])
        self._evaluated = state["evaluated"]
        self._step, self._total, self._seconds = state["step"], state["total"], state["seconds"]
        self._began_at = self._step, self._seconds

    def on_end(self, ended: Ended) -> None:
        if self._bar is not None:
            self._bar.close()
        reason = ended.stop.value if ended.stop is Stop.FAILED else ended.reason  # the handler of the error reports it
        print(f"Stopped after {ended.step} steps and {ended.seconds:.1f} s: {reason}", file=self._out, flush=True)

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
        return "  ".join(parts) or "no return yet"

    def _pace(self) -> str:
        """Return steps a second and time left, for output without a bar; empty before any progress."""
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
    """Return the size of the bar; without it, a terminal of unknown size (as in a container) would show none."""
    try:
        columns, rows = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):  # an object without a file descriptor
        return {"dynamic_ncols": True}
    return {"dynamic_ncols": True} if columns and rows else {"ncols": columns or 100, "nrows": rows or 24}


def _bar_class() -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in its stubs only
        """A bar with its own lock, because tqdm's default lock is shared between processes and may start one."""

    Bar.set_lock(threading.RLock())
    return Bar


class _InterruptionNotice(Callback):
    """Prints the saved files before anything else is closed, because a second signal may follow."""

    ends_first = True

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_end(self, ended: Ended) -> None:
        if ended.stop is Stop.INTERRUPTED:
            self._run.tell_interrupted()


def standard_callbacks(
    run: Run,
    agent: SavableAgent,
    *,
    title: str = "",
    goal: float | None = None,
    confirmations: int = 2,
    max_seconds: float | None = None,
    max_steps: int | None = None,
    patience: int | None = None,
    steps: str = "environment steps",
    normalization: Any = None,
    progress: bool = True,
) -> list[Callback]:
    """Return the standard callbacks: progress, logs, a learning curve, best and latest weights, and limits.

    Logs are TensorBoard's, CSV tables and JSON lines.

        agent = parl.Agent(parl.algorithms.PPO(parl.networks.ActorCritic(act_dim=2)), seed=0)
        settings = training.OnPolicySettings(total_steps=1_024, n_steps=128)
        with training.Run("cartpole") as run, training.make_vector_env("CartPole-v1", num_envs=4) as envs:
            callbacks = training.standard_callbacks(run, agent, goal=475.0)
            training.train_on_policy(agent, envs, settings, callbacks=callbacks, seed=0)

    Args:
        run: The run whose folder receives all files.
        agent: The agent, whose best weights are kept in `best.ckpt` and restored at the end; the latest are in
            `last.ckpt`.
        title: Title of the learning curve.
        goal: Mean return of an evaluation that counts as solved; None trains until the budget is used up.
        confirmations: Number of evaluations in a row that have to reach the goal.
        max_seconds: Time budget in seconds; None for no limit.
        max_steps: The step at which to stop before the end of the loop's own budget, for a run in parts; None for
            no limit.
        patience: The number of evaluations without improvement after which to stop; None for never.
        steps: The unit of the loop's steps, for the learning curve, such as `"gradient steps"` of an offline loop.
        normalization: The environment whose running statistics belong to the agent (`NormalizeVector`): saved with it.
        progress: Whether to show progress on standard error.
    """
    callbacks: list[Callback] = [
        _InterruptionNotice(run),
        KeepLatest(agent, run, normalization=normalization),
        KeepBest(agent, run, normalization=normalization),
        TensorBoard(run),
        CsvTables(run),
        LearningCurve(run, title or run.name, goal, steps=steps),
        JsonLines(run),  # after all other files: its last line marks the end of the run
        *([Progress()] if progress else []),  # after callbacks that save, so that everything it shows is saved
    ]
    if goal is not None:
        callbacks.append(ConfirmedReturn(goal, confirmations))
    if max_seconds is not None:
        callbacks.append(TimeBudget(max_seconds))
    if max_steps is not None:
        callbacks.append(StepBudget(max_steps))
    if patience is not None:
        callbacks.append(NoImprovement(patience))
    return callbacks

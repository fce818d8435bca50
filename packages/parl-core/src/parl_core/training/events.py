"""Reports of a training loop to its callbacks, the callback itself, and metrics collected between two reports.

A callback is called for four kinds of events:

    loop ── step, seconds ─> callbacks      after every step of the environments, or rollout of them
         ── Update ────────> callbacks      after updates of the agent
         ── Evaluation ────> callbacks      after every evaluation
         ── Ended ─────────> callbacks      once, however the loop ends
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core import logger
from parl_core._deprecation import class_of_old_name

__all__ = [
    "Callback",
    "Ended",
    "EndedEpisodes",
    "Episode",
    "Evaluation",
    "LoopCounter",
    "LossMeans",
    "MetricMeans",
    "RunningEpisodes",
    "Stop",
    "Update",
    "tell_end",
]


@dataclass(frozen=True)
class Episode:
    """One finished episode.

    Attributes:
        episode_return: The undiscounted sum of its rewards; for a team, of the team's rewards.
        length: Number of its steps.
        agent_returns: The sum of each agent's rewards, for an evaluated team, in the order of `JointEnv.agents`.
    """

    episode_return: float
    length: int
    agent_returns: tuple[float, ...] = ()


@dataclass(frozen=True)
class Update:
    """A report of an update, and of the time since the previous update.

    Attributes:
        step: Environment steps so far, over all environments.
        total_steps: The loop's budget of environment steps.
        seconds: The seconds since the loop began, evaluations included.
        episodes: The episodes that ended since the previous update.
        losses: The losses that the agent's update returned, by name.
        schedules: The scheduled values that were used, by name, such as `lr`.
        metrics: Further numbers by their full names (`group/name`), such as `lag/mean`.
    """

    step: int
    total_steps: int
    seconds: float
    episodes: Sequence[Episode] = ()
    losses: Mapping[str, float] = field(default_factory=dict)
    schedules: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Episodes played without exploration and without learning.

    Attributes:
        episodes: One for each evaluated episode, in the order of their seeds.
        step: Environment steps that training had taken by then.
        seconds: The seconds since the loop began.
    """

    episodes: Sequence[Episode]
    step: int = 0
    seconds: float = 0.0

    @property
    def returns(self) -> list[float]:
        """The episodes' returns."""
        return [episode.episode_return for episode in self.episodes]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes (population)."""
        return float(np.std(self.returns))

    @property
    def agent_means(self) -> list[float]:
        """Mean return of each agent of a team, in the order of `JointEnv.agents`; empty for a single agent."""
        return [float(np.mean(returns)) for returns in zip(*(one.agent_returns for one in self.episodes), strict=True)]

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        lengths, agents = ([getattr(one, name) for one in self.episodes] for name in ("length", "agent_returns"))
        of_agents = {"agent_returns": [list(returns) for returns in agents]} if any(agents) else {}
        return {"returns": self.returns, "lengths": lengths, **of_agents, "step": self.step, "seconds": self.seconds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `get_state` described."""
        agents = state.get("agent_returns", [()] * len(state["returns"]))
        rows = zip(state["returns"], state["lengths"], map(tuple, agents), strict=True)
        return cls([Episode(*row) for row in rows], int(state["step"]), float(state["seconds"]))


class Stop(Enum):
    """The reason for the end of a loop."""

    BUDGET = "the step budget is used up"
    CALLBACK = "a callback asked for it"
    INTERRUPTED = "it was interrupted"
    FAILED = "an error ended it"


@dataclass(frozen=True)
class Ended:
    """The end of a loop.

    Attributes:
        stop: The kind of end.
        reason: The reason in words, with the values.
        step: Environment steps that were taken.
        seconds: The seconds since the loop began.
        evaluations: All of them, in order.
    """

    stop: Stop
    reason: str
    step: int
    seconds: float
    evaluations: Sequence[Evaluation] = ()


class Callback:
    """An observer of a loop; a subclass overrides the methods that it needs.

    `on_advance`, `on_update`, `on_evaluation` and `on_resume` may return a reason to stop, in words; the loop then ends
    after all callbacks were called. A callback with state across events saves it in checkpoints with `get_state` and
    restores it with `set_state`. A callback that does nothing without evaluations sets `needs_evaluations`: a loop
    without an evaluator then warns. One that calls other callbacks has them in `called_callbacks`: checkpoints have
    their state, too. If it calls them in its `on_end`, it sets `ends_first`, and ends before them, whatever their order
    in the loop.
    """

    needs_evaluations: bool = False
    ends_first: bool = False
    called_callbacks: Sequence["Callback"] = ()

    def on_advance(self, step: int, seconds: float) -> str | None:
        """Handle new steps; called whenever the loop has counted some, and at the start of a resumed run.

        Args:
            step: Environment steps so far (gradient steps of `train_offline`).
            seconds: The seconds since the loop began.
        """

    def on_update(self, update: Update) -> str | None:
        """Handle an update of the agent; called after each (in `train_off_policy` every `report_every` steps)."""

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        """Handle an evaluation; called after each."""

    def on_end(self, ended: Ended) -> None:
        """Handle the end of the loop; called once, however it ended."""

    def on_resume(self) -> str | None:
        """Handle a resumed run before its first step, after `set_state`; a reason means that the run had ended."""

    def get_state(self) -> Any:
        """Return the state for a checkpoint (see `parl_core.checkpoint`); called before each checkpoint is written."""
        return None

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned; called once, before a resumed loop continues."""


def tell_end(callbacks: Sequence[Callback], ended: Ended) -> list[Exception]:
    """Report the end to every callback, also after one has failed, and return the exceptions that they raised.

    The loop raises them unless an error or Ctrl-C, which they would hide, caused the end.
    """
    failures = []
    for callback in sorted(callbacks, key=lambda one: not one.ends_first):
        try:
            callback.on_end(ended)
        except Exception as error:
            logger.error("%s failed at the end of training: %s", type(callback).__name__, str(error))
            failures.append(error)
    return failures


class MetricMeans:
    """Means of the named scalars that an algorithm's `learn` returns.

    Args:
        names: Names of the parts of the result, in order: the algorithm's `FIGURES`.
        read: The function that converts results on the device to floats, and raises an error for numbers that are not
            finite. It is called for all results at once, after at most 100 updates, so that no update waits. None:
            results are floats.
    """

    UNREAD = 100

    def __init__(self, names: tuple[str, ...] = ("loss",), read: Callable[[Any], Any] | None = None) -> None:
        self._names = names
        self._read = read
        self._unread: list[Any] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, result: Any) -> None:
        """Add the result of one update: a loss, or a tuple of them; values that are not floats are left out."""
        if self._read is None:
            self._add(result)
            return
        self._unread.append(result)
        if len(self._unread) >= self.UNREAD:
            self.settle()

    def settle(self) -> None:
        """Read all results.

        Raises:
            DivergedError: A loss is not finite.
        """
        unread, self._unread = self._unread, []
        for result in unread:
            self._add(self._read(result) if self._read is not None else result)

    def _add(self, result: Any) -> None:
        for name, part in zip(self._names, result if isinstance(result, tuple) else (result,), strict=False):
            if isinstance(part, float):
                self._sums[name] = self._sums.get(name, 0.0) + part
                self._counts[name] = self._counts.get(name, 0) + 1

    def take_means(self) -> dict[str, float]:
        """Return the mean of each metric since the last call."""
        self.settle()
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        self.settle()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


class LossMeans:
    """The means of losses by name.

    Args:
        read: The function that converts the result of an update to losses by name, and raises an error for numbers that
            are not finite. It is called for all results at once, after 100 updates at most, so that no update waits for
            a device.
    """

    def __init__(self, read: Callable[[Any], Mapping[str, float]]) -> None:
        self._read = read
        self._unread: list[Any] = []
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, result: Any) -> None:
        """Add the result of one update."""
        self._unread.append(result)
        if len(self._unread) >= MetricMeans.UNREAD:
            self.settle()

    def settle(self) -> None:
        """Read all results.

        Raises:
            DivergedError: A loss is not finite.
        """
        unread, self._unread = self._unread, []
        for result in unread:
            for name, loss in self._read(result).items():
                self._sums[name] = self._sums.get(name, 0.0) + loss
            self._count += 1

    def take_means(self) -> dict[str, float]:
        """Return the mean of each loss over the updates since the last call."""
        self.settle()
        means = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        self.settle()
        return {"sums": dict(self._sums), "count": self._count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._sums, self._count = dict(state["sums"]), int(state["count"])


class EndedEpisodes:
    """Episodes that ended since the previous report."""

    def __init__(self) -> None:
        self._episodes: list[Episode] = []

    def add(self, episodes: Iterable[Episode]) -> None:
        """Add episodes."""
        self._episodes += episodes

    def take(self) -> list[Episode]:
        """Return the episodes since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def get_state(self) -> list[list[float]]:
        """Return the state for a checkpoint."""
        return [[episode.episode_return, episode.length] for episode in self._episodes]

    def set_state(self, state: Sequence[Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._episodes = [Episode(*episode) for episode in state]


class LoopCounter:
    """A number that a loop keeps between rounds."""

    def __init__(self, value: int) -> None:
        self.value = value

    def get_state(self) -> int:
        """Return the state for a checkpoint."""
        return self.value

    def set_state(self, state: int) -> None:
        """Restore a state that `get_state` returned."""
        self.value = state


class RunningEpisodes:
    """Returns and lengths of the running episodes, per environment.

    Args:
        num_envs: Environments of the vector.
    """

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def step(self, reward: NDArray[Any], ended: NDArray[np.int64], infos: Mapping[str, Any]) -> list[Episode]:
        """Count a step of every environment.

        Args:
            reward: `[num_envs]`.
            ended: Indices of the environments whose episodes ended with this step.
            infos: The infos of the step. If they or their `final_info` have Gymnasium's `episode`, and its length is
                the one counted here, its return is used, because a wrapper may have scaled rewards. Statistics of
                another length count other steps: those inside of a frame skip, or those of Gymnasium's vector wrapper,
                which starts again in all environments whenever `reset_mask` resets one.

        Returns:
            the episodes that ended.
        """
        self._returns += reward
        self._lengths += 1
        episodes = []
        for i in ended.tolist():
            counted = Episode(float(self._returns[i]), int(self._lengths[i]))
            reported = (_reported_episode(where, i) for where in (infos, infos.get("final_info", {})))
            episodes.append(next((one for one in reported if one and one.length == counted.length), counted))
            self._returns[i], self._lengths[i] = 0.0, 0
        return episodes

    def begin_again(self) -> None:
        """Discard the running episodes, because all environments were reset."""
        self._returns[:], self._lengths[:] = 0.0, 0

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"returns": self._returns, "lengths": self._lengths}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._returns, self._lengths = state["returns"], state["lengths"]


def _reported_episode(infos: Mapping[str, Any], index: int) -> Episode | None:
    episode, which = infos.get("episode"), infos.get("_episode")
    if not isinstance(episode, Mapping) or which is None or not which[index]:
        return None
    found: list[Any] = [episode.get(name) for name in ("r", "l")]
    if any(one is None or (isinstance(one, np.ndarray) and one.dtype.kind not in "iuf") for one in found):
        return None  # an environment's own info of this name
    returns, lengths = found
    return Episode(float(returns[index]), int(lengths[index]))


def __getattr__(name: str) -> type:
    return class_of_old_name(__name__, name, {"Figures": MetricMeans})

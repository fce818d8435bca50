"""Fragments: a few steps of one group of environments, as an actor sends them and a learner takes them.

An array `x[i, t]` belongs to step t of the group's environment i, so that the rows of one environment follow each other
when fragments are joined (`fragment_batch`). Every fragment carries the version of the weights that chose its actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parl_core.env.group_step import GroupStep
from parl_core.nested import Observations, map_nested
from parl_core.training.events import Episode

__all__ = ["ActorSeconds", "Fragment", "FragmentWriter", "Task"]


class Task(NamedTuple):
    """Which fragment: the `round`-th one of a group of environments, both counted from 0."""

    group: int
    round: int


class ActorSeconds(NamedTuple):
    """Where an actor's time went.

    Attributes:
        env: in the environments' own code.
        policy: in choosing actions and writing down what happened.
        idle: between fragments: sending one, taking weights, waiting for the next call.
    """

    env: float = 0.0
    policy: float = 0.0
    idle: float = 0.0


@dataclass
class Fragment:
    """`T` steps of the `n` environments of a group.

    Attributes:
        task: which fragment it is.
        version: updates that the weights had seen which chose the actions; where several did, the oldest.
        obs: `[n, T, *obs]`, or a dictionary of such: what the action was chosen from.
        action: `[n, T, *act]`, as the policy drew it, before it was made valid in the action space.
        reward: `[n, T]`.
        terminated: `[n, T]`.
        truncated: `[n, T]`.
        policy: what else the policy said of each step, by name, `[n, T, ...]`.
        last_obs: `[n, *obs]`, what the last step led to; None where learning does not need it.
        final_rows: int64 `[k]`, `i * T + t` of the steps whose episodes were truncated and did not terminate.
        final_obs: `[k, *obs]`, the last observations of these episodes; None where there are none.
        episodes: those that ended.
        seconds: where the actor's time went.
    """

    task: Task
    version: int
    obs: Observations
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: dict[str, NDArray[Any]]
    last_obs: Observations
    final_rows: NDArray[np.int64]
    final_obs: Observations
    episodes: tuple[Episode, ...] = ()
    seconds: ActorSeconds = field(default_factory=ActorSeconds)


class FragmentWriter:
    """Takes down the steps of a group one after another.

    Args:
        task: which fragment is begun.
        n_steps: its length T.
    """

    def __init__(self, task: Task, n_steps: int) -> None:
        self.task = task
        self.n_steps = n_steps
        self.length = 0
        self.version: int | None = None
        self._obs: Observations = None
        self._columns: dict[str, NDArray[Any]] = {}
        self._policy: dict[str, NDArray[Any]] = {}
        self._finals: list[tuple[int, Any]] = []
        self._episodes: list[Episode] = []

    @property
    def is_full(self) -> bool:
        """Whether `finish` may be called."""
        return self.length == self.n_steps

    def add(
        self, version: int, obs: Observations, action: NDArray[Any], policy: Mapping[str, NDArray[Any]], step: GroupStep
    ) -> None:
        """Take down one step of all environments.

        Args:
            version: of the weights that chose the actions.
            obs: `[n, *obs]`, what they were chosen from.
            action: `[n, *act]`.
            policy: what else the policy said, `[n, ...]` each.
            step: what the environments answered.
        """
        t = self.length
        if not t:
            self._begin(obs, action, policy)
            self.version = version
        if isinstance(obs, np.ndarray):
            self._obs[:, t] = obs
        else:
            map_nested(lambda kept, now: np.copyto(kept[:, t], now), self._obs, obs)
        columns = self._columns
        columns["action"][:, t] = action
        columns["reward"][:, t] = step.rewards
        columns["terminated"][:, t] = step.terminated
        columns["truncated"][:, t] = step.truncated
        for name, values in policy.items():
            self._policy[name][:, t] = values
        for ending in step.endings:
            self._episodes.append(Episode(ending.episode_return, ending.length))
            if not step.terminated[ending.env_index]:
                self._finals.append((ending.env_index * self.n_steps + t, ending.observation))
        self.length = t + 1

    def finish(self, last_obs: Observations) -> Fragment:
        """The fragment, after `n_steps` steps.

        Args:
            last_obs: `[n, *obs]`, what the last step led to.
        """
        assert self.is_full, "a fragment is finished when it is full"
        assert self.version is not None
        rows = np.array([row for row, _ in self._finals], np.int64)
        final_obs = map_nested(lambda *each: np.stack(each), *(obs for _, obs in self._finals)) if rows.size else None
        episodes = tuple(self._episodes)
        last_obs = map_nested(np.array, last_obs)  # a copy, because environments may go on in the same array
        columns: dict[str, Any] = self._columns
        return Fragment(
            self.task,
            self.version,
            self._obs,
            policy=self._policy,
            last_obs=last_obs,
            final_rows=rows,
            final_obs=final_obs,
            episodes=episodes,
            **columns,
        )

    def _begin(self, obs: Observations, action: NDArray[Any], policy: Mapping[str, NDArray[Any]]) -> None:
        def empty(first: Any, dtype: Any = None) -> NDArray[Any]:
            return np.empty((len(first), self.n_steps, *first.shape[1:]), dtype or first.dtype)

        self._obs = map_nested(empty, obs)
        self._policy = {name: empty(values) for name, values in policy.items()}
        shape = len(action), self.n_steps
        self._columns = {
            "action": empty(action),
            "reward": np.empty(shape, np.float32),
            "terminated": np.empty(shape, np.bool_),
            "truncated": np.empty(shape, np.bool_),
        }

"""A fragment that is being made, step by step."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from parl_core.env.group_step import GroupStep
from parl_core.nested import Observations, map_nested
from parl_core.training.events import Episode
from parl_core.training.fragment import Fragment, Task

__all__ = ["FragmentWriter"]


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

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "task": self.task,
            "n_steps": self.n_steps,
            "length": self.length,
            "version": self.version,
            "obs": self._obs,
            "columns": self._columns,
            "policy": self._policy,
            "finals": self._finals,
            "episodes": [[episode.episode_return, episode.length] for episode in self._episodes],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The writer that `get_state` described."""
        writer = cls(Task(*state["task"]), state["n_steps"])
        writer.length, writer.version = state["length"], state["version"]
        writer._obs, writer._columns, writer._policy = state["obs"], state["columns"], state["policy"]
        writer._finals = [(row, obs) for row, obs in state["finals"]]
        writer._episodes = [Episode(*episode) for episode in state["episodes"]]
        return writer

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

"""Fragments: a few steps of one group of environments, as an actor sends them and a learner joins them to a batch.

    FragmentWriter ── step by step ──> FragmentSteps ──> BatchMemory.join ──> FragmentBatch

An array `x[i, t]` belongs to step t of the group's environment i, so that the rows of one environment follow each other
when fragments are joined. Every fragment carries the version of the weights that chose its actions. Each batch reuses
the memory of the previous one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parl_core._deprecation import class_of_old_name
from parl_core._nested import Observations, leaves, map_nested
from parl_core.env._steps import GroupStep, Packed, packed, unpacked
from parl_core.errors import DivergedError
from parl_core.training.events import Episode

__all__ = [
    "ActorSeconds",
    "BatchMemory",
    "FlatWeights",
    "FragmentBatch",
    "FragmentSteps",
    "FragmentWriter",
    "Task",
    "require_finite",
]


class Task(NamedTuple):
    """A fragment to be made: the `round`-th one of a group of environments, both counted from 0."""

    group: int
    round: int


class ActorSeconds(NamedTuple):
    """Seconds that an actor spent, by activity.

    Attributes:
        env: The seconds spent in the environments' own code.
        policy: The seconds spent choosing actions and recording steps.
        idle: The seconds between fragments: sending one, taking weights, waiting for the next call.
    """

    env: float = 0.0
    policy: float = 0.0
    idle: float = 0.0


@dataclass(frozen=True)
class FragmentSteps:
    """`T` steps of the `n` environments of a group.

    Attributes:
        task: The task of the fragment.
        version: Number of updates of the weights that chose the actions; with several versions, the oldest.
        obs: `[n, T, *obs]`, or a dictionary of arrays: the observations for which the actions were chosen.
        action: `[n, T, *act]`, as the policy drew it, before it was made valid in the action space.
        reward: `[n, T]`.
        terminated: `[n, T]`.
        truncated: `[n, T]`.
        policy: The policy's other outputs for each step, by name, `[n, T, ...]`.
        last_obs: `[n, *obs]`, the observations after the last step; None if learning does not need them.
        final_rows: int64 `[k]`, `i * T + t` of the steps whose episodes were truncated and did not terminate.
        final_obs: `[k, *obs]`, the last observations of these episodes; None if there are none.
        episodes: The episodes that ended.
        seconds: The actor's time by activity.
        state: The state of a model with a memory before the first step, `[n, ...]` by name. This and the following are
            empty without a memory.
        last_state: The state before `last_obs`.
        final_state: The state before `final_obs`, `[k, ...]`.
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
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    last_state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    final_state: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        policy = {name: packed(values) for name, values in self.policy.items()}
        arrays = (getattr(self, name) for name in _ARRAYS)
        episodes = [(each.episode_return, each.length, each.agent_returns) for each in self.episodes]
        told = tuple(self.task), self.version, episodes, tuple(self.seconds)
        return _unpack, (*told, policy, (self.state, self.last_state, self.final_state), *map(packed, arrays))

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        episodes = [[episode.episode_return, episode.length] for episode in self.episodes]
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"episodes": episodes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fragment that `get_state` described."""
        named = {
            "task": Task(*state["task"]),
            "episodes": tuple(Episode(*episode) for episode in state["episodes"]),
            "seconds": ActorSeconds(*state["seconds"]),
        }
        return cls(**{**state, **named})


_ARRAYS = ("obs", "action", "reward", "terminated", "truncated", "last_obs", "final_rows", "final_obs")


def _unpack(
    task: tuple[int, int],
    version: int,
    episodes: Sequence[tuple[float, int, tuple[float, ...]]],
    seconds: tuple[float, ...],
    policy: Mapping[str, Packed],
    states: tuple[Any, Any, Any],
    *arrays: Packed,
) -> FragmentSteps:
    state, last_state, final_state = states
    return FragmentSteps(
        task=Task(*task),
        version=version,
        policy={name: unpacked(*values) for name, values in policy.items()},
        episodes=tuple(Episode(*each) for each in episodes),
        seconds=ActorSeconds(*seconds),
        state=state,
        last_state=last_state,
        final_state=final_state,
        **{name: unpacked(*array) for name, array in zip(_ARRAYS, arrays, strict=True)},
    )


class FlatWeights(NamedTuple):
    """Weights on their way to actors as one array, because each array of a message takes as long as a small model."""

    shapes: Mapping[str, tuple[int, ...]]
    numbers: NDArray[Any]

    @classmethod
    def of(cls, weights: Any) -> Any:
        """Return weights in this form, if they are a few small arrays of one dtype; otherwise unchanged."""
        if type(weights) is not dict or not all(type(array) is np.ndarray for array in weights.values()):
            return weights
        if len({array.dtype for array in weights.values()}) != 1:
            return weights
        if sum(array.nbytes for array in weights.values()) > _LARGEST_FLAT:
            return weights
        shapes = {name: array.shape for name, array in weights.items()}
        return cls(shapes, np.concatenate([array.reshape(-1) for array in weights.values()])) if weights else weights

    def by_name(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, in the memory of the numbers."""
        found, end = {}, 0
        for name, shape in self.shapes.items():
            start, end = end, end + math.prod(shape)
            found[name] = self.numbers[start:end].reshape(shape)
        return found


_LARGEST_FLAT = 2**20  # bytes; more are copied for longer than eight or so arrays take


class FragmentWriter:
    """Records the steps of a group one after another.

    Args:
        task: The task of the fragment.
        n_steps: The length T of the fragment.
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
        self._state: Mapping[str, NDArray[Any]] = {}
        self._final_states: list[Mapping[str, NDArray[Any]]] = []
        self._episodes: list[Episode] = []

    @property
    def is_full(self) -> bool:
        """Return whether `finish` may be called."""
        return self.length == self.n_steps

    def add(
        self,
        version: int,
        obs: Observations,
        action: NDArray[Any],
        policy: Mapping[str, NDArray[Any]],
        step: GroupStep,
        before: Mapping[str, NDArray[Any]],
        after: Mapping[str, NDArray[Any]],
    ) -> None:
        """Record one step of all environments.

        Args:
            version: The version of the weights that chose the actions.
            obs: `[n, *obs]`, the observations that the actions were chosen from.
            action: `[n, *act]`.
            policy: The policy's other outputs, `[n, ...]` each.
            step: The result of the environments' step.
            before: The state of a model with a memory before the step, `[n, ...]` by name; else empty.
            after: The state after the step, also where an episode ended.
        """
        t = self.length
        if not t:
            self._begin(obs, action, policy)
            self.version, self._state = version, before
        if isinstance(obs, np.ndarray):
            self._obs[:, t] = obs
        else:
            map_nested(lambda kept, now: np.copyto(kept[:, t], now), self._obs, obs)
        columns = self._columns
        columns["action"][:, t] = action
        columns["reward"][:, t] = step.rewards
        for name, values in policy.items():
            self._policy[name][:, t] = values
        if step.endings:
            columns["terminated"][:, t], columns["truncated"][:, t] = step.terminated, step.truncated
        for ending in step.endings:
            self._episodes.append(Episode(ending.episode_return, ending.length))
            if not step.terminated[ending.env_index]:
                self._finals.append((ending.env_index * self.n_steps + t, ending.observation))
                self._final_states.append({name: array[ending.env_index] for name, array in after.items()})
        self.length = t + 1

    def finish(self, last_obs: Observations, last_state: Mapping[str, NDArray[Any]]) -> FragmentSteps:
        """Return the fragment, after `n_steps` steps.

        Args:
            last_obs: `[n, *obs]`, the observations after the last step.
            last_state: The state of a model with a memory before `last_obs`; else empty.
        """
        assert self.is_full, "a fragment is finished when it is full"
        assert self.version is not None
        rows = np.array([row for row, _ in self._finals], np.int64)
        final_obs = map_nested(lambda *each: np.stack(each), *(obs for _, obs in self._finals)) if rows.size else None
        episodes = tuple(self._episodes)
        last_obs = map_nested(np.array, last_obs)  # a copy, because environments may reuse the array
        columns: dict[str, Any] = self._columns
        return FragmentSteps(
            self.task,
            self.version,
            self._obs,
            policy=self._policy,
            last_obs=last_obs,
            final_rows=rows,
            final_obs=final_obs,
            episodes=episodes,
            state=self._state,
            last_state=last_state,
            final_state=map_nested(lambda *each: np.stack(each), *self._final_states) if rows.size else {},
            **columns,
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "task": self.task,
            "n_steps": self.n_steps,
            "length": self.length,
            "version": self.version,
            "obs": self._obs,
            "columns": self._columns,
            "policy": self._policy,
            "finals": self._finals,
            "state": dict(self._state),
            "final_states": [dict(state) for state in self._final_states],
            "episodes": [[episode.episode_return, episode.length] for episode in self._episodes],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the writer that `get_state` described."""
        writer = cls(Task(*state["task"]), state["n_steps"])
        writer.length, writer.version = state["length"], state["version"]
        writer._obs, writer._columns, writer._policy = state["obs"], state["columns"], state["policy"]
        writer._finals = [(row, obs) for row, obs in state["finals"]]
        writer._state, writer._final_states = state.get("state", {}), list(state.get("final_states", ()))
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
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
        }


@dataclass(frozen=True)
class FragmentBatch:
    """Fragments of `T` steps of `N` environments, ordered by environment.

    The arrays are overwritten by the next batch of the same memory.

    Attributes:
        n_steps: T.
        obs: `[N * T, *obs]`, or a dictionary of arrays.
        action: `[N * T, *act]`.
        reward: `[N * T]`.
        terminated: `[N * T]`.
        truncated: `[N * T]`.
        policy: `[N * T, ...]`, by name.
        last_obs: `[N, *obs]`, or None.
        final_rows: int64 `[k]`, rows of truncated steps.
        final_obs: `[k, *obs]`, or None.
        versions: int64 `[fragments]`, versions of the weights that acted.
        episodes: The episodes that ended.
        state: As in `FragmentSteps`, `[N, ...]` by name, like the following.
        last_state: `[N, ...]`.
        final_state: `[k, ...]`.
    """

    n_steps: int
    obs: Observations
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: dict[str, NDArray[Any]]
    last_obs: Observations
    final_rows: NDArray[np.int64]
    final_obs: Observations
    versions: NDArray[np.int64]
    episodes: tuple[Episode, ...]
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    last_state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    final_state: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)


class BatchMemory:
    """Joins fragments into reused arrays, because new large arrays for each batch would cause page faults each time."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, tuple[int, ...], Any], NDArray[Any]] = {}
        self._used = 0

    def join(self, fragments: Sequence[FragmentSteps]) -> FragmentBatch:
        """Return the fragments as one batch, in the order given.

        Raises:
            DivergedError: A reward or an observation is infinite or NaN.
        """
        self._used = 0
        first = fragments[0]
        n_steps = first.reward.shape[1]
        offsets = np.cumsum([0, *(fragment.reward.size for fragment in fragments)])
        finals = [fragment.final_obs for fragment in fragments if fragment.final_obs is not None]
        final_states = [fragment.final_state for fragment in fragments if fragment.final_state]
        batch = FragmentBatch(
            n_steps,
            obs=map_nested(self._rows, *(fragment.obs for fragment in fragments)),
            action=self._rows(*(fragment.action for fragment in fragments)),
            reward=self._rows(*(fragment.reward for fragment in fragments)),
            terminated=self._rows(*(fragment.terminated for fragment in fragments)),
            truncated=self._rows(*(fragment.truncated for fragment in fragments)),
            policy={name: self._rows(*(fragment.policy[name] for fragment in fragments)) for name in first.policy},
            last_obs=None if first.last_obs is None else map_nested(self._joined, *(f.last_obs for f in fragments)),
            final_rows=np.concatenate([f.final_rows + start for f, start in zip(fragments, offsets, strict=False)]),
            final_obs=map_nested(lambda *parts: np.concatenate(parts), *finals) if finals else None,
            versions=np.array([fragment.version for fragment in fragments], np.int64),
            episodes=tuple(episode for fragment in fragments for episode in fragment.episodes),
            state=map_nested(self._joined, *(fragment.state for fragment in fragments)),
            last_state=map_nested(self._joined, *(fragment.last_state for fragment in fragments)),
            final_state=map_nested(lambda *parts: np.concatenate(parts), *final_states) if final_states else {},
        )
        if not np.isfinite(batch.reward).all():
            _refuse_rewards(fragments)
        seen = [obs for obs in (batch.obs, batch.last_obs, batch.final_obs) if obs is not None]
        if not all(_is_finite(array) for obs in seen for array in leaves("obs", obs).values()):
            _refuse_observations(fragments)
        return batch

    def _rows(self, *parts: NDArray[Any]) -> NDArray[Any]:
        joined = self._joined(*parts)
        # not -1, because a part may be empty
        return joined.reshape(joined.shape[0] * joined.shape[1], *joined.shape[2:])

    def _joined(self, *parts: NDArray[Any]) -> NDArray[Any]:
        if len(parts) == 1 and parts[0].flags.writeable:
            return parts[0]
        first = parts[0]
        out = self._memory((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        return np.concatenate(parts, out=out)

    def _memory(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the array that the same place of earlier batches had."""
        self._used += 1
        key = self._used, shape, dtype
        if key not in self._arrays:
            self._arrays[key] = np.empty(shape, dtype)
        return self._arrays[key]


def require_finite(fragment: FragmentSteps) -> None:
    """Reject a fragment with a reward or an observation that is infinite or NaN.

    Raises:
        DivergedError: The message names the environment and the step.
    """
    _refuse_rewards([fragment])
    _refuse_observations([fragment])


def _refuse_rewards(fragments: Sequence[FragmentSteps]) -> None:
    for fragment in fragments:
        for i, t in np.argwhere(~np.isfinite(fragment.reward)):
            raise DivergedError(
                f"environment {i} of group {fragment.task.group} gave the reward {fragment.reward[i, t]} at step {t} "
                f"of its fragment {fragment.task.round}; nothing was learned from it: clip or repair rewards in the "
                "environment, and continue from the last checkpoint"
            )


def _is_finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _refuse_observations(fragments: Sequence[FragmentSteps]) -> None:
    for fragment in fragments:
        for steps, when, obs in _observed(fragment):
            for name, array in leaves("obs", obs).items():
                for row, *place in [] if _is_finite(array) else np.argwhere(~np.isfinite(array)).tolist():
                    i, t = divmod(int(steps[row]), fragment.reward.shape[1])
                    raise DivergedError(
                        f"environment {i} of group {fragment.task.group} observed {array[row][tuple(place)]} in "
                        f"{name}{place} {when} step {t} of its fragment {fragment.task.round}; nothing was learned "
                        "from it: clip or repair observations in the environment, and continue from the last checkpoint"
                    )


def _observed(fragment: FragmentSteps) -> Iterator[tuple[NDArray[np.int64], str, Observations]]:
    """Yield all observations as rows, with the step `i * T + t` of each, and whether they are before or after it.

    What the last steps led to is in no fragment's `obs` if an episode was truncated there, and too late in the next one
    if it was not: this one bootstraps from it.
    """
    n_steps = fragment.reward.shape[1]
    rows = map_nested(lambda array: array.reshape(fragment.reward.size, *array.shape[2:]), fragment.obs)
    yield np.arange(fragment.reward.size), "before", rows
    if fragment.last_obs is not None:
        yield np.arange(n_steps - 1, fragment.reward.size, n_steps), "after", fragment.last_obs
    if fragment.final_obs is not None:
        yield fragment.final_rows, "after", fragment.final_obs


def __getattr__(name: str) -> type:
    return class_of_old_name(__name__, name, {"Fragment": FragmentSteps})

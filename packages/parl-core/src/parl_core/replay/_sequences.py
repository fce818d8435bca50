"""The replay memory for models with a memory, which draws sequences with the stored states at their beginnings.

    steps of one environment    ... | burn_in | length                    | n_step |
                                    ^ state     learned from                bootstrapped from

A sequence may begin at any step and continue over ends of episodes, after which the state is reset. A step whose
n-step return would reach beyond a truncation is not learned from, because the state there is unknown.

    whole episodes              | learned from ... | last observation | padding ... |
                                ^ zeros              bootstrapped from where it was truncated

`EpisodeReplayMemory` draws whole episodes instead of pieces, each from a state of zeros, as in QMIX.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core.checks import check_fraction, check_int
from parl_core.replay._memory import ReplayMemory

__all__ = ["EpisodeReplayMemory", "SequenceReplayMemory"]


class _SequenceMemory(ReplayMemory):
    """A memory that receives the state before each step, and stores the parts in `_names`."""

    gamma: float
    _names: tuple[str, ...] = ()

    def append_batch(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: ArrayLike,
        next_obs: ArrayLike,
        terminal: ArrayLike,
        truncated: ArrayLike | None = None,
        *,
        state: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Store a step of all environments: see `ReplayMemory.append_batch`.

        Args:
            obs: As in `ReplayMemory.append_batch`.
            act: As in `ReplayMemory.append_batch`.
            reward: As in `ReplayMemory.append_batch`.
            next_obs: As in `ReplayMemory.append_batch`.
            terminal: As in `ReplayMemory.append_batch`.
            truncated: As in `ReplayMemory.append_batch`.
            state: The state before the observations, `[n, ...]` by name; None: all zeros. A memory of whole episodes,
                which begin with zeros, does not keep it.

        Raises:
            ValueError: As in `ReplayMemory.append_batch`.
        """
        kept: dict[str, ArrayLike] = {}
        for name in self._names:
            shape = (len(np.asarray(reward)), *getattr(self, f"state_{name}").shape[1:])
            kept[f"state_{name}"] = np.zeros(shape) if state is None else state[name]
        self._append_columns((obs, next_obs, act, reward, terminal), truncated, kept)


class SequenceReplayMemory(_SequenceMemory):
    """The newest `max_size` transitions with the state before each, and sequences drawn from them.

    After R2D2 (Kapturowski et al. 2019, section 3): the stored state is that of the weights that acted, and `burn_in`
    steps bring it up to date. Deviations: sequences are drawn uniformly, begin at any step, and may hold several
    episodes.

    Args:
        max_size: As in `ReplayMemory`, like `obs_dim`, `act_dim`, `obs_dtype`, `n_envs` and `seed`.
        obs_dim: As in `ReplayMemory`.
        act_dim: As in `ReplayMemory`.
        state: Shape of each array of the state of one environment, by name.
        length: Steps of a sequence that are learned from.
        burn_in: Steps before them, at least 0.
        n_step: Rewards that are summed before bootstrapping.
        gamma: Discount per step, in [0, 1].
        obs_dtype: As in `ReplayMemory`.
        act_dtype: As in `ReplayMemory`.
        n_envs: The number of environments that take turns; `append_batch` brings one transition of each.
        seed: As in `ReplayMemory`.

    Raises:
        HyperparameterError: An argument is out of its range.
    """

    def __init__(
        self,
        max_size: int,
        obs_dim: int | Sequence[int],
        act_dim: int | Sequence[int],
        *,
        state: Mapping[str, Sequence[int]],
        length: int,
        burn_in: int,
        n_step: int,
        gamma: float,
        obs_dtype: DTypeLike = np.float32,
        act_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_size, obs_dim, act_dim, obs_dtype=obs_dtype, act_dtype=act_dtype, n_envs=n_envs, seed=seed)
        self.length, self.burn_in = check_int("length", length), check_int("burn_in", burn_in, at_least=0)
        self.n_step, self.gamma = check_int("n_step", n_step), check_fraction("gamma", gamma)
        self._names = tuple(state)
        for name, shape in state.items():
            setattr(self, f"state_{name}", np.zeros((max_size, *shape), np.float32))

    def append(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: float,
        next_obs: ArrayLike,
        terminal: bool,
        truncated: bool = False,
    ) -> None:
        """Store one transition, if there are no states to store with it: see `ReplayMemory.append`.

        Raises:
            TypeError: The memory stores states, for which `append_batch` has an argument.
            ValueError: As in `ReplayMemory.append`.
        """
        if self._names:
            raise TypeError(
                f"this memory stores the state before each step ({', '.join(self._names)}): use append_batch(..., "
                "state=...), with arrays of one row for one transition"
            )
        super().append(obs, act, reward, next_obs, terminal, truncated)

    def _windows(self, index: NDArray[np.int64]) -> None:
        """Draw single steps: only sequences have n-step returns."""

    @property
    def is_ready(self) -> bool:
        """Return whether every environment has enough steps for a sequence."""
        return self._possible() > 0

    def count_for(self, batch_size: int) -> int:
        """Return the number of sequences with at most `batch_size` steps that are learned from, at least one."""
        return max(1, batch_size // self.length)

    def sample_sequences(self, count: int) -> dict[str, Any]:
        """Draw sequences, as the columns of `parl_core.contracts.batches.Sequences`, in new arrays.

        Observations have their stored form. A sequence has `length + n_step` rows.

        Args:
            count: Number of sequences, drawn with replacement.

        Raises:
            ValueError: No environment has enough steps.
        """
        n, burn_in, length, ahead = self.n_envs, self.burn_in, self.length, self.n_step
        possible, rows = self._possible(), length + ahead
        if possible < 1:
            raise ValueError(
                f"sequences need {burn_in + rows} steps of each environment, the memory holds {self.size()} of {n} "
                "environments: append more first"
            )
        drawn = self._rng.integers(possible * n, size=count)
        first = -(-self._start // n) + drawn // n
        slots = ((first[:, None] + np.arange(burn_in + rows)) * n + (drawn % n)[:, None]) % self.max_size
        ended = self.terminal[slots] | self.truncated[slots]
        begins = np.zeros_like(ended)
        begins[:, 1:] = ended[:, :-1]
        learned = slots[:, burn_in:]
        action = self.action[learned.reshape(-1)]
        columns = {
            "obs": self.obs[learned.reshape(-1)],
            "action": action.astype(np.int64) if action.dtype.kind in "iu" else action,
            **self._targets(learned),
            "begins": begins[:, burn_in:].reshape(-1),
            "state": {name: getattr(self, f"state_{name}")[slots[:, 0]] for name in self._names},
        }
        if burn_in:
            before = slots[:, :burn_in].reshape(-1)
            columns |= {"before_obs": self.obs[before], "before_begins": begins[:, :burn_in].reshape(-1)}
        return columns

    def _targets(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return n-step rewards, discounts, the rows to bootstrap from, and weights, of sequences `[count, rows]`."""
        count, rows = slots.shape
        length, ahead = self.length, self.n_step
        reward, over = self.reward[slots], self.terminal[slots]
        cut = self.truncated[slots] & ~over
        summed, goes_on = np.zeros((count, rows)), np.zeros((count, rows), np.bool_)
        is_cut = np.ones((count, rows), np.bool_)
        goes_on[:, :length], is_cut[:, :length] = True, False
        for k in range(ahead):
            step = slice(k, k + length)
            going = goes_on[:, :length]
            summed[:, :length] += self.gamma**k * reward[:, step] * going
            is_cut[:, :length] |= going & cut[:, step]
            goes_on[:, :length] = going & ~(over[:, step] | cut[:, step])
        weights = ~is_cut
        to = np.minimum(np.arange(rows) + ahead, rows - 1) + rows * np.arange(count)[:, None]
        return {
            "reward": summed.reshape(-1).astype(np.float32),
            "discount": (goes_on * self.gamma**ahead).reshape(-1).astype(np.float32),
            "ahead": to.reshape(-1),
            "weights": (weights * (weights.size / max(weights.sum(), 1))).reshape(-1).astype(np.float32),
        }

    def _possible(self) -> int:
        """Return the number of steps of an environment at which a sequence can begin."""
        held = self._end // self.n_envs - -(-self._start // self.n_envs)
        return held - (self.burn_in + self.length + self.n_step) + 1

    def _column_names(self) -> tuple[str, ...]:
        return (*super()._column_names(), *(f"state_{name}" for name in self._names))


class EpisodeReplayMemory(_SequenceMemory):
    """The newest `max_size` transitions, and whole episodes drawn from them, padded to the longest one of a draw.

    Only complete episodes without dropped steps are drawn, each at most once. After the last step comes the
    last observation, from which a truncated episode is bootstrapped.

    Args:
        max_size: As in `ReplayMemory`, like `obs_dim`, `act_dim`, `obs_dtype`, `act_dtype`, `n_envs` and `seed`.
        obs_dim: As in `ReplayMemory`.
        act_dim: As in `ReplayMemory`.
        gamma: Discount per step, in [0, 1].
        state: Shape of each array of the state of one environment, by name.
        obs_dtype: As in `ReplayMemory`.
        act_dtype: As in `ReplayMemory`.
        n_envs: As in `ReplayMemory`.
        seed: As in `ReplayMemory`.

    Attributes:
        state_shapes: The shapes of the arrays of the state of one environment, by name.

    Raises:
        HyperparameterError: An argument is out of its range.
    """

    def __init__(
        self,
        max_size: int,
        obs_dim: int | Sequence[int],
        act_dim: int | Sequence[int],
        *,
        gamma: float,
        state: Mapping[str, Sequence[int]] = MappingProxyType({}),
        obs_dtype: DTypeLike = np.float32,
        act_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_size, obs_dim, act_dim, obs_dtype=obs_dtype, act_dtype=act_dtype, n_envs=n_envs, seed=seed)
        self.gamma = check_fraction("gamma", gamma)
        self.state_shapes = {name: tuple(shape) for name, shape in state.items()}
        self._scanned = -1
        self._begun = np.zeros(n_envs, np.int64)
        self._found: list[tuple[int, int]] = []

    @property
    def is_ready(self) -> bool:
        """Return whether there is an episode that has ended."""
        return bool(self._episodes())

    def count_for(self, batch_size: int) -> int:
        """Return the number of episodes of a batch, which is `batch_size`."""
        return batch_size

    def sample_sequences(self, count: int) -> dict[str, Any]:
        """Draw episodes, as the columns of `parl_core.contracts.batches.Sequences`, in new arrays.

        A sequence has one more row than the longest episode has steps. `weights` are 0 in rows that are not steps.

        Args:
            count: Number of episodes; all of them if there are fewer.

        Raises:
            ValueError: No episode has ended.
        """
        episodes, n = self._episodes(), self.n_envs
        if not episodes:
            raise ValueError("no episode has ended that the memory still holds: append more, or make it larger")
        drawn = self._rng.choice(len(episodes), size=min(count, len(episodes)), replace=False)
        first, last = np.array([episodes[index] for index in drawn]).T
        steps = (last - first) // n + 1
        rows = int(steps.max()) + 1
        place = np.arange(rows)
        slots = (first[:, None] + np.minimum(place, steps[:, None] - 1) * n) % self.max_size
        is_step = place < steps[:, None]
        obs = self.obs.take(slots, 0)
        obs[~is_step] = self.next_obs.take(slots[~is_step], 0)
        action = self.action[slots.reshape(-1)]
        ended = self.terminal[slots]
        to = np.minimum(place + 1, rows - 1) + rows * np.arange(len(drawn))[:, None]
        return {
            "obs": obs.reshape(-1, *obs.shape[2:]),
            "action": action.astype(np.int64) if action.dtype.kind in "iu" else action,
            "reward": (self.reward[slots] * is_step).reshape(-1),
            "discount": (self.gamma * (is_step & ~ended)).reshape(-1).astype(np.float32),
            "ahead": to.reshape(-1),
            "weights": (is_step * (is_step.size / is_step.sum())).reshape(-1).astype(np.float32),
            "begins": np.zeros(slots.size, np.bool_),
            "state": {name: np.zeros((len(drawn), *shape), np.float32) for name, shape in self.state_shapes.items()},
        }

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as truncated: see `ReplayMemory.cut_episodes`."""
        place = super().cut_episodes()
        self._scanned = -1
        return place

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write back the result of `rows_since`."""
        super().put_rows(rows)
        self._scanned = -1

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`."""
        super().set_state(state)
        self._scanned = -1

    def load(self, pathname: str | os.PathLike[str]) -> None:
        """Replace the contents by those of a file: see `ReplayMemory.load`."""
        super().load(pathname)
        self._scanned = -1

    def _episodes(self) -> list[tuple[int, int]]:
        """Return the numbers of the first and of the last transition of each episode that has ended.

        An episode is known to be whole where the transition before it is held as well, or it is an environment's
        first; so a memory that was restored draws from the same ones.
        """
        n, start = self.n_envs, self._start
        if self._scanned < start:
            self._found, self._scanned = [], start
            self._begun = np.arange(n) if start == 0 else np.full(n, -1)
        for number in range(self._scanned, self._end):
            slot, env = number % self.max_size, number % n
            if self.terminal[slot] or self.truncated[slot]:
                begun = int(self._begun[env])
                if begun >= 0:
                    self._found.append((begun, number))
                self._begun[env] = number + n
        self._scanned = self._end
        if start > 0:
            self._found = [episode for episode in self._found if episode[0] >= start + n]
        return self._found

"""The replay memory for stacked images, which stores every frame once.

    observations          o_t = [f_t-3 f_t-2 f_t-1 f_t]    o_t+1 = [f_t-2 f_t-1 f_t f_t+1]
    frames of one env     ... f_t-3 f_t-2 f_t-1 f_t f_t+1 ...      a ring of its own
    transition t          position of f_t, a_t, r_t, flags

An ordinary memory writes 8 frames for a transition of 4-frame stacks, this one writes 1. An episode costs 4 more
frames: its first observation is written whole, whatever the wrapper pads it with, and its last observation is kept for
bootstrapping after truncation.
"""

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core._array_files import check_kinds, read_snapshot, write_snapshot
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.replay._priorities import Prioritized
from parl_core.replay._ring import check_rewards, number_lost
from parl_core.replay._sampled_ring import ReplayBatch, SampledRing

__all__ = ["FrameReplayMemory"]

SPARE_FRAMES = 1.04  # frames per transition: space for the extra ones of episodes of 100 steps and more


class FrameReplayMemory(SampledRing):
    """The newest `max_size` transitions of stacked images; same methods as `ReplayMemory`.

        memory = FrameReplayMemory(1_000_000, (4, 84, 84), act_dim=0)      # 7.3 GB, not 56

    Within an episode, each transition must start from the observation that the previous one ended with, as in a loop;
    after a transition that was `terminal` or `truncated` a new episode starts. `batch.obs` and
    `batch.next_obs` are overlapping views of the same frames (channels first, rows not adjacent): read them, do not
    change them.

    Args:
        max_size: Capacity in transitions. Where episodes are shorter than 100 steps on average, somewhat fewer fit.
        obs_dim: Shape of one observation, `(frame_stack, height, width)`, newest frame last; or with several channels
            `(frame_stack * channels, height, width)`.
        act_dim: Size or shape of one action; `0` for a single discrete one.
        frame_stack: Number of frames in an observation, at least 2; default `obs_dim[0]`.
        obs_dtype: Dtype of the frames.
        act_dtype: Dtype of actions; default float32, or int32 when `act_dim` is 0.
        n_envs: Number of environments that take turns, always in the same order.
        n_step: The number of steps whose rewards are summed when sampling (1: one-step transitions).
        gamma: Discount per step, in [0, 1]; needed when `n_step` is above 1.
        sampling: `Prioritized(...)`, or None for uniform sampling.
        seed: As in `ReplayMemory`.
        directory: A directory whose memory-mapped files keep the arrays, as with `ReplayMemory`.

    Raises:
        HyperparameterError: An argument is out of its range.
        CheckpointError: The directory holds something else, or a memory that was not closed.
    """

    def __init__(
        self,
        max_size: int,
        obs_dim: Sequence[int],
        act_dim: int | Sequence[int] = 0,
        *,
        frame_stack: int | None = None,
        obs_dtype: DTypeLike = np.uint8,
        act_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        n_step: int = 1,
        gamma: float | None = None,
        sampling: Prioritized | None = None,
        seed: int | np.random.Generator | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            max_size,
            obs_dim,
            act_dim,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            n_envs=n_envs,
            n_step=n_step,
            gamma=gamma,
            sampling=sampling,
            seed=seed,
            directory=directory,
        )
        stack = self._obs_shape[0] if frame_stack is None and self._obs_shape else frame_stack or 0
        if stack < 2 or len(self._obs_shape) < 2 or self._obs_shape[0] % stack:
            raise HyperparameterError(
                f"obs_dim {self._obs_shape} is not a stack of {stack} frames, newest last: pass a shape such as "
                "(4, 84, 84), and frame_stack= where a frame has several channels; other observations go into a "
                "ReplayMemory"
            )
        self.frame_stack = stack
        self._frame_shape = (self._obs_shape[0] // stack, *self._obs_shape[1:])
        self._lane = int(max_size // n_envs * SPARE_FRAMES) + 4 * stack  # frames kept of each environment
        self._frames = self._folder.array("frames", (n_envs * self._lane, *self._frame_shape), obs_dtype)
        self._newest = self._folder.array("newest", (max_size,), np.int64)  # number of o_t's newest frame in its env
        self._newest_at = self._newest.data
        self._written = [0] * n_envs  # frames ever written of each environment
        self._starts = [True] * n_envs  # whether its next transition begins an episode
        self._window = np.arange(-stack + 1, 2)  # o_t and the frame after it, relative to f_t
        self._attach()

    def append(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: float,
        next_obs: NDArray[Any],
        terminal: bool,
        truncated: bool = False,
    ) -> None:
        """Store one transition; with several environments, call it for each of them in turn.

        Args:
            obs: `[*obs_dim]`, the observation that was acted on. It is used only at the start of an episode.
            act: The action.
            reward: The reward of the action.
            next_obs: `[*obs_dim]`, the observation after it; at the end of an episode the final one.
            terminal: Whether the episode ended for good (Gymnasium's `terminated`).
            truncated: Whether the episode was cut short, by a time limit for instance.

        Raises:
            ValueError: Obs, next_obs or act does not have the memory's shape, or has numbers that the memory cannot
                store, the reward is NaN or infinite, or, at the start of an episode, next_obs does not continue the
                frames of obs. Nothing is stored, but a full memory may have lost its oldest transition.
        """
        slot = self._end % self.max_size
        env = slot % self.n_envs
        base, written = env * self._lane, self._written[env]
        channels = self._frame_shape[0]
        begins = self._starts[env]
        try:
            fits = (
                isfinite(reward)
                and next_obs.shape == self._obs_shape
                and (not begins or np.shape(obs) == self._obs_shape)
                and (not self._act_len or np.shape(act) == self._act_shape)
                and number_lost(next_obs, self._obs_dtype) is None
                and number_lost(np.asarray(act), self.action.dtype) is None
            )
            if fits:
                self.action[slot] = act
                if self._one_choice and self.action[slot] != act:
                    raise ValueError("numpy has made a number of something else")
                self._reward_at[slot] = reward
                self._terminal_at[slot] = terminal
                self._truncated_at[slot] = truncated
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            self._floor = max(self._floor, self._end - self.max_size + 1)  # the slot may hold half of each
            raise ValueError(self._misfit(obs, act, reward, next_obs)) from error
        if not fits:
            raise ValueError(self._misfit(obs, act, reward, next_obs))
        if begins:
            self._check_stacks(np.asarray(obs), next_obs)
            for frame in np.asarray(obs).reshape(self.frame_stack, *self._frame_shape):
                self._frames[base + written % self._lane] = frame
                written += 1
        self._frames[base + written % self._lane] = next_obs[-channels:]
        self._newest_at[slot] = written - 1
        self._written[env] = written + 1
        self._starts[env] = bool(terminal or truncated)
        self._end += 1
        if written >= self._lane:
            self._drop_overwritten(env)

    def _check_stacks(self, obs: NDArray[Any], next_obs: NDArray[Any]) -> None:
        """Reject observations that are not stacks, which could not be restored from frames."""
        channels = self._frame_shape[0]
        kept, newer = (np.asarray(part, self._obs_dtype) for part in (obs[channels:], next_obs[:-channels]))
        if not np.array_equal(kept, newer, equal_nan=self._obs_dtype.kind == "f"):
            self._floor = max(self._floor, self._end - self.max_size + 1)  # the slot holds this one's action
            raise ValueError(
                f"obs and next_obs are no stacks of {self.frame_stack} frames, newest last: next_obs must begin with "
                f"obs[{channels}:], and has other values there. Stack frames along the first axis (AtariVectorEnv, "
                "FrameStack), pass frame_stack= where a frame has several channels, or use a ReplayMemory"
            )

    def append_batch(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: ArrayLike,
        next_obs: ArrayLike,
        terminal: ArrayLike,
        truncated: ArrayLike | None = None,
    ) -> None:
        """Store one transition of each environment, in their order.

        Args:
            obs: `[n_envs, *obs_dim]`.
            act: `[n_envs]` or `[n_envs, *act]`.
            reward: `[n_envs]`.
            next_obs: `[n_envs, *obs_dim]`; where an episode ended the final observation, not that after the reset.
            terminal: `[n_envs]` bool.
            truncated: `[n_envs]` bool; None means none was.

        Raises:
            ValueError: The arrays do not have `n_envs` rows each, a shape does not fit, or a reward is NaN or infinite.
        """
        columns = [np.asarray(column) for column in (obs, act, reward, next_obs, terminal)]
        columns.append(np.zeros(self.n_envs, np.bool_) if truncated is None else np.asarray(truncated))
        if any(len(column) != self.n_envs for column in columns):
            raise ValueError(
                f"append_batch got {[len(column) for column in columns]} rows; this memory has n_envs={self.n_envs}: "
                "pass one transition of each environment"
            )
        check_rewards(columns[2])
        for row in zip(*columns, strict=True):
            self.append(*row)

    def save(self, pathname: str | os.PathLike[str]) -> None:
        """Write everything to one `.npz` file, under its name only when it is complete.

        Raises:
            OSError: It cannot be written; an older file of that name is untouched.
        """
        used = min(self._end, self.max_size)
        columns = {name: getattr(self, name)[:used] for name in ("action", "reward", "terminal")}
        lanes = {"frames": self._frames, "newest": self._newest[:used]}
        progress = {"written": np.array(self._written), "starts": np.array(self._starts)}
        write_snapshot(pathname, {**columns, **lanes, **progress, **self._state_columns(used)})

    def load(self, pathname: str | os.PathLike[str]) -> None:
        """Replace the contents by those of a file that `save` wrote from a memory with the same arguments.

        Raises:
            CheckpointError: The file is missing, damaged, or of a memory with other arguments.
        """
        needed = {"action", "reward", "terminal", "frames", "newest", "written", "starts", "place"}
        data = read_snapshot(pathname, needed)
        max_size = int(data["place"][2]) if data["place"].shape == (4,) else None
        if data["frames"].shape != self._frames.shape or max_size != self.max_size:
            saved = f"frames {list(data['frames'].shape)} of max_size={max_size}"
            raise CheckpointError(
                f"{pathname} holds {saved}, this memory {list(self._frames.shape)} of max_size={self.max_size}: "
                "create it with the arguments of the saved one"
            )
        check_kinds(pathname, data, {"frames": self._frames, "action": self.action})
        rows = {name: data[name].shape[:1] for name in ("action", "reward", "terminal", "newest")}
        lanes = {name: data[name].shape for name in ("written", "starts")}
        if len(set(rows.values())) > 1 or set(lanes.values()) != {(self.n_envs,)}:
            raise CheckpointError(f"{pathname} does not fit together: it has {rows | lanes}")
        slots = self._restore_columns(data, str(pathname))
        for name in ("action", "reward", "terminal"):
            getattr(self, name)[: len(slots)] = data[name]
        self._newest[: len(slots)] = data["newest"]
        self._frames[:] = data["frames"]
        self._written, self._starts = data["written"].tolist(), data["starts"].tolist()

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as truncated, where its episode is not over."""
        self._starts = [True] * self.n_envs
        return super().cut_episodes()

    def place(self) -> dict[str, Any]:
        """Return counters of the transitions, and of the frames written for each environment."""
        return {**super().place(), "written": list(self._written)}

    def rows_since(self, place: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """Return copies of transitions and frames that were written since an earlier `place()` and are still held."""
        before = [0] * self.n_envs if place is None else place["written"]
        # Including the frames of the first transition's observation, because an older piece may have been removed.
        spans = [
            (max(start - self.frame_stack, stop - self._lane, 0), stop)
            for start, stop in zip(before, self._written, strict=True)
        ]
        frames = [self._frames[self._lane_slots(env, *span)] for env, span in enumerate(spans)]
        return {**super().rows_since(place), "frame_spans": np.array(spans), "frames": np.concatenate(frames)}

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write back the result of `rows_since`; call it for the oldest rows first, after `set_state`.

        Raises:
            CheckpointError: The rows do not fit this memory's columns.
        """
        super().put_rows(rows)
        taken = 0
        for env, (start, stop) in enumerate(rows["frame_spans"].tolist()):
            slots = self._lane_slots(env, start, stop)
            self._frames[slots] = rows["frames"][taken : taken + len(slots)]
            taken += len(slots)

    def get_state(self) -> dict[str, Any]:
        """Return the state without rows and frames."""
        return {**super().get_state(), "starts": list(self._starts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`, of a memory with the same arguments.

        Raises:
            CheckpointError: It had other arguments.
        """
        super().set_state(state)
        self._written, self._starts = list(state["written"]), list(state["starts"])

    def _column_names(self) -> tuple[str, ...]:
        return (*super()._column_names(), "_newest")

    def _lane_slots(self, env: int, start: int, stop: int) -> NDArray[np.int64]:
        return env * self._lane + np.arange(start, stop) % self._lane

    def _drop_overwritten(self, env: int) -> None:
        """Drop the transitions of one environment whose frames were just overwritten."""
        oldest_frame = self._written[env] - self._lane
        start = self._start
        number = start + (env - start) % self.n_envs
        while number < self._end and self._newest_at[number % self.max_size] - self.frame_stack + 1 < oldest_frame:
            self._floor = number + 1
            number += self.n_envs

    def _obs_buffers(self, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        stack = self.frame_stack
        if self.n_step > 1:
            shape = (n, *self._obs_shape)
            return np.empty(shape, self._obs_dtype), np.empty(shape, self._obs_dtype)
        both = np.empty((n, stack + 1, *self._frame_shape), self._obs_dtype)
        return both[:, :-1].reshape(n, *self._obs_shape), both[:, 1:].reshape(n, *self._obs_shape)

    def _fill_obs(self, out: ReplayBatch, index: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        if self.n_step > 1:
            self._take_frames(index, self._window[:-1], out.obs)
            self._take_frames(last, self._window[1:], out.next_obs)
        else:
            both = out.obs.base  # the array of which `_obs_buffers` returned two views
            assert both is not None
            self._take_frames(index, self._window, both)

    def _take_frames(self, index: NDArray[np.int64], window: NDArray[np.int64], out: NDArray[Any]) -> None:
        positions = (self._newest.take(index)[:, None] + window) % self._lane
        if self.n_envs > 1:
            positions += (index % self.n_envs * self._lane)[:, None]
        self._frames.take(positions, 0, out.reshape(*positions.shape, *self._frame_shape), "clip")

    def _place(self) -> dict[str, Any]:
        return {**super()._place(), "written": self._written, "starts": self._starts}

    def _restore_place(self, state: dict[str, Any]) -> None:
        super()._restore_place(state)
        self._written, self._starts = state["written"], state["starts"]

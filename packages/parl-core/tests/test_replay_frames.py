"""The memory of single frames, against stacks that were written down as they went in."""

from typing import Any

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.replay import FrameReplayMemory, Prioritized


class FramePlayer:
    """An environment of random frames whose stacks are padded in the way that is asked for."""

    def __init__(self, shape: tuple[int, ...], stack: int, seed: int, repeat_first: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape, self.stack, self.repeat_first = shape, stack, repeat_first
        self.frames: list[np.ndarray] = []

    def frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, self.shape, dtype=np.uint8)

    def reset(self) -> np.ndarray:
        first = self.frame()
        padding = first if self.repeat_first else np.zeros_like(first)
        self.frames = [padding] * (self.stack - 1) + [first]
        return np.concatenate(self.frames)

    def step(self) -> np.ndarray:
        self.frames = [*self.frames[1:], self.frame()]
        return np.concatenate(self.frames)


@pytest.mark.parametrize("sampling", [None, Prioritized()])
@pytest.mark.parametrize("repeat_first", [True, False])
@pytest.mark.parametrize(("channels", "stack"), [(1, 4), (3, 2)])
@pytest.mark.parametrize(("n_envs", "mean_length"), [(1, 300), (1, 4), (3, 30), (3, 3)])
def test_every_stack_comes_out_as_it_went_in(
    n_envs: int, mean_length: int, channels: int, stack: int, repeat_first: bool, sampling: Prioritized | None
) -> None:
    """Over several turns of the ring, with episodes much longer and much shorter than the spare frames are made for."""
    capacity = 60 * n_envs
    memory = FrameReplayMemory(
        capacity, (stack * channels, 5, 4), frame_stack=stack, n_envs=n_envs, sampling=sampling, seed=0
    )
    players = [FramePlayer((channels, 5, 4), stack, seed, repeat_first) for seed in range(n_envs)]
    rng = np.random.default_rng(99)
    obs = np.stack([player.reset() for player in players])
    written: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}
    for number in range(250):
        after = np.stack([player.step() for player in players])
        terminal = rng.random(n_envs) < 0.5 / mean_length
        truncated = ~terminal & (rng.random(n_envs) < 0.5 / mean_length)
        memory.append_batch(obs, np.zeros(n_envs), np.full(n_envs, number), after, terminal, truncated)
        for env in range(n_envs):
            written[(number * n_envs + env) % capacity] = (obs[env], after[env], number)
        over = terminal | truncated
        obs = np.stack([players[env].reset() if over[env] else after[env] for env in range(n_envs)])
        if number % 10 == 9:
            index = np.unique(memory.make_index(500))
            seen, _, reward, then, _ = memory.sample_batch_by_index(index)
            for row, slot in enumerate(index):
                before, later, when = written[int(slot)]
                assert np.array_equal(seen[row], before)
                assert np.array_equal(then[row], later)
                assert reward[row] == when
    # Extra frames of short episodes cost room: at most 5 frames an episode instead of 1 a step.
    assert len(memory) >= (capacity * 0.99 if mean_length > 100 else capacity / (stack + 1) / 2)


def test_a_transition_of_four_84_by_84_frames_takes_less_than_7500_bytes() -> None:
    memory = FrameReplayMemory(10_000, (4, 84, 84))
    arrays = [value for value in vars(memory).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) / 10_000 < 7500


def test_both_observations_of_a_batch_share_their_frames() -> None:
    memory = FrameReplayMemory(10, (4, 8, 8), seed=0)
    player = FramePlayer((1, 8, 8), 4, 0, True)
    obs = player.reset()
    for _ in range(8):
        after = player.step()
        memory.append(obs, 0, 0.0, after, False)
        obs = after
    batch = memory.sample(5)
    assert batch.obs.shape == batch.next_obs.shape == (5, 4, 8, 8)
    assert np.shares_memory(batch.obs, batch.next_obs)
    assert np.array_equal(batch.obs[:, 1:], batch.next_obs[:, :-1])


def test_single_appends_in_turn_are_the_same_as_batches() -> None:
    one_by_one, at_once = (FrameReplayMemory(20, (2, 3, 3), n_envs=2, seed=0) for _ in range(2))
    players = [FramePlayer((1, 3, 3), 2, seed, False) for seed in range(2)]
    for _ in range(15):
        obs, after = (np.stack([getattr(player, move)() for player in players]) for move in ("reset", "step"))
        at_once.append_batch(obs, [0, 1], [1.0, 2.0], after, [True, True])
        for env in range(2):
            one_by_one.append(obs[env], env, env + 1.0, after[env], True)
    first, second = one_by_one.sample(30), at_once.sample(30)
    assert np.array_equal(first.obs, second.obs)
    assert np.array_equal(first.action, second.action)


@pytest.mark.parametrize("obs_dim", [(84,), (1, 84, 84), 17])
def test_observations_that_are_no_stacks_are_refused(obs_dim: object) -> None:
    with pytest.raises(HyperparameterError, match="ReplayMemory"):
        FrameReplayMemory(10, obs_dim)  # type: ignore[arg-type]  # wrong on purpose


def test_a_batch_needs_one_row_for_each_environment() -> None:
    memory = FrameReplayMemory(10, (2, 3, 3), n_envs=2)
    stacks = np.zeros((3, 2, 3, 3), np.uint8)
    with pytest.raises(ValueError, match="n_envs=2"):
        memory.append_batch(stacks, np.zeros(3), np.zeros(3), stacks, np.zeros(3, bool))


@pytest.mark.parametrize(
    ("obs", "reward", "next_obs"),
    [
        (np.zeros((4, 3, 3)), 0.0, np.full((3, 3), 7)),
        (np.zeros(36), 0.0, np.zeros((4, 3, 3))),
        (np.zeros((4, 3, 3)), 0.0, np.zeros((3, 3, 4))),
        (np.zeros((4, 3, 3)), np.nan, np.zeros((4, 3, 3))),
        (np.zeros((4, 3, 3)), 0.0, np.full((4, 3, 3), 0.5, np.float32)),  # scaled already, where bytes are stored
    ],
)
def test_a_transition_that_does_not_fit_is_refused(obs: Any, reward: float, next_obs: Any) -> None:
    memory = FrameReplayMemory(10, (4, 3, 3))
    with pytest.raises(ValueError, match=r"append got obs .* stores observations \[4, 3, 3\]"):
        memory.append(obs, 0, reward, next_obs, False)
    assert len(memory) == 0


@pytest.mark.parametrize("act", [2**70, -(2**70), "1", None, 0.5, np.uint64(2**63)])
def test_an_action_that_would_be_stored_as_another_one_is_refused(act: Any) -> None:
    memory, stacks = FrameReplayMemory(10, (4, 3, 3)), np.zeros((4, 3, 3))
    with pytest.raises(ValueError, match=r"append got obs .* stores observations \[4, 3, 3\]"):
        memory.append(stacks, act, 0.0, stacks, False)
    assert len(memory) == 0
    memory.append(stacks, np.float32(3.0), 0.0, stacks, False)
    assert memory.action[:1].tolist() == [3]


@pytest.mark.parametrize("channels", [1, 2])
def test_an_episode_whose_observations_do_not_shift_is_refused(channels: int) -> None:
    """Such as colour images, channels first, of which only the last channel would be stored at each step."""
    memory = FrameReplayMemory(2, (4, 3, 3), frame_stack=4 // channels, seed=0)
    player, image = FramePlayer((channels, 3, 3), 4 // channels, 0, True), np.arange(36).reshape(4, 3, 3)
    for number in range(2):
        memory.append(player.reset(), number, 0.0, player.step(), True)
    with pytest.raises(ValueError, match=rf"no stacks of {4 // channels} frames.*begin with obs\[{channels}:\]"):
        memory.append(image, 7, 0.0, image + 1, False)
    assert memory.sample(20).action.tolist() == [1] * 20  # and the action of the refused one is with no observation


def test_a_batch_with_a_reward_that_is_no_number_is_refused_whole() -> None:
    memory, stacks = FrameReplayMemory(10, (4, 3, 3), n_envs=2), np.zeros((2, 4, 3, 3))
    with pytest.raises(ValueError, match="1 of 2 rewards"):
        memory.append_batch(stacks, [0, 0], [0.0, np.nan], stacks, [False, False])
    assert len(memory) == 0

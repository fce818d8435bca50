"""Whole episodes out of a replay memory: padding, truncation, what is no longer whole, and going on after a restart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.replay import EpisodeReplayMemory


def fill(memory: EpisodeReplayMemory, steps: int, first: int = 0) -> None:
    """Environment e has episodes of 2 + e steps, each second one is truncated; observations count the steps."""
    n = memory.n_envs
    for t in range(first, first + steps):
        length = np.arange(n) + 2
        over = t % length == length - 1
        cut = over & ((t // length) % 2 == 1)
        now = np.stack([np.full(n, t), np.arange(n)], axis=1)
        memory.append_batch(now, np.full((n, 2), t), np.full(n, float(t)), now + np.array([1, 0]), over & ~cut, cut)


def made(size: int = 60, n: int = 2, seed: int = 0) -> EpisodeReplayMemory:
    return EpisodeReplayMemory(size, 2, 2, gamma=0.9, state={"hidden": (3, 4)}, act_dtype=np.int32, n_envs=n, seed=seed)


def test_episodes_are_padded_and_end_in_their_last_observation() -> None:
    memory = made()
    fill(memory, 6)
    drawn = memory.sample_sequences(100)  # three of two steps, two of three steps
    rows = 4
    obs = drawn["obs"].reshape(-1, rows, 2)
    assert sorted(obs[:, 0].tolist()) == [[0, 0], [0, 1], [2, 0], [3, 1], [4, 0]]
    weights, discount = drawn["weights"].reshape(-1, rows), drawn["discount"].reshape(-1, rows)
    for episode in range(5):
        env, begun = int(obs[episode, 0, 1]), int(obs[episode, 0, 0])
        steps = 2 + env
        assert obs[episode, : steps + 1, 0].tolist() == list(range(begun, begun + steps + 1))
        assert (weights[episode] > 0).tolist() == [place < steps for place in range(rows)]
        is_cut = (begun // steps) % 2 == 1
        expected = [0.9] * (steps - 1) + [0.9 if is_cut else 0.0] + [0.0] * (rows - steps)
        np.testing.assert_allclose(discount[episode], expected)
        reward = drawn["reward"].reshape(-1, rows)[episode]
        assert reward[:steps].tolist() == list(range(begun, begun + steps))
        assert not reward[steps:].any()
    assert weights.mean() == pytest.approx(1.0)
    assert drawn["ahead"].reshape(-1, rows)[1].tolist() == [5, 6, 7, 7]
    assert drawn["action"].dtype == np.int64
    assert drawn["state"]["hidden"].shape == (5, 3, 4)
    assert not drawn["begins"].any()


def test_episodes_that_go_on_or_lost_their_beginning_are_not_drawn() -> None:
    memory = made(12)
    assert not memory.is_ready
    with pytest.raises(ValueError, match="no episode has ended"):
        memory.sample_sequences(1)
    fill(memory, 1)
    assert not memory.is_ready
    fill(memory, 20, 1)  # the newest six steps are held: 15..20
    begun = {tuple(row) for row in memory.sample_sequences(50)["obs"].reshape(-1, _rows(memory), 2)[:, 0].tolist()}
    assert begun == {(16, 0), (18, 0), (18, 1)}


def _rows(memory: EpisodeReplayMemory) -> int:
    return max((last - first) // memory.n_envs + 1 for first, last in memory._episodes()) + 1


def test_a_restored_memory_draws_the_same() -> None:
    one, other = made(20), made(20, seed=9)
    fill(one, 31)
    other.set_state(one.get_state())
    other.put_rows(one.rows_since(None))
    for memory in (one, other):
        fill(memory, 5, 31)
    for _ in range(3):
        first, second = one.sample_sequences(2), other.sample_sequences(2)
        np.testing.assert_array_equal(first["obs"], second["obs"])


@pytest.mark.parametrize("size", [20, 40])
def test_a_file_of_another_size_has_no_episodes_that_lost_their_beginning(tmp_path: Path, size: int) -> None:
    one, other = made(24), made(size)
    fill(one, 31)  # 19..30 are held, or 21..30
    one.save(tmp_path / "memory.npz")
    other.load(tmp_path / "memory.npz")
    first = 31 - min(size, 24) // 2
    begun = {tuple(row) for row in other.sample_sequences(99)["obs"].reshape(-1, _rows(other), 2)[:, 0].tolist()}
    expected = {(t, env) for env in range(2) for t in range(first + 1, 31) if t % (env + 2) == 0 and t + env + 1 < 31}
    assert begun == expected


def test_cut_episodes_are_truncated() -> None:
    memory = made()
    fill(memory, 2)
    memory.cut_episodes()
    drawn: Any = memory.sample_sequences(9)
    rows = 3
    assert drawn["obs"].reshape(-1, rows, 2)[:, 0].tolist().count([0, 1]) == 1
    assert sorted(drawn["discount"].reshape(-1, rows).sum(axis=1).tolist()) == pytest.approx([0.9, 1.8])

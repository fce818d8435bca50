"""A replay memory in pieces on disk: what comes back is what was there, whatever was overwritten in between."""

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from parl_core.checkpoint import Journal
from parl_core.errors import CheckpointError
from parl_core.replay import FrameReplayMemory, Prioritized, ReplayMemory


def fresh(kind: str, **changes: Any) -> Any:
    common: dict[str, Any] = {"n_envs": 2, "n_step": 3, "gamma": 0.9, "seed": 7, **changes}
    if kind == "frames":
        return FrameReplayMemory(40, (3, 4, 4), **common)
    return ReplayMemory(40, 3, 2, sampling=Prioritized() if kind == "prioritized" else None, **common)


def fill(memory: Any, steps: int, rng: np.random.Generator) -> None:
    stacked = isinstance(memory, FrameReplayMemory)
    for _ in range(steps):
        obs, next_obs = rng.integers(0, 255, (2, 2, *((3, 4, 4) if stacked else (3,)))).astype(np.uint8)
        if stacked:
            next_obs[:, :-1] = obs[:, 1:]
        action = rng.integers(0, 4, 2) if stacked else rng.random((2, 2))
        memory.append_batch(obs, action, rng.random(2), next_obs, rng.random(2) < 0.1, rng.random(2) < 0.1)
        batch = memory.sample(4)
        if batch.weight is not None:
            memory.update_priorities(batch.index, rng.random(4))


def drawn(memory: Any) -> list[Any]:
    return [memory.sample(16).copy() for _ in range(3)]


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "frames"])
@pytest.mark.parametrize("steps", [(3, 5), (15, 15, 15), (60,), (0, 4), (30, 0, 1)])
def test_what_was_written_piece_by_piece_comes_back_with_the_coming_draws(
    kind: str, steps: tuple[int, ...], tmp_path: Path
) -> None:
    rng, memory, journal = np.random.default_rng(1), fresh(kind), Journal(tmp_path / "replay")
    names: list[str] = []
    for number in steps:
        fill(memory, number, rng)
        names = journal.write(memory)
        journal.prune(names)
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == sorted(names)
    again = fresh(kind, seed=99)
    Journal(tmp_path / "replay").read(again, memory.get_state() | memory.place(), names)
    assert again.place() == memory.place()
    for one, other in zip(drawn(memory), drawn(again), strict=True):
        np.testing.assert_equal(
            [getattr(one, name) for name in one.__slots__], [getattr(other, name) for name in other.__slots__]
        )


def test_a_piece_holds_only_what_is_new(tmp_path: Path) -> None:
    memory, journal = ReplayMemory(100_000, 50, 6, seed=1), Journal(tmp_path)
    memory.append_batch(
        np.zeros((90_000, 50)), np.zeros((90_000, 6)), np.zeros(90_000), np.zeros((90_000, 50)), np.zeros(90_000, bool)
    )
    (first,) = journal.write(memory)
    memory.append_batch(np.ones((10, 50)), np.ones((10, 6)), np.ones(10), np.ones((10, 50)), np.zeros(10, bool))
    assert journal.write(memory) == [first, "000000090000-000000090010.npz"]
    assert (tmp_path / "000000090000-000000090010.npz").stat().st_size < 10_000


def test_a_loop_and_its_memory_go_on_to_share_a_generator(tmp_path: Path) -> None:
    shared = np.random.default_rng(3)
    memory = fresh("uniform", seed=shared)
    fill(memory, 5, np.random.default_rng(1))
    state = memory.get_state()
    expected = shared.random(4)
    other = np.random.default_rng(8)
    again = fresh("uniform", seed=other)
    again.set_state(state)
    np.testing.assert_array_equal(other.random(4), expected)


def test_episodes_that_are_cut_bootstrap_instead_of_running_on() -> None:
    for kind in ("uniform", "frames"):
        memory = fresh(kind)
        rng = np.random.default_rng(1)
        fill(memory, 4, rng)
        memory.cut_episodes()
        assert all(memory.truncated[6:8] | memory.terminal[6:8])
        fill(memory, 1, rng)
        assert len(memory) == 10


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "frames"])
@pytest.mark.parametrize("steps", [3, 40])
def test_episodes_cut_after_their_piece_was_written_stay_cut(kind: str, steps: int, tmp_path: Path) -> None:
    rng, memory, first = np.random.default_rng(1), fresh(kind), Journal(tmp_path)
    fill(memory, steps, rng)
    names = first.write(memory)
    resumed, journal = fresh(kind), Journal(tmp_path)
    journal.read(resumed, memory.get_state() | memory.place(), names)
    journal.cut_episodes(resumed)
    fill(resumed, 2, rng)
    again = fresh(kind)
    names = journal.write(resumed)
    Journal(tmp_path).read(again, resumed.get_state() | resumed.place(), names)
    np.testing.assert_equal(again.rows_since(None), resumed.rows_since(None))
    newest = np.arange(2 * steps - 2, 2 * steps) % memory.max_size
    assert all(again.truncated[newest] | again.terminal[newest])


@pytest.mark.parametrize("wrong", [{"n_envs": 4}, {"n_envs": 1}])
def test_the_contents_of_another_memory_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    memory = fresh("uniform")
    fill(memory, 3, np.random.default_rng(1))
    journal = Journal(tmp_path)
    names = journal.write(memory)
    with pytest.raises(CheckpointError, match="n_envs=2"):
        Journal(tmp_path).read(fresh("uniform", **wrong), memory.get_state(), names)
    with pytest.raises(CheckpointError, match="drew uniformly"):
        Journal(tmp_path).read(fresh("prioritized"), memory.get_state(), names)
    with pytest.raises(CheckpointError, match="saved rows have"):
        Journal(tmp_path).read(ReplayMemory(40, 5, 2, n_envs=2), memory.get_state(), names)


def test_a_damaged_piece_is_found_before_anything_is_taken_from_it(tmp_path: Path) -> None:
    memory, journal = fresh("uniform"), Journal(tmp_path)
    fill(memory, 20, np.random.default_rng(1))
    (name,) = journal.write(memory)
    with ZipFile(tmp_path / name) as archive:
        largest = max(archive.infolist(), key=lambda member: member.compress_size)
    content = bytearray((tmp_path / name).read_bytes())
    content[largest.header_offset + largest.compress_size] ^= 1  # among its numbers: its own header is before them
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        journal.check([name])
    with pytest.raises(CheckpointError, match="does not exist"):
        journal.check(["000000000000-000000000007.npz"])

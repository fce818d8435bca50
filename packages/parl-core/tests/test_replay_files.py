"""Replay memories on disk."""

from pathlib import Path

import numpy as np
import pytest

from parl_core.errors import CheckpointError
from parl_core.replay import FrameReplayMemory, Prioritized, ReplayMemory, SequenceReplayMemory


def numbered(memory: ReplayMemory, numbers: range) -> None:
    for number in numbers:
        memory.append([number] * 2, number % 3, number / 2, [number + 1] * 2, number % 5 == 4, number % 7 == 6)


def parl_file(path: Path, capacity: int, count: int) -> None:
    """Write a file as PARL 2.2 does: whole columns, `other` = [size, position]."""
    numbers = np.array([i + capacity * ((count - 1 - i) // capacity) if i < count else 0 for i in range(capacity)])
    columns = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32)
    np.savez(
        path,
        obs=columns,
        action=(numbers % 3).astype(np.int32),
        reward=(numbers / 2).astype(np.float32),
        terminal=numbers % 5 == 4,
        next_obs=columns + 1,
        other=np.array([min(count, capacity), count % capacity], dtype=np.int32),
    )


@pytest.mark.parametrize(("count", "expected"), [(4, range(4)), (10, range(10)), (13, range(3, 13))])
def test_a_file_of_parl_is_read(tmp_path: Path, count: int, expected: range) -> None:
    parl_file(tmp_path / "rpm.npz", 10, count)
    memory = ReplayMemory(10, 2, 0, seed=0)
    memory.load(tmp_path / "rpm.npz")
    assert len(memory) == len(expected)
    batch = memory.sample(1000)
    assert set(batch.obs[:, 0]) == set(expected)
    assert np.array_equal(batch.reward, batch.obs[:, 0] / 2)
    assert not batch.truncated.any()
    numbered(memory, range(count, count + 2))  # goes on where PARL stopped: the oldest give way
    assert set(memory.sample(1000).obs[:, 0]) == set([*expected, count, count + 1][-10:])


def test_parl_can_read_our_file(tmp_path: Path) -> None:
    memory = ReplayMemory(10, 2, 0)
    numbered(memory, range(13))
    memory.save(tmp_path / "rpm")
    with np.load(tmp_path / "rpm.npz") as data:  # what PARL's load() reads
        size, position = data["other"]
        assert (size, position) == (10, 3)
        for name in ("obs", "action", "reward", "terminal", "next_obs"):
            assert np.array_equal(data[name][:size], getattr(memory, name))


@pytest.mark.parametrize("count", [6, 25])
def test_a_restored_memory_goes_on_exactly_as_the_saved_one(tmp_path: Path, count: int) -> None:
    settings = {"sampling": Prioritized(), "n_step": 3, "gamma": 0.9}
    saved = ReplayMemory(10, 2, 0, seed=1, **settings)  # type: ignore[arg-type]
    numbered(saved, range(count))
    saved.update_priorities(saved.sample(4).index, [1.0, 5.0, 0.1, 2.0])
    saved.save(tmp_path / "rpm.npz")
    restored = ReplayMemory(10, 2, 0, seed=2, **settings)  # type: ignore[arg-type]
    restored.load(tmp_path / "rpm.npz")
    for memory in (saved, restored):
        numbered(memory, range(count, count + 3))
    first, second = saved.sample(64), restored.sample(64)
    for name in ("index", "obs", "next_obs", "reward", "action", "terminal", "truncated", "discount", "weight"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name


@pytest.mark.parametrize(("capacity", "expected"), [(4, range(9, 13)), (20, range(3, 13))])
def test_a_memory_of_another_size_takes_the_newest_in_order(tmp_path: Path, capacity: int, expected: range) -> None:
    saved = ReplayMemory(10, 2, 0, sampling=Prioritized(alpha=1.0, epsilon=1e-9))
    numbered(saved, range(13))
    saved.update_priorities(np.array([2]), [1e6])  # number 12
    saved.save(tmp_path / "rpm.npz")
    memory = ReplayMemory(capacity, 2, 0, sampling=Prioritized(alpha=1.0), seed=0)
    memory.load(tmp_path / "rpm.npz")
    assert memory.obs[: len(memory), 0].tolist() == list(expected)
    assert memory.truncated[: len(memory)].tolist() == [number % 7 == 6 for number in expected]
    assert np.median(memory.sample(100).obs[:, 0]) == 12


def test_a_smaller_memory_keeps_environments_in_their_slots(tmp_path: Path) -> None:
    saved = ReplayMemory(10, 2, 0, n_envs=2)
    numbered(saved, range(13))  # the second environment has not taken its last step yet
    saved.save(tmp_path / "rpm.npz")
    memory = ReplayMemory(4, 2, 0, n_envs=2)
    memory.load(tmp_path / "rpm.npz")
    assert memory.obs[: len(memory), 0].tolist() == [10, 11, 12]


def test_a_failed_save_leaves_the_older_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ReplayMemory(10, 2, 0, seed=0)
    numbered(memory, range(3))
    memory.save(tmp_path / "rpm.npz")

    def disk_full(file: object, **arrays: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", disk_full)
    numbered(memory, range(3, 8))
    with pytest.raises(OSError, match="No space"):
        memory.save(tmp_path / "rpm.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["rpm.npz"]
    memory.load(tmp_path / "rpm.npz")
    assert len(memory) == 3


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00 cut off"])
def test_a_damaged_file_is_named_in_the_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rpm.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rpm\.npz") as caught:
        ReplayMemory(10, 2, 0).load(tmp_path / "rpm.npz")
    assert "pickle" not in str(caught.value)  # NumPy advises to unpickle what it does not know


def test_pickled_contents_are_never_executed(tmp_path: Path) -> None:
    np.savez(tmp_path / "rpm.npz", obs=np.array([object()], dtype=object), other=np.zeros(2))
    with pytest.raises(CheckpointError, match="not a readable"):
        ReplayMemory(10, 2, 0).load(tmp_path / "rpm.npz")


def test_a_missing_file_and_a_missing_array_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        ReplayMemory(10, 2, 0).load(tmp_path / "rpm.npz")
    np.savez(tmp_path / "rpm.npz", obs=np.zeros(3))
    with pytest.raises(CheckpointError, match="action"):
        ReplayMemory(10, 2, 0).load(tmp_path / "rpm.npz")


def test_a_file_of_other_shapes_is_refused_and_the_memory_untouched(tmp_path: Path) -> None:
    other = ReplayMemory(10, 3, 0)
    other.append([1, 2, 3], 0, 0.0, [1, 2, 3], False)
    other.save(tmp_path / "rpm.npz")
    memory = ReplayMemory(10, 2, 0)
    numbered(memory, range(4))
    with pytest.raises(CheckpointError, match=r"\[3\].*\[2\]"):
        memory.load(tmp_path / "rpm.npz")
    assert len(memory) == 4


def test_a_file_of_another_number_of_environments_is_refused(tmp_path: Path) -> None:
    ReplayMemory(10, 2, 0, n_envs=2).save(tmp_path / "rpm.npz")
    with pytest.raises(CheckpointError, match="n_envs=2"):
        ReplayMemory(10, 2, 0).load(tmp_path / "rpm.npz")


def play_frames(memory: FrameReplayMemory, numbers: range) -> None:
    for number in numbers:
        stack = np.array([number - 1, number], np.uint8).reshape(2, 1, 1)
        memory.append(stack, number % 3, number, stack + 1, False, number % 9 == 8)


def test_a_memory_of_frames_goes_on_exactly_as_the_saved_one(tmp_path: Path) -> None:
    saved, restored = (FrameReplayMemory(20, (2, 1, 1), seed=seed, sampling=Prioritized()) for seed in (1, 2))
    play_frames(saved, range(1, 33))
    saved.save(tmp_path / "frames.npz")
    restored.load(tmp_path / "frames.npz")
    for memory in (saved, restored):
        play_frames(memory, range(33, 40))
    first, second = saved.sample(50), restored.sample(50)
    assert np.array_equal(first.obs, second.obs)
    assert np.array_equal(first.obs[:, 1, 0, 0], first.reward)
    assert np.array_equal(first.reward, second.reward)


def test_a_memory_of_frames_needs_the_arguments_of_the_saved_one(tmp_path: Path) -> None:
    FrameReplayMemory(20, (2, 1, 1)).save(tmp_path / "frames.npz")
    with pytest.raises(CheckpointError, match="max_size=20"):
        FrameReplayMemory(30, (2, 1, 1)).load(tmp_path / "frames.npz")


def test_a_memory_in_a_directory_goes_on_in_the_next_program(tmp_path: Path) -> None:
    first = ReplayMemory(10, 2, 0, seed=1, directory=tmp_path / "rpm")
    numbered(first, range(13))
    first.close()
    second = ReplayMemory(10, 2, 0, seed=2, directory=tmp_path / "rpm")
    assert isinstance(second.obs, np.memmap)
    assert len(second) == 10
    numbered(second, range(13, 15))
    assert set(second.sample(1000).obs[:, 0]) == set(range(5, 15))


def test_frames_in_a_directory_go_on_in_the_next_program(tmp_path: Path) -> None:
    first = FrameReplayMemory(20, (2, 1, 1), directory=tmp_path / "rpm")
    play_frames(first, range(1, 30))
    first.close()
    second = FrameReplayMemory(20, (2, 1, 1), directory=tmp_path / "rpm")
    play_frames(second, range(30, 35))
    batch = second.sample(500)
    assert set(batch.reward) == set(range(15, 35))
    assert np.array_equal(batch.obs[:, 1, 0, 0], batch.reward)


def test_a_directory_whose_program_was_killed_is_refused(tmp_path: Path) -> None:
    numbered(ReplayMemory(10, 2, 0, directory=tmp_path), range(3))  # never closed
    with pytest.raises(CheckpointError, match="was not closed"):
        ReplayMemory(10, 2, 0, directory=tmp_path)


def test_a_directory_of_other_shapes_is_refused(tmp_path: Path) -> None:
    ReplayMemory(10, 2, 0, directory=tmp_path).close()
    with pytest.raises(CheckpointError, match=r"float32\[10, 2\]"):
        ReplayMemory(10, 3, 0, directory=tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"action": np.ones(2, np.int32)}, {"other": np.array([30, 3])}, {"other": np.ones(3)}]
)
def test_a_file_whose_columns_do_not_belong_together_is_refused_and_changes_nothing(
    tmp_path: Path, wrong: dict[str, np.ndarray]
) -> None:
    parl_file(tmp_path / "whole.npz", 10, 6)
    with np.load(tmp_path / "whole.npz") as data:
        np.savez(tmp_path / "rpm.npz", **{**data, **wrong})
    memory = ReplayMemory(10, 2, 0)
    numbered(memory, range(3))
    with pytest.raises(CheckpointError, match=r"rpm.npz does not fit together: rows of action"):
        memory.load(tmp_path / "rpm.npz")
    assert len(memory) == 3
    assert set(memory.sample(100).obs[:, 0]) == {0, 1, 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"place": np.array([0, 60, 10, 1])},
        {"place": np.array([5, 3, 10, 1])},
        {"place": np.array([0, 6])},
        {"truncated": np.zeros(2, bool)},
        {"rng": np.array("no json")},
        {"rng": np.array('{"bit_generator": "Unheard"}')},
        {"priority": np.ones(3)},
    ],
)
def test_damaged_counters_and_generators_are_refused_and_change_nothing(
    tmp_path: Path, wrong: dict[str, np.ndarray]
) -> None:
    saved = ReplayMemory(10, 2, 0, sampling=Prioritized())
    numbered(saved, range(6))
    saved.save(tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as data:
        np.savez(tmp_path / "rpm.npz", **{**data, **wrong})
    memory = ReplayMemory(10, 2, 0, sampling=Prioritized())
    numbered(memory, range(3))
    with pytest.raises(CheckpointError, match=r"rpm\.npz (does not fit together|has a random generator)"):
        memory.load(tmp_path / "rpm.npz")
    assert set(memory.sample(100).obs[:, 0]) == {0, 1, 2}


@pytest.mark.parametrize("wrong", [{"obs_dtype": np.uint8}, {"act_dtype": np.int32}])
def test_a_file_whose_numbers_do_not_go_into_the_memory_is_refused(tmp_path: Path, wrong: dict[str, type]) -> None:
    saved = ReplayMemory(10, 2, 1)
    saved.append([0.5, 0.5], [0.5], 0.0, [1.5, 1.5], False)
    saved.save(tmp_path / "rpm.npz")
    with pytest.raises(CheckpointError, match=r"as float32, this memory stores u?int"):
        ReplayMemory(10, 2, 1, **wrong).load(tmp_path / "rpm.npz")  # type: ignore[arg-type]  # no narrower type


@pytest.mark.parametrize("content", ['{"start": 0, "en', '{"closed": true, "start": 0}', "[]", '{"closed": true}'])
def test_a_directory_with_a_damaged_state_is_refused(tmp_path: Path, content: str) -> None:
    ReplayMemory(10, 2, 0, directory=tmp_path).close()
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"state\.json .*Remove the directory"):
        ReplayMemory(10, 2, 0, directory=tmp_path)


def test_a_directory_with_a_missing_or_shortened_column_is_refused_again_and_again(tmp_path: Path) -> None:
    memory = ReplayMemory(10, 2, 0, directory=tmp_path)
    numbered(memory, range(10))
    memory.close()
    with (tmp_path / "obs.npy").open("r+b") as file:
        file.truncate(150)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"obs\.npy cannot be read"):
            ReplayMemory(10, 2, 0, directory=tmp_path)
    (tmp_path / "obs.npy").unlink()
    with pytest.raises(CheckpointError, match=r"obs\.npy cannot be read"):
        ReplayMemory(10, 2, 0, directory=tmp_path)


def test_a_directory_of_another_number_of_environments_is_refused(tmp_path: Path) -> None:
    ReplayMemory(10, 2, 0, n_envs=2, directory=tmp_path).close()
    with pytest.raises(CheckpointError, match=r"^the replay memory in .* n_envs=2, this one with n_envs=1"):
        ReplayMemory(10, 2, 0, directory=tmp_path)


def sequences(max_size: int, **state: tuple[int, ...]) -> SequenceReplayMemory:
    return SequenceReplayMemory(max_size, 1, 0, state=state, length=2, burn_in=1, n_step=1, gamma=0.9, seed=0)


@pytest.mark.parametrize("max_size", [6, 4])
def test_states_before_steps_are_saved_and_loaded(tmp_path: Path, max_size: int) -> None:
    saved, restored = sequences(6, h=(2,)), sequences(max_size, h=(2,))
    for t in range(8):
        saved.append_batch([[t]], [0], [1.0], [[t + 1]], [False], state={"h": [[t, -t]]})
    saved.save(tmp_path / "rpm.npz")
    restored.load(tmp_path / "rpm.npz")
    drawn = restored.sample_sequences(20)
    assert np.array_equal(drawn["state"]["h"], drawn["before_obs"] * [1, -1])
    if max_size == 6:
        assert np.array_equal(drawn["obs"], saved.sample_sequences(20)["obs"])


def test_a_file_without_the_states_or_with_others_is_refused(tmp_path: Path) -> None:
    for name, memory in (("none.npz", ReplayMemory(6, 1, 0)), ("wide.npz", sequences(6, h=(3,)))):
        memory.append_batch([[0]], [0], [1.0], [[1]], [False])
        memory.save(tmp_path / name)
    for name, told in (("none.npz", "state_h"), ("wide.npz", r"state_h of shape \[3\]")):
        with pytest.raises(CheckpointError, match=told):
            sequences(6, h=(2,)).load(tmp_path / name)


def test_a_transition_without_its_state_is_refused() -> None:
    with pytest.raises(TypeError, match="append_batch"):
        sequences(6, h=(2,)).append([0], 0, 1.0, [1], False)

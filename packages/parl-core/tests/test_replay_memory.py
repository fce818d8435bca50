"""The uniform replay memory: what goes in comes out, in the shapes, types and order that were asked for."""

from typing import Any

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.replay import ReplayMemory


def numbered(memory: ReplayMemory, numbers: range, **flags: bool) -> None:
    """Append transitions that carry their number in every field."""
    for number in numbers:
        memory.append([number] * 2, number % 3, number / 2, [number + 1] * 2, number % 5 == 4, number % 7 == 6)


def held(memory: ReplayMemory) -> set[int]:
    """The numbers of all transitions that many draws find."""
    return {int(number) for number in memory.sample(4096).obs[:, 0]}


def test_every_field_of_a_drawn_transition_belongs_to_the_same_transition() -> None:
    memory = ReplayMemory(50, 2, 0, seed=0)
    numbered(memory, range(50))
    batch = memory.sample(200)
    number = batch.obs[:, 0]
    assert np.array_equal(batch.action, number % 3)
    assert np.array_equal(batch.reward, number / 2)
    assert np.array_equal(batch.next_obs[:, 1], number + 1)
    assert np.array_equal(batch.terminal, number % 5 == 4)
    assert np.array_equal(batch.truncated, number % 7 == 6)
    assert np.array_equal(batch.index, number)


def test_the_oldest_transitions_are_overwritten_first() -> None:
    memory = ReplayMemory(10, 2, 0, seed=0)
    numbered(memory, range(13))
    assert len(memory) == memory.size() == 10
    assert held(memory) == set(range(3, 13))


def test_a_memory_that_is_not_full_draws_only_what_was_appended() -> None:
    memory = ReplayMemory(1000, 2, 0, seed=0)
    numbered(memory, range(3))
    assert held(memory) == {0, 1, 2}


def test_uniform_sampling_draws_every_transition_equally_often() -> None:
    memory = ReplayMemory(20, 2, 0, seed=0)
    numbered(memory, range(20))
    counts = np.bincount(memory.sample(40_000).index, minlength=20)
    # 19 degrees of freedom: above 50 with a probability of 1e-4.
    assert ((counts - 2000) ** 2 / 2000).sum() < 50


@pytest.mark.parametrize("obs_dim", [4, (4,), [4], np.int64(4)])
def test_obs_dim_may_be_a_number_a_tuple_or_a_list(obs_dim: object) -> None:
    memory = ReplayMemory(10, obs_dim, 0)  # type: ignore[arg-type]  # the parameter's types are what is tested
    memory.append(np.arange(4), 1, 1.0, np.arange(4), False)
    obs, action, reward, next_obs, terminal = memory.sample_batch(3)
    assert obs.shape == next_obs.shape == (3, 4)
    assert obs.dtype == np.float32
    assert action.shape == reward.shape == terminal.shape == (3,)
    assert (action.dtype, reward.dtype, terminal.dtype) == (np.int32, np.float32, np.bool_)


def test_images_are_stored_in_their_own_dtype() -> None:
    memory = ReplayMemory(4, (3, 8, 8), 0, obs_dtype=np.uint8)
    image = np.full((3, 8, 8), 255, np.uint8)
    memory.append(image, 0, 0.0, image, False)
    assert memory.obs.nbytes == 4 * 3 * 8 * 8
    batch = memory.sample(2)
    assert batch.obs.dtype == np.uint8
    assert batch.obs.min() == 255


def test_continuous_actions_keep_their_shape() -> None:
    memory = ReplayMemory(4, 3, 6)
    memory.append(np.zeros(3), np.linspace(-1, 1, 6), 0.0, np.zeros(3), False)
    assert np.allclose(memory.sample(2).action, np.linspace(-1, 1, 6))


def test_a_batch_goes_in_as_single_transitions_would() -> None:
    one_by_one, at_once = ReplayMemory(10, 2, 0, seed=1), ReplayMemory(10, 2, 0, seed=1)
    numbered(one_by_one, range(23))
    numbers = np.arange(23)
    columns = np.repeat(numbers[:, None], 2, axis=1)
    for part in np.split(numbers, [7, 9, 20]):  # runs over the ring's end, and an odd rest
        at_once.append_batch(
            columns[part], part % 3, part / 2, columns[part] + 1, part % 5 == 4, truncated=part % 7 == 6
        )
    for name in ("obs", "next_obs", "action", "reward", "terminal", "truncated"):
        assert np.array_equal(getattr(one_by_one, name), getattr(at_once, name)), name
    assert np.array_equal(one_by_one.sample(50).index, at_once.sample(50).index)


def test_a_batch_larger_than_the_memory_leaves_its_newest_rows() -> None:
    memory = ReplayMemory(4, 1, 0, seed=0)
    memory.append([-1.0], 0, 0.0, [0.0], False)
    numbers = np.arange(11.0)[:, None]
    memory.append_batch(numbers, np.zeros(11), np.zeros(11), numbers, np.zeros(11, bool))
    assert held(memory) == {7, 8, 9, 10}


@pytest.mark.parametrize("one", [2, np.int64(2), np.array(2), [2], np.array([2.0])], ids=repr)
def test_where_rows_have_one_number_it_may_come_alone_as_parl_s_examples_append_it(one: Any) -> None:
    memory = ReplayMemory(4, 1, 1)
    memory.append(one, one, 0.5, one, False)
    assert memory.action[0] == memory.obs[0] == memory.next_obs[0] == [2.0]
    with pytest.raises(ValueError, match=r"got obs \[2\], next_obs \[2\], act \[2\]"):
        memory.append([1, 2], [1, 2], 0.5, [1, 2], False)
    assert len(memory) == 1


def test_a_batch_with_a_missing_row_is_refused_whole() -> None:
    memory = ReplayMemory(10, 2, 0)
    with pytest.raises(ValueError, match=r"\[3, 2\] where \[4, 2\] is needed"):
        memory.append_batch(np.zeros((3, 2)), np.zeros(4), np.zeros(4), np.zeros((4, 2)), np.zeros(4, bool))
    assert len(memory) == 0


def test_a_memory_without_a_seed_takes_one_from_numpys_global_generator() -> None:
    before, drawn = np.random.get_state(), []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        memories = ReplayMemory(100, 2, 0), ReplayMemory(100, 2, 0)
        np.random.seed(0)
        for memory in memories:
            numbered(memory, range(100))
            drawn.append(memory.sample(50).index.tolist())
    np.random.set_state(before)
    assert drawn[:2] == drawn[2:4]
    assert len({tuple(draws) for draws in drawn}) == 4


def test_a_seeded_memory_leaves_numpys_global_generator_alone() -> None:
    before = np.random.get_state()
    ReplayMemory(100, 2, 0, seed=1)
    after = np.random.random()
    np.random.set_state(before)
    assert np.random.random() == after


def test_the_same_seed_draws_the_same_batches() -> None:
    first, second, other = (ReplayMemory(100, 2, 0, seed=seed) for seed in (7, 7, 8))
    for memory in (first, second, other):
        numbered(memory, range(100))
    draws = [memory.sample(64).index for memory in (first, second, other)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_sample_reuses_its_arrays_and_copies_stay() -> None:
    memory = ReplayMemory(100, 2, 0, seed=0)
    numbered(memory, range(100))
    first = memory.sample(32)
    kept = first.copy()
    second = memory.sample(32)
    assert second.obs is first.obs
    assert not np.array_equal(first.obs, kept.obs)
    assert np.array_equal(kept.obs[:, 0], kept.index)


@pytest.mark.parametrize("size", [-1, 2.5, None, "3"])
def test_a_batch_of_no_number_of_rows_is_refused(size: Any) -> None:
    memory = ReplayMemory(100, 2, 0, seed=0)
    numbered(memory, range(100))
    with pytest.raises(HyperparameterError, match="batch_size must be"):
        memory.sample(size)


def test_sample_batch_gives_arrays_of_their_own() -> None:
    memory = ReplayMemory(100, 2, 0, seed=0)
    numbered(memory, range(100))
    first, second = memory.sample_batch(32)[0], memory.sample_batch(32)[0]
    assert not np.shares_memory(first, second)


def test_an_index_drawn_before_selects_the_same_transitions_in_two_memories() -> None:
    memories = [ReplayMemory(100, 2, 0, seed=seed) for seed in (1, 2)]
    for memory in memories:
        numbered(memory, range(40))
    index = memories[0].make_index(16)
    first, second = (memory.sample_batch_by_index(index) for memory in memories)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(first[0][:, 0], index)


@pytest.mark.parametrize("index", [[5], [-1], [100], [0, 4, 7]])
def test_an_index_without_a_transition_is_refused(index: list[int]) -> None:
    memory = ReplayMemory(100, 2, 0)
    numbered(memory, range(5))
    with pytest.raises(IndexError, match="holds 5 transitions"):
        memory.sample_batch_by_index(index)


def test_sampling_from_an_empty_memory_says_so() -> None:
    with pytest.raises(ValueError, match="empty"):
        ReplayMemory(10, 2, 0).sample(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"max_size": 10, "n_envs": 4}, "use 12"),
        ({"max_size": 10, "n_step": 3}, "gamma"),
        ({"max_size": 10, "n_step": 3, "gamma": 1.5}, r"\[0, 1\]"),
        ({"max_size": 10, "n_step": 0}, "n_step must be at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(HyperparameterError, match=message):
        ReplayMemory(obs_dim=2, act_dim=0, **arguments)  # type: ignore[arg-type]  # wrong on purpose


def d4rl_dataset(n: int) -> dict[str, np.ndarray]:
    numbers = np.arange(n, dtype=np.float64)
    return {
        "observations": np.stack([numbers, -numbers], axis=1),
        "next_observations": np.stack([numbers + 1, -numbers - 1], axis=1),
        "actions": numbers[:, None] / n,
        "rewards": numbers[:, None],
        "terminals": (numbers % 4 == 3)[:, None].astype(np.uint8),
        "timeouts": numbers % 6 == 5,
    }


def test_a_d4rl_dataset_replaces_the_contents() -> None:
    memory = ReplayMemory(20, 2, 1, seed=0)
    memory.append([99, 99], [0], 0.0, [99, 99], False)
    memory.load_from_d4rl(d4rl_dataset(12))
    assert len(memory) == 12
    batch = memory.sample(500)
    number = batch.obs[:, 0]
    assert set(number) == set(range(12))
    assert np.array_equal(batch.reward, number)
    assert np.array_equal(batch.terminal, number % 4 == 3)
    assert np.array_equal(batch.truncated, number % 6 == 5)


def test_appending_after_a_d4rl_dataset_goes_on_around_the_ring() -> None:
    memory = ReplayMemory(12, 2, 1, seed=0)
    dataset = d4rl_dataset(12)
    memory.load_from_d4rl(dataset)
    for number in (100, 101):
        memory.append([number, 0], [0], 0.0, [number, 0], False)
    assert held(memory) == {*range(2, 12), 100, 101}
    assert dataset["observations"][0, 0] == 0  # the dataset itself is not written to


def test_a_d4rl_dataset_that_is_too_large_or_incomplete_is_refused() -> None:
    memory = ReplayMemory(10, 2, 1)
    with pytest.raises(HyperparameterError, match="max_size=12"):
        memory.load_from_d4rl(d4rl_dataset(12))
    incomplete = d4rl_dataset(5)
    del incomplete["actions"]
    with pytest.raises(KeyError, match="actions"):
        memory.load_from_d4rl(incomplete)


@pytest.mark.parametrize(
    ("obs", "act", "reward", "next_obs"),
    [
        (1.0, np.zeros(2), 0.0, np.zeros(4)),
        (np.zeros(1), np.zeros(2), 0.0, np.zeros(4)),
        (np.zeros(4), np.zeros(2), 0.0, np.zeros(1)),
        (np.zeros((1, 4)), np.zeros(2), 0.0, np.zeros(4)),
        (np.zeros(4), 0.5, 0.0, np.zeros(4)),
        (np.zeros(4), np.zeros(1), 0.0, np.zeros(4)),
        (np.zeros(4), np.zeros(3), 0.0, np.zeros(4)),
        (np.zeros(4), np.zeros(2), np.nan, np.zeros(4)),
        (np.zeros(4), np.zeros(2), np.inf, np.zeros(4)),
        (["a"] * 4, np.zeros(2), 0.0, np.zeros(4)),
    ],
)
def test_a_transition_that_does_not_fit_is_refused_and_never_drawn(
    obs: Any, act: Any, reward: float, next_obs: Any
) -> None:
    memory = ReplayMemory(3, 4, 2, seed=0)
    for number in range(1, 4):
        memory.append(np.full(4, number), np.full(2, number), number, np.full(4, number), False)
    with pytest.raises(ValueError, match=r"append got obs .* stores observations \[4\] of float32, actions"):
        memory.append(obs, act, reward, next_obs, False)
    assert len(memory) >= 2
    batch = memory.sample(64)
    assert all(np.array_equal(part[:, 0], batch.reward) for part in (batch.obs, batch.next_obs, batch.action))


@pytest.mark.parametrize(("obs_dim", "wrong"), [((4, 3, 3), (4, 1, 1)), ((4, 3, 3), (3, 3)), ((2, 2), (2, 1))])
def test_an_image_of_another_shape_is_not_repeated_to_fill_the_place(
    obs_dim: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    memory = ReplayMemory(3, obs_dim, 0)
    with pytest.raises(ValueError, match="append got obs"):
        memory.append(np.zeros(obs_dim), 0, 0.0, np.zeros(wrong), False)
    assert len(memory) == 0


@pytest.mark.parametrize(
    ("obs_dtype", "obs", "act"),
    [(np.uint8, np.full((1, 2), 0.5, np.float32), [1]), (np.float32, np.zeros((1, 2)), [0.7])],
)
def test_fractions_are_not_dropped_where_whole_numbers_are_stored(obs_dtype: Any, obs: Any, act: Any) -> None:
    memory = ReplayMemory(9, 2, 0, obs_dtype=obs_dtype)
    with pytest.raises(ValueError, match=r"got 0\.[57] among float\d\d numbers where u?int\d+ is stored: .*obs_dtype"):
        memory.append_batch(obs, act, [0.0], obs, [False])
    with pytest.raises(ValueError, match=r"append got obs .* such numbers .* obs_dtype and act_dtype"):
        memory.append(obs[0], act[0], 0.0, obs[0], False)
    assert len(memory) == 0
    memory.append_batch(np.full((1, 2), 3.0), [1.0], [0.0], np.full((1, 2), 3.0), [0.0])
    memory.append(np.full(2, 3.0), 1.0, 0.0, np.full(2, 3.0), False)
    assert memory.obs[:2].tolist() == [[3, 3]] * 2


@pytest.mark.parametrize("number", [-1, 300])
def test_whole_numbers_are_not_wrapped(number: int) -> None:
    memory = ReplayMemory(9, 2, 0, obs_dtype=np.uint8)
    obs, fits = np.array([0, number]), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=f"got {number} among int64 numbers where uint8 is stored"):
        memory.append_batch([fits], [1], [0.0], [obs], [False])
    with pytest.raises(ValueError, match=f"with {number} in next_obs, which uint8 cannot hold; this memory stores"):
        memory.append(fits, 1, 0.0, obs, False)
    with pytest.raises(ValueError, match=f"with {2**40} in act, which int32 cannot hold"):
        ReplayMemory(9, 2, 0).append(np.zeros(2), 2**40, 0.0, np.zeros(2), False)
    assert len(memory) == 0


@pytest.mark.parametrize(
    ("act_dim", "act", "first"),
    [(0, np.float32(0.5), 0.5), (0, np.int64(-1), -1), (0, np.array(300), 300), (2, [1, 0.5], 0.5), (2, [-1, 0], -1)],
)
def test_an_action_is_refused_where_another_one_would_be_stored(act_dim: int, act: Any, first: float) -> None:
    memory = ReplayMemory(9, 2, act_dim, act_dtype=np.uint8)
    with pytest.raises(ValueError, match=f"with {first} in act, which uint8 cannot hold"):
        memory.append(np.zeros(2), act, 0.0, np.zeros(2), False)
    memory.append(np.zeros(2), np.ones(act_dim or ()), 0.0, np.zeros(2), False)
    assert memory.action[: len(memory)].tolist() == [[1, 1] if act_dim else 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_batch_with_a_reward_that_is_no_number_is_refused_whole(bad: float) -> None:
    memory = ReplayMemory(9, 2, 0)
    with pytest.raises(ValueError, match="1 of 3 rewards are NaN, infinite or too large for float32, the first is"):
        memory.append_batch(np.zeros((3, 2)), [0, 1, 2], [1.0, bad, 2.0], np.zeros((3, 2)), [False] * 3)
    assert len(memory) == 0
    memory.append_batch(np.zeros((2, 2)), [0, 1], [1e30, -3e38], np.zeros((2, 2)), [False] * 2)
    assert len(memory) == 2


def test_a_batch_of_what_is_no_number_is_refused_whole() -> None:
    memory = ReplayMemory(3, 2, 0)
    numbered(memory, range(3))
    with pytest.raises(ValueError, match="invalid literal"):
        memory.append_batch(np.full((1, 2), 9), ["x"], [0.0], np.zeros((1, 2)), [False])
    assert held(memory) == {1, 2}
    with pytest.raises(ValueError, match="invalid literal"):
        memory.append_batch(np.full((5, 2), 9), ["x"] * 5, [0.0] * 5, np.zeros((5, 2)), [False] * 5)
    assert len(memory) == 0


def test_a_batch_brings_one_transition_of_every_environment() -> None:
    memory = ReplayMemory(8, 2, 0, n_envs=2)
    with pytest.raises(ValueError, match="got 1 transitions; this memory has n_envs=2"):
        memory.append_batch(np.zeros((1, 2)), [0], [0.0], np.zeros((1, 2)), [False])


@pytest.mark.parametrize(
    "wrong", [{"observations": np.zeros((3, 7))}, {"rewards": np.array([0.0, np.nan, 1.0])}, {"terminals": np.zeros(2)}]
)
def test_a_refused_d4rl_dataset_leaves_the_contents(wrong: dict[str, Any]) -> None:
    memory = ReplayMemory(5, 2, 0)
    numbered(memory, range(2))
    dataset = {"observations": np.zeros((3, 2)), "next_observations": np.zeros((3, 2)), "actions": np.zeros(3)}
    with pytest.raises(ValueError):
        memory.load_from_d4rl({**dataset, "rewards": np.zeros(3), "terminals": np.zeros(3), **wrong})
    assert held(memory) == {0, 1}


def test_a_memory_larger_than_that_of_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shape: Any, dtype: Any) -> Any:
        raise MemoryError("Unable to allocate 3.64 TiB")

    with monkeypatch.context() as machine:
        machine.setattr("parl_core._array_files.np.zeros", full)
        with pytest.raises(HyperparameterError, match=r"of 50 rows is too large.*3\.64 TiB.*memory_size"):
            ReplayMemory(50, 4, 0)

"""Prioritised sampling, against the formulas of Schaul et al. 2016 and against a cumulative sum by hand."""

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.replay import FrameReplayMemory, Prioritized, ReplayMemory
from parl_core.replay._priorities import SumTree


def filled(size: int, count: int, **settings: float) -> ReplayMemory:
    memory = ReplayMemory(size, 1, 0, seed=0, sampling=Prioritized(**settings))
    for number in range(count):
        memory.append([number], 0, 0.0, [number], False)
    return memory


@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 256, 4096, 4097, 70_000])
def test_a_sum_tree_finds_what_a_cumulative_sum_finds(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    values = rng.random(capacity) * (rng.random(capacity) < 0.3)  # most slots are empty
    values[rng.integers(capacity)] = 1.0
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), values)
    masses = np.sort(rng.random(500)) * values.sum()
    assert tree.total == pytest.approx(values.sum())
    assert np.array_equal(tree.find(masses), np.searchsorted(values.cumsum(), masses, "right"))


def test_a_sum_tree_never_finds_an_empty_slot_even_at_the_very_end() -> None:
    tree = SumTree(70_000)
    rng = np.random.default_rng(0)
    slots = rng.choice(69_000, 1000, replace=False)
    tree.set(slots, rng.random(1000) * 10.0 ** rng.integers(-12, 12, 1000))
    masses = np.concatenate([rng.random(1000) * tree.total, [tree.total, np.nextafter(tree.total, np.inf)]])
    assert (tree.leaves[tree.find(masses)] > 0).all()


def test_rounding_between_a_sum_and_its_parts_never_leads_to_an_empty_slot() -> None:
    """Masses just below the border of two blocks, where the sum of a block and its running sum differ by rounding."""
    rng = np.random.default_rng(1)
    values = rng.random((400, 16)) * 10.0 ** rng.integers(-3, 3, (400, 16))
    values[:, [0, 15]] = 0.0
    tree = SumTree(values.size)
    tree.set(np.arange(values.size), values.reshape(-1))
    borders = values.sum(axis=1).cumsum()
    for _ in range(3):
        borders = np.nextafter(borders, 0.0)
        assert (tree.leaves[tree.find(borders)] > 0).all()


def test_sums_stay_exact_over_many_updates() -> None:
    tree, values, rng = SumTree(10_000), np.zeros(10_000), np.random.default_rng(0)
    for _ in range(300):
        slots = rng.permutation(10_000)[:64]
        new = rng.random(64) * 10.0 ** rng.integers(-8, 8)
        tree.set(slots, new)
        values[slots] = new
    assert tree.total == pytest.approx(values.sum(), rel=1e-12)
    tree.fill(100, 9_000, 2.5)
    values[100:9_000] = 2.5
    assert tree.total == pytest.approx(values.sum(), rel=1e-12)


def test_the_last_of_equal_slots_counts() -> None:
    tree = SumTree(10_000)
    tree.set(np.array([5, 5, 5]), np.array([1.0, 2.0, 3.0]))
    assert tree.total == 3.0


def test_transitions_are_drawn_in_proportion_to_priority_to_the_alpha() -> None:
    memory = filled(8, 8, alpha=0.5, epsilon=1e-9)
    errors = np.array([1.0, -4.0, 9.0, 16.0, 1.0, 4.0, 0.0, 25.0])
    memory.update_priorities(np.arange(8), errors)
    counts = np.bincount(memory.sample(40_000).index, minlength=8)
    expected = np.sqrt(np.abs(errors))  # 0 1 2 3 4 5
    # One draw from each of n equal parts: the counts can differ from the expectation by one at each border.
    assert np.abs(counts - 40_000 * expected / expected.sum()).max() <= 3


def test_weights_are_those_of_the_paper() -> None:
    memory = filled(4, 4, alpha=1.0, beta=0.5, epsilon=1e-12)
    priorities = np.array([1.0, 2.0, 4.0, 8.0])
    memory.update_priorities(np.arange(4), priorities)
    batch = memory.sample(1000)
    assert batch.weight is not None
    probability = priorities / priorities.sum()
    expected = (4 * probability[batch.index]) ** -0.5
    assert np.allclose(batch.weight, expected / expected.max())
    corrected = memory.sample(1000, beta=1.0)
    assert corrected.weight is not None
    assert np.allclose(corrected.weight, 1 / priorities[corrected.index])


def test_alpha_zero_is_uniform_with_equal_weights() -> None:
    memory = filled(4, 4, alpha=0.0)
    memory.update_priorities(np.arange(4), np.array([0.0, 1.0, 100.0, 1e6]))
    batch = memory.sample(4000)
    assert np.bincount(batch.index).tolist() == [1000] * 4
    assert batch.weight is not None
    assert (batch.weight == 1).all()


def test_a_new_transition_has_the_largest_priority_so_far() -> None:
    memory = filled(100, 10, alpha=1.0, epsilon=1e-9)
    memory.update_priorities(np.arange(10), np.full(10, 3.0))
    memory.update_priorities(np.arange(10), np.full(10, 0.5))
    memory.append([10], 0, 0.0, [10], False)
    counts = np.bincount(memory.sample(8000).index, minlength=11)
    assert counts[10] == pytest.approx(3000, abs=3)  # 3 of 10 * 0.5 + 3


def test_an_overwritten_slot_has_the_new_transitions_priority() -> None:
    memory = filled(4, 4, alpha=1.0, epsilon=1e-9)
    memory.update_priorities(np.arange(4), np.array([1e-3, 1.0, 1.0, 1.0]))
    memory.append([4], 0, 0.0, [4], False)  # into slot 0
    assert np.bincount(memory.sample(4000).index).tolist() == pytest.approx([1000] * 4, abs=3)


def test_more_new_transitions_than_slots_between_two_draws_fill_each_slot_once() -> None:
    memory = filled(10, 5)
    memory.sample(1)
    for number in range(5, 38):
        memory.append([number], 0, 0.0, [number], False)
    assert np.bincount(memory.sample(4000).index).tolist() == [400] * 10


def test_dropped_transitions_are_never_drawn() -> None:
    memory = filled(10, 10)
    memory.load_from_d4rl(
        {
            "observations": np.full((3, 1), 50.0),
            "next_observations": np.zeros((3, 1)),
            "actions": np.zeros(3),
            "rewards": np.zeros(3),
            "terminals": np.zeros(3),
        }
    )
    assert set(memory.sample(500).obs[:, 0]) == {50.0}


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_an_error_that_is_not_finite_is_refused(spoiled: float) -> None:
    memory = filled(4, 4)
    with pytest.raises(ValueError, match="finite"):
        memory.update_priorities(np.arange(2), np.array([1.0, spoiled]))
    assert memory.sample(8).weight is not None  # and the memory goes on


def test_one_error_for_each_slot_is_needed() -> None:
    with pytest.raises(ValueError, match="3 values for 2 slots"):
        filled(4, 4).update_priorities(np.arange(2), np.ones(3))


def test_a_uniform_memory_says_that_it_has_no_priorities() -> None:
    memory = ReplayMemory(4, 1, 0)
    memory.append([0], 0, 0.0, [0], False)
    batch = memory.sample(2)
    assert batch.weight is None
    with pytest.raises(HyperparameterError, match="Prioritized"):
        memory.update_priorities(batch.index, np.ones(2))


@pytest.mark.parametrize("settings", [{"alpha": 1.1}, {"beta": -0.1}, {"epsilon": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(HyperparameterError):
        Prioritized(**settings)


def test_frames_can_be_sampled_by_priority_too() -> None:
    memory = FrameReplayMemory(6, (2, 3, 3), sampling=Prioritized(alpha=1.0), seed=0)
    stack = np.zeros((2, 3, 3), np.uint8)
    for _ in range(6):
        memory.append(stack, 0, 0.0, stack, True)
    memory.update_priorities(np.array([2]), [1e6])
    assert np.bincount(memory.sample(100).index, minlength=6)[2] >= 98


def test_slots_without_a_transition_get_no_priority() -> None:
    memory = ReplayMemory(10, 1, 0, sampling=Prioritized(), seed=0)
    for number in range(3):
        memory.append([number], 0, 0.0, [number], False)
    memory.update_priorities(np.array([0, 7]), np.array([1.0, 1e6]))
    assert set(memory.sample(64).index) == {0, 1, 2}
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match="this memory has 0 to 9"):
            memory.update_priorities(np.array([0, wrong]), np.ones(2))


def test_frames_dropped_between_a_draw_and_its_update_are_not_drawn_again() -> None:
    memory = FrameReplayMemory(20, (4, 1, 1), sampling=Prioritized(), seed=0)
    for number in range(36):
        memory.append(np.full((4, 1, 1), number), 0, 0.0, np.full((4, 1, 1), number), True)
    memory.update_priorities(np.arange(20), np.ones(20))
    drawn = memory.sample(200).index
    assert memory.sample_batch_by_index(drawn)[1].shape == (200,)

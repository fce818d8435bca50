"""Utilities from rewards, against numbers made by hand."""

import math
import random

import numpy as np
import pytest

from parl_evokit.errors import InvalidReward
from parl_evokit.shaping import Shaping, centered, centered_rank, normalized, sign, top_directions

ALL: list[Shaping] = [centered_rank, centered, normalized, sign]
each = pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.__name__)


def test_ranks_are_spread_evenly_between_minus_and_plus_one_half() -> None:
    utilities = centered_rank(np.array([10.0, -3.0, 7.0, 100.0, 8.0]))
    assert utilities.weights.tolist() == [2, -4, -2, 4, 0]
    assert utilities.values.tolist() == [0.25, -0.5, -0.25, 0.5, 0.0]


def test_equal_rewards_get_the_mean_of_their_ranks_as_integers() -> None:
    # Ranks 0, 1-2 (mean 1.5), 3: weights 2 * rank - 3.
    assert centered_rank(np.array([5.0, 9.0, 5.0, 1.0])).weights.tolist() == [0, 3, 0, -3]
    # Ranks 0-2 (mean 1) and 3.
    assert centered_rank(np.array([1.0, 1.0, 2.0, 1.0])).weights.tolist() == [-1, -1, 3, -1]


@pytest.mark.parametrize("seed", range(10))
def test_ranks_are_what_counting_smaller_and_equal_rewards_gives(seed: int) -> None:
    rewards = np.random.default_rng(seed).integers(-seed, seed + 1, 50).astype(np.float64)
    rewards[::7] *= -1.0  # also into zeros with a sign
    expected = [2 * int((rewards < r).sum()) + int((rewards == r).sum()) - len(rewards) for r in rewards]
    assert centered_rank(rewards).weights.tolist() == expected


def test_centered_rewards_keep_their_distances() -> None:
    utilities = centered(np.array([1.0, 2.0, 6.0]))
    assert utilities.weights.tolist() == [-21845, -10923, 32768]
    assert utilities.values == pytest.approx([-2, -1, 3], abs=3 / 2**15)


def test_normalized_rewards_have_deviation_one() -> None:
    utilities = normalized(np.array([1.0, 2.0, 6.0]))
    assert utilities.values == pytest.approx(np.array([-2, -1, 3]) / math.sqrt(14 / 3), abs=1e-4)


def test_signs_compare_with_the_median() -> None:
    assert sign(np.array([5.0, 1.0, 9.0])).values.tolist() == [0, -1, 1]
    assert sign(np.array([5.0, 1.0, 9.0, 6.0])).values.tolist() == [-1, -1, 1, 1]


def test_only_the_best_directions_count_and_a_direction_is_as_good_as_its_better_half() -> None:
    rewards = np.array([1.0, 8.0, 3.0, 2.0, 0.0, 9.0])
    utilities = top_directions(rewards, [2, 3, 4, 5, 6, 7], 2)
    # Directions 1 (8) and 3 (9) are chosen; their rewards 1, 8, 0, 9 have mean 4.5 and deviation sqrt(16.25).
    assert utilities.values == pytest.approx(np.array([-3.5, 3.5, 0, 0, -4.5, 4.5]) / math.sqrt(16.25), abs=1e-4)


def test_a_lone_half_is_a_direction_too_and_more_directions_than_there_are_means_all() -> None:
    utilities = top_directions(np.array([1.0, 3.0]), [4, 9], 10)
    assert utilities.values == pytest.approx([-1.0, 1.0], abs=1e-4)


def test_equal_directions_are_chosen_by_key_not_by_position() -> None:
    keys, rewards = [8, 6, 4, 2], np.array([5.0, 5.0, 5.0, 1.0])
    chosen = top_directions(np.append(rewards, 9.0), [*keys, 10], 2)
    assert chosen.weights.tolist() == [0, 0, -32768, 0, 32768]
    assert top_directions(np.append(rewards[::-1], 9.0), [*keys[::-1], 10], 2).weights.tolist() == [
        0,
        -32768,
        0,
        0,
        32768,
    ]


@each
def test_larger_rewards_never_get_smaller_utilities_and_order_does_not_matter(shape: Shaping) -> None:
    draw = random.Random(1)
    rewards = np.array([draw.choice([draw.gauss(0, 1e6), 3.0, 1e-7]) for _ in range(101)])
    weights = shape(rewards).weights
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(weights[order]) >= 0).all()
    shuffled = np.array(draw.sample(range(101), 101))
    again = shape(rewards[shuffled])
    assert (again.weights == weights[shuffled]).all()
    assert again.unit == shape(rewards).unit


@each
def test_all_rewards_equal_means_no_preference(shape: Shaping) -> None:
    assert not shape(np.full(7, 0.1)).weights.any()
    assert not shape(np.array([3.0])).weights.any()
    assert shape(np.zeros(0)).weights.tolist() == []


def test_no_direction_is_preferred_when_all_are_equal_or_there_are_none() -> None:
    assert not top_directions(np.full(4, 0.1), [2, 3, 4, 5], 1).weights.any()
    assert top_directions(np.zeros(0), [], 1).weights.tolist() == []


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(shape: Shaping, bad: float) -> None:
    with pytest.raises(InvalidReward, match="1 are not, the first is number 1"):
        shape(np.array([0.0, bad, 2.0]))


def test_directions_need_one_key_a_reward_and_a_number_above_zero() -> None:
    with pytest.raises(InvalidReward, match="2 rewards came with 1 keys"):
        top_directions(np.zeros(2), [2], 1)
    with pytest.raises(ValueError, match="not 0"):
        top_directions(np.zeros(1), [2], 0)

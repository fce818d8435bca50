"""Figures over seeds, against numbers by hand."""

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.stats import (
    bootstrap_difference,
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 10.0, 1000.0], (0.25 * 0.0 + 1.0 * 10.0 + 0.25 * 1000.0) / 1.5),
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([100.0, 1.0, 2.0, 4.0, -50.0], (0.75 * 1.0 + 2.0 + 0.75 * 4.0) / 2.5),
        (range(8), 3.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float], expected: float) -> None:
    assert interquartile_mean(values) == pytest.approx(expected)


def test_it_goes_along_an_axis() -> None:
    array = np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(interquartile_mean(array, axis=0), [4.5, 5.5, 6.5])


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for repeat in range(200):
        low, high = bootstrap_interval(rng.normal(3.0, 1.0, 20), resamples=500, seed=repeat)
        hits += low <= 3.0 <= high
    assert 170 <= hits <= 200


def test_equal_values_give_an_interval_of_no_width_and_the_same_seed_the_same_interval() -> None:
    assert bootstrap_interval([500.0] * 5) == (500.0, 500.0)
    values = [490.0, 500.0, 431.0, 77.0, 500.0]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    low, high = bootstrap_interval(values)
    assert 77.0 <= low < interquartile_mean(values) < high <= 500.0


def test_no_values_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="at least one value"):
        interquartile_mean([])
    with pytest.raises(HyperparameterError, match="one value per seed"):
        bootstrap_interval([])


def test_over_several_tasks_each_keeps_its_seeds() -> None:
    """A resample without strata would mix the tasks, and the interval of two constant tasks would have a width."""
    apart = {"easy": [1.0] * 4, "hard": [0.0] * 4}
    assert bootstrap_interval(apart) == (0.5, 0.5)
    assert bootstrap_interval(np.array([[1.0, 0.0]] * 4)) == (0.5, 0.5)
    assert bootstrap_interval([[1.0], [2.0], [5.0]]) == bootstrap_interval([1.0, 2.0, 5.0])


def test_tasks_may_have_different_numbers_of_seeds() -> None:
    low, high = bootstrap_interval({"one": [0.1, 0.2, 0.3], "other": [0.2, 0.4]}, resamples=200)
    assert 0.1 <= low <= high <= 0.4


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.0),
        ([0.0, 1.0], [2.0, 3.0], 0.0),
        ([1.0, 1.0], [1.0, 1.0, 1.0], 0.5),
        ([1.0, 3.0], [2.0], 0.5),
        ([1.0, 2.0, 3.0], [0.0, 2.0], (1.0 + 0.0 + 1.0 + 0.5 + 1.0 + 1.0) / 6.0),
        ({"a": [1.0], "b": [0.0]}, {"b": [0.0, 1.0], "a": [0.0]}, (1.0 + 0.25) / 2.0),
    ],
)
def test_the_probability_of_improvement_counts_pairs(ours: object, theirs: object, expected: float) -> None:
    found = probability_of_improvement(ours, theirs, resamples=300)  # type: ignore[arg-type]  # any form of scores
    assert found.probability == pytest.approx(expected)
    assert found.interval.low <= expected + 1e-12
    assert found.interval.high >= expected - 1e-12


def test_the_interval_of_an_improvement_holds_the_truth_about_as_often_as_it_says() -> None:
    """Of two normal distributions one deviation apart, the second is above the first with probability 0.760."""
    rng = np.random.default_rng(2)
    hits = 0
    for repeat in range(200):
        ours, theirs = rng.normal(1.0, 1.0, 30), rng.normal(0.0, 1.0, 30)
        low, high = probability_of_improvement(ours, theirs, resamples=400, seed=repeat).interval
        hits += low <= 0.76025 <= high
    assert 170 <= hits <= 200


def test_a_profile_has_the_share_of_runs_above_each_threshold() -> None:
    profile = performance_profile({"a": [0.0, 1.0], "b": [0.5, 1.0, 1.0, 2.0]}, [-1.0, 0.0, 0.5, 1.0, 2.0])
    np.testing.assert_allclose(profile.share, [1.0, (0.5 + 1.0) / 2, (0.5 + 0.75) / 2, (0.0 + 0.25) / 2, 0.0])
    assert (profile.low <= profile.share).all()
    assert (profile.share <= profile.high).all()
    assert profile.low[0] == profile.high[0] == 1.0


def test_the_area_under_a_profile_is_the_mean_score() -> None:
    scores = np.random.default_rng(0).uniform(0.0, 1.0, (7, 3))
    thresholds = np.linspace(0.0, 1.0, 20_001)
    profile = performance_profile(scores, thresholds, resamples=2)
    assert profile.share.mean() == pytest.approx(scores.mean(), abs=1e-3)


def test_scores_that_mean_nothing_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="same tasks"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(HyperparameterError, match="the scores of task 1 must be finite, got nan"):
        bootstrap_interval([[1.0, np.nan]])
    with pytest.raises(HyperparameterError, match="theirs must be finite, got nan"):
        bootstrap_difference([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(HyperparameterError, match="values must be finite, got -inf"):
        interquartile_mean([1.0, 2.0, 3.0, -np.inf])
    with pytest.raises(HyperparameterError, match="thresholds must be at least one"):
        performance_profile([1.0], [])
    with pytest.raises(HyperparameterError, match="got no tasks"):
        performance_profile({}, [1.0])

"""Figures over seeds, against numbers by hand."""

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.stats import bootstrap_interval, interquartile_mean


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
    with pytest.raises(HyperparameterError, match="one value a seed"):
        bootstrap_interval([])

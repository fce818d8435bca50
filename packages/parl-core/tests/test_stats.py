"""Statistics of windows, of times, and of everything seen."""

from collections.abc import Iterator

import numpy as np
import pytest

from parl_core.errors import HyperparameterError
from parl_core.stats import RunningMeanStd, TimeStat, WindowStat


def test_a_window_forgets_what_is_older() -> None:
    stat = WindowStat(3)
    assert (stat.mean, stat.min, stat.max) == (None, None, None)
    for number in (100, 1, 5, 3):
        stat.add(number)
    assert (stat.mean, stat.min, stat.max, stat.count) == (3.0, 1.0, 5.0, 4)
    assert stat.items == [1.0, 5.0, 3.0]


def test_a_window_takes_an_array_of_one_number_as_programs_of_parl_1_return_it() -> None:
    stat = WindowStat(3)
    stat.add(np.array([2.0], np.float32))
    stat.add(4.0)
    assert stat.items == [2.0, 4.0]
    with pytest.raises(ValueError, match="size 1"):
        stat.add(np.zeros(2))


def test_a_window_of_no_size_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="window_size"):
        WindowStat(0)


def ticking(*times: float) -> Iterator[float]:
    yield from times


def test_times_of_blocks_are_averaged_over_the_window() -> None:
    clock = ticking(0.0, 5.0, 10.0, 11.0, 20.0, 23.0)
    stat = TimeStat(window_size=2, clock=lambda: next(clock))
    for _ in range(3):
        with stat:
            pass
    assert (stat.mean, stat.min, stat.max) == (2.0, 1.0, 3.0)


def test_a_block_that_raises_is_timed_and_its_error_goes_on() -> None:
    clock = ticking(1.0, 4.0)
    stat = TimeStat(clock=lambda: next(clock))
    with pytest.raises(KeyError), stat:
        raise KeyError
    assert stat.mean == 3.0


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_running_moments_are_those_of_all_samples_together(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(1e4, 2.0, (1000, *shape))  # far from zero: sums of squares would lose all digits
    stat = RunningMeanStd(shape, epsilon=0.0)
    for part in np.split(samples, [1, 2, 3, 50, 50, 51, 700]):
        stat.update(part)
    assert np.allclose(stat.mean, samples.mean(axis=0))
    assert np.allclose(stat.var, samples.var(axis=0), rtol=1e-9)
    assert stat.count == 1000


def test_merged_statistics_are_those_of_both_sides() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(300, 3))
    left, right = RunningMeanStd((3,), epsilon=0.0), RunningMeanStd((3,), epsilon=0.0)
    left.update(samples[:100])
    right.update(samples[100:])
    left.merge(right)
    assert np.allclose(left.mean, samples.mean(axis=0))
    assert np.allclose(left.var, samples.var(axis=0))


def test_saved_statistics_go_on_where_they_were() -> None:
    rng = np.random.default_rng(2)
    first, second = RunningMeanStd((3,)), RunningMeanStd((3,))
    first.update(rng.normal(size=(10, 3)))
    state = first.state_dict()
    second.load_state_dict(state)
    more = rng.normal(size=(5, 3))
    for stat in (first, second):
        stat.update(more)
    assert np.array_equal(first.mean, second.mean)
    assert np.array_equal(first.var, second.var)
    assert not np.array_equal(state["mean"], first.mean)  # the state is a copy


def test_samples_and_states_of_another_shape_are_refused() -> None:
    stat = RunningMeanStd((3,))
    with pytest.raises(ValueError, match=r"\[n, \*shape\]"):
        stat.update(np.zeros(3))
    with pytest.raises(ValueError, match="another observation space"):
        stat.load_state_dict(RunningMeanStd((4,)).state_dict())

"""Values that change with the number of steps."""

import pickle

import pytest

from parl_core.errors import HyperparameterError
from parl_core.schedules import (
    LinearDecayScheduler,
    PiecewiseScheduler,
    Schedule,
    as_schedule,
    constant,
    linear,
    piecewise,
)


def test_linear_is_exact_at_both_ends_and_stays_there() -> None:
    epsilon = linear(1.0, 0.1, 100, begin=50)
    assert [epsilon(step) for step in (0, 50, 100, 150, 1000)] == [1.0, 1.0, pytest.approx(0.55), 0.1, 0.1]


@pytest.mark.parametrize(
    ("schedule", "written"),
    [
        (constant(0.5), "constant(0.5)"),
        (linear(1.0, 0.1, 100), "linear(1.0, 0.1, 100)"),
        (linear(1.0, 0.1, 100, begin=50), "linear(1.0, 0.1, 100, begin=50)"),
        (piecewise([(0, 1e-3), (10, 5e-4)]), "piecewise([(0, 0.001), (10, 0.0005)])"),
    ],
)
def test_schedules_are_printed_as_they_are_written_and_go_to_other_processes(schedule: Schedule, written: str) -> None:
    assert repr(schedule) == written
    assert eval(written) == schedule
    assert pickle.loads(pickle.dumps(schedule))(70) == schedule(70)


def test_piecewise_jumps_at_its_steps() -> None:
    lr = piecewise([(0, 1e-3), (10, 5e-4), (20, 1e-4)])
    assert [lr(step) for step in (0, 9, 10, 19, 20, 99)] == [1e-3, 1e-3, 5e-4, 5e-4, 1e-4, 1e-4]


def test_a_number_becomes_a_constant_and_a_schedule_stays() -> None:
    lr = piecewise([(0, 1.0)])
    assert as_schedule(lr) is lr
    assert as_schedule(0.5)(123) == constant(0.5)(0) == 0.5


@pytest.mark.parametrize("stages", [[], [(0, 1.0), (0, 2.0)], [(5, 1.0), (3, 2.0)]])
def test_stages_that_do_not_ascend_are_refused(stages: list[tuple[int, float]]) -> None:
    with pytest.raises(HyperparameterError, match="ascending"):
        PiecewiseScheduler(stages)


def test_the_piecewise_scheduler_counts_steps() -> None:
    scheduler = PiecewiseScheduler([(0, 1.0), (2, 0.5), (4, 0.1)])
    assert [scheduler.step() for _ in range(5)] == [1.0, 0.5, 0.5, 0.1, 0.1]


def test_one_large_step_passes_several_stages() -> None:
    scheduler = PiecewiseScheduler([(0, 1.0), (10, 0.5), (20, 0.1), (30, 0.01)])
    assert scheduler.step(25) == 0.1
    assert scheduler.cur_value == 0.1


def test_linear_decay_reaches_zero_and_stays() -> None:
    scheduler = LinearDecayScheduler(0.8, 4)
    values = [scheduler.step(), scheduler.step(2), scheduler.step(), scheduler.step(100)]
    assert values == pytest.approx([0.6, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_steps_backwards_or_in_parts_are_refused(steps: float) -> None:
    for scheduler in (LinearDecayScheduler(1.0, 4), PiecewiseScheduler([(0, 1.0)])):
        with pytest.raises(HyperparameterError, match="step_num"):
            scheduler.step(steps)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("steps", [0, -5])
def test_a_way_of_no_length_is_refused(steps: int) -> None:
    with pytest.raises(HyperparameterError):
        linear(1.0, 0.0, steps)
    with pytest.raises(HyperparameterError):
        LinearDecayScheduler(1.0, steps)

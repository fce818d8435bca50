"""Values that change while training continues: learning rates, clip ranges, epsilons, betas.

A schedule is a plain function of the number of steps taken so far; `constant`, `linear` and `piecewise` make the
usual ones, which can be printed, compared and pickled. `PiecewiseScheduler` and `LinearDecayScheduler` count the steps
themselves, as PARL's programs expect.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from parl_core.checks import check_int, check_positive
from parl_core.errors import HyperparameterError

__all__ = [
    "LinearDecayScheduler",
    "PiecewiseScheduler",
    "Schedule",
    "Scheduled",
    "as_schedule",
    "constant",
    "linear",
    "piecewise",
    "read_schedule",
    "stages_of",
    "stretched",
    "values_of_stages",
]

Schedule = Callable[[float], float]
"""From the number of steps taken (or any other progress) to a value."""

Scheduled = float | Schedule
"""A number, or a schedule such as `linear(3e-4, 0, 10_000)`."""


def constant(value: float) -> Schedule:
    """Return a schedule with the constant `value`."""
    return _Constant(value)


def linear(start: float, end: float, steps: float, *, begin: float = 0) -> Schedule:
    """Return a schedule that changes linearly from `start` to `end` and stays there.

        from parl_core.schedules import linear

        settings = training.OnPolicySettings(total_steps=100_000, lr=linear(3e-4, 0.0, 100_000))

    Args:
        start: Value up to step `begin`.
        end: Value from step `begin + steps` on.
        steps: Length of the way, above 0.
        begin: The step at which it starts.

    Raises:
        HyperparameterError: `steps` is not above 0.
    """
    check_positive("steps", steps)
    return _Linear(start, end, steps, begin)


def piecewise(stages: Sequence[tuple[float, float]]) -> Schedule:
    """Return a schedule that jumps: `[(0, 1e-3), (10_000, 5e-4)]` is 1e-3 below step 10,000 and 5e-4 from there on.

    Args:
        stages: Pairs of a step and the value from there on; the steps ascend. Before the first step the first value
            holds.

    Raises:
        HyperparameterError: There are no stages, or the steps do not ascend.
    """
    steps = tuple(step for step, _ in stages)
    values = tuple(value for _, value in stages)
    if not steps or any(later <= earlier for earlier, later in pairwise(steps)):
        raise HyperparameterError(f"a piecewise schedule needs stages with ascending steps, got {list(stages)}")
    return _Piecewise(steps, values)


def stages_of(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON has it: its kind, and its stages as pairs of a step and a value.

    Raises:
        HyperparameterError: It is a function from outside this module.
    """
    if isinstance(schedule, _Constant):
        return {"schedule": "constant", "stages": [[0, schedule.value]]}
    if isinstance(schedule, _Linear):
        first, last = schedule.begin, schedule.begin + schedule.steps
        return {"schedule": "linear", "stages": [[first, schedule.start], [last, schedule.end]]}
    if isinstance(schedule, _Piecewise):
        return {
            "schedule": "piecewise",
            "stages": [list(one) for one in zip(schedule.steps, schedule.values, strict=True)],
        }
    raise HyperparameterError(
        f"{schedule!r} cannot be written down as stages: use constant, linear or piecewise of parl_core.schedules"
    )


def values_of_stages(schedule: Schedule) -> tuple[float, ...]:
    """Return the values that bound all values of a schedule; an empty result for functions of other modules."""
    if not isinstance(schedule, (_Constant, _Linear, _Piecewise)):
        return ()
    return tuple(value for _, value in stages_of(schedule)["stages"])


def stretched(value: Scheduled, factor: float) -> Scheduled:
    """Return a schedule of `linear` or `piecewise` with its steps times `factor`; return other values unchanged.

    Raises:
        HyperparameterError: The factor is not above 0.
    """
    check_positive("factor", factor)
    if isinstance(value, _Linear):
        return linear(value.start, value.end, value.steps * factor, begin=value.begin * factor)
    if isinstance(value, _Piecewise):
        return piecewise([(step * factor, held) for step, held in zip(value.steps, value.values, strict=True)])
    return value


def read_schedule(written: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `stages_of` described.

    Raises:
        HyperparameterError: It does not describe a schedule.
    """
    try:
        kind, stages = written["schedule"], [(step, value) for step, value in written["stages"]]
        if kind == "linear":
            (begin, start), (last, end) = stages
            return linear(start, end, last - begin, begin=begin)
        return {"constant": lambda: constant(stages[0][1]), "piecewise": lambda: piecewise(stages)}[kind]()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise HyperparameterError(f"{written!r} describes no schedule") from error


@dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, step: float) -> float:  # noqa: ARG002 - the same at every one
        return self.value

    def __repr__(self) -> str:
        return f"constant({self.value})"


@dataclass(frozen=True)
class _Linear:
    start: float
    end: float
    steps: float
    begin: float

    def __call__(self, step: float) -> float:
        done = min(max((step - self.begin) / self.steps, 0.0), 1.0)
        return self.start * (1.0 - done) + self.end * done  # exact at both ends

    def __repr__(self) -> str:
        begin = f", begin={self.begin}" if self.begin else ""
        return f"linear({self.start}, {self.end}, {self.steps}{begin})"


@dataclass(frozen=True)
class _Piecewise:
    steps: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, step: float) -> float:
        return self.values[max(bisect_right(self.steps, step) - 1, 0)]

    def __repr__(self) -> str:
        return f"piecewise({list(zip(self.steps, self.values, strict=True))})"


def as_schedule(value: Scheduled) -> Schedule:
    """Return a schedule unchanged, and a number as a constant schedule."""
    return value if callable(value) else constant(value)


class _StepCounter:
    """Counts steps, which belong to the state of a run."""

    cur_step: int

    def get_state(self) -> dict[str, int]:
        """Return the state for a checkpoint."""
        return {"cur_step": self.cur_step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self.cur_step = int(state["cur_step"])


class PiecewiseScheduler(_StepCounter):
    """A piecewise constant value, read step by step.

    Args:
        scheduler_list: Pairs of a step and the value from there on, with ascending steps.

    Raises:
        HyperparameterError: There are no stages, or the steps do not ascend.
    """

    def __init__(self, scheduler_list: Sequence[tuple[int, float]]) -> None:
        self._value = piecewise(scheduler_list)
        self.scheduler_list = list(scheduler_list)
        self.cur_step = 0

    @property
    def cur_value(self) -> float:
        """The value at the current step."""
        return self._value(self.cur_step)

    def step(self, step_num: int = 1) -> float:
        """Count `step_num` steps and return the value that holds there, however many stages were passed.

        Raises:
            HyperparameterError: `step_num` is not a whole number of at least 1.
        """
        self.cur_step += check_int("step_num", step_num)
        return self.cur_value


class LinearDecayScheduler(_StepCounter):
    """A value that falls linearly from `start_value` to 0, read step by step.

    Args:
        start_value: Value before the first step.
        max_steps: Number of steps to 0, at least 1.

    Raises:
        HyperparameterError: `max_steps` is not a whole number of at least 1.
    """

    def __init__(self, start_value: float, max_steps: int) -> None:
        self.start_value = start_value
        self.max_steps = check_int("max_steps", max_steps)
        self._value = linear(start_value, 0.0, max_steps)
        self.cur_step = 0

    def step(self, step_num: int = 1) -> float:
        """Add `step_num` steps and return the value there; after `max_steps` it is 0.

        Raises:
            HyperparameterError: `step_num` is not a whole number of at least 1.
        """
        self.cur_step = min(self.cur_step + check_int("step_num", step_num), self.max_steps)
        return self._value(self.cur_step)

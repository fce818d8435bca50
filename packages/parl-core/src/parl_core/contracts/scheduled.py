"""Hyper-parameters that may change while an algorithm learns: a number, a schedule, or another number for one call."""

from collections.abc import Callable
from typing import Any, ClassVar

from parl_core.algorithm import Algorithm
from parl_core.checks import check_non_negative
from parl_core.schedules import Schedule

__all__ = ["CountingUpdates", "Scheduled", "check_schedule"]

Scheduled = float | Schedule
"""A number, or a function of the updates taken so far such as `parl_core.schedules.linear(3e-4, 0, 10_000)`."""


def check_schedule(name: str, value: Any, check: Callable[[str, object], float]) -> Scheduled:
    """Return a number that `check` lets pass, or a schedule whose value at the start does.

    Raises:
        HyperparameterError: it does not; of a schedule, the message has what it gives for step 0.
    """
    if not callable(value):
        return check(name, value)
    check(f"{name} at the start of its schedule", value(0))
    schedule: Schedule = value
    return schedule


class CountingUpdates(Algorithm):
    """Base of algorithms whose hyper-parameters may be schedules: counts the updates, also in saved state."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("updates",)

    updates: int = 0
    """Gradient steps taken."""

    def _now(
        self,
        name: str,
        own: Scheduled,
        given: Any = None,
        *,
        check: Callable[[str, object], float] = check_non_negative,
    ) -> Any:
        """What holds for this update: the value given for the call, else that of the constructor.

        A schedule may reach 0, which a number may not be; `check` says what else it may be.
        """
        if given is not None or not callable(own):
            return own if given is None else given
        return self._at_each_update(lambda: check(f"{name} of {own!r} at step {self.updates}", own(self.updates)))

    def _count_update(self) -> None:
        self.updates += 1

    def _at_start(self, own: Scheduled) -> float:
        return own(0) if callable(own) else own

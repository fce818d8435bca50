"""Hyper-parameters of an algorithm: where they come from, and schedules that change them while it learns.

A setting comes from an argument, from PARL 1.x's dictionary `hyperparas`, or from the defaults. It is a number or a
schedule of the updates taken so far; a call may give another number for one update.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack, get_args, get_origin

import numpy as np

from parl_core.algorithm import Algorithm
from parl_core.checks import check_all_known, check_non_negative
from parl_core.errors import HyperparameterError
from parl_core.schedules import Schedule, Scheduled

__all__ = ["CountingUpdates", "Scheduled", "check_schedule", "merge"]


def merge(
    algorithm: str, hyperparas: Mapping[str, Any] | None, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Settle every setting in `defaults`.

    Args:
        algorithm: name, for messages.
        hyperparas: PARL 1.x's dictionary, or None.
        given: arguments; None means not given. A dictionary in the place of the first of them is PARL 1.x's, too,
            whose manual has it there.
        defaults: value of each setting that neither names.

    Raises:
        HyperparameterError: the dictionary has an unknown name, or one that was given as an argument, too.
    """
    arguments = {name: value for name, value in given.items() if value is not None}
    in_place = [name for name, value in arguments.items() if isinstance(value, Mapping)]
    if len(in_place) == 1 and hyperparas is None:
        hyperparas = arguments.pop(in_place[0])
    old = dict(hyperparas or {})
    check_all_known(algorithm, old, tuple(defaults))
    twice = sorted(set(old) & set(arguments))
    if twice:
        raise HyperparameterError(
            f"{algorithm} got {', '.join(twice)} both in `hyperparas` and as an argument; drop PARL 1.x's `hyperparas`"
        )
    return {**defaults, **old, **arguments}


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


def _signature(cls: type[Algorithm]) -> inspect.Signature:
    """Return a constructor's signature; `**settings: Unpack[...]` stands for the settings of that name of its base."""
    _, *parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
    if parameters and get_origin(parameters[-1].annotation) is Unpack:
        (settings,) = get_args(parameters.pop().annotation)
        inherited = inspect.signature(cls.__mro__[1]).parameters.values()
        parameters += [one for one in inherited if one.name in settings.__annotations__]
    return inspect.Signature(parameters)


class CountingUpdates(Algorithm):
    """Base of algorithms whose hyper-parameters may be schedules: counts the updates, also in saved state."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("updates",)

    updates: int = 0
    """Gradient steps taken."""

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__signature__ = _signature(cls)

    def _now(
        self,
        name: str,
        own: Scheduled,
        given: Any = None,
        *,
        check: Callable[[str, object], float] = check_non_negative,
        given_as: str | None = None,
    ) -> Any:
        """Return the value for this update: the one given for the call, a number or a tensor, else the constructor's.

        A schedule may reach 0, which a number may not be; `check` says what else it may be.
        """
        if given is not None:
            return check(given_as or name, given) if isinstance(given, (int, float, str, np.generic)) else given
        if not callable(own):
            return own
        return self._at_each_update(lambda: check(f"{name} of {own!r} at step {self.updates}", own(self.updates)))

    def _count_update(self) -> None:
        self.updates += 1

    def _at_start(self, own: Scheduled) -> float:
        return own(0) if callable(own) else own

    def _own_rate(self, optimizer: Any, given: Any, rate: Scheduled) -> Any:
        """Return the learning rate of the steps: None leaves that of an optimizer that was given without a rate."""
        return None if optimizer is not None and given is None else rate

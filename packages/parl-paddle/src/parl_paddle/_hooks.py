"""Hooks around the runs of a program, which set changing numbers before each run and update counters after it.

A program is recorded once and run often, so values that an algorithm computes in Python (of a schedule, of a delayed
step, the number of updates) would keep their values from the time of recording. Hooks update them:

    before a run:  value() ──> tensor of one number ──(shared memory)──> parameter of the program
    after a run:   action(), such as counting the update and synchronising a target when it is due
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import paddle
from paddle.utils import unique_name

from parl_core.errors import ModelContractError
from parl_paddle._static_graphs import as_value, eager, in_program

__all__ = ["Hooks", "branch_on", "call_after_run", "is_recording", "missing_metric", "recording", "value_before_run"]

static: Any = paddle.static  # paddle's types of it are incomplete


@dataclass
class _RefreshedScalar:
    """A tensor that is given the result of `value` before each run."""

    value: Callable[[], Any]
    tensor: paddle.Tensor
    given: Any

    def renew(self) -> None:
        now = self.value()
        if now != self.given:
            self.tensor.set_value(paddle.to_tensor(now, dtype=self.tensor.dtype, place=self.tensor.place))
            self.given = now


@dataclass
class Hooks:
    """The hooks of one program."""

    program: Any  # kept alive, because it is identified by its id
    numbers: list[_RefreshedScalar] = field(default_factory=list)
    actions: list[Callable[[], object]] = field(default_factory=list)

    def before(self) -> None:
        """Set the present numbers in the program."""
        with eager():
            for number in self.numbers:
                number.renew()

    def after(self) -> None:
        """Call the actions after an update."""
        with eager():
            for action in self.actions:
                action()


_recorded: ContextVar[dict[int, Hooks] | None] = ContextVar("recorded", default=None)


@contextlib.contextmanager
def recording(hooks: dict[int, Hooks]) -> Iterator[None]:
    """Collect the hooks of the programs that are built in the `with` block, by the identity of the program."""
    token = _recorded.set(hooks)
    try:
        yield
    finally:
        _recorded.reset(token)


def is_recording() -> bool:
    """Return whether this thread is executing a `build_program`."""
    return _recorded.get() is not None


def value_before_run(value: Callable[[], Any], dtype: Any) -> Any:
    """Return `value()`; while a program is built, return a scalar that is set to `value()` before each run."""
    if not in_program():
        return value()
    hooks = _of_this_program()
    with eager():
        now = value()
        tensor = paddle.to_tensor(now, dtype=dtype)
    tensor.name = unique_name.generate("value_before_run")
    hooks.numbers.append(_RefreshedScalar(value, tensor, now))
    return as_value(tensor)


def call_after_run(action: Callable[[], object]) -> None:
    """Call `action` now; while a program is built, call it after each run instead."""
    if in_program():
        _of_this_program().actions.append(action)
    else:
        action()


def branch_on(condition: Callable[[], bool], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return `yes()` if the condition is true, else `no()`; a program evaluates the condition at each run.

    While a program is built, both have to return tensors of equal shapes and dtypes.
    """
    if in_program():
        return static.nn.cond(value_before_run(condition, "bool"), yes, no)
    return yes() if condition() else no()


def missing_metric(like: paddle.Tensor) -> paddle.Tensor | None:
    """Return the value of a loss that an update does not have: None, or NaN in a program, which needs a number."""
    return paddle.full([], math.nan, like.dtype) if in_program() else None


def _of_this_program() -> Hooks:
    recorded = _recorded.get()
    if recorded is None:
        raise ModelContractError(
            "static graphs are on (paddle.enable_static()) outside build_program(); an algorithm of PARL learns in a "
            "program that its agent's build_program() builds, or with paddle.disable_static()"
        )
    program = static.default_main_program()
    return recorded.setdefault(id(program), Hooks(program))

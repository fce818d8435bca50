"""Eager tensors as parameters of the program that is being built, the way `paddle.jit.to_static` takes them.

The only module that uses what paddle keeps for itself; it is imported when a program is built, and nothing else depends
on it. Works with paddle 3.0 to 3.3.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import paddle
from paddle.base import framework
from paddle.base.dygraph.base import to_static_mode_guard
from paddle.base.dygraph.tracer import Tracer
from paddle.pir import core as pir

__all__ = ["as_value", "dynamic_mode", "static_mode", "tracing"]

try:
    from paddle.jit.dy2static import parameter_recorder
except ImportError:  # where it is in paddle 3.0
    from paddle.jit.pir_dy2static import parameter_recorder  # type: ignore[no-redef]  # one of the two exists

_recorder: Any = parameter_recorder._global_parameter_recorder


def as_value(operand: Any) -> Any:
    """The parameter that stands for an eager tensor in the default main program; the rest passes unchanged."""
    return pir._convert_into_value(operand)  # type: ignore[no-untyped-call]  # paddle leaves it untyped


def static_mode() -> AbstractContextManager[Any]:
    """Static graphs in this thread, whichever that is; `paddle.enable_static()` works in the main thread alone."""
    guard: AbstractContextManager[Any] = framework._dygraph_guard(None)
    return guard


@contextlib.contextmanager
def dynamic_mode() -> Iterator[None]:
    """Compute at once in this thread, also inside `static_mode` and `tracing`."""
    place = framework._current_expected_place_()  # type: ignore[no-untyped-call]  # paddle leaves it untyped
    tracer = Tracer()  # type: ignore[no-untyped-call]  # as above
    with to_static_mode_guard(False), framework._dygraph_guard(tracer), framework._dygraph_place_guard(place):
        yield


@contextlib.contextmanager
def tracing() -> Iterator[list[paddle.Tensor]]:
    """Take attributes of layers and operands that are eager tensors as parameters.

    An optimizer of the user's has to create its state in the program itself, so inside its `minimize` that is off.
    `parameters()` of layers lists them as parameters of the program: a method of an eager tensor (`weight.square()`)
    would end the process.

    Yields:
        A list that has all tensors that were taken when the block is left.
    """
    optimizer: Any = paddle.optimizer.Optimizer
    minimize = optimizer.minimize

    def minimize_in_program(self: Any, *args: Any, **kwargs: Any) -> Any:
        with to_static_mode_guard(False):
            return minimize(self, *args, **kwargs)

    layer: Any = paddle.nn.Layer
    parameters = layer.parameters

    def parameters_in_program(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        listed = parameters(self, *args, **kwargs)
        return listed if paddle.in_dynamic_mode() else [as_value(parameter) for parameter in listed]

    taken: list[paddle.Tensor] = []
    known = set(_recorder.params_dict)
    optimizer.minimize = minimize_in_program
    layer.parameters = parameters_in_program
    try:
        with to_static_mode_guard(True), pir.static_op_arg_cast_guard(as_value):
            yield taken
    finally:
        optimizer.minimize = minimize
        layer.parameters = parameters
        for program in set(_recorder.params_dict) - known:  # paddle itself would keep them alive for ever
            taken.extend(_recorder.params_dict.pop(program))
            del _recorder.tensor2value[program]

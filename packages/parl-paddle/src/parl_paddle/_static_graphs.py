"""Static graphs around eager models: the mode of paddle, and eager tensors in a program that is being built.

While a program is built, paddle uses every eager tensor that is an operand of a static operation as a parameter of that
program, as in `paddle.jit.to_static`. Only this module uses private parts of paddle. It looks them up when a program is
built, so that eager code does not depend on them. It works with paddle 3.0 to 3.3.

Any thread may build and run programs; they take turns. Meanwhile no other thread may compute eagerly with paddle, whose
C++ part has one mode (eager or static) per process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import paddle

__all__ = ["as_value", "eager", "in_program", "operand", "overwrite", "static_graphs", "tracing"]

base: Any = paddle.base  # paddle leaves it untyped
_one_thread_at_a_time = threading.RLock()  # two threads that switch paddle's mode at the same time abort the process


def in_program() -> bool:
    """Return whether operations are added to a program instead of being computed."""
    return not paddle.in_dynamic_mode()


@contextlib.contextmanager
def static_graphs() -> Iterator[None]:
    """Enable static graphs in the `with` block, and restore the earlier mode; other threads wait."""
    with _one_thread_at_a_time:
        if in_program():
            yield
            return
        with base.framework._dygraph_guard(None):  # `paddle.enable_static()` works only in the main thread
            yield


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compute eagerly in the `with` block, also while a program is built, as for the creation of parameters."""
    if not in_program():
        yield
        return
    place = base.framework._current_expected_place_()
    tracer = base.dygraph.tracer.Tracer()
    with (
        base.dygraph.base.to_static_mode_guard(False),
        base.framework._dygraph_guard(tracer),
        base.framework._dygraph_place_guard(place),
    ):
        yield


def operand(tensor: paddle.Tensor) -> Any:
    """Return the tensor; while a program is built, return the parameter that represents it.

    Methods of an eager tensor (`weight * 2`, `weight.clone()`) would be computed only once, while the program is built.
    """
    return as_value(tensor) if in_program() else tensor


def as_value(operand: Any) -> Any:
    """Return the parameter of the default main program for an eager tensor, and other values unchanged."""
    return paddle.pir.core._convert_into_value(operand)  # type: ignore[no-untyped-call]  # paddle leaves it untyped


def overwrite(tensor: paddle.Tensor, value: Any) -> None:
    """Set the value of a tensor in its own memory; in a program, at each run."""
    paddle.assign(value, output=operand(tensor))


@contextlib.contextmanager
def tracing() -> Iterator[list[paddle.Tensor]]:
    """Use attributes of layers and operands that are eager tensors as parameters.

    An optimizer of the user has to create its state in the program itself, so this is disabled in its `minimize`.
    `parameters()` of layers lists them as parameters of the program: a method of an eager tensor (`weight.square()`)
    would end the process.

    Yields:
        A list, which contains all tensors that were used at the end of the block.
    """
    optimizer: Any = paddle.optimizer.Optimizer
    minimize = optimizer.minimize

    def minimize_in_program(self: Any, *args: Any, **kwargs: Any) -> Any:
        with base.dygraph.base.to_static_mode_guard(False):
            return minimize(self, *args, **kwargs)

    layer: Any = paddle.nn.Layer
    parameters = layer.parameters

    def parameters_in_program(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        listed = parameters(self, *args, **kwargs)
        return listed if paddle.in_dynamic_mode() else [as_value(parameter) for parameter in listed]

    recorder = _parameter_recorder()
    taken: list[paddle.Tensor] = []
    known = set(recorder.params_dict)
    optimizer.minimize = minimize_in_program
    layer.parameters = parameters_in_program
    try:
        with base.dygraph.base.to_static_mode_guard(True), paddle.pir.core.static_op_arg_cast_guard(as_value):
            yield taken
    finally:
        optimizer.minimize = minimize
        layer.parameters = parameters
        for program in set(recorder.params_dict) - known:  # paddle itself would never release them
            taken.extend(recorder.params_dict.pop(program))
            del recorder.tensor2value[program]


def _parameter_recorder() -> Any:
    try:
        from paddle.jit.dy2static import parameter_recorder
    except ImportError:  # its place in paddle 3.0
        from paddle.jit.pir_dy2static import parameter_recorder  # type: ignore[no-redef]  # one of the two exists
    return parameter_recorder._global_parameter_recorder

"""Static graphs around eager models, for agents that define `build_program()`.

A model's weights always live in eager tensors. While a program is built, paddle converts every eager tensor that meets
a static operation into a parameter of that program; afterwards the executor's scope is given the *same memory*. So a
step in a program is seen at once by `get_weights`, `sync_weights_to` and eager calls, and the other way round.

    build:  eager weight ──(operand of a static operation)──> parameter of the program
    run:    executor ──> scope ──(shared memory)──> eager weight

Any thread may build and run programs; they take turns. While one does, no other may compute eagerly with paddle, whose
C++ part has one mode (eager or static) per process.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import paddle

from parl_core.errors import ModelContractError

if TYPE_CHECKING:
    from parl_paddle.each_run import EachRun

static: Any = paddle.static  # paddle's types of it are incomplete
_one_thread_at_a_time = threading.RLock()  # two that switch paddle's mode at once end the process

__all__ = ["Programs", "eager", "in_program", "operand", "overwrite", "static_graphs"]


def in_program() -> bool:
    """Whether operations are being added to a program instead of being computed."""
    return not paddle.in_dynamic_mode()


@contextlib.contextmanager
def static_graphs() -> Iterator[None]:
    """Turn static graphs on for the block, and back to what was before; other threads wait."""
    with _one_thread_at_a_time:
        if in_program():
            yield
            return
        from parl_paddle.tracing import static_mode

        with static_mode():
            yield


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compute at once inside the block, also where a program is being built: there parameters are created this way."""
    if not in_program():
        yield
        return
    from parl_paddle.tracing import dynamic_mode

    with dynamic_mode():
        yield


def operand(tensor: paddle.Tensor) -> Any:
    """The tensor; while a program is built, the parameter that stands for it.

    Methods of an eager tensor (`weight * 2`, `weight.clone()`) would be computed at once there, and never again.
    """
    if not in_program():
        return tensor
    from parl_paddle.tracing import as_value

    return as_value(tensor)


def overwrite(tensor: paddle.Tensor, value: Any) -> None:
    """Give the tensor another value, in its own memory; in a program, at each run."""
    paddle.assign(value, output=operand(tensor))


@contextlib.contextmanager
def _without_paddles_own_warning() -> Iterator[None]:
    # Paddle's gradient code asks the values of a program for their place, and paddle then warns of doing so.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tensor do not have 'place' interface", UserWarning)
        yield


class Programs:
    """The scope, the startup program and the executor of one agent.

    Args:
        place: where programs run, such as `paddle.CPUPlace()`; the place of the model's weights.
    """

    def __init__(self, place: Any) -> None:
        from parl_paddle.executor import ProgramExecutor

        self.startup = static.Program()
        self.scope = static.Scope()
        self.each_run: dict[int, EachRun] = {}
        self.executor = ProgramExecutor(place, self.scope, self.each_run)
        self._tensors: dict[str, paddle.Tensor] = {}

    def build(self, build_program: Callable[[], object]) -> None:
        """Call `build_program` with static graphs on, initialise what it created, and share the models' weights.

        Inside, `paddle.static.default_startup_program()` is this agent's own.

        Raises:
            ModelContractError: two tensors of the models have one name.
        """
        from parl_paddle.each_run import recording
        from parl_paddle.tracing import tracing

        with (
            static_graphs(),
            _without_paddles_own_warning(),
            static.program_guard(static.Program(), self.startup),
            tracing() as tensors,
            recording(self.each_run),
        ):
            build_program()
        for tensor in tensors:
            self._add(tensor)
        self.executor.initialise(self.startup)
        for name, tensor in self._tensors.items():
            if tensor._is_initialized():  # recurrent layers have a buffer without memory
                self.scope.find_var(name).get_tensor()._share_data_with(tensor.get_tensor())

    def _add(self, tensor: paddle.Tensor) -> None:
        if self._tensors.setdefault(tensor.name, tensor) is not tensor:
            raise ModelContractError(
                f"two tensors of this agent's models are called {tensor.name!r}, by which a program tells them apart; "
                "paddle counts names anew after paddle.enable_static() and disable_static(): make all models after it"
            )

    def holds(self, program: Any) -> bool:
        """Whether `program` uses weights of this agent's models."""
        return any(value.name in self._tensors for value in program.global_block().all_parameters())

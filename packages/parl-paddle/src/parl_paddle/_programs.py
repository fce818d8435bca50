"""The programs of an agent that defines `build_program()`: building them, running them, and checking their inputs.

The weights of a model are always eager tensors. While a program is built, paddle converts every eager tensor that is an
operand of a static operation into a parameter of that program; then the scope of the executor gets the *same memory*.
So a step in a program immediately changes the weights of `get_weights`, `sync_weights_to` and eager calls, and vice
versa.

    build:  eager weight ──(operand of a static operation)──> parameter of the program
    run:    executor ──> scope ──(shared memory)──> eager weight
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_core.checks import first_not_finite
from parl_core.errors import ModelContractError
from parl_paddle._hooks import Hooks, is_recording, recording
from parl_paddle._static_graphs import static_graphs, tracing

__all__ = ["Inputs", "ProgramExecutor", "Programs"]

static: Any = paddle.static  # paddle's types of it are incomplete


class Programs:
    """The scope, the startup program and the executor of one agent.

    Args:
        place: The place in which programs run, such as `paddle.CPUPlace()`; the place of the model's weights.
    """

    def __init__(self, place: Any) -> None:
        self.startup = static.Program()
        self.scope = static.Scope()
        self.hooks: dict[int, Hooks] = {}
        self.executor = ProgramExecutor(place, self.scope, self.hooks)
        self._tensors: dict[str, paddle.Tensor] = {}

    def build(self, build_program: Callable[[], object]) -> None:
        """Call `build_program` with static graphs enabled, initialise its variables, and share the models' weights.

        Inside, `paddle.static.default_startup_program()` is this agent's own.

        Raises:
            ModelContractError: Two tensors of the models have one name.
        """
        with (
            static_graphs(),
            _without_paddles_own_warning(),
            static.program_guard(static.Program(), self.startup),
            tracing() as tensors,
            recording(self.hooks),
        ):
            build_program()
        for tensor in tensors:
            self._add(tensor)
        self.executor.initialise(self.startup)
        for name, tensor in self._tensors.items():
            if tensor._is_initialized():  # recurrent layers have an unallocated buffer
                self.scope.find_var(name).get_tensor()._share_data_with(tensor.get_tensor())

    def _add(self, tensor: paddle.Tensor) -> None:
        if self._tensors.setdefault(tensor.name, tensor) is not tensor:
            raise ModelContractError(
                f"two tensors of this agent's models are called {tensor.name!r}, by which a program tells them apart; "
                "paddle counts names anew after paddle.enable_static() and disable_static(): make all models after it"
            )

    def holds(self, program: Any) -> bool:
        """Return whether `program` uses weights of this agent's models."""
        return any(value.name in self._tensors for value in program.global_block().all_parameters())


@contextlib.contextmanager
def _without_paddles_own_warning() -> Iterator[None]:
    # Paddle's gradient code reads the place of a program's values, for which paddle itself then warns.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tensor do not have 'place' interface", UserWarning)
        yield


class ProgramExecutor(paddle.static.Executor):
    """The `paddle.static.Executor` of one agent, which runs in the agent's scope and can be called from eager code.

    Args:
        place: The place in which programs run, such as `paddle.CPUPlace()`.
        scope: The scope with the variables of the programs.
        hooks: Hooks of the programs, by their identity.
    """

    def __init__(self, place: Any, scope: Any, hooks: Mapping[int, Hooks]) -> None:
        super().__init__(place)
        self._agent_scope = scope
        self._hooks = hooks
        self._inputs: dict[int, Inputs] = {}

    def initialise(self, startup: Any) -> None:
        """Run a startup program."""
        with static_graphs():
            super().run(startup, scope=self._agent_scope)

    def run(  # type: ignore[override]  # paddle's overloads tell the result by return_numpy
        self, program: Any = None, feed: Mapping[str, Any] | None = None, fetch_list: Any = None, **options: Any
    ) -> Any:
        """Run `program` with the arrays in `feed`, and return the values of `fetch_list` as a list of numpy arrays.

        The arguments are those of `paddle.static.Executor.run`; `scope` is the agent's by default. Numbers in `feed`
        are converted to the dtypes of the program's inputs if only precision is lost.

        Raises:
            ModelContractError: `build_program` is still running, or the program uses weights of another agent.
            ValueError: There is no program; an input is missing or has another shape or dtype; a value to fetch is of
                another program.
        """
        if is_recording():
            raise ModelContractError("programs run once build_program() has returned; inside, it only describes them")
        if program is None:
            raise ValueError("no program to run; give one that build_program() has built, such as self.learn_program")
        inputs = self._inputs_of(program, options)
        fed: Any = feed if inputs is None else inputs.accept(feed)
        options.setdefault("scope", self._agent_scope)
        hooks = self._hooks.get(id(program))
        with static_graphs():  # the lock includes both hooks, so that no other thread runs in between
            if hooks is not None:
                hooks.before()
            try:
                fetched = super().run(program, feed=fed, fetch_list=fetch_list, **options)
            except KeyError as error:  # paddle marks inputs only so; learning rates of its optimizers need not be fed
                missing = repr(error.args[0]) if inputs is None else inputs.describe(error.args[0])
                raise ValueError(
                    f"feed lacks {missing}; it has {', '.join(map(repr, fed or ())) or 'nothing'}"
                ) from None
            if hooks is not None:
                hooks.after()
        if len(fetched) != len(fetch_list or ()):  # paddle returns nothing for unknown values
            raise ValueError("fetch_list has a value of another program than the one that was run")
        return fetched

    def _inputs_of(self, program: Any, options: Mapping[str, Any]) -> Inputs | None:
        found = self._inputs.get(id(program))
        if found is not None and not found.outdated:
            return found
        if not isinstance(program, static.Program) or options.get("scope") is not None:
            return None  # compiled programs, and those that the caller checks
        self._require_own(program)
        found = self._inputs[id(program)] = Inputs(program)
        return found

    def _require_own(self, program: Any) -> None:
        foreign = [
            value.name
            for value in program.global_block().all_parameters()
            if self._agent_scope.find_var(value.name) is None
        ]
        if foreign:
            raise ModelContractError(
                f"this program uses {', '.join(foreign[:3])}{' ...' if foreign[3:] else ''}, which this agent's "
                "build_program() did not build; run it with the executor of the agent that built it"
            )


@dataclass(frozen=True)
class _Input:
    """One `layers.data` of a program."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        sizes = ", ".join("n" if size == -1 else str(size) for size in self.shape)
        return f"{self.name!r} ({self.dtype} [{sizes}])"

    def accept(self, value: Any) -> NDArray[Any]:
        array = value.numpy() if isinstance(value, paddle.Tensor) else np.asarray(value)
        if self.dtype == bool and array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
            array = array.astype(bool)
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"feed: {self} cannot take {array.dtype}; convert it with astype({str(self.dtype)!r})")
        if array.ndim != len(self.shape) or any(
            size not in (-1, given) for size, given in zip(self.shape, array.shape, strict=True)
        ):
            raise ValueError(f"feed: {self} cannot take an array of shape {list(array.shape)}")
        return array.astype(self.dtype, copy=False)

    def require_finite(self, array: NDArray[Any]) -> None:
        if (at := first_not_finite(array)) is not None:
            raise ValueError(
                f"feed: {self} got {array[at]} at {list(at)}: one such number would corrupt all weights "
                "that the program updates; clip or drop it in the environment"
            )


class Inputs:
    """The inputs of one program.

    Args:
        program: A `paddle.static.Program`; kept.
    """

    def __init__(self, program: Any) -> None:
        self.program = program
        self._size = program.num_ops()
        self._inputs = [
            _Input(operation.attrs()["name"], tuple(operation.result(0).shape), _numpy_dtype(operation.result(0)))
            for operation in program.global_block().ops
            if operation.name() == "pd_op.data"
        ]
        self._learns = any(operation.name().endswith("_grad") for operation in program.global_block().ops)

    @property
    def outdated(self) -> bool:
        """Return whether operations have been added to the program since."""
        return bool(self.program.num_ops() != self._size)

    def accept(self, feed: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """Return arrays of the program's dtypes from arrays, lists or eager tensors.

        Numbers are converted within their kind (float64 to float32, int32 to int64) and from integers to floats.
        Entries that are not inputs of the program are left out.

        Raises:
            ValueError: An array has another shape, or numbers that would lose more than precision; or one of them is
                NaN or infinite, and the program computes gradients.
        """
        given = feed or {}
        accepted = {wanted.name: wanted.accept(given[wanted.name]) for wanted in self._inputs if wanted.name in given}
        if self._learns:
            for wanted in self._inputs:
                if wanted.name in accepted:
                    wanted.require_finite(accepted[wanted.name])
        return accepted

    def describe(self, name: str) -> str:
        """Return the name of an input, with its dtype and shape if they are known."""
        return next((str(wanted) for wanted in self._inputs if wanted.name == name), repr(name))


def _numpy_dtype(value: Any) -> np.dtype[Any]:
    name = str(value.dtype).rpartition(".")[2]
    return np.dtype("float32" if name == "bfloat16" else name)

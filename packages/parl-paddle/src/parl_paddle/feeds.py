"""What a program is fed, checked before it runs: paddle's own errors come out of its kernels, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_core.checks import first_not_finite

__all__ = ["Inputs"]


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
                f"feed: {self} got {array[at]} at {list(at)}: one such number spoils all weights that the "
                "program updates; clip or drop it in the environment"
            )


class Inputs:
    """The inputs of one program.

    Args:
        program: a `paddle.static.Program`; kept.
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
        """Whether the program has grown since."""
        return bool(self.program.num_ops() != self._size)

    def accept(self, feed: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """Arrays of the program's dtypes from arrays, lists or eager tensors.

        Numbers are converted within their kind (float64 to float32, int32 to int64) and from integers to floats. What
        the program does not know is left out.

        Raises:
            ValueError: an array has another shape, or numbers that would lose more than precision; or one of them is
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
        """The name of an input, with its dtype and shape where it is known."""
        return next((str(wanted) for wanted in self._inputs if wanted.name == name), repr(name))


def _numpy_dtype(value: Any) -> np.dtype[Any]:
    name = str(value.dtype).rpartition(".")[2]
    return np.dtype("float32" if name == "bfloat16" else name)

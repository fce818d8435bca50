"""Functions of PARL 1.x's `parl.layers` that have no parameters, with its argument names.

They take eager tensors and the values of a program that is being built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from parl_core.errors import HyperparameterError, ModelContractError
from parl_paddle.activations import log_softmax
from parl_paddle.programs import in_program

_DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")

_Dim = int | Sequence[int] | None

relu, tanh, sigmoid = F.relu, F.tanh, F.sigmoid
abs, exp, log, sqrt, square = paddle.abs, paddle.exp, paddle.log, paddle.sqrt, paddle.square


def data(name: str, shape: Sequence[int], dtype: str = "float32", append_batch_size: bool = True) -> Tensor:
    """An input of the program that is being built; only parl-paddle has programs.

    Args:
        name: its key in the executor's `feed`.
        shape: of one sample; the batch dimension is put in front.
        dtype: of the array that is fed.
        append_batch_size: False takes `shape` as it is.

    Raises:
        ModelContractError: no program is being built.
    """
    if not in_program():
        raise ModelContractError(
            f"layers.data({name!r}) describes an input of a program; call it in the build_program(self) of an agent, "
            "or give the algorithm tensors"
        )
    placeholder: Tensor = paddle.static.data(name, [None, *shape] if append_batch_size else list(shape), dtype)
    return placeholder


def softmax(input: Tensor, axis: int = -1) -> Tensor:
    """Exponentials normalised along `axis`."""
    return F.softmax(input, axis=axis)


def reduce_sum(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Sum over `dim`; over everything by default."""
    return paddle.sum(input, axis=dim, keepdim=keep_dim)


def reduce_mean(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Mean over `dim`; over everything by default."""
    return paddle.mean(input, axis=dim, keepdim=keep_dim)


def reduce_max(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Maximum over `dim`; over everything by default."""
    return paddle.max(input, axis=dim, keepdim=keep_dim)


def reduce_min(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Minimum over `dim`; over everything by default."""
    return paddle.min(input, axis=dim, keepdim=keep_dim)


def reduce_prod(input: Tensor, dim: int | None = None, keep_dim: bool = False) -> Tensor:
    """Product over `dim`; over everything by default."""
    return paddle.prod(input, axis=dim, keepdim=keep_dim)


def mean(x: Tensor) -> Tensor:
    """Mean of all entries."""
    return paddle.mean(x)


def argmax(x: Tensor, axis: int = 0) -> Tensor:
    """Index of the largest entry along `axis`."""
    return paddle.argmax(x, axis=axis)


def one_hot(input: Tensor, depth: int) -> Tensor:
    """Rows with a single 1.0: `[n]` or `[n, 1]` to float32 `[n, depth]`."""
    index = paddle.squeeze(input, axis=-1) if input.ndim > 1 and input.shape[-1] == 1 else input
    return F.one_hot(index.astype("int64"), depth)


def cast(x: Tensor, dtype: Any) -> Tensor:
    """The same numbers in another dtype.

    Raises:
        HyperparameterError: the name of the dtype is unknown.
    """
    if isinstance(dtype, str) and dtype not in _DTYPES:
        raise HyperparameterError(f"no dtype {dtype!r}; there are {', '.join(_DTYPES)}")
    return paddle.cast(x, dtype)


def elementwise_add(x: Tensor, y: Tensor) -> Tensor:
    """X + y."""
    return x + y


def elementwise_sub(x: Tensor, y: Tensor) -> Tensor:
    """X - y."""
    return x - y


def elementwise_mul(x: Tensor, y: Tensor) -> Tensor:
    """X * y."""
    return x * y


def elementwise_div(x: Tensor, y: Tensor) -> Tensor:
    """X / y."""
    return x / y


def elementwise_max(x: Tensor, y: Tensor) -> Tensor:
    """The larger of both, entry by entry."""
    chosen: Tensor = paddle.maximum(x, y)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
    return chosen


def elementwise_min(x: Tensor, y: Tensor) -> Tensor:
    """The smaller of both, entry by entry."""
    chosen: Tensor = paddle.minimum(x, y)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
    return chosen


def clip(x: Tensor, min: float, max: float) -> Tensor:
    """Entries limited to [min, max]."""
    return paddle.clip(x, min, max)


def square_error_cost(input: Tensor, label: Tensor) -> Tensor:
    """(input - label)**2, entry by entry.

    Raises:
        ValueError: the shapes differ; broadcasting `[n]` against `[n, 1]` is the classic silent mistake.
    """
    if list(input.shape) != list(label.shape):
        raise ValueError(f"square_error_cost needs equal shapes, got {tuple(input.shape)} and {tuple(label.shape)}")
    return paddle.square(input - label)


def cross_entropy(input: Tensor, label: Tensor) -> Tensor:
    """-log of the probability that each row of `input` `[n, classes]` gives to `label`; `[n, 1]`."""
    return -paddle.log(paddle.index_sample(input, label.reshape([-1, 1]).astype("int64")))


def softmax_with_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """The same from logits, without overflow; `[n, 1]`."""
    return -paddle.index_sample(log_softmax(logits), label.reshape([-1, 1]).astype("int64"))


def concat(input: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors one after the other along `axis`."""
    return paddle.concat(list(input), axis=axis)


def stack(x: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors side by side along a new `axis`."""
    return paddle.stack(list(x), axis=axis)


def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """A matrix: dimensions before `axis` become rows, the others columns."""
    if axis == 0:
        return paddle.reshape(x, [1, -1])
    columns = paddle.flatten(x, start_axis=axis) if x.ndim > axis + 1 else x
    return paddle.flatten(columns, stop_axis=axis - 1) if axis > 1 else columns


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same entries in another shape; -1 is inferred, 0 keeps the dimension of `x`."""
    return paddle.reshape(x, list(shape))


def squeeze(input: Tensor, axes: Sequence[int]) -> Tensor:
    """Without the dimensions of size one at `axes`."""
    return paddle.squeeze(input, axis=list(axes))


def unsqueeze(input: Tensor, axes: Sequence[int]) -> Tensor:
    """With a dimension of size one at each of `axes`."""
    return paddle.unsqueeze(input, axis=list(axes))


def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Dimensions in the order `perm`."""
    return paddle.transpose(x, perm=list(perm))


def gather(input: Tensor, index: Tensor) -> Tensor:
    """Rows of `input` at `index` `[n]`."""
    return paddle.gather(input, index.reshape([-1]))


def dropout(x: Tensor, dropout_prob: float, is_test: bool = False) -> Tensor:
    """Zero entries with probability `dropout_prob` and scale the others up, unless `is_test`."""
    return F.dropout(x, p=dropout_prob, training=not is_test)


def pool2d(
    input: Tensor,
    pool_size: int | tuple[int, int] = -1,
    pool_type: str = "max",
    pool_stride: int | tuple[int, int] = 1,
    pool_padding: int | tuple[int, int] = 0,
    global_pooling: bool = False,
) -> Tensor:
    """Maximum (`"max"`) or mean (`"avg"`) over windows of images `[n, channels, height, width]`.

    Raises:
        HyperparameterError: an unknown `pool_type`.
    """
    if pool_type not in ("max", "avg"):
        raise HyperparameterError(f'pool_type must be "max" or "avg", got {pool_type!r}')
    size: Any = tuple(input.shape[2:]) if global_pooling else pool_size
    if pool_type == "max":
        return F.max_pool2d(input, size, pool_stride, pool_padding)
    return F.avg_pool2d(input, size, pool_stride, pool_padding, exclusive=True)

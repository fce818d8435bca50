"""Operations under the names and argument names of the documents' examples, each a line of paddle.

They work on eager tensors and on the values of a program alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
import paddle.nn.functional as F

__all__ = [
    "cast",
    "clip",
    "concat",
    "cross_entropy",
    "data",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
    "elementwise_sub",
    "exp",
    "flatten",
    "log",
    "log_softmax",
    "mean",
    "one_hot",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "square",
    "square_error_cost",
    "squeeze",
    "tanh",
    "unsqueeze",
]

Dimensions = int | Sequence[int] | None


def data(name: str, shape: Sequence[int], dtype: str = "float32", append_batch_size: bool = True) -> Any:
    """An input of the program that is being built.

    Args:
        name: its key in the executor's `feed`.
        shape: of one sample; the batch dimension is put in front.
        dtype: of the array that is fed.
        append_batch_size: False takes `shape` as it is.
    """
    return paddle.static.data(name, [None, *shape] if append_batch_size else list(shape), dtype)


def cast(x: Any, dtype: str) -> Any:
    """`x` in another dtype."""
    return paddle.cast(x, dtype)


def one_hot(input: Any, depth: int) -> Any:
    """Float vectors `[batch, depth]` with a one at each index of `input`, `[batch]` or `[batch, 1]`."""
    if len(input.shape) > 1 and input.shape[-1] == 1:
        input = paddle.squeeze(input, axis=-1)
    return F.one_hot(input, depth)


def reduce_sum(input: Any, dim: Dimensions = None, keep_dim: bool = False) -> Any:
    """Sum over `dim`, by default over everything."""
    return paddle.sum(input, axis=dim, keepdim=keep_dim)


def reduce_mean(input: Any, dim: Dimensions = None, keep_dim: bool = False) -> Any:
    """Mean over `dim`, by default over everything."""
    return paddle.mean(input, axis=dim, keepdim=keep_dim)


def reduce_max(input: Any, dim: Dimensions = None, keep_dim: bool = False) -> Any:
    """Largest element over `dim`, by default over everything."""
    return paddle.max(input, axis=dim, keepdim=keep_dim)


def reduce_min(input: Any, dim: Dimensions = None, keep_dim: bool = False) -> Any:
    """Smallest element over `dim`, by default over everything."""
    return paddle.min(input, axis=dim, keepdim=keep_dim)


def mean(x: Any) -> Any:
    """Mean of all elements."""
    return paddle.mean(x)


def elementwise_add(x: Any, y: Any) -> Any:
    """`x + y`."""
    return x + y


def elementwise_sub(x: Any, y: Any) -> Any:
    """`x - y`."""
    return x - y


def elementwise_mul(x: Any, y: Any) -> Any:
    """`x * y`, element by element."""
    return x * y


def elementwise_div(x: Any, y: Any) -> Any:
    """`x / y`."""
    return x / y


def elementwise_max(x: Any, y: Any) -> Any:
    """The larger of two elements."""
    return paddle.maximum(x, y)


def elementwise_min(x: Any, y: Any) -> Any:
    """The smaller of two elements."""
    return paddle.minimum(x, y)


def square(x: Any) -> Any:
    """`x` squared."""
    return paddle.square(x)


def square_error_cost(input: Any, label: Any) -> Any:
    """`(input - label)` squared, element by element."""
    return paddle.square(input - label)


def cross_entropy(input: Any, label: Any) -> Any:
    """Minus the logarithm of the probability of each label.

    Args:
        input: probabilities `[batch, classes]`, such as the output of a softmax.
        label: int64 classes `[batch]` or `[batch, 1]`.

    Returns:
        `[batch, 1]`.
    """
    label = paddle.reshape(label, [-1, 1])
    return -paddle.log(paddle.take_along_axis(input, label, axis=1))


def exp(x: Any) -> Any:
    """e to the power of `x`."""
    return paddle.exp(x)


def log(x: Any) -> Any:
    """Natural logarithm."""
    return paddle.log(x)


def clip(x: Any, min: float, max: float) -> Any:
    """`x` limited to [min, max]."""
    return paddle.clip(x, min, max)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return F.relu(x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return paddle.tanh(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return F.sigmoid(x)


def softmax(input: Any, axis: int = -1) -> Any:
    """Probabilities in proportion to exp(input) along `axis`."""
    return F.softmax(input, axis=axis)


def log_softmax(input: Any, axis: int = -1) -> Any:
    """Logarithm of `softmax`, without overflow."""
    return F.log_softmax(input, axis=axis)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """The same elements in another shape; one -1 is worked out."""
    return paddle.reshape(x, list(shape))


def flatten(x: Any, axis: int = 1) -> Any:
    """Dimensions from `axis` on become one."""
    return paddle.flatten(x, start_axis=axis)


def concat(input: Sequence[Any], axis: int = 0) -> Any:
    """Tensors joined along `axis`."""
    return paddle.concat(list(input), axis=axis)


def squeeze(input: Any, axes: Dimensions = None) -> Any:
    """Without the dimensions `axes`, which have size 1; by default all such."""
    return paddle.squeeze(input, axis=axes)


def unsqueeze(input: Any, axes: int | Sequence[int]) -> Any:
    """With new dimensions of size 1 at `axes`."""
    return paddle.unsqueeze(input, axis=axes)

"""Functions of PARL 1.x's `parl.layers` that have no parameters, with its argument names."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parl_core.errors import HyperparameterError

_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}

_Dim = int | Sequence[int] | None

relu, tanh, sigmoid = torch.relu, torch.tanh, torch.sigmoid
abs, exp, log, sqrt, square = torch.abs, torch.exp, torch.log, torch.sqrt, torch.square


def softmax(input: Tensor, axis: int = -1) -> Tensor:
    """Exponentials normalised along `axis`."""
    return torch.softmax(input, dim=axis)


def reduce_sum(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Sum over `dim`; over everything by default."""
    return torch.sum(input, dim=_axes(input, dim), keepdim=keep_dim)


def reduce_mean(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Mean over `dim`; over everything by default."""
    return torch.mean(input, dim=_axes(input, dim), keepdim=keep_dim)


def reduce_max(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Maximum over `dim`; over everything by default."""
    return torch.amax(input, dim=_axes(input, dim), keepdim=keep_dim)


def reduce_min(input: Tensor, dim: _Dim = None, keep_dim: bool = False) -> Tensor:
    """Minimum over `dim`; over everything by default."""
    return torch.amin(input, dim=_axes(input, dim), keepdim=keep_dim)


def reduce_prod(input: Tensor, dim: int | None = None, keep_dim: bool = False) -> Tensor:
    """Product over `dim`; over everything by default."""
    return torch.prod(input) if dim is None else torch.prod(input, dim=dim, keepdim=keep_dim)


def mean(x: Tensor) -> Tensor:
    """Mean of all entries."""
    return torch.mean(x)


def argmax(x: Tensor, axis: int = 0) -> Tensor:
    """Index of the largest entry along `axis`."""
    return torch.argmax(x, dim=axis)


def one_hot(input: Tensor, depth: int) -> Tensor:
    """Rows with a single 1.0: `[n]` or `[n, 1]` to float32 `[n, depth]`."""
    index = input.squeeze(-1) if input.dim() > 1 and input.shape[-1] == 1 else input
    return F.one_hot(index.long(), depth).float()


def cast(x: Tensor, dtype: str | torch.dtype) -> Tensor:
    """The same numbers in another dtype.

    Raises:
        HyperparameterError: the name of the dtype is unknown.
    """
    if isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise HyperparameterError(f"no dtype {dtype!r}; there are {', '.join(_DTYPES)}")
        dtype = _DTYPES[dtype]
    return x.to(dtype)


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
    return torch.maximum(x, y)


def elementwise_min(x: Tensor, y: Tensor) -> Tensor:
    """The smaller of both, entry by entry."""
    return torch.minimum(x, y)


def clip(x: Tensor, min: float, max: float) -> Tensor:
    """Entries limited to [min, max]."""
    return torch.clamp(x, min, max)


def square_error_cost(input: Tensor, label: Tensor) -> Tensor:
    """(input - label)**2, entry by entry.

    Raises:
        ValueError: the shapes differ; broadcasting `[n]` against `[n, 1]` is the classic silent mistake.
    """
    if input.shape != label.shape:
        raise ValueError(f"square_error_cost needs equal shapes, got {tuple(input.shape)} and {tuple(label.shape)}")
    return torch.square(input - label)


def cross_entropy(input: Tensor, label: Tensor) -> Tensor:
    """-log of the probability that each row of `input` `[n, classes]` gives to `label`; `[n, 1]`."""
    return -torch.log(input.gather(1, label.reshape(-1, 1).long()))


def softmax_with_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """The same from logits, without overflow; `[n, 1]`."""
    return -torch.log_softmax(logits, dim=-1).gather(1, label.reshape(-1, 1).long())


def concat(input: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors one after the other along `axis`."""
    return torch.cat(list(input), dim=axis)


def stack(x: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors side by side along a new `axis`."""
    return torch.stack(list(x), dim=axis)


def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """A matrix: dimensions before `axis` become rows, the others columns."""
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, -1)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same entries in another shape; -1 is inferred, 0 keeps the dimension of `x`."""
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])


def squeeze(input: Tensor, axes: Sequence[int]) -> Tensor:
    """Without the dimensions of size one at `axes`."""
    return torch.squeeze(input, dim=tuple(axes))


def unsqueeze(input: Tensor, axes: Sequence[int]) -> Tensor:
    """With a dimension of size one at each of `axes`."""
    for axis in sorted(axes):
        input = torch.unsqueeze(input, axis)
    return input


def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Dimensions in the order `perm`."""
    return x.permute(*perm)


def gather(input: Tensor, index: Tensor) -> Tensor:
    """Rows of `input` at `index` `[n]`."""
    return input.index_select(0, index.reshape(-1).long())


def dropout(x: Tensor, dropout_prob: float, is_test: bool = False) -> Tensor:
    """Zero entries with probability `dropout_prob` and scale the others up, unless `is_test`."""
    return F.dropout(x, dropout_prob, training=not is_test)


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
    return F.avg_pool2d(input, size, pool_stride, pool_padding, count_include_pad=False)


def _axes(input: Tensor, dim: _Dim) -> int | list[int]:
    if dim is None:
        return list(range(input.dim()))
    return dim if isinstance(dim, int) else list(dim)

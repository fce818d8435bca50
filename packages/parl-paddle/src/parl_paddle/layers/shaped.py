"""Layers with parameters: `fc`, `conv_2d`, `embedding`, `batch_norm`. Initial weights follow PARL 1.x's framework."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor

from parl_core.checks import check_features, check_fraction, check_int, check_positive
from parl_paddle.lazy import LazyLayer, Shapes

__all__ = ["batch_norm", "conv2d", "conv_2d", "embedding", "fc"]

_Size = int | tuple[int, int]


class Fc(LazyLayer):
    """A fully connected layer; weight `[in, size]`, uniform (Glorot & Bengio 2010), bias zero."""

    TRANSPOSED: ClassVar[bool] = True

    def __init__(self, size: int, num_flatten_dims: int, act: str | None, bias: bool) -> None:
        super().__init__(act, bias)
        self.size = check_int("size", size)
        self.num_flatten_dims = check_int("num_flatten_dims", num_flatten_dims)

    def shapes_for(self, inputs: Tensor) -> Shapes:
        check_features("fc", tuple(inputs.shape), self.num_flatten_dims)
        features = math.prod(inputs.shape[self.num_flatten_dims :])
        return {"weight": (features, self.size), "bias": (self.size,)}

    def accepts(self, shapes: Shapes) -> bool:
        return len(shapes["weight"]) == 2 and shapes["weight"][1] == self.size

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        return np.zeros(shape) if name == "bias" else _glorot(shape, generator)

    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != self.num_flatten_dims + 1:
            inputs = paddle.flatten(inputs, start_axis=self.num_flatten_dims)
        if self.num_flatten_dims == 1 and self.bias is not None:
            # Faster than F.linear, forth and back. (paddle.addmm is faster still, but ends the process where the bias
            # needs no gradient, as in paddle.grad by the inputs; 3.3.1.)
            outputs: Tensor = paddle.matmul(inputs, self.weight) + self.bias  # type: ignore[no-untyped-call]  # paddle's
            return outputs
        return F.linear(inputs, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"size={self.size}"


class Conv2d(LazyLayer):
    """A convolution over `[n, channels, height, width]`; weight normal with deviation sqrt(2 / fan in), bias zero."""

    def __init__(
        self,
        num_filters: int,
        filter_size: _Size,
        stride: _Size,
        padding: _Size,
        dilation: _Size,
        groups: int,
        act: str | None,
        bias: bool,
    ) -> None:
        super().__init__(act, bias)
        self.num_filters = check_int("num_filters", num_filters)
        self.filter_size = (filter_size, filter_size) if isinstance(filter_size, int) else tuple(filter_size)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = check_int("groups", groups)

    def shapes_for(self, inputs: Tensor) -> Shapes:
        channels = inputs.shape[1] // self.groups
        return {"weight": (self.num_filters, channels, *self.filter_size), "bias": (self.num_filters,)}

    def accepts(self, shapes: Shapes) -> bool:
        weight = shapes["weight"]
        return len(weight) == 4 and (weight[0], *weight[2:]) == (self.num_filters, *self.filter_size)

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        if name == "bias":
            return np.zeros(shape)
        return generator.normal(0.0, math.sqrt(2.0 / math.prod(shape[1:])), shape)

    def compute(self, inputs: Tensor) -> Tensor:
        return F.conv2d(inputs, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        return f"num_filters={self.num_filters}, filter_size={self.filter_size}"


class Embedding(LazyLayer):
    """A table of `[rows, width]`, uniform (Glorot & Bengio 2010); its shape is known from the start."""

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight",)
    TAKES_INDICES: ClassVar[bool] = True

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        rows, width = size
        self.table = (check_int("size[0]", rows), check_int("size[1]", width))
        self.materialise({"weight": self.table})

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        del name  # there is one
        return _glorot(shape, generator)

    def compute(self, inputs: Tensor) -> Tensor:
        return F.embedding(inputs, self.weight)


class BatchNorm(LazyLayer):
    """Batch normalisation over axis 1 (Ioffe & Szegedy 2015), with running mean and variance as buffers."""

    BUFFERS: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")

    def __init__(self, act: str | None, momentum: float, epsilon: float) -> None:
        super().__init__(act)
        self.momentum = check_fraction("momentum", momentum)
        self.epsilon = check_positive("epsilon", epsilon)

    def shapes_for(self, inputs: Tensor) -> Shapes:
        return dict.fromkeys((*self.PARAMETERS, *self.BUFFERS), (inputs.shape[1],))

    def accepts(self, shapes: Shapes) -> bool:
        return len(set(shapes.values())) == 1 and len(shapes["weight"]) == 1

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        del generator  # nothing is random here
        return np.ones(shape) if name in ("weight", "running_var") else np.zeros(shape)

    def compute(self, inputs: Tensor) -> Tensor:
        return F.batch_norm(
            inputs,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training,
            momentum=self.momentum,
            epsilon=self.epsilon,
        )


def fc(size: int, num_flatten_dims: int = 1, bias_attr: bool | None = None, act: str | None = None) -> Fc:
    """A fully connected layer.

    Args:
        size: number of outputs.
        num_flatten_dims: leading dimensions that are kept; the others are flattened into the input features.
        bias_attr: False for a layer without bias.
        act: activation of the output, such as `"relu"`, `"tanh"`, `"softmax"`.
    """
    return Fc(size, num_flatten_dims, act, bias_attr is not False)


def conv_2d(
    num_filters: int,
    filter_size: _Size,
    stride: _Size = 1,
    padding: _Size = 0,
    dilation: _Size = 1,
    groups: int | None = None,
    bias_attr: bool | None = None,
    act: str | None = None,
) -> Conv2d:
    """A convolution over images `[n, channels, height, width]`.

    Args:
        num_filters: number of output channels.
        filter_size: height and width of the filters, in pixels.
        stride: in pixels.
        padding: rows and columns of zeros on each side.
        dilation: distance between the filter's points.
        groups: number of groups of channels that do not see each other; default 1.
        bias_attr: False for a layer without bias.
        act: activation of the output.
    """
    return Conv2d(num_filters, filter_size, stride, padding, dilation, groups or 1, act, bias_attr is not False)


conv2d = conv_2d


def embedding(size: tuple[int, int]) -> Embedding:
    """A table that maps whole numbers below `size[0]` to vectors of `size[1]` entries."""
    return Embedding(size)


def batch_norm(act: str | None = None, momentum: float = 0.9, epsilon: float = 1e-5) -> BatchNorm:
    """Batch normalisation over axis 1.

    Args:
        act: activation of the output.
        momentum: how much of the running statistics stays at each batch, in [0, 1].
        epsilon: added to the variance.
    """
    return BatchNorm(act, momentum, epsilon)


def _glorot(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    limit = math.sqrt(6.0 / sum(shape))
    return generator.uniform(-limit, limit, shape)

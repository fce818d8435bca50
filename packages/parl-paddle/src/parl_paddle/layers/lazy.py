"""Layers whose input size is taken from the first batch, as the documents' first examples write them.

    layers.fc(size=10, act="tanh")            ──first batch [n, 4]──>   weight [4, 10], bias [10]

Until then a layer has no parameters; it has a seed, which a deepcopy copies, so that a target network made before the
first batch still starts from equal weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
import paddle.nn.functional as F
from parl_core.errors import HyperparameterError

from parl_paddle.programs import eager

__all__ = ["LazyLayer", "conv_2d", "fc"]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "log_softmax": F.log_softmax,
    "relu": F.relu,
    "sigmoid": F.sigmoid,
    "softmax": F.softmax,
    "softplus": F.softplus,
    "swish": F.swish,
    "tanh": F.tanh,
}


class LazyLayer(paddle.nn.Layer):  # type: ignore[misc]  # paddle comes without usable types
    """A layer with a `weight` and perhaps a `bias` that are created when the first batch comes.

    Args:
        act: name of the activation that follows, or None.
        param_attr: a `paddle.ParamAttr` for the weight: initialiser, name, learning rate.
        bias_attr: the same for the bias; False leaves it out.

    Attributes:
        initial_seed: the initial weights are drawn from this seed.
        place: where the weights go; None leaves them on paddle's current device.
    """

    weight_is_transposed = False
    """Whether PyTorch keeps this kind of layer's weight the other way round."""

    def __init__(self, *, act: str | None, param_attr: Any, bias_attr: Any) -> None:
        super().__init__()
        if act is not None and act not in _ACTIVATIONS:
            raise HyperparameterError(f"unknown activation {act!r}; there are {', '.join(_ACTIVATIONS)}")
        self.initial_seed = _fresh_seed()
        self.place: Any = None
        self.weight: Any = None
        self.bias: Any = None
        self._act, self._param_attr, self._bias_attr = act, param_attr, bias_attr

    @property
    def has_shape(self) -> bool:
        """Whether the parameters exist."""
        return self.weight is not None

    def waiting_names(self) -> tuple[str, ...]:
        """Names of the parameters that wait for the first batch; none when they exist."""
        if self.has_shape:
            return ()
        return ("weight",) if self._bias_attr is False else ("weight", "bias")

    def forward(self, inputs: Any) -> Any:
        """Compute the output; the first call creates the parameters."""
        if self.weight is None:
            self.create_weights(self.inputs_in(inputs))
        output = self.compute(inputs)
        return output if self._act is None else _ACTIVATIONS[self._act](output)

    def create_weights(self, inputs: int) -> None:
        """Create the parameters for that many inputs (features, channels)."""
        shape, outputs, initializer = self.describe(inputs)
        with eager(), _seeded(self.initial_seed):
            self.weight = self.create_parameter(shape, attr=self._param_attr, default_initializer=initializer)
            if self._bias_attr is not False:
                self.bias = self.create_parameter(outputs, attr=self._bias_attr, is_bias=True)
            if self.place is not None:
                self.to(device=self.place)

    def inputs_in(self, inputs: Any) -> int:
        """How many inputs a batch has."""
        raise NotImplementedError

    def inputs_of(self, weight_shape: Sequence[int]) -> int:
        """How many inputs a weight of that shape is for."""
        raise NotImplementedError

    def describe(self, inputs: int) -> tuple[list[int], list[int], Any]:
        """Shape of the weight, shape of the bias, initialiser of the weight."""
        raise NotImplementedError

    def compute(self, inputs: Any) -> Any:
        """The output before the activation."""
        raise NotImplementedError


class _FullyConnected(LazyLayer):
    weight_is_transposed = True

    def __init__(self, size: int, num_flatten_dims: int, **shared: Any) -> None:
        super().__init__(**shared)
        self.size, self.num_flatten_dims = size, num_flatten_dims

    def inputs_in(self, inputs: Any) -> int:
        return math.prod(inputs.shape[min(self.num_flatten_dims, len(inputs.shape) - 1) :])

    def inputs_of(self, weight_shape: Sequence[int]) -> int:
        return weight_shape[0]

    def describe(self, inputs: int) -> tuple[list[int], list[int], Any]:
        return [inputs, self.size], [self.size], paddle.nn.initializer.XavierUniform()

    def compute(self, inputs: Any) -> Any:
        if len(inputs.shape) > self.num_flatten_dims + 1:
            inputs = paddle.flatten(inputs, start_axis=self.num_flatten_dims)
        return F.linear(inputs, self.weight, self.bias)


class _Convolution2D(LazyLayer):
    def __init__(self, filters: int, filter_size: Any, options: dict[str, Any], **shared: Any) -> None:
        super().__init__(**shared)
        self.filters, self.options = filters, options
        self.filter_size = [filter_size] * 2 if isinstance(filter_size, int) else list(filter_size)

    def inputs_in(self, inputs: Any) -> int:
        return int(inputs.shape[1])

    def inputs_of(self, weight_shape: Sequence[int]) -> int:
        return weight_shape[1] * int(self.options["groups"])

    def describe(self, inputs: int) -> tuple[list[int], list[int], Any]:
        shape = [self.filters, inputs // self.options["groups"], *self.filter_size]
        return shape, [self.filters], paddle.nn.initializer.KaimingNormal(fan_in=math.prod(shape[1:]))

    def compute(self, inputs: Any) -> Any:
        return F.conv2d(inputs, self.weight, self.bias, **self.options)


def fc(
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
) -> LazyLayer:
    """A fully connected layer.

    Args:
        size: number of outputs.
        num_flatten_dims: leading dimensions that stay; what follows is flattened into the inputs.
        param_attr: `paddle.ParamAttr` of the weight; by default Glorot's uniform distribution.
        bias_attr: `paddle.ParamAttr` of the bias, by default zero; False: no bias.
        act: activation that follows, such as `"relu"`, `"tanh"`, `"softmax"`.
    """
    return _FullyConnected(size, num_flatten_dims, act=act, param_attr=param_attr, bias_attr=bias_attr)


def conv_2d(
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
) -> LazyLayer:
    """A convolution over images `[batch, channels, height, width]`; `conv2d` is another name of it.

    Args:
        num_filters: number of output channels.
        filter_size: height and width of the filters, or one number for both.
        stride: step between positions.
        padding: zeros added at each border.
        dilation: distance between a filter's elements.
        groups: channels are divided into that many groups.
        param_attr: `paddle.ParamAttr` of the weight; by default He's normal distribution.
        bias_attr: `paddle.ParamAttr` of the bias, by default zero; False: no bias.
        act: activation that follows.
    """
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _Convolution2D(
        num_filters, filter_size, options, act=act, param_attr=param_attr, bias_attr=bias_attr
    )


def _fresh_seed() -> int:
    # From paddle's generator, so that `paddle.seed` decides about every weight.
    with eager():
        return int(paddle.randint(0, 2**31 - 1, [1]).item())


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    devices = {"cpu", paddle.get_device()}
    states = {device: paddle.get_rng_state(device) for device in devices}
    paddle.seed(seed)
    try:
        yield
    finally:
        for device, state in states.items():
            paddle.set_rng_state(state, device)

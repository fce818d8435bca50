"""The parts of `parl.layers` that both frameworks share: lazily shaped layers, and functions of arrays.

    LazyLayer                                   takes its shapes from the first batch, or from weights set before it
      ├─ Fc, Conv2d, Embedding, BatchNorm, …    arguments, shapes and initial values, here
      └─ the backend's LazyLayer                parameters and forward(): a torch.nn.Module, a paddle.nn.Layer
           └─ the backend's Fc, Conv2d, …       derive from both; compute() is their tensor code

`parl.layers.fc` and similar names are these classes. A layer draws a seed when it is made, and its initial weights from
that seed when its shapes become known. So a deepcopy made before the first batch has the same initial weights as the
original, whichever runs first, and the framework's seed at the model's construction determines them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.checks import check_features, check_fraction, check_int, check_positive, check_real
from parl_core.errors import HyperparameterError

__all__ = [
    "ACTIVATIONS",
    "BatchNorm",
    "Constant",
    "Conv2d",
    "Embedding",
    "Fc",
    "Initial",
    "Initializer",
    "LayerNorm",
    "LazyLayer",
    "NoisyFc",
    "Normal",
    "Orthogonal",
    "Shapes",
    "TrainedDtype",
    "Uniform",
    "activation",
    "argmax",
    "check_dtype",
    "clip",
    "create_parameter",
    "cross_entropy",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
    "elementwise_sub",
    "filled_in",
    "flatten",
    "mean",
    "pool2d",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "squeeze",
    "unsqueeze",
]

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a layer's parameters and buffers, by name."""
_Size = int | tuple[int, int]


# Initial values


@dataclass(frozen=True)
class Constant:
    """Initialise all entries to `value`."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Draw uniformly from [-limit, limit]."""

    limit: float

    @classmethod
    def glorot(cls, shape: tuple[int, ...]) -> "Uniform":
        """Return the rule of Glorot & Bengio 2010, equation 16, with limit sqrt(6 / (fan in + fan out))."""
        fans = shape[:2] if len(shape) > 1 else (math.prod(shape),) * 2
        return cls(math.sqrt(6.0 / (sum(fans) * math.prod(shape[2:]))))


@dataclass(frozen=True)
class Normal:
    """Draw from N(0, std**2)."""

    std: float


@dataclass(frozen=True)
class Orthogonal:
    """Draw a matrix `[out, in]` with orthonormal rows, or columns if there are more rows, times `gain`.

    Saxe et al. 2014. With more than two dimensions, all but the first are flattened.
    """

    gain: float


Initial = Constant | Uniform | Normal | Orthogonal
"""A rule for the initial values of a parameter."""


# Lazily shaped layers


class LazyLayer:
    """Base of the lazily shaped layers: names of parameters are known from the start, shapes and values come later.

    Args:
        act: Name of the activation of the output; None for no activation.
        bias: False for a layer without the parameter `bias`.

    Attributes:
        seed: The seed that the initial weights are drawn from.
        shaped: Whether the parameters have shapes.
        activation: Name of the activation of the output; None for no activation.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight", "bias")
    BUFFERS: ClassVar[tuple[str, ...]] = ()
    TAKES_INDICES: ClassVar[bool] = False
    """Inputs are whole numbers; other layers convert whole numbers to the dtype of their weights."""
    TRANSPOSED: ClassVar[bool] = False
    """True if the framework stores the weight as `[in, out]`; the shared layout, which is PyTorch's, is `[out, in]`."""

    _functional: Any
    """Backend hook: the framework's module of functions."""
    _own_activations: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """Backend hook: activations in place of the framework's, which may overwrite their input."""

    seed: int
    own_parameters: tuple[str, ...]
    """The members of `PARAMETERS` that this layer has."""

    def __init__(self, act: str | None = None, bias: bool = True) -> None:
        self.act = activation(act, self._own_activations, self._functional)
        self.activation = act
        self.shaped = False
        self.own_parameters = tuple(name for name in self.PARAMETERS if name != "bias" or bias)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of the parameters and buffers that have no shape yet."""
        return () if self.shaped else (*self.own_parameters, *self.BUFFERS)

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of all parameters and buffers for an input."""
        raise NotImplementedError

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        raise NotImplementedError

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:
        """Return the initial values of one parameter or buffer."""
        raise NotImplementedError

    # Backend hooks

    def compute(self, inputs: Any) -> Any:
        """Return the layer's output before the activation."""
        raise NotImplementedError

    def materialise(self, shapes: Shapes) -> None:
        """Give parameters and buffers these shapes and their initial values."""
        raise NotImplementedError


class Fc(LazyLayer):
    """A fully connected layer.

    The weight starts uniform (Glorot & Bengio 2010), as in PARL 1.x's framework, the bias at zero.

    Args:
        size: Number of outputs.
        num_flatten_dims: Leading dimensions that are kept; the others are flattened into the input features.
        bias_attr: False for a layer without bias.
        act: Activation of the output, such as `"relu"`, `"tanh"`, `"softmax"`.
        initial_weight: Other initial values of the weight.
        param_attr: None; PARL 1.x's attributes of the weight are refused.
        name: No effect; parameters have the name of the model's attribute.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    def __init__(
        self,
        size: int,
        num_flatten_dims: int = 1,
        bias_attr: bool | None = None,
        act: str | None = None,
        *,
        initial_weight: Initial | None = None,
        param_attr: None = None,
        name: str | None = None,  # noqa: ARG002 - PARL 1.x's programs give it, here as below
    ) -> None:
        super().__init__(act, _check_attributes("fc", param_attr, bias_attr))
        self.size = check_int("size", size)
        self.num_flatten_dims = check_int("num_flatten_dims", num_flatten_dims)
        self.initial_weight = initial_weight

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of weight and bias.

        Raises:
            HyperparameterError: There are several inputs.
            ModelContractError: The input lacks dimensions.
        """
        if isinstance(inputs, (list, tuple)):
            raise HyperparameterError(
                f"fc takes one tensor, not {len(inputs)}: join them, such as by parl.layers.concat(inputs, axis=1)"
            )
        check_features("fc", tuple(inputs.shape), self.num_flatten_dims)
        weight = (self.size, math.prod(inputs.shape[self.num_flatten_dims :]))
        return {"weight": weight[::-1] if self.TRANSPOSED else weight, "bias": (self.size,)}

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        return len(shapes["weight"]) == 2 and shapes["weight"][1 if self.TRANSPOSED else 0] == self.size

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:
        """Return the initial values of one parameter."""
        return Constant(0.0) if name == "bias" else self.initial_weight or Uniform.glorot(shape)

    def extra_repr(self) -> str:
        """Return the arguments that the framework prints with this layer's name."""
        return f"size={self.size}"


class NoisyFc(Fc):
    """A fully connected layer with noise of a learned size on its weights (Fortunato et al. 2018, arXiv:1706.10295).

        weight + weight_sigma * f(e_out) f(e_in)^T,   bias + bias_sigma * f(e_out)                        (equation 9)
        f(x) = sign(x) * sqrt(|x|),   e_in and e_out drawn from N(0, 1)                              (equations 10, 11)

    In training mode each forward pass draws new noise, once for its batch; in evaluation mode there is no noise. The
    noise is the agent's exploration: `sample` and `learn` draw it, also for target networks; `predict` does not. Weight
    and bias start uniform in [-1 / sqrt(inputs), 1 / sqrt(inputs)], their sigmas at `sigma / sqrt(inputs)` (section
    3.2).

    Args:
        size: Number of outputs.
        sigma: The sigma of the noise at the start, above 0, before it is divided by the root of the inputs; default 0.5
            (paper).
        num_flatten_dims: Leading dimensions that are kept; the others are flattened into the input features.
        act: Activation of the output.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight", "bias", "weight_sigma", "bias_sigma")
    TRANSPOSED: ClassVar[bool] = False

    def __init__(self, size: int, sigma: float = 0.5, num_flatten_dims: int = 1, act: str | None = None) -> None:
        super().__init__(size, num_flatten_dims, act=act)
        self.sigma = check_positive("sigma", sigma)
        self._inputs = 1

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of weight and bias, and of their sigmas."""
        shapes = super().shapes_for(inputs)
        return {**shapes, **{f"{name}_sigma": shape for name, shape in shapes.items()}}

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        return super().accepts(shapes) and shapes["weight_sigma"] == shapes["weight"]

    def materialise(self, shapes: Shapes) -> None:
        """Give weight, bias and sigmas these shapes and their initial values."""
        self._inputs = shapes["weight"][1]
        super().materialise(shapes)

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:  # noqa: ARG002 - the inputs count for all
        """Return the initial values of one parameter."""
        root = math.sqrt(self._inputs)
        return Constant(self.sigma / root) if name.endswith("_sigma") else Uniform(1.0 / root)


class Conv2d(LazyLayer):
    """A convolution over images `[n, channels, height, width]`.

    The weight starts normal with deviation sqrt(2 / fan in), as in PARL 1.x's framework, the bias at zero.

    Args:
        num_filters: Number of output channels.
        filter_size: Height and width of the filters, in pixels.
        stride: The stride in pixels.
        padding: Rows and columns of zeros on each side.
        dilation: Distance between the filter's points.
        groups: Number of groups of channels that are convolved separately; default 1.
        bias_attr: False for a layer without bias.
        act: Activation of the output.
        initial_weight: Other initial values of the weight.
        param_attr: None; PARL 1.x's attributes of the weight are refused.
        name: No effect; parameters have the name of the model's attribute.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    def __init__(
        self,
        num_filters: int,
        filter_size: _Size,
        stride: _Size = 1,
        padding: _Size = 0,
        dilation: _Size = 1,
        groups: int | None = None,
        bias_attr: bool | None = None,
        act: str | None = None,
        *,
        initial_weight: Initial | None = None,
        param_attr: None = None,
        name: str | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(act, _check_attributes("conv_2d", param_attr, bias_attr))
        self.num_filters = check_int("num_filters", num_filters)
        self.filter_size = (filter_size, filter_size) if isinstance(filter_size, int) else tuple(filter_size)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = check_int("groups", groups or 1)
        self.initial_weight = initial_weight

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of weight and bias."""
        channels = inputs.shape[1] // self.groups
        return {"weight": (self.num_filters, channels, *self.filter_size), "bias": (self.num_filters,)}

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        weight = shapes["weight"]
        return len(weight) == 4 and (weight[0], *weight[2:]) == (self.num_filters, *self.filter_size)

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:
        """Return the initial values of one parameter."""
        if name == "bias":
            return Constant(0.0)
        return self.initial_weight or Normal(math.sqrt(2.0 / math.prod(shape[1:])))

    def extra_repr(self) -> str:
        """Return the arguments that the framework prints with this layer's name."""
        return f"num_filters={self.num_filters}, filter_size={self.filter_size}"


class Embedding(LazyLayer):
    """A table that maps whole numbers below `size[0]` to vectors of `size[1]` entries.

    It starts uniform (Glorot & Bengio 2010); its shape is known from the start.

    Args:
        size: Rows and width of the table.
        param_attr: None; PARL 1.x's attributes of the table are refused.
        name: No effect; parameters have the name of the model's attribute.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight",)
    TAKES_INDICES: ClassVar[bool] = True

    def __init__(
        self,
        size: tuple[int, int],
        *,
        param_attr: None = None,
        name: str | None = None,  # noqa: ARG002
    ) -> None:
        _check_attributes("embedding", param_attr)
        super().__init__()
        rows, width = size
        self.table = (check_int("size[0]", rows), check_int("size[1]", width))
        self.materialise({"weight": self.table})

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:  # noqa: ARG002 - there is one
        """Return the initial values of the table."""
        return Uniform.glorot(shape)


class BatchNorm(LazyLayer):
    """Batch normalisation over axis 1 (Ioffe & Szegedy 2015), with running mean and variance as buffers.

    Args:
        act: Activation of the output.
        momentum: Share of the running statistics that is kept at each batch, in [0, 1].
        epsilon: The number added to the variance.
        is_test: True for a layer that always uses the running statistics and never changes them; others do so in
            evaluation mode (`model.eval()`).
        name: No effect; parameters have the name of the model's attribute.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    BUFFERS: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")

    def __init__(
        self,
        act: str | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        *,
        is_test: bool = False,
        name: str | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(act)
        self.is_test = is_test
        self.momentum = check_fraction("momentum", momentum)
        self.epsilon = check_positive("epsilon", epsilon)

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of all parameters and buffers."""
        return dict.fromkeys((*self.PARAMETERS, *self.BUFFERS), (inputs.shape[1],))

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        return len(set(shapes.values())) == 1 and len(shapes["weight"]) == 1

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:  # noqa: ARG002 - all start from constants
        """Return the initial values of one parameter or buffer."""
        return Constant(1.0 if name in ("weight", "running_var") else 0.0)


class LayerNorm(LazyLayer):
    """Layer normalisation over the last axis (Ba, Kiros & Hinton 2016, arXiv:1607.06450, equation 3).

    Args:
        act: Activation of the output.
        epsilon: The number added to the variance.
        name: No effect; parameters have the name of the model's attribute.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    def __init__(
        self,
        act: str | None = None,
        epsilon: float = 1e-5,
        *,
        name: str | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(act)
        self.epsilon = check_positive("epsilon", epsilon)

    def shapes_for(self, inputs: Any) -> Shapes:
        """Return the shapes of scale and shift."""
        return dict.fromkeys(self.PARAMETERS, (inputs.shape[-1],))

    def accepts(self, shapes: Shapes) -> bool:
        """Return whether weights of this layer can have these shapes."""
        return len(set(shapes.values())) == 1 and len(shapes["weight"]) == 1

    def initial(self, name: str, shape: tuple[int, ...]) -> Initial:  # noqa: ARG002 - both start from constants
        """Return the initial values of one parameter."""
        return Constant(1.0 if name == "weight" else 0.0)


def _check_attributes(layer: str, param_attr: object, bias_attr: object = None) -> bool:
    """Return whether a layer has a bias.

    Raises:
        HyperparameterError: PARL 1.x's attributes of a parameter are given.
    """
    if param_attr is not None:
        raise HyperparameterError(
            f"{layer} takes no param_attr: leave it out"
            + ("" if layer == "embedding" else "; initial_weight=parl_core.layers.Normal(0.1) gives initial values")
        )
    if bias_attr is not None and not isinstance(bias_attr, bool):
        raise HyperparameterError(f"bias_attr of {layer} must be None, or False for no bias, got {bias_attr!r}")
    return bias_attr is not False


# Activations

ACTIVATIONS = ("elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softmax", "softplus", "swish", "tanh")
"""Names of activations that both backends take as `act`."""


def activation(name: str | None, own: Mapping[str, Callable[[Any], Any]], functional: Any) -> Any:
    """Return the activation called `name`, which may overwrite its input; None for None.

    Args:
        name: One of `ACTIVATIONS`.
        own: Functions of the backend, used instead of the framework's of the same name.
        functional: The framework's module of functions.

    Raises:
        HyperparameterError: No activation has that name.
    """
    if name is None:
        return None
    if name not in ACTIVATIONS:
        raise HyperparameterError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return own.get(name) or getattr(functional, name)


# Parameters outside of layers

Initializer = float | Constant | Uniform | Normal | Callable[[tuple[int, ...]], ArrayLike]
"""A number for all entries, a rule for them, or a function of the shape."""

TrainedDtype = Literal["float16", "float32", "float64"]
"""Dtypes that a parameter may have."""

_TRAINED_DTYPES: tuple[TrainedDtype, ...] = ("float16", "float32", "float64")


def create_parameter(
    shape: Sequence[int],
    dtype: str = "float32",
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
    name: str | None = None,  # noqa: ARG001 - PARL 1.x's programs give it
    *,
    make: Callable[[tuple[int, ...], TrainedDtype, Constant | Uniform | Normal | NDArray[np.float64]], Any],
) -> Any:
    """Return a trainable parameter; assign it to an attribute of a model, which is then trained with it.

        self.log_std = parl.layers.create_parameter([act_dim], default_initializer=-0.5)

    Args:
        shape: Shape of the parameter; `[]` for a single number.
        dtype: Dtype of the parameter, such as `"float32"`.
        is_bias: True for initial values of 0; other parameters have uniform initial values (Glorot & Bengio 2010).
        default_initializer: The initial value instead, `Constant`, `Uniform` or `Normal` of parl_core.layers, or a
            function that takes the shape and returns an array.
        name: No effect; the parameter has the name of the model's attribute.
        make: The backend's function of shape, dtype and initial values; `parl.layers.create_parameter` needs none.

    Raises:
        HyperparameterError: The shape, the dtype or the initial values are invalid.
    """
    return make(*_new_parameter(shape, dtype, is_bias, default_initializer))


def _new_parameter(
    shape: Sequence[int], dtype: str, is_bias: bool, default_initializer: Initializer | None
) -> tuple[tuple[int, ...], TrainedDtype, Constant | Uniform | Normal | NDArray[np.float64]]:
    if isinstance(shape, (str, int)):
        raise HyperparameterError(f"shape must list the sizes of all dimensions, such as [3] or [8, 4], got {shape!r}")
    sizes = tuple(check_int(f"shape[{i}]", size) for i, size in enumerate(shape))
    known = next((known for known in _TRAINED_DTYPES if known == dtype), None)
    if known is None:
        raise HyperparameterError(f"a parameter's dtype must be one of {', '.join(_TRAINED_DTYPES)}, got {dtype!r}")
    if default_initializer is None:
        return sizes, known, Constant(0.0) if is_bias else Uniform.glorot(sizes)
    if isinstance(default_initializer, Constant | Uniform | Normal):
        return sizes, known, default_initializer
    if not callable(default_initializer):
        return sizes, known, Constant(check_real("default_initializer", default_initializer))
    try:
        values = np.asarray(default_initializer(sizes), np.float64)
    except Exception as error:  # any exception: initializers of frameworks have other arguments
        raise HyperparameterError(
            "default_initializer must be a number, one of parl_core.layers such as Normal(0.1), or a function of the "
            f"shape that returns an array; {default_initializer!r} raised {type(error).__name__}: {error}"
        ) from error
    if values.shape != sizes or not np.isfinite(values).all():
        wrong = f"shape {values.shape}" if values.shape != sizes else "numbers that are not finite"
        raise HyperparameterError(f"default_initializer must return finite numbers of shape {sizes}, got {wrong}")
    return sizes, known, values


# Functions of PARL 1.x's `parl.layers`, with its argument names, that are equal for tensors of both frameworks


def reduce_sum(input: Any, dim: int | Sequence[int] | None = None, keep_dim: bool = False) -> Any:
    """Return the sum over `dim`; over everything by default."""
    return input.sum(axis=dim, keepdim=keep_dim)


def reduce_mean(input: Any, dim: int | Sequence[int] | None = None, keep_dim: bool = False) -> Any:
    """Return the mean over `dim`; over everything by default."""
    return input.mean(axis=dim, keepdim=keep_dim)


def reduce_max(input: Any, dim: int | Sequence[int] | None = None, keep_dim: bool = False) -> Any:
    """Return the maximum over `dim`; over everything by default."""
    return input.amax(_all_axes(input) if dim is None else dim, keep_dim)


def reduce_min(input: Any, dim: int | Sequence[int] | None = None, keep_dim: bool = False) -> Any:
    """Return the minimum over `dim`; over everything by default."""
    return input.amin(_all_axes(input) if dim is None else dim, keep_dim)


def _all_axes(tensor: Any) -> list[int]:
    return list(range(len(tensor.shape)))


def reduce_prod(input: Any, dim: int | None = None, keep_dim: bool = False) -> Any:
    """Return the product over `dim`; over everything by default."""
    return input.prod() if dim is None else input.prod(dim, keep_dim)


def mean(x: Any) -> Any:
    """Return the mean of all entries."""
    return x.mean()


def argmax(x: Any, axis: int = 0) -> Any:
    """Return the index of the largest entry along `axis`."""
    return x.argmax(axis)


def elementwise_add(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return x + y.

    Args:
        x: A tensor.
        y: A tensor of the same shape, or of fewer dimensions.
        axis: The dimension of `x` that the first one of `y` belongs to; -1 if the last ones belong together.
        act: None; PARL 1.x's activation of the result is refused.

    Raises:
        HyperparameterError: `axis` is out of range, or `act` is given.
    """
    return x + _other("elementwise_add", x, y, axis, act)


def elementwise_sub(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return x - y; for `axis` and `act` see `elementwise_add`."""
    return x - _other("elementwise_sub", x, y, axis, act)


def elementwise_mul(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return x * y; for `axis` and `act` see `elementwise_add`."""
    return x * _other("elementwise_mul", x, y, axis, act)


def elementwise_div(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return x / y; for `axis` and `act` see `elementwise_add`."""
    return x / _other("elementwise_div", x, y, axis, act)


def elementwise_max(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return the larger of both, entry by entry; for `axis` and `act` see `elementwise_add`."""
    return x.maximum(_other("elementwise_max", x, y, axis, act))


def elementwise_min(x: Any, y: Any, axis: int = -1, act: None = None) -> Any:
    """Return the smaller of both, entry by entry; for `axis` and `act` see `elementwise_add`."""
    return x.minimum(_other("elementwise_min", x, y, axis, act))


def _other(function: str, x: Any, y: Any, axis: int, act: object) -> Any:
    """Return `y` with dimensions of size one appended, so that its own dimensions match those of `x` from `axis` on."""
    if act is not None:
        raise HyperparameterError(f"{function} takes no act: write parl.layers.{act}(parl.layers.{function}(x, y))")
    if axis == -1:
        return y
    behind = len(x.shape) - len(y.shape) - check_int("axis", axis, at_least=0)
    if behind < 0:
        raise HyperparameterError(
            f"axis={axis} of {function} leaves too few dimensions of {tuple(x.shape)} for those of {tuple(y.shape)}"
        )
    return y.reshape([*y.shape, *([1] * behind)])


def clip(x: Any, min: float, max: float) -> Any:
    """Return entries limited to [min, max]."""
    return x.clip(min, max)


def squeeze(input: Any, axes: Sequence[int]) -> Any:
    """Return the tensor without the dimensions of size one at `axes`."""
    return input.squeeze(tuple(axes))


def unsqueeze(input: Any, axes: Sequence[int]) -> Any:
    """Return the tensor with a new dimension of size 1 at each of `axes`."""
    for axis in sorted(axes):
        input = input.unsqueeze(axis)
    return input


def flatten(x: Any, axis: int = 1) -> Any:
    """Return a matrix: the dimensions before `axis` become its rows, the others its columns.

    `axis` counts as in a slice of the shape: -1 is the last dimension, and after the last one there is one column.
    """
    axis = len(x.shape[:axis])
    if axis == 0:
        return x.reshape([1, -1])
    rows = x.flatten(axis) if len(x.shape) > axis else x.unsqueeze(-1)
    return rows.flatten(0, axis - 1) if axis > 1 else rows


def square_error_cost(input: Any, label: Any) -> Any:
    """Return (input - label)**2, entry by entry.

    Raises:
        ValueError: The shapes differ; broadcasting `[n]` against `[n, 1]` is the classic silent mistake.
    """
    if tuple(input.shape) != tuple(label.shape):
        raise ValueError(f"square_error_cost needs equal shapes, got {tuple(input.shape)} and {tuple(label.shape)}")
    return (input - label).square()


_DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")


def check_dtype(name: str) -> str:
    """Return the name of a dtype to which `cast` converts.

    Raises:
        HyperparameterError: The dtype is unknown.
    """
    if name not in _DTYPES:
        raise HyperparameterError(f"no dtype {name!r}; there are {', '.join(_DTYPES)}")
    return name


# Functions of PARL 1.x's `parl.layers` that need functions of the framework, which backends supply


def filled_in(function: Callable[..., Any], **parts: Any) -> Callable[..., Any]:
    """Return one of these functions with its keyword-only arguments supplied by a backend."""
    found: Any = update_wrapper(partial(function, **parts), function)
    del found.__wrapped__  # the arguments have no defaults in its signature
    return found  # type: ignore[no-any-return]


def cross_entropy(input: Any, label: Any, soft_label: bool = False, *, of_class: Callable[[Any, Any], Any]) -> Any:
    """Return the cross-entropy `[n, 1]` of `label` from probabilities `[n, classes]`.

    Args:
        input: The probabilities.
        label: Classes, whole numbers `[n]` or `[n, 1]`; with `soft_label` the probability of each, `[n, classes]`.
        soft_label: True if labels are probabilities.
        of_class: The entries `[n, 1]` of the classes in `[n, classes]`.
    """
    if soft_label:
        return -(label * input.masked_fill(label == 0, 1.0).log()).sum(1, keepdim=True)  # not 0 * log(0)
    return -of_class(input, label).log()


def softmax_with_cross_entropy(
    logits: Any,
    label: Any,
    soft_label: bool = False,
    *,
    log_softmax: Callable[[Any], Any],
    of_class: Callable[[Any, Any], Any],
) -> Any:
    """Return the cross-entropy `[n, 1]` of `label` from logits `[n, classes]`, without overflow.

    Args:
        logits: Logits of the classes, `[n, classes]`.
        label: As in `cross_entropy`.
        soft_label: True if labels are probabilities.
        log_softmax: The logarithm of the softmax over the last axis.
        of_class: As in `cross_entropy`.
    """
    log_probs = log_softmax(logits)
    if soft_label:
        return -(label * log_probs).sum(1, keepdim=True)
    return -of_class(log_probs, label)


def pool2d(
    input: Any,
    pool_size: _Size = -1,
    pool_type: str = "max",
    pool_stride: _Size = 1,
    pool_padding: _Size = 0,
    global_pooling: bool = False,
    *,
    kinds: Mapping[str, Callable[..., Any]],
) -> Any:
    """Return the maximum or mean over windows of images `[n, channels, height, width]`.

    Args:
        input: The images.
        pool_size: Height and width of a window, or one number for both; needed unless `global_pooling`.
        pool_type: `"max"` or `"avg"`; the mean does not include the padding.
        pool_stride: Distance between windows, as `pool_size`.
        pool_padding: Size of the padding on each side, as `pool_size`.
        global_pooling: True for one window, the whole image.
        kinds: The framework's functions by type.

    Raises:
        HyperparameterError: `pool_type` is unknown.
    """
    if pool_type not in kinds:
        raise HyperparameterError(f'pool_type must be "max" or "avg", got {pool_type!r}')
    size = tuple(input.shape[2:]) if global_pooling else pool_size
    return kinds[pool_type](input, size, pool_stride, pool_padding)

"""`parl.layers` on PyTorch: lazily shaped layers, and the functions of the PARL 1.x manual.

`parl_core.layers` describes their arguments, and has the parts that do not depend on PyTorch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from typing import cast as typed

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parl_core import layers as contract
from parl_core.layers import (
    Initial,
    Shapes,
    argmax,
    clip,
    elementwise_add,
    elementwise_div,
    elementwise_max,
    elementwise_min,
    elementwise_mul,
    elementwise_sub,
    flatten,
    mean,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    square_error_cost,
    squeeze,
    unsqueeze,
)
from parl_torch._tensors import is_followed, orthogonal_, tanh_

__all__ = [
    "BatchNorm",
    "Conv2d",
    "Embedding",
    "Fc",
    "LayerNorm",
    "LazyLayer",
    "NoisyFc",
    "abs",
    "argmax",
    "batch_norm",
    "cast",
    "clip",
    "concat",
    "conv2d",
    "conv_2d",
    "create_parameter",
    "cross_entropy",
    "dropout",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
    "elementwise_sub",
    "embedding",
    "exp",
    "fc",
    "flatten",
    "gather",
    "layer_norm",
    "log",
    "mean",
    "noisy_fc",
    "one_hot",
    "pool2d",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_with_cross_entropy",
    "sqrt",
    "square",
    "square_error_cost",
    "squeeze",
    "stack",
    "tanh",
    "transpose",
    "unsqueeze",
]

_MANY = 2**17
"""Number of values from which the faster tanh pays for a node of our own in autograd's graph."""


class _Tanh(torch.autograd.Function):
    """The tanh of `tanh_`."""

    @staticmethod
    def forward(inputs: Tensor) -> Tensor:
        return tanh_(inputs.clone())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004 - as PyTorch calls it
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(slope, *ctx.saved_tensors)  # type: ignore[no-any-return]


def _tanh(inputs: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or inputs.numel() < _MANY:
        return torch.tanh(inputs)
    # A subclass of Tensor may represent values that are stored elsewhere.
    is_array = type(inputs) is Tensor and inputs.device.type == "cpu" and inputs.dtype == torch.float32
    if not is_array or is_followed():
        return torch.tanh(inputs)
    found: Tensor = _Tanh.apply(inputs)  # type: ignore[no-untyped-call]
    return found


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # in place, on the layer's own output: a second block of memory would slow SAC's updates by 5 %
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
    "swish": F.silu,
    "tanh": _tanh,
}


class LazyLayer(nn.Module, contract.LazyLayer):
    weight: nn.Parameter
    bias: nn.Parameter | None

    _functional, _own_activations = F, _ACTIVATIONS

    def __init__(self, act: str | None = None, bias: bool = True) -> None:
        super().__init__()
        contract.LazyLayer.__init__(self, act, bias)
        self.seed = int(torch.randint(2**62, ()).item())
        for name in self.PARAMETERS:
            made = name in self.own_parameters
            self.register_parameter(name, typed(nn.Parameter, nn.UninitializedParameter()) if made else None)
        for name in self.BUFFERS:
            self.register_buffer(name, torch.empty(0))

    def forward(self, inputs: Tensor) -> Any:
        if not self.shaped:
            self.materialise(self.shapes_for(inputs))
        if not (inputs.is_floating_point() or self.TAKES_INDICES):
            inputs = inputs.to(self.weight.dtype)  # integers such as pixels, counts or one-hot rows
        outputs = self.compute(inputs)
        return outputs if self.act is None else self.act(outputs)

    @torch.no_grad()
    def materialise(self, shapes: Shapes) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for name in self.own_parameters:
            parameter = getattr(self, name)
            if isinstance(parameter, nn.UninitializedParameter):
                parameter.materialize(shapes[name])
                parameter.copy_(_drawn(self.initial(name, shapes[name]), shapes[name], generator))
        for name in self.BUFFERS:
            values = _drawn(self.initial(name, shapes[name]), shapes[name], generator)
            setattr(self, name, values.to(getattr(self, name)))
        self.shaped = True


def _drawn(initial: Initial, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.empty(shape)
    match initial:
        case contract.Constant(value):
            return values.fill_(value)
        case contract.Uniform(limit):
            return values.uniform_(-limit, limit, generator=generator)
        case contract.Normal(std):
            return values.normal_(0.0, std, generator=generator)
        case contract.Orthogonal(gain):
            return orthogonal_(values, gain, generator=generator)


class Fc(contract.Fc, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.dim() != self.num_flatten_dims + 1:
            inputs = inputs.flatten(self.num_flatten_dims)
        return F.linear(inputs, self.weight, self.bias)


class NoisyFc(contract.NoisyFc, LazyLayer):
    bias: nn.Parameter
    weight_sigma: nn.Parameter
    bias_sigma: nn.Parameter

    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.dim() != self.num_flatten_dims + 1:
            inputs = inputs.flatten(self.num_flatten_dims)
        if not self.training:
            return F.linear(inputs, self.weight, self.bias)
        e_out, e_in = (_scaled(self.noise(size)) for size in self.weight.shape)
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(e_out, e_in))
        return F.linear(inputs, weight, self.bias + self.bias_sigma * e_out)

    def noise(self, size: int) -> Tensor:
        return torch.randn(size, dtype=self.weight.dtype, device=self.weight.device)


def _scaled(noise: Tensor) -> Tensor:
    return noise.sign() * noise.abs().sqrt()


class Conv2d(contract.Conv2d, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.conv2d(inputs, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Embedding(contract.Embedding, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.embedding(inputs, self.weight)


class BatchNorm(contract.BatchNorm, LazyLayer):
    running_mean: Tensor
    running_var: Tensor

    def compute(self, inputs: Tensor) -> Tensor:
        return F.batch_norm(
            inputs,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training and not self.is_test,
            momentum=1.0 - self.momentum,  # PyTorch defines momentum the other way round
            eps=self.epsilon,
        )


class LayerNorm(contract.LayerNorm, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs, inputs.shape[-1:], self.weight, self.bias, self.epsilon)


fc, conv_2d, conv2d, embedding, batch_norm, layer_norm = Fc, Conv2d, Conv2d, Embedding, BatchNorm, LayerNorm
noisy_fc = NoisyFc


def _parameter(sizes: tuple[int, ...], dtype: str, initial: Any) -> nn.Parameter:
    values = torch.empty(sizes, dtype=getattr(torch, dtype))
    match initial:
        case contract.Constant(value):
            return nn.Parameter(values.fill_(value))
        case contract.Uniform(limit):
            return nn.Parameter(values.uniform_(-limit, limit))
        case contract.Normal(std):
            return nn.Parameter(values.normal_(0.0, std))
        case _:
            return nn.Parameter(torch.tensor(initial, dtype=values.dtype))


def _of_class(values: Tensor, label: Tensor) -> Tensor:
    return values.gather(1, label.reshape(-1, 1).long())


create_parameter = contract.filled_in(contract.create_parameter, make=_parameter)
"""As `parl_core.layers.create_parameter`."""
cross_entropy = contract.filled_in(contract.cross_entropy, of_class=_of_class)
"""As `parl_core.layers.cross_entropy`."""
softmax_with_cross_entropy = contract.filled_in(
    contract.softmax_with_cross_entropy, log_softmax=partial(torch.log_softmax, dim=-1), of_class=_of_class
)
"""As `parl_core.layers.softmax_with_cross_entropy`."""
pool2d = contract.filled_in(
    contract.pool2d, kinds={"max": torch.max_pool2d, "avg": partial(F.avg_pool2d, count_include_pad=False)}
)
"""As `parl_core.layers.pool2d`."""

relu, tanh, sigmoid = torch.relu, torch.tanh, torch.sigmoid
abs, exp, log, sqrt, square = torch.abs, torch.exp, torch.log, torch.sqrt, torch.square


def softmax(input: Tensor, axis: int = -1) -> Tensor:
    """Return the softmax along `axis`."""
    return torch.softmax(input, dim=axis)


def one_hot(input: Tensor, depth: int) -> Tensor:
    """Return one-hot rows, float32 `[n, depth]`, of integers `[n]` or `[n, 1]`, 0 to `depth` - 1."""
    index = input.squeeze(-1) if input.dim() > 1 and input.shape[-1] == 1 else input
    return F.one_hot(index.long(), depth).float()


def cast(x: Tensor, dtype: str | torch.dtype) -> Tensor:
    """Return a tensor with the same numbers in another dtype.

    Raises:
        HyperparameterError: The name of the dtype is unknown.
    """
    return x.to(getattr(torch, contract.check_dtype(dtype)) if isinstance(dtype, str) else dtype)


def concat(input: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors joined along `axis`."""
    return torch.cat(list(input), dim=axis)


def stack(x: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors joined along a new `axis`."""
    return torch.stack(list(x), dim=axis)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the same entries in another shape; -1 is inferred, 0 keeps the dimension of `x`."""
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])


def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Return the tensor with its dimensions in the order `perm`."""
    return x.permute(*perm)


def gather(input: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `input` at `index` `[n]`."""
    return input.index_select(0, index.reshape(-1).long())


def dropout(x: Tensor, dropout_prob: float, is_test: bool = False) -> Tensor:
    """Return `x` with entries set to 0 with probability `dropout_prob` and the others scaled up; `x` if `is_test`."""
    return F.dropout(x, dropout_prob, training=not is_test)

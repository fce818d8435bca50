"""`parl.layers` on PaddlePaddle: lazily shaped layers, and the functions of the PARL 1.x manual.

`parl_core.layers` describes their arguments, and has the parts that do not depend on paddle. Layers and functions
accept eager tensors, and the variables of a program while it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor

from parl_core import layers as contract
from parl_core.errors import ModelContractError
from parl_core.layers import (
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
from parl_paddle._static_graphs import eager, in_program
from parl_paddle.distributions import log_softmax, standard_normal_like

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
    "data",
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


class LazyLayer(paddle.nn.Layer, contract.LazyLayer):
    """Base of the lazily shaped layers on paddle.

    Attributes:
        device: The device of the parameters, in paddle's spelling; None is paddle's current device.
        dtype: The dtype of the parameters; None is paddle's default.
    """

    weight: Tensor
    bias: Tensor | None

    _functional, _own_activations = F, {"swish": F.silu}

    def __init__(self, act: str | None = None, bias: bool = True) -> None:
        super().__init__()
        contract.LazyLayer.__init__(self, act, bias)
        with eager():
            self.seed = int(paddle.randint(0, 2**31 - 1, [1]).numpy()[0])
        self.device: str | None = None
        self.dtype: Any = None
        for name in (*self.PARAMETERS, *self.BUFFERS):
            setattr(self, name, None)

    def forward(self, inputs: Tensor) -> Any:
        if not self.shaped:
            self.materialise(self.shapes_for(inputs))
        if inputs.dtype != self.weight.dtype and not (self.TAKES_INDICES or paddle.is_floating_point(inputs)):
            inputs = inputs.astype(self.weight.dtype)  # integers such as pixels, counts or one-hot rows
        outputs = self.compute(inputs)
        return outputs if self.act is None else self.act(outputs)

    def materialise(self, shapes: Shapes) -> None:  # eagerly, also while a program is being built
        generator = np.random.default_rng(self.seed)
        zero = paddle.nn.initializer.Constant(0.0)
        with eager():
            for name in self.own_parameters:
                parameter = self.create_parameter(list(shapes[name]), dtype=self.dtype, default_initializer=zero)
                values = self._drawn(name, shapes[name], generator)
                parameter.set_value(paddle.to_tensor(values, dtype=parameter.dtype, place=parameter.place))
                setattr(self, name, parameter)
            for name in self.BUFFERS:
                values = self._drawn(name, shapes[name], generator)
                delattr(self, name)
                self.register_buffer(name, paddle.to_tensor(values, dtype=self.weight.dtype))
            if self.device is not None:
                self.to(device=self.device)
        self.shaped = True

    def _drawn(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        match self.initial(name, shape):
            case contract.Constant(value):
                return np.full(shape, value)
            case contract.Uniform(limit):
                return generator.uniform(-limit, limit, shape)
            case contract.Normal(std):
                return generator.normal(0.0, std, shape)
            case contract.Orthogonal(gain):
                return (
                    _orthogonal(shape[::-1], gain, generator).T
                    if self.TRANSPOSED
                    else _orthogonal(shape, gain, generator)
                )


def _orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> NDArray[Any]:
    """Return `[out, ...]` with orthonormal rows or columns, whichever are fewer, times `gain`; uniform among these."""
    rows, columns = shape[0], prod(shape[1:])
    tall, triangle = np.linalg.qr(generator.normal(size=(max(rows, columns), min(rows, columns))))
    # undoing the signs that QR fixes makes the distribution uniform (Mezzadri 2007)
    tall *= np.sign(np.diag(triangle))
    return gain * (tall if rows >= columns else tall.T).reshape(shape)


class Fc(contract.Fc, LazyLayer):
    TRANSPOSED: ClassVar[bool] = True

    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != self.num_flatten_dims + 1:
            inputs = paddle.flatten(inputs, start_axis=self.num_flatten_dims)
        if self.num_flatten_dims == 1 and self.bias is not None:
            # Faster than F.linear in both passes. (paddle.addmm is faster still, but aborts the process if the bias
            # needs no gradient, as in paddle.grad by the inputs; 3.3.1.)
            outputs: Tensor = paddle.matmul(inputs, self.weight) + self.bias  # type: ignore[no-untyped-call]  # paddle's
            return outputs
        return F.linear(inputs, self.weight, self.bias)


class NoisyFc(contract.NoisyFc, LazyLayer):
    bias: Tensor
    weight_sigma: Tensor
    bias_sigma: Tensor

    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != self.num_flatten_dims + 1:
            inputs = paddle.flatten(inputs, start_axis=self.num_flatten_dims)
        weight, bias = self.weight, self.bias
        if self.training:
            e_out, e_in = (_scaled(self.noise(size)) for size in self.weight.shape)
            weight = weight + self.weight_sigma * e_out.unsqueeze(1) * e_in.unsqueeze(0)
            bias = bias + self.bias_sigma * e_out
        outputs: Tensor = paddle.matmul(inputs, weight, transpose_y=True) + bias  # type: ignore[no-untyped-call]  # paddle's
        return outputs

    def noise(self, size: int) -> Tensor:
        return standard_normal_like(paddle.zeros([size], self.weight.dtype))


def _scaled(noise: Tensor) -> Tensor:
    return noise.sign() * noise.abs().sqrt()


class Conv2d(contract.Conv2d, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.conv2d(inputs, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Embedding(contract.Embedding, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.embedding(inputs, self.weight)


class BatchNorm(contract.BatchNorm, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.batch_norm(
            inputs,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training and not self.is_test,
            momentum=self.momentum,
            epsilon=self.epsilon,
        )


class LayerNorm(contract.LayerNorm, LazyLayer):
    def compute(self, inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs, inputs.shape[-1:], self.weight, self.bias, self.epsilon)


fc, conv_2d, conv2d, embedding, batch_norm, layer_norm = Fc, Conv2d, Conv2d, Embedding, BatchNorm, LayerNorm
noisy_fc = NoisyFc


def _parameter(sizes: tuple[int, ...], dtype: contract.TrainedDtype, initial: Any) -> Tensor:
    initializers: Any = paddle.nn.initializer
    match initial:
        case contract.Constant(value):
            draw = initializers.Constant(value)
        case contract.Uniform(limit):
            draw = initializers.Uniform(-limit, limit)
        case contract.Normal(std):
            draw = initializers.Normal(0.0, std)
        case _:
            draw = initializers.Assign(initial.astype(dtype))
    with eager():
        parameter: Tensor = paddle.create_parameter(list(sizes), dtype, default_initializer=draw)
    return parameter


def _of_class(values: Tensor, label: Tensor) -> Tensor:
    return paddle.index_sample(values, label.reshape([-1, 1]).astype("int64"))


create_parameter = contract.filled_in(contract.create_parameter, make=_parameter)
"""As `parl_core.layers.create_parameter`."""
cross_entropy = contract.filled_in(contract.cross_entropy, of_class=_of_class)
"""As `parl_core.layers.cross_entropy`."""
softmax_with_cross_entropy = contract.filled_in(
    contract.softmax_with_cross_entropy, log_softmax=log_softmax, of_class=_of_class
)
"""As `parl_core.layers.softmax_with_cross_entropy`."""
pool2d = contract.filled_in(contract.pool2d, kinds={"max": F.max_pool2d, "avg": F.avg_pool2d})
"""As `parl_core.layers.pool2d`."""

relu, tanh, sigmoid = F.relu, F.tanh, F.sigmoid
abs, exp, log, sqrt, square = paddle.abs, paddle.exp, paddle.log, paddle.sqrt, paddle.square


def data(name: str, shape: Sequence[int], dtype: str = "float32", append_batch_size: bool = True) -> Tensor:
    """Return an input of the program that is being built; only parl-paddle has programs.

    Args:
        name: Key of the input in `feed` of the executor.
        shape: Shape of one sample; the batch dimension is added in front.
        dtype: Dtype of the array to feed.
        append_batch_size: False if `shape` already has the batch dimension.

    Raises:
        ModelContractError: No program is being built.
    """
    if not in_program():
        raise ModelContractError(
            f"layers.data({name!r}) describes an input of a program; call it in the build_program(self) of an agent, "
            "or give the algorithm tensors"
        )
    placeholder: Tensor = paddle.static.data(name, [None, *shape] if append_batch_size else list(shape), dtype)
    return placeholder


def softmax(input: Tensor, axis: int = -1) -> Tensor:
    """Return the softmax along `axis`."""
    return F.softmax(input, axis=axis)


def one_hot(input: Tensor, depth: int) -> Tensor:
    """Return one-hot rows, float32 `[n, depth]`, of integers `[n]` or `[n, 1]`, 0 to `depth` - 1."""
    index = paddle.squeeze(input, axis=-1) if input.ndim > 1 and input.shape[-1] == 1 else input
    return F.one_hot(index.astype("int64"), depth)


def cast(x: Tensor, dtype: Any) -> Tensor:
    """Return a tensor with the same numbers in another dtype.

    Raises:
        HyperparameterError: The name of the dtype is unknown.
    """
    if isinstance(dtype, str):
        contract.check_dtype(dtype)
    return paddle.cast(x, dtype)


def concat(input: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors joined along `axis`."""
    return paddle.concat(list(input), axis=axis)


def stack(x: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors joined along a new `axis`."""
    return paddle.stack(list(x), axis=axis)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the same entries in another shape; -1 is inferred, 0 keeps the dimension of `x`."""
    return paddle.reshape(x, list(shape))


def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Return the tensor with its dimensions in the order `perm`."""
    return paddle.transpose(x, perm=list(perm))


def gather(input: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `input` at `index` `[n]`."""
    return paddle.gather(input, index.reshape([-1]))


def dropout(x: Tensor, dropout_prob: float, is_test: bool = False) -> Tensor:
    """Return `x` with entries set to 0 with probability `dropout_prob` and the others scaled up; `x` if `is_test`."""
    return F.dropout(x, p=dropout_prob, training=not is_test)

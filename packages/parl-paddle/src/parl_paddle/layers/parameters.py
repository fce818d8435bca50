"""Parameters of a model that belong to no layer, such as a policy's standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor

from parl_core.initial_values import Initializer, checked_dtype, checked_shape, given_values, glorot_limit
from parl_paddle.programs import eager

__all__ = ["create_parameter"]


def create_parameter(
    shape: Sequence[int],
    dtype: str = "float32",
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Tensor:
    """A parameter that is trained with the model of which it is an attribute.

        self.log_std = parl.layers.create_parameter([act_dim], default_initializer=-0.5)

    Args:
        shape: `[]` for a single number.
        dtype: such as `"float32"`.
        is_bias: begins with zeros; others begin uniformly (Glorot & Bengio 2010).
        default_initializer: in place of that a number, or a function that returns an array of the shape.

    Raises:
        HyperparameterError: the shape, the dtype or the initial values mean nothing.
    """
    sizes = checked_shape(shape)
    initial: Any = paddle.nn.initializer
    if default_initializer is not None:
        draw = initial.Assign(given_values(default_initializer, sizes).astype(dtype))
    elif is_bias:
        draw = initial.Constant(0.0)
    else:
        limit = glorot_limit(sizes)
        draw = initial.Uniform(-limit, limit)
    with eager():
        parameter: Tensor = paddle.create_parameter(list(sizes), checked_dtype(dtype), default_initializer=draw)
    return parameter

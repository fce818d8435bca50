"""Parameters of a model that belong to no layer, such as a policy's standard deviation."""

from collections.abc import Sequence

import torch
from torch import nn

from parl_core.initial_values import Initializer, checked_dtype, checked_shape, given_values, glorot_limit

__all__ = ["create_parameter"]


def create_parameter(
    shape: Sequence[int],
    dtype: str = "float32",
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> nn.Parameter:
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
    sizes, kind = checked_shape(shape), getattr(torch, checked_dtype(dtype))
    if default_initializer is not None:
        return nn.Parameter(torch.tensor(given_values(default_initializer, sizes), dtype=kind))
    if is_bias:
        return nn.Parameter(torch.zeros(sizes, dtype=kind))
    limit = glorot_limit(sizes)
    return nn.Parameter(torch.empty(sizes, dtype=kind).uniform_(-limit, limit))

"""Activations by name, as layers and ready-made networks take them."""

from __future__ import annotations

from collections.abc import Callable

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from parl_core.errors import HyperparameterError

__all__ = ["Activation", "activation", "log_softmax"]

Activation = Callable[[Tensor], Tensor]

_BY_NAME: dict[str, Activation] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "relu": F.relu,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "softmax": F.softmax,
    "softplus": F.softplus,
    "swish": F.silu,
    "tanh": F.tanh,
}


def activation(name: str | None) -> Activation | None:
    """The function called `name`; None for none.

    Raises:
        HyperparameterError: there is none of that name.
    """
    if name is None:
        return None
    if name not in _BY_NAME:
        raise HyperparameterError(f"no activation {name!r}; there are {', '.join(sorted(_BY_NAME))}")
    return _BY_NAME[name]


def log_softmax(logits: Tensor) -> Tensor:
    """Logarithms of the softmax over the last axis; Paddle's own are never below -64 on the CPU."""
    logarithms: Tensor = logits - paddle.logsumexp(logits, axis=-1, keepdim=True)
    return logarithms

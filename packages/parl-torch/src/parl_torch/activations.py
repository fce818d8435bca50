"""Activations by name, as layers and ready-made networks take them; they may overwrite their input."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from parl_core.errors import HyperparameterError

__all__ = ["Activation", "activation"]

Activation = Callable[[Tensor], Tensor]


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=-1)


_BY_NAME: dict[str, Activation] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "relu": torch.relu_,  # the layer's own output; a second block of memory would cost SAC's updates 5 %
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softmax": _softmax,
    "softplus": F.softplus,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str | None) -> Activation | None:
    """The function called `name`, which may overwrite its input; None for none.

    Raises:
        HyperparameterError: there is none of that name.
    """
    if name is None:
        return None
    if name not in _BY_NAME:
        raise HyperparameterError(f"no activation {name!r}; there are {', '.join(sorted(_BY_NAME))}")
    return _BY_NAME[name]

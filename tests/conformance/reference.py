"""Dense layers, their gradients, Adam and gradient clipping, written out in numpy (float64).

Derived from the textbook formulas, with no framework in sight, so that what the backends compute is checked against
something that neither of them computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.model import Weights

__all__ = ["Adam", "Array", "Dense", "clip_by_global_norm", "log_softmax", "summed"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Dense:
    """Dense layers one after the other, tanh after each but the last: y = tanh(x W' + b) W2' + b2.

    Attributes:
        names: of the layers; `<name>.weight` is `[out, in]`.
    """

    names: Sequence[str]

    def forward(self, weights: Weights, inputs: NDArray[Any]) -> list[Array]:
        """The input and every layer's output; the last one is the network's."""
        outputs = [np.asarray(inputs, np.float64)]
        for name in self.names:
            linear = outputs[-1] @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
            outputs.append(linear if name == self.names[-1] else np.tanh(linear))
        return outputs

    def backward(self, weights: Weights, outputs: list[Array], gradient: Array) -> tuple[Weights, Array]:
        """Gradients of all weights and of the input, from that of the output."""
        gradients: Weights = {}
        for i in range(len(self.names), 0, -1):
            name = self.names[i - 1]
            if i < len(self.names):
                gradient = gradient * (1.0 - outputs[i] ** 2)  # derivative of tanh
            gradients[f"{name}.weight"] = gradient.T @ outputs[i - 1]
            gradients[f"{name}.bias"] = gradient.sum(axis=0)
            gradient = gradient @ weights[f"{name}.weight"]
        return gradients, gradient


class Adam:
    """Kingma & Ba 2015, algorithm 1.

    Args:
        lr: step size.
        eps: added to the root of the corrected second moment.
    """

    def __init__(self, lr: float, eps: float = 1e-8) -> None:
        self.lr, self.eps = lr, eps
        self.step = 0
        self.moment1: Weights = {}
        self.moment2: Weights = {}

    def update(self, weights: Weights, gradients: Weights, lr: float | None = None) -> Weights:
        """The weights after one step."""
        self.step += 1
        updated = dict(weights)
        for name, gradient in gradients.items():
            self.moment1[name] = 0.9 * self.moment1.get(name, 0.0) + 0.1 * gradient
            self.moment2[name] = 0.999 * self.moment2.get(name, 0.0) + 0.001 * gradient**2
            mean = self.moment1[name] / (1.0 - 0.9**self.step)
            root = np.sqrt(self.moment2[name] / (1.0 - 0.999**self.step))
            updated[name] = weights[name] - (self.lr if lr is None else lr) * mean / (root + self.eps)
        return updated


def clip_by_global_norm(gradients: Weights, limit: float) -> Weights:
    """Gradients scaled down so that their common norm is at most `limit`."""
    norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    return {name: gradient * min(1.0, limit / norm) for name, gradient in gradients.items()}


def summed(one: Weights, other: Weights) -> Weights:
    """Gradients of weights that are reached on two ways."""
    return {name: np.sum([part[name] for part in (one, other) if name in part], axis=0) for name in one | other}


def log_softmax(logits: Array) -> Array:
    """Logarithms of the normalised exponentials of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised

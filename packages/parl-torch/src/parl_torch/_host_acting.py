"""Acting of small networks in numpy, on the memory of the model's own parameters.

For a few rows a framework takes longer to be called than to compute. Chains of linear layers (`_chains`) whose
parameters lie on the CPU are run by numpy, which looks into the same memory, so that nothing has to be copied after an
update. Larger batches and layers stay with the framework, whose products of matrices need no threads of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from parl_core.contracts.actions import ActionKind
from parl_torch._chains import Chain, Fork, chains_of
from parl_torch._parts import Parts
from parl_torch.distributions import CategoricalDistribution

__all__ = ["HostActing", "OnHost", "of_categorical"]

_MOST = 2**17
"""Products a layer up to which numpy computes: below, no BLAS uses a second thread."""


class OnHost(NamedTuple):
    """How a method of an algorithm acts in numpy.

    Attributes:
        methods: of the model, whose outputs it needs.
        finish: takes all that they return, `[n, out]` each, and returns what the method does, as arrays.
    """

    methods: Sequence[str]
    finish: Callable[..., Any]


def of_categorical(algorithm: Any, method: str) -> OnHost | None:
    """Return how `explore`, `predict` or `value` of an actor-critic of discrete actions acts in numpy."""
    if algorithm.actions != ActionKind() or algorithm.remembers:
        return None
    both = ("policy_and_value",) if algorithm._one_pass else ("policy", "value")
    if method == "explore":
        return OnHost(both, _drawn)
    if algorithm._one_pass:
        return OnHost(both, lambda logits, value: value.ravel() if method == "value" else logits.argmax(1))
    return OnHost(("value",), np.ravel) if method == "value" else OnHost(("policy",), lambda logits: logits.argmax(1))


def _drawn(logits: NDArray[Any], value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return value, action and log-probability, drawn from the framework's generator as without numpy."""
    policy = CategoricalDistribution(torch.from_numpy(logits))
    action = policy.sample()
    return value.reshape(-1), action.numpy(), policy.logp(action).numpy()


class HostActing:
    """One method of an algorithm in numpy, while the model is a chain and stays as it is.

    Args:
        model: the network.
        way: how.
        obs: the first observations, for their size.
    """

    def __init__(self, model: Any, way: OnHost, obs: NDArray[Any]) -> None:
        example = next(model.parameters(), None)
        self.is_chain = False
        if example is None or not example.is_floating_point() or example.device.type != "cpu":
            return
        rows = torch.zeros(2, obs.shape[1], dtype=example.dtype)
        found = chains_of(model, way.methods, rows)
        self._parts, self._finish = Parts([model], [(model, method) for method in way.methods]), way.finish
        self.is_chain = found is not None
        if found is not None:
            fork = Fork(found)
            self._dtype = found[0].layers[0].weight.detach().numpy().dtype
            self._widest = max(layer.weight.numel() for chain in found for layer in chain.layers)
            self._heads, self._width = [_arrays(head) for head in fork.heads], obs.shape[1]
            self._trunk = [] if fork.trunk is None else _arrays(fork.trunk)

    def is_stale(self) -> bool:
        """Return whether the model is another one than it was."""
        return self.is_chain and not self._parts.are_same()

    def __call__(self, obs: NDArray[Any]) -> Any:
        """Return what the algorithm's method does, of observations `[n, in]`; None where the framework has to."""
        if not self.is_chain or obs.shape[1] != self._width or len(obs) * self._widest > _MOST:
            return None
        if any(self._parts.hooks):
            return None
        if obs.dtype != self._dtype:
            obs = obs.astype(self._dtype)
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite numbers, as frameworks take them
            common = _run(self._trunk, obs)
            outputs = [_run(steps, common) for steps in self._heads]
        return self._finish(*outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return nothing: a copied algorithm has other memory."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


_Step = tuple[NDArray[Any], NDArray[Any], str | None, float]


def _arrays(chain: Chain) -> list[_Step]:
    return [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy(), layer.activation, layer.alpha)
        for layer in chain.layers
    ]


def _run(steps: Sequence[_Step], values: NDArray[Any]) -> NDArray[Any]:
    for weight, bias, activation, alpha in steps:
        values = np.dot(values, weight)
        values += bias
        if activation == "relu":
            np.maximum(values, 0.0, out=values)
        elif activation == "tanh":
            np.tanh(values, out=values)
        elif activation == "elu":
            values = np.where(values > 0.0, values, alpha * np.expm1(np.minimum(values, 0.0)))
    return values

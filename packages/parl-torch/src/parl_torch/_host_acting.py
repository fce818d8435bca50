"""Acting of small networks in numpy, on the memory of the model's own parameters.

For a few rows, calls of a framework take longer than the computation. Numpy runs chains of linear layers (`_chains`)
with parameters on the CPU. It uses the same memory, so that nothing has to be copied after an update. Noise comes from
the framework's generator, so that actions are those that the framework would draw. The framework computes larger
batches and layers, for which numpy's BLAS would start its own threads.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parl_core.contracts.actions import ActionKind
from parl_torch._chains import Chain, Deviation, Fork, outputs_of
from parl_torch._parts import Parts
from parl_torch.distributions import CategoricalDistribution

__all__ = [
    "EXPLORE",
    "PREDICT",
    "PREDICT_ALONE",
    "VALUE",
    "VALUE_ALONE",
    "HostActing",
    "OnHost",
    "of_actor_critic",
    "output",
]

_MOST = 2**17
"""Number of products per layer up to which numpy computes, because no BLAS uses a second thread for fewer."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class OnHost(NamedTuple):
    """The description of a method of an algorithm in numpy.

    Attributes:
        methods: names of the model's methods whose outputs it needs.
        finish: function that takes these outputs and a mask of actions or None; it returns the result of the method as
            arrays, or None if the framework has to compute it.
        takes_mask: True if the method has an argument `action_mask`.
    """

    methods: Sequence[str]
    finish: Callable[[Sequence[NDArray[Any]], NDArray[Any] | None], Any]
    takes_mask: bool = False


def output(outputs: Sequence[NDArray[Any]], mask: NDArray[Any] | None) -> Any:  # noqa: ARG001 - a `finish`
    """Return the output of the model's method, for methods of an algorithm that return it unchanged."""
    return outputs[0] if len(outputs) == 1 else None


def of_actor_critic(
    finish: Callable[[Any, Any], Any],
    needs: Literal["policy", "value", "both"] = "both",
    *,
    takes_mask: bool = False,
    in_one_pass: Callable[[Any], bool] = attrgetter("_one_pass"),
) -> Callable[[Any], OnHost | None]:
    """Return a function from an actor-critic to the description of a method, or None for unsupported kinds of actions.

    Args:
        finish: function that takes the distribution of the actions (`sample`, `mode`, `logp` and `entropy` as in
            `parl_torch.distributions`, and `numbers`, as actors send them) and the values `[n]`, and returns the result
            of the method.
        needs: the arguments that `finish` needs; the other may be None.
        takes_mask: True if the method has an argument `action_mask`.
        in_one_pass: function that returns whether the method of an algorithm calls `policy_and_value` of the model.
    """

    def way(algorithm: Any) -> OnHost | None:
        kind: ActionKind = algorithm.actions
        if algorithm.remembers or kind.used is not None or (kind.continuous and kind.nvec is not None):
            return None
        joint = in_one_pass(algorithm)
        parts = ("policy", "value") if joint or needs == "both" else (needs,)
        of_policy = (2 if kind.continuous else 1) if "policy" in parts else 0

        def finished(outputs: Sequence[NDArray[Any]], mask: NDArray[Any] | None) -> Any:
            if len(outputs) != of_policy + ("value" in parts):
                return None
            policy: Any = None
            if needs != "value":
                policy = _numbers(*outputs[:2]) if kind.continuous else _choices(outputs[0], kind.nvec, mask)
                if policy is None:
                    return None
            return finish(policy, None if needs == "policy" else outputs[-1].reshape(-1))

        return OnHost(("policy_and_value",) if joint else parts, finished, takes_mask)

    return way


def _explored(policy: Any, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    action = policy.sample()
    return value, action, policy.logp(action)


EXPLORE = of_actor_critic(_explored, takes_mask=True)


def _mode(policy: Any, value: Any) -> Any:  # noqa: ARG001 - a `finish`
    return policy.mode()


def _value(policy: Any, value: Any) -> Any:  # noqa: ARG001
    return value


def _never(algorithm: Any) -> bool:  # noqa: ARG001
    return False


PREDICT = of_actor_critic(_mode, "policy", takes_mask=True)
PREDICT_ALONE = of_actor_critic(_mode, "policy", takes_mask=True, in_one_pass=_never)
VALUE = of_actor_critic(_value, "value")
VALUE_ALONE = of_actor_critic(_value, "value", in_one_pass=_never)


def _choices(logits: NDArray[Any], sizes: Sequence[int] | None, mask: NDArray[Any] | None) -> Any:
    """Return the distribution of choices; None where logits are not of these choices, which the framework explains."""
    if logits.ndim != 2:
        return None
    if mask is not None:
        if mask.shape != logits.shape:
            return None
        logits = np.where(mask, logits, np.finfo(logits.dtype).min)
    if sizes is None:
        return _Categorical(logits)
    if sum(sizes) != logits.shape[1]:
        return None
    edges = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return _MultiCategorical([_Categorical(logits[:, low:high]) for low, high in edges])


def _numbers(mean: NDArray[Any], std: NDArray[Any]) -> Any:
    """Return the distribution of numbers; None where the standard deviations are not theirs, likewise."""
    fits = mean.ndim == 2 and (not std.ndim or std.shape[-1] in (1, mean.shape[1]))
    return _Gaussian(mean, std) if fits else None


class _Categorical:
    """One of several actions, with the results of `CategoricalDistribution`."""

    def __init__(self, logits: NDArray[Any]) -> None:
        self.numbers = logits

    @cached_property
    def _log_probabilities(self) -> NDArray[Any]:
        shifted = self.numbers - np.maximum.reduce(self.numbers, 1, keepdims=True)
        shifted -= np.log(np.add.reduce(np.exp(shifted), 1, keepdims=True))
        return shifted

    def sample(self) -> NDArray[Any]:
        probabilities = np.exp(self._log_probabilities)
        if math.isnan(np.add.reduce(probabilities, None)):
            return CategoricalDistribution(torch.from_numpy(self.numbers)).sample().numpy()  # which explains it
        # As torch.multinomial does: the first of waiting times that are exponential, with these rates.
        return np.asarray((probabilities / _noise(probabilities, Tensor.exponential_)).argmax(1))

    def mode(self) -> NDArray[Any]:
        return np.asarray(self.numbers.argmax(1))

    def entropy(self) -> NDArray[Any]:
        return np.asarray(-np.add.reduce(np.exp(self._log_probabilities) * self._log_probabilities, 1))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self._log_probabilities[np.arange(len(actions)), actions])


class _MultiCategorical:
    """Several choices side by side, with the results of `MultiCategoricalDistribution`."""

    def __init__(self, parts: Sequence[_Categorical]) -> None:
        self._parts = parts

    def sample(self) -> NDArray[Any]:
        return np.stack([part.sample() for part in self._parts], 1)

    def mode(self) -> NDArray[Any]:
        return np.stack([part.mode() for part in self._parts], 1)

    def entropy(self) -> NDArray[Any]:
        return np.asarray(sum(part.entropy() for part in self._parts))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(sum(part.logp(choice) for part, choice in zip(self._parts, actions.T, strict=True)))


class _Gaussian:
    """Independent Gaussians, with the results of `DiagGaussianDistribution`."""

    def __init__(self, mean: NDArray[Any], std: NDArray[Any]) -> None:
        self._mean, self._std, self._log_std = mean, std, np.log(std)

    @property
    def numbers(self) -> NDArray[Any]:
        return np.concatenate([self._mean, np.broadcast_to(self._log_std, self._mean.shape)], 1)

    def sample(self) -> NDArray[Any]:
        return np.asarray(self._mean + self._std * _noise(self._mean, Tensor.normal_))

    def mode(self) -> NDArray[Any]:
        return self._mean

    def entropy(self) -> NDArray[Any]:
        each = np.broadcast_to(self._log_std + (0.5 + _HALF_LOG_2PI), self._mean.shape)
        return np.asarray(np.add.reduce(each, 1))

    def logp(self, actions: NDArray[Any]) -> NDArray[Any]:
        scaled = (actions - self._mean) / self._std
        return np.asarray(-np.add.reduce(0.5 * scaled * scaled + self._log_std + _HALF_LOG_2PI, 1))


def _noise(like: NDArray[Any], draw: Callable[[Tensor], Tensor]) -> NDArray[Any]:
    """Return numbers of the framework's generator, as many as an array has."""
    drawn = np.empty(like.shape, like.dtype)
    draw(torch.from_numpy(drawn))
    return drawn


class HostActing:
    """One method of an algorithm in numpy, which is valid while the model is the same chain.

    Args:
        model: the network.
        way: the description of the method.
        obs: the first observations, for their size.
    """

    def __init__(self, model: Any, way: OnHost, obs: NDArray[Any]) -> None:
        example = next(model.parameters(), None)
        self._model, self.is_chain = model, False
        if example is None or not example.is_floating_point() or example.device.type != "cpu":
            return
        rows = torch.zeros(2, obs.shape[1], dtype=example.dtype)
        found = outputs_of(model, way.methods, rows)
        self._parts, self._way = Parts([model], [(model, method) for method in way.methods]), way
        chains = [part for part in found or () if isinstance(part, Chain)]
        self.is_chain = bool(chains)
        if found is not None and chains:
            fork = Fork(chains)
            self._dtype = chains[0].layers[0].weight.detach().numpy().dtype
            self._widest = max(layer.weight.numel() for chain in chains for layer in chain.layers)
            self._trunk, self._width = [] if fork.trunk is None else _arrays(fork.trunk), obs.shape[1]
            heads = iter(fork.heads)
            self._outputs = [
                part.logarithm.detach().numpy() if isinstance(part, Deviation) else (_arrays(next(heads)), part.is_flat)
                for part in found
            ]

    def is_of(self, model: Any) -> bool:
        """Return whether `model` is the model of this object, unchanged."""
        return model is self._model and (not self.is_chain or self._parts.are_same())

    def __call__(self, obs: NDArray[Any], mask: NDArray[Any] | None = None) -> Any:
        """Return the result of the method for observations `[n, in]`; None if the framework has to compute it."""
        if not self.is_chain or obs.shape[1] != self._width or len(obs) * self._widest > _MOST:
            return None
        if any(self._parts.hooks) or not (mask is None or self._way.takes_mask):
            return None
        with np.errstate(all="ignore"):  # of infinite numbers, as frameworks take them
            if obs.dtype != self._dtype:
                obs = obs.astype(self._dtype)
            common = _run(self._trunk, False, obs)
            outputs = [np.exp(part) if isinstance(part, np.ndarray) else _run(*part, common) for part in self._outputs]
            return self._way.finish(outputs, mask)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copied algorithm has other memory."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


_Step = tuple[NDArray[Any], NDArray[Any], str | None, float]


def _arrays(chain: Chain) -> list[_Step]:
    return [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy(), layer.activation, layer.alpha)
        for layer in chain.layers
    ]


def _run(steps: Sequence[_Step], is_flat: bool, values: NDArray[Any]) -> NDArray[Any]:
    for weight, bias, activation, alpha in steps:
        values = np.dot(values, weight)
        values += bias
        if activation == "relu":
            np.maximum(values, 0.0, out=values)
        elif activation == "tanh":
            np.tanh(values, out=values)
        elif activation == "elu":
            values = np.where(values > 0.0, values, alpha * np.expm1(np.minimum(values, 0.0)))
    return values[:, 0] if is_flat else values

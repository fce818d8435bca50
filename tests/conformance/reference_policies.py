"""Policies of every kind of action in numpy (float64): log-probabilities, entropies, and the gradients of both.

masked softmax      log p = log softmax(z where possible, else smallest)    d log p_a / dz = onehot(a) - p
                    H = -sum(p log p)                                       dH / dz = -p (log p + H)
several at once     sums over the parts
Gaussian            see `reference_losses`
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.models import (
    ACT_DIM,
    ACTOR_CRITIC_SHAPES,
    GAUSSIAN_SHAPES,
    MULTI_DISCRETE_SHAPES,
    NVEC,
    actor_critic,
    gaussian_actor_critic,
    multi_discrete_actor_critic,
)
from conformance.reference import Array, Dense, log_softmax, summed
from conformance.reference_losses import gaussian_entropy, gaussian_log_prob
from parl_core.backends import Backend
from parl_core.model import Weights

__all__ = ["CONTINUOUS", "DISCRETE", "KINDS", "MASKED", "MULTI_DISCRETE", "Kind", "PolicyReference"]

_POLICY, _SPREAD = Dense(("pi1", "pi2")), Dense(("pi1", "spread"))


@dataclass(frozen=True)
class Kind:
    """One kind of actions: the model, the settings of an algorithm, and how to draw a batch of it."""

    name: str
    model: Callable[[Backend], Any]
    shapes: dict[str, tuple[int, ...]]
    sizes: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    masks: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        if not self.sizes:
            return (ACT_DIM,)
        return () if len(self.sizes) == 1 else (len(self.sizes),)

    def actions(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None, rows: int) -> NDArray[Any]:
        """Some actions that are possible."""
        if not self.sizes:
            return rng.normal(size=(rows, ACT_DIM))
        parts = np.split(np.ones((rows, sum(self.sizes))) if mask is None else mask, np.cumsum(self.sizes)[:-1], axis=1)
        drawn = np.stack([np.where(part, rng.random(part.shape), -1.0).argmax(axis=1) for part in parts], axis=1)
        return drawn if len(self.sizes) > 1 else drawn[:, 0]

    def mask(self, rng: np.random.Generator, rows: int) -> NDArray[np.bool_] | None:
        """A mask that leaves at least one action of each part, where this kind has them."""
        if not self.masks:
            return None
        mask = rng.random((rows, sum(self.sizes))) < 0.5
        for size, end in zip(self.sizes, np.cumsum(self.sizes), strict=True):
            mask[np.arange(rows), end - 1 - rng.integers(size, size=rows)] = True
        return mask


DISCRETE = Kind("discrete", actor_critic, ACTOR_CRITIC_SHAPES, (ACT_DIM,))
MASKED = Kind("masked", actor_critic, ACTOR_CRITIC_SHAPES, (ACT_DIM,), masks=True)
MULTI_DISCRETE = Kind("multi_discrete", multi_discrete_actor_critic, MULTI_DISCRETE_SHAPES, NVEC, {"nvec": NVEC})
CONTINUOUS = Kind("continuous", gaussian_actor_critic, GAUSSIAN_SHAPES, settings={"continuous_action": True})
KINDS = (DISCRETE, MASKED, MULTI_DISCRETE, CONTINUOUS)


class PolicyReference:
    """A policy at some observations.

    Attributes:
        log_prob: of the actions, `[n]`.
        entropy: `[n]`.
    """

    def __init__(
        self,
        kind: Kind,
        weights: Weights,
        obs: NDArray[Any],
        action: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self._kind, self._weights, self._action = kind, weights, action
        self._outputs = _POLICY.forward(weights, obs)
        if kind.sizes:
            self._splits = np.cumsum(kind.sizes)[:-1]
            logits = self._outputs[-1] if mask is None else np.where(mask, self._outputs[-1], -1e30)
            self._log_p = [log_softmax(part) for part in np.split(logits, self._splits, axis=1)]
            choices = np.split(action.reshape(len(obs), -1), len(kind.sizes), axis=1)
            self._choices = [choice[:, 0] for choice in choices]
            rows = np.arange(len(obs))
            pairs = zip(self._log_p, self._choices, strict=True)
            self.log_prob: Array = np.sum([log_p[rows, choice] for log_p, choice in pairs], axis=0)
            self._entropies = [-(np.exp(log_p) * log_p).sum(axis=1) for log_p in self._log_p]
            self.entropy: Array = np.sum(self._entropies, axis=0)
        else:
            self._spread = _SPREAD.forward(weights, obs)
            self.log_prob = gaussian_log_prob(self._outputs[-1], self._spread[-1], action)[0]
            self.entropy = gaussian_entropy(self._spread[-1])

    def backward(self, by_log_prob: Array, by_entropy: Array) -> Weights:
        """Gradients of the weights, from those of a loss by `log_prob` and `entropy`."""
        if not self._kind.sizes:
            _, by_mean, by_log_std = gaussian_log_prob(self._outputs[-1], self._spread[-1], self._action)
            gradients, _ = _POLICY.backward(self._weights, self._outputs, by_log_prob[:, None] * by_mean)
            more, _ = _SPREAD.backward(
                self._weights, self._spread, by_log_prob[:, None] * by_log_std + by_entropy[:, None]
            )
            return summed(gradients, more)
        parts = []
        for log_p, choice, entropy in zip(self._log_p, self._choices, self._entropies, strict=True):
            p = np.exp(log_p)
            by_logits = by_log_prob[:, None] * (np.eye(p.shape[1])[choice] - p)
            parts.append(by_logits - by_entropy[:, None] * p * (log_p + entropy[:, None]))
        return _POLICY.backward(self._weights, self._outputs, np.concatenate(parts, axis=1))[0]

"""Updates of the off-policy actor-critics in numpy (float64), over the networks of `continuous_models`."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.models import OBS_DIM
from conformance.reference import Adam, Array, Dense, summed
from parl_core.model import Weights

__all__ = ["ACTOR", "Batch", "Learner", "clipped_normal", "policy", "squashed"]

ACTOR, SPREAD = Dense(("pi1", "pi2")), Dense(("pi1", "spread"))
CRITICS = {"qa": Dense(("qa1", "qa2")), "qb": Dense(("qb1", "qb2"))}


@dataclass(frozen=True)
class Batch:
    """Transitions as `learn` takes them; `weights` are ones and `discount` is gamma where they were not given."""

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminal: Array
    weights: Array
    discount: Array


@dataclass
class Learner:
    """The state of a reference run.

    Attributes:
        weights: of the model, updated by the steps below.
        target: of the target model.
        lr: of both optimizers.
        critics: names of the critics.
    """

    weights: Weights
    target: Weights
    lr: float
    critics: tuple[str, ...]
    actor_adam: Adam = field(init=False)
    critic_adam: Adam = field(init=False)

    def __post_init__(self) -> None:
        self.actor_adam, self.critic_adam = Adam(self.lr), Adam(self.lr)

    def values(self, weights: Weights, obs: Array, action: Array) -> Array:
        """`[critics, batch]`."""
        both = np.concatenate([obs, action], axis=1)
        return np.stack([CRITICS[name].forward(weights, both)[-1][:, 0] for name in self.critics])

    def critic_step(self, batch: Batch, v_t: Array, lr: float | None = None) -> tuple[float, Array]:
        """One step towards reward + discount * (1 - terminal) * v_t; the loss, and target - Q, mean over critics."""
        target = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t
        both = np.concatenate([batch.obs, batch.action], axis=1)
        loss, errors = 0.0, []
        gradients: Weights = {}
        for name in self.critics:
            outputs = CRITICS[name].forward(self.weights, both)
            error = target - outputs[-1][:, 0]
            loss += float((batch.weights * error**2).mean())
            slope = (-2.0 * batch.weights * error / len(error))[:, None]
            gradients |= CRITICS[name].backward(self.weights, outputs, slope)[0]
            errors.append(error)
        self.weights = self.critic_adam.update(self.weights, gradients, lr)
        return loss, np.mean(errors, axis=0)

    def slope_of_values(self, obs: Array, action: Array, share: Array) -> Array:
        """Derivative by the action of sum_i,k share[k, i] * Q_k(obs_i, action_i)."""
        both = np.concatenate([obs, action], axis=1)
        slope = np.zeros_like(action)
        for name, part in zip(self.critics, share, strict=False):
            outputs = CRITICS[name].forward(self.weights, both)
            slope += CRITICS[name].backward(self.weights, outputs, part[:, None])[1][:, OBS_DIM:]
        return slope

    def deterministic_step(self, obs: Array, lr: float | None = None) -> float:
        """One step of the actor up the first critic; returns -mean(Q1(obs, mu(obs)))."""
        outputs = ACTOR.forward(self.weights, obs)
        action = np.tanh(outputs[-1])
        loss = -float(self.values(self.weights, obs, action)[0].mean())
        slope = self.slope_of_values(obs, action, np.full((1, len(obs)), -1.0 / len(obs)))
        gradients, _ = ACTOR.backward(self.weights, outputs, slope * (1.0 - action**2))
        self.weights = self.actor_adam.update(self.weights, gradients, lr)
        return loss

    def soft_step(self, obs: Array, alpha: float, noise: Array) -> tuple[float, Array]:
        """One step of a squashed Gaussian; mean(alpha * log pi - min Q), and log pi `[batch]`."""
        mean, spread = ACTOR.forward(self.weights, obs), SPREAD.forward(self.weights, obs)
        action, log_prob = squashed(mean[-1], spread[-1], noise)
        values = self.values(self.weights, obs, action)
        loss = float((alpha * log_prob - values.min(axis=0)).mean())
        smallest = np.eye(len(values))[values.argmin(axis=0)].T
        by_action = self.slope_of_values(obs, action, -smallest / len(obs))
        # d log pi / du = 2 tanh(u) while the noise stays, and d log pi / d log std has -1 beside it.
        by_u = by_action * (1.0 - action**2) + 2.0 * alpha / len(obs) * action
        gradients, _ = ACTOR.backward(self.weights, mean, by_u)
        more, _ = SPREAD.backward(self.weights, spread, by_u * np.exp(spread[-1]) * noise - alpha / len(obs))
        self.weights = self.actor_adam.update(self.weights, summed(gradients, more))
        return loss, log_prob

    def move_target(self, tau: float) -> None:
        """Target = (1 - tau) * target + tau * weights."""
        self.target = {name: (1.0 - tau) * array + tau * self.weights[name] for name, array in self.target.items()}


def policy(weights: Weights, obs: NDArray[Any]) -> tuple[Array, Array]:
    """Mean and log std of the Gaussian, each `[batch, act_dim]`."""
    return ACTOR.forward(weights, obs)[-1], SPREAD.forward(weights, obs)[-1]


def squashed(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """tanh(u), u = mean + std * noise, and log N(u; mean, std) - sum(log(1 - tanh(u)**2))."""
    action = np.tanh(mean + np.exp(log_std) * noise)
    log_normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return action, (log_normal - np.log(1.0 - action**2)).sum(axis=1)


def clipped_normal(noise: Array, scale: float, limit: float) -> Array:
    """Noise of TD3's target policy."""
    return np.clip(scale * noise, -limit, limit)

"""A model with several heads, written only with `parl.Model` and `parl.layers`, and bootstrapped DDPG with it in numpy.

obs ── pi1 ──> pi2 ──> tanh ──> actions [batch, heads, act_dim]       pi1 and f1 are shared,
obs ── f1 ──┬─ with action 0 ── q01 ── q02 ──> values [batch, heads]  the rest is each head's own
            └─ with action 1 ── q11 ── q12
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam, Array, Dense, summed
from conformance.reference_continuous import ACTOR, Batch
from parl_core.backends import Backend
from parl_core.model import Weights

__all__ = ["HEADED_SHAPES", "HEADS", "HeadedLearner", "headed"]

HEADS = 3
FEATURES = Dense(("f1",))
CRITICS = [Dense((f"q{head}1", f"q{head}2")) for head in range(HEADS)]


def _shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


HEADED_SHAPES = {
    **_shapes("pi1", OBS_DIM, HIDDEN),
    **_shapes("pi2", HIDDEN, HEADS * ACT_DIM),
    **_shapes("f1", OBS_DIM, HIDDEN),
    **{name: shape for head in range(HEADS) for name, shape in _shapes(f"q{head}1", HIDDEN + ACT_DIM, HIDDEN).items()},
    **{name: shape for head in range(HEADS) for name, shape in _shapes(f"q{head}2", HIDDEN, 1).items()},
}


def headed(backend: Backend, *, deep: bool = False) -> Any:
    """`policy(obs)`: `[batch, HEADS, ACT_DIM]`; `value(obs, action)`: `[batch, HEADS]`.

    With `deep` all hidden layers have 32 units (ReLU): enough to learn something.
    """
    layers: Any = backend.layers

    def hidden() -> Any:
        return layers.fc(size=32, act="relu") if deep else layers.fc(size=HIDDEN, act="tanh")

    class Headed(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.pi1, self.pi2, self.f1 = hidden(), layers.fc(size=HEADS * ACT_DIM), hidden()
            for head in range(HEADS):
                setattr(self, f"q{head}1", hidden())
                setattr(self, f"q{head}2", layers.fc(size=1))

        def policy(self, obs: Any) -> Any:
            return layers.tanh(self.pi2(self.pi1(obs))).reshape([-1, HEADS, ACT_DIM])

        def value(self, obs: Any, action: Any) -> Any:
            features = self.f1(obs)
            inputs = [layers.concat([features, action[:, head]], axis=1) for head in range(HEADS)]
            values = [getattr(self, f"q{head}2")(getattr(self, f"q{head}1")(inputs[head])) for head in range(HEADS)]
            return layers.concat(values, axis=1)

        def get_actor_params(self) -> Any:
            return [*self.pi1.parameters(), *self.pi2.parameters()]

    return Headed()


@dataclass
class HeadedLearner:
    """The state of a reference run in numpy (float64).

    Attributes:
        weights: of the model, updated by the steps below.
        target: of the target model.
        lr: of both optimizers.
    """

    weights: Weights
    target: Weights
    lr: float
    actor_adam: Adam = field(init=False)
    critic_adam: Adam = field(init=False)

    def __post_init__(self) -> None:
        self.actor_adam, self.critic_adam = Adam(self.lr), Adam(self.lr)

    def critic_step(self, batch: Batch, mask: Array) -> tuple[float, Array]:
        """One step of all critics; the loss, and target - Q, mean over the heads."""
        v_t = values(self.target, batch.next_obs, actions(self.target, batch.next_obs))
        discount = (batch.discount * (1.0 - batch.terminal))[:, None]
        action = np.repeat(batch.action[:, None], HEADS, axis=1)
        error = batch.reward[:, None] + discount * v_t - values(self.weights, batch.obs, action)
        share = mask * batch.weights[:, None]
        gradients, _ = _backward(self.weights, batch.obs, action, -2.0 * share * error / error.size)
        self.weights = self.critic_adam.update(self.weights, gradients)
        return float((share * error**2).mean()), error.mean(axis=1)

    def actor_step(self, obs: Array, mask: Array) -> float:
        """One step of all actors, each up its own critic; the loss."""
        outputs = ACTOR.forward(self.weights, obs)
        action = actions(self.weights, obs)
        loss = -float((mask * values(self.weights, obs, action)).mean())
        _, by_action = _backward(self.weights, obs, action, -mask / mask.size)
        slope = (by_action * (1.0 - action**2)).reshape(len(obs), -1)
        gradients, _ = ACTOR.backward(self.weights, outputs, slope)
        self.weights = self.actor_adam.update(self.weights, gradients)
        return loss

    def move_target(self, tau: float) -> None:
        """Target = (1 - tau) * target + tau * weights."""
        self.target = {name: (1.0 - tau) * array + tau * self.weights[name] for name, array in self.target.items()}


def actions(weights: Weights, obs: NDArray[Any]) -> Array:
    """`[batch, HEADS, ACT_DIM]`."""
    found: Array = np.tanh(ACTOR.forward(weights, obs)[-1]).reshape(len(obs), HEADS, ACT_DIM)
    return found


def values(weights: Weights, obs: NDArray[Any], action: NDArray[Any]) -> Array:
    """`[batch, HEADS]`."""
    features = np.tanh(FEATURES.forward(weights, obs)[-1])
    inputs = [np.concatenate([features, action[:, head]], axis=1) for head in range(HEADS)]
    return np.concatenate([CRITICS[head].forward(weights, inputs[head])[-1] for head in range(HEADS)], axis=1)


def _backward(weights: Weights, obs: Array, action: Array, slope: Array) -> tuple[Weights, Array]:
    """Gradients of the critics' weights and of the actions, from those of the values `[batch, HEADS]`."""
    outputs = FEATURES.forward(weights, obs)
    features = np.tanh(outputs[-1])
    by_features, by_action = np.zeros_like(features), np.zeros_like(action)
    gradients: Weights = {}
    for head, critic in enumerate(CRITICS):
        inputs = np.concatenate([features, action[:, head]], axis=1)
        found, by_input = critic.backward(weights, critic.forward(weights, inputs), slope[:, head : head + 1])
        gradients = summed(gradients, found)
        by_features += by_input[:, :HIDDEN]
        by_action[:, head] = by_input[:, HIDDEN:]
    shared, _ = FEATURES.backward(weights, outputs, by_features * (1.0 - features**2))
    return summed(gradients, shared), by_action

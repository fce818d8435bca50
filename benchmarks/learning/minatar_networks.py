"""Networks for MinAtar with the sizes of Young & Tian 2019, section 4: 16 filters of 3 by 3, and 128 units.

They use only `parl.Model` and `parl.layers`, so they are the same on every backend, and have PARL's own initial
weights.
"""

from typing import Any

import parl

__all__ = ["minatar_actor_critic", "minatar_categorical", "minatar_q_network"]


def minatar_q_network(act_dim: int) -> Any:
    """Action values `[batch, act_dim]` of images `[batch, channels, 10, 10]`."""

    class QNetwork(parl.Model):
        def __init__(self) -> None:
            self.conv, self.fc = _trunk()
            self.head = parl.layers.fc(size=act_dim)

        def value(self, obs: Any) -> Any:
            return self.head(self.fc(self.conv(_floats(obs))))

    return QNetwork()


def minatar_categorical(act_dim: int, *, dueling: bool = False, noisy: float | None = None, atoms: int = 51) -> Any:
    """Logits `[batch, atoms, act_dim]`; dueling ones of two streams of 128 units each, as Rainbow has them."""
    layers = parl.layers

    def fc(size: int, act: str | None = None) -> Any:
        return layers.fc(size=size, act=act) if noisy is None else layers.noisy_fc(size, noisy, act=act)

    class Categorical(parl.Model):
        def __init__(self) -> None:
            self.conv = layers.conv2d(num_filters=16, filter_size=3, act="relu")
            self.fc, self.head = fc(128, "relu"), fc(atoms * act_dim)
            if dueling:
                self.state_fc, self.state_head = fc(128, "relu"), fc(atoms)

        def atoms(self, obs: Any) -> Any:
            features = self.conv(_floats(obs))
            logits = layers.reshape(self.head(self.fc(features)), [0, atoms, act_dim])
            if not dueling:
                return logits
            of_state = layers.reshape(self.state_head(self.state_fc(features)), [0, atoms, 1])
            return of_state + logits - logits.mean(2, keepdim=True)

    return Categorical()


def minatar_actor_critic(act_dim: int) -> Any:
    """Logits `[batch, act_dim]` and value `[batch, 1]` over one trunk."""

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.conv, self.fc = _trunk()
            self.policy_head, self.value_head = parl.layers.fc(size=act_dim), parl.layers.fc(size=1)

        def policy_and_value(self, obs: Any) -> tuple[Any, Any]:
            features = self.fc(self.conv(_floats(obs)))
            return self.policy_head(features), self.value_head(features)

        def policy(self, obs: Any) -> Any:
            return self.policy_and_value(obs)[0]

        def value(self, obs: Any) -> Any:
            return self.policy_and_value(obs)[1]

    return ActorCritic()


def _trunk() -> tuple[Any, Any]:
    layers = parl.layers
    return layers.conv2d(num_filters=16, filter_size=3, act="relu"), layers.fc(size=128, act="relu")


def _floats(images: Any) -> Any:
    return parl.layers.cast(images, "float32")

"""Networks for MinAtar in the size of Young & Tian 2019, section 4: 16 filters of 3 by 3, and 128 units.

Written with `parl.Model` and `parl.layers` alone, and so the same on every backend. The layers' initial weights are
PARL's own.
"""

from typing import Any

import parl

__all__ = ["minatar_actor_critic", "minatar_q_network"]


def minatar_q_network(act_dim: int) -> Any:
    """Action values `[batch, act_dim]` of images `[batch, channels, 10, 10]`."""

    class QNetwork(parl.Model):
        def __init__(self) -> None:
            self.conv, self.fc = _trunk()
            self.head = parl.layers.fc(size=act_dim)

        def value(self, obs: Any) -> Any:
            return self.head(self.fc(self.conv(_floats(obs))))

    return QNetwork()


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

"""Actors and critics with several heads on shared features, for both backends."""

from typing import Any

import parl

fc, concat = parl.layers.fc, parl.layers.concat


class Critic(parl.Model):
    """One head: the value of an action, given features of the observation."""

    def __init__(self, size: int) -> None:
        self.hidden, self.out = fc(size, act="relu"), fc(1)

    def forward(self, features: Any, action: Any) -> Any:
        return self.out(self.hidden(concat([features, action], axis=1)))


class MultiHead(parl.Model):
    """`policy(obs)`: `[batch, heads, act_dim]`; `value(obs, action)`: `[batch, heads]`.

    The action enters after the features, as in Lillicrap et al. 2015, section 7, so that the heads can share them.

    Args:
        heads: Number of pairs of actor and critic.
        act_dim: Number of dimensions of an action.
        size: Size of the shared layers; each head's own layer in the critic has half of it.
    """

    def __init__(self, heads: int, act_dim: int, size: int) -> None:
        self.heads, self.act_dim = heads, act_dim
        self.actor_1, self.actor_2 = fc(size, act="relu"), fc(size, act="relu")
        self.actors = fc(heads * act_dim, act="tanh")
        self.critic_1 = fc(size, act="relu")
        for head in range(heads):
            setattr(self, f"critic_head_{head}", Critic(size // 2))

    def policy(self, obs: Any) -> Any:
        actions = self.actors(self.actor_2(self.actor_1(obs)))
        return actions.reshape([-1, self.heads, self.act_dim])

    def value(self, obs: Any, action: Any) -> Any:
        features = self.critic_1(obs)
        values = [getattr(self, f"critic_head_{head}")(features, action[:, head]) for head in range(self.heads)]
        return concat(values, axis=1)

    def get_actor_params(self) -> list[Any]:
        return [parameter for layer in (self.actor_1, self.actor_2, self.actors) for parameter in layer.parameters()]

"""Small models written only with `parl.Model` and `parl.layers`, so that they are the same on every backend.

Each maker takes the backend; shapes are those for observations of `OBS_DIM` numbers.
"""

from typing import Any

from parl_core.backends import Backend

__all__ = [
    "ACTOR_CRITIC_SHAPES",
    "ACT_DIM",
    "DUELING_SHAPES",
    "GAUSSIAN_SHAPES",
    "MULTI_DISCRETE_SHAPES",
    "NVEC",
    "OBS_DIM",
    "Q_SHAPES",
    "WINDOW_SHAPES",
    "actor_critic",
    "dueling",
    "gaussian_actor_critic",
    "multi_discrete_actor_critic",
    "of_dictionaries",
    "of_windows",
    "probabilities",
    "q_values",
    "separate_actor_critic",
    "shared_trunk",
    "table",
]

OBS_DIM, HIDDEN, ACT_DIM = 4, 8, 3

WINDOW_SHAPES: dict[str, tuple[int, ...]] = {
    "fc1.weight": (HIDDEN, OBS_DIM + 2),  # observation, return-to-go, timestep
    "fc1.bias": (HIDDEN,),
    "fc2.weight": (ACT_DIM, HIDDEN),
    "fc2.bias": (ACT_DIM,),
}
Q_SHAPES: dict[str, tuple[int, ...]] = {
    "fc1.weight": (HIDDEN, OBS_DIM),
    "fc1.bias": (HIDDEN,),
    "fc2.weight": (ACT_DIM, HIDDEN),
    "fc2.bias": (ACT_DIM,),
}
ACTOR_CRITIC_SHAPES: dict[str, tuple[int, ...]] = {
    "pi1.weight": (HIDDEN, OBS_DIM),
    "pi1.bias": (HIDDEN,),
    "pi2.weight": (ACT_DIM, HIDDEN),
    "pi2.bias": (ACT_DIM,),
    "v1.weight": (HIDDEN, OBS_DIM),
    "v1.bias": (HIDDEN,),
    "v2.weight": (1, HIDDEN),
    "v2.bias": (1,),
}
NVEC = (2, 3)
MULTI_DISCRETE_SHAPES: dict[str, tuple[int, ...]] = {
    **ACTOR_CRITIC_SHAPES,
    "pi2.weight": (sum(NVEC), HIDDEN),
    "pi2.bias": (sum(NVEC),),
}
GAUSSIAN_SHAPES: dict[str, tuple[int, ...]] = {
    **ACTOR_CRITIC_SHAPES,
    "spread.weight": (ACT_DIM, HIDDEN),
    "spread.bias": (ACT_DIM,),
}


DUELING_SHAPES: dict[str, tuple[int, ...]] = {
    "fc1.weight": (HIDDEN, OBS_DIM),
    "fc1.bias": (HIDDEN,),
    "v.weight": (1, HIDDEN),
    "v.bias": (1,),
    "a.weight": (ACT_DIM, HIDDEN),
    "a.bias": (ACT_DIM,),
}


def dueling(backend: Backend) -> Any:
    """`value(obs)`: one hidden layer (tanh), then v + a - mean(a) of two layers (Wang et al. 2016, equation 9)."""
    layers: Any = backend.layers

    class Dueling(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = layers.fc(size=HIDDEN, act="tanh")
            self.v, self.a = layers.fc(size=1), layers.fc(size=ACT_DIM)

        def value(self, obs: Any) -> Any:
            hidden = self.fc1(obs)
            advantage = self.a(hidden)
            return self.v(hidden) + advantage - layers.reduce_mean(advantage, dim=1, keep_dim=True)

    return Dueling()


def q_values(backend: Backend) -> Any:
    """`value(obs)`: one hidden layer (tanh), act_dim outputs."""
    layers: Any = backend.layers

    class QValues(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = layers.fc(size=HIDDEN, act="tanh")
            self.fc2 = layers.fc(size=ACT_DIM)

        def value(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    return QValues()


def table(backend: Backend, actions: int) -> Any:
    """`value(obs)`: one number a state and action, for observations that are unit vectors."""
    layers: Any = backend.layers

    class Table(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.q = layers.fc(size=actions, bias_attr=False)

        def value(self, obs: Any) -> Any:
            return self.q(obs)

    return Table()


def probabilities(backend: Backend) -> Any:
    """`forward(obs)`: the same with a softmax at the end."""
    layers: Any = backend.layers

    class Probabilities(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = layers.fc(size=HIDDEN, act="tanh")
            self.fc2 = layers.fc(size=ACT_DIM, act="softmax")

        def forward(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    return Probabilities()


def actor_critic(backend: Backend, outputs: int = ACT_DIM) -> Any:
    """`policy(obs)`: logits; `value(obs)`: `[batch, 1]`; a hidden layer (tanh) each."""
    layers: Any = backend.layers

    class ActorCritic(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.pi1 = layers.fc(size=HIDDEN, act="tanh")
            self.pi2 = layers.fc(size=outputs)
            self.v1 = layers.fc(size=HIDDEN, act="tanh")
            self.v2 = layers.fc(size=1)

        def policy(self, obs: Any) -> Any:
            return self.pi2(self.pi1(obs))

        def value(self, obs: Any) -> Any:
            return self.v2(self.v1(obs))

    return ActorCritic()


def multi_discrete_actor_critic(backend: Backend) -> Any:
    """The same with the logits of actions of sizes `NVEC`."""
    return actor_critic(backend, sum(NVEC))


def shared_trunk(backend: Backend) -> Any:
    """`policy_and_value(obs)` alone: a hidden layer (tanh) under both heads."""
    layers: Any = backend.layers

    class SharedTrunk(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.trunk = layers.fc(size=HIDDEN, act="tanh")
            self.pi2 = layers.fc(size=ACT_DIM)
            self.v2 = layers.fc(size=1)

        def policy_and_value(self, obs: Any) -> Any:
            hidden = self.trunk(obs)
            return self.pi2(hidden), self.v2(hidden)

    return SharedTrunk()


def of_dictionaries(backend: Backend, model: Any, *keys: str) -> Any:
    """The same actor-critic for observations that are dictionaries, of which it sees one entry after the other."""

    class OfDictionaries(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.inner = model

        def seen(self, obs: Any) -> Any:
            seen = obs[keys[0]]
            for key in keys[1:]:
                seen = seen + obs[key]
            return seen

        def policy(self, obs: Any) -> Any:
            return self.inner.policy(self.seen(obs))

        def value(self, obs: Any) -> Any:
            return self.inner.value(self.seen(obs))

    return OfDictionaries()


def of_windows(backend: Backend) -> Any:
    """A Decision Transformer's model that looks at one step alone, so that its gradients are those of dense layers."""
    layers: Any = backend.layers

    class OfWindows(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = layers.fc(size=HIDDEN, num_flatten_dims=2, act="tanh")
            self.fc2 = layers.fc(size=ACT_DIM, num_flatten_dims=2)

        def forward(self, obs: Any, action: Any, return_to_go: Any, timestep: Any, mask: Any) -> Any:
            del action, mask
            dtype = str(obs.dtype).rpartition(".")[2]
            when = layers.reshape(layers.cast(timestep, dtype), [-1, obs.shape[1], 1])
            return self.fc2(self.fc1(layers.concat([obs, return_to_go, when], axis=2)))

    return OfWindows()


def gaussian_actor_critic(backend: Backend) -> Any:
    """The same with `policy(obs)`: (mean, standard deviation); the deviation is exp of a layer of its own."""
    return _gaussian(backend, standard_deviation=True)


def separate_actor_critic(backend: Backend) -> Any:
    """The same with `policy(obs)`: (means, log-variances)."""
    return _gaussian(backend, standard_deviation=False)


def _gaussian(backend: Backend, *, standard_deviation: bool) -> Any:
    layers: Any = backend.layers

    class Gaussian(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.pi1 = layers.fc(size=HIDDEN, act="tanh")
            self.pi2 = layers.fc(size=ACT_DIM)
            self.spread = layers.fc(size=ACT_DIM)
            self.v1 = layers.fc(size=HIDDEN, act="tanh")
            self.v2 = layers.fc(size=1)

        def policy(self, obs: Any) -> Any:
            hidden = self.pi1(obs)
            spread = self.spread(hidden)
            return self.pi2(hidden), layers.exp(spread) if standard_deviation else spread

        def value(self, obs: Any) -> Any:
            return self.v2(self.v1(obs))

    return Gaussian()

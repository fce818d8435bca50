"""Ready-made models for the standard algorithms, written on `parl.layers`: observations decide the input sizes.

    QNetwork                   vectors   -> action values                        DQN
    AtariQNetwork              images    -> action values                        DQN
    ActorCritic                vectors   -> policy and value                     PPO (own trunks for both)
    AtariActorCritic           images    -> policy and value                     PPO (one trunk, one pass)
    DeterministicActorCritic   vectors   -> action; its value                    DDPG
    TwinActorCritic            vectors   -> action; its value by two critics     TD3
    SquashedActorCritic        vectors   -> Gaussian; values by two critics      SAC, OAC, CQL
    ImplicitActorCritic        vectors   -> Gaussian; two critics; state's value IQL

Actor-critics start from orthogonal weights (Saxe et al. 2014) with the gains of OpenAI's baselines, the last layer of
the policy nearly at zero, so that it begins close to uniform.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from parl_core.checks import check_int
from parl_core.layers import Orthogonal
from parl_core.model import Model

__all__ = [
    "MLP",
    "ActorCritic",
    "AtariActorCritic",
    "AtariQNetwork",
    "DeterministicActorCritic",
    "DuelingHead",
    "ImplicitActorCritic",
    "NatureCNN",
    "Parts",
    "QNetwork",
    "SquashedActorCritic",
    "TwinActorCritic",
]


class _Layer:
    """Base of what is a layer of the framework, which calls `forward`."""

    _layers: Any

    if TYPE_CHECKING:

        def __call__(self, inputs: Any) -> Any: ...


class MLP(_Layer):
    """Fully connected layers, all with the same activation.

    Args:
        sizes: outputs of each layer.
        act: activation after each layer.
        orthogonal: start from orthogonal weights of gain sqrt(2) in place of Glorot's uniform ones.
    """

    def __init__(self, sizes: Sequence[int], act: str = "relu", *, orthogonal: bool = False) -> None:
        start = Orthogonal(sqrt(2.0)) if orthogonal else None
        layers = [self._layers.fc(size, act=act, initial_weight=start) for size in sizes]
        super().__init__(*layers)


class NatureCNN(_Layer):
    """Three convolutions and a layer of 512 units (Mnih et al. 2015, extended data table 1) over stacked frames.

    Input `[batch, frames, 84, 84]` (other sizes of at least 36 work), uint8 in 0..255 or floats of that range; output
    `[batch, 512]`.
    """

    def __init__(self) -> None:
        start = Orthogonal(sqrt(2.0))
        layers = [
            self._layers.conv_2d(filters, size, stride, act="relu", initial_weight=start)
            for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        ]
        layers.append(self._layers.fc(512, act="relu", initial_weight=start))
        super().__init__(*layers)

    def forward(self, images: Any) -> Any:
        """Return the features of images."""
        return super().forward(images / 255.0)  # type: ignore[misc]  # of the framework's Sequential


class DuelingHead(_Layer):
    """V(s) + A(s, a) - mean_a A(s, a): Wang et al. 2016, equation 9."""

    def __init__(self, act_dim: int) -> None:
        super().__init__()
        self.state_value = self._layers.fc(1)
        self.advantage = self._layers.fc(act_dim)

    def forward(self, features: Any) -> Any:
        """Return the action values `[batch, act_dim]` of features."""
        advantage = self.advantage(features)
        return self.state_value(features) + advantage - advantage.mean(1, keepdim=True)


@dataclass(frozen=True)
class Parts:
    """What the models below are made of on one framework.

    Attributes:
        layers: the backend's `parl.layers`.
        sequential: class of layers one after the other.
        layer_list: class of a list of layers.
        mlp: `MLP` on the framework's `sequential`.
        nature_cnn: `NatureCNN` likewise.
        dueling_head: `DuelingHead` as a layer of the framework.
    """

    layers: ModuleType
    sequential: Callable[..., Any]
    layer_list: Callable[..., Any]
    mlp: Callable[..., Any]
    nature_cnn: Callable[..., Any]
    dueling_head: Callable[..., Any]


class _Network(Model):
    _parts: ClassVar[Parts]

    def _orthogonal(self, size: int, gain: float) -> Any:
        return self._parts.layers.fc(size, initial_weight=Orthogonal(gain))


class QNetwork(_Network):
    """Action values `[batch, act_dim]` of observation vectors.

    Args:
        act_dim: number of actions.
        hidden: sizes of the hidden layers (ReLU).
        dueling: separate value and advantage.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (128, 128), *, dueling: bool = False) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.trunk = self._parts.mlp(hidden)
        self.head = self._parts.dueling_head(act_dim) if dueling else self._parts.layers.fc(act_dim)

    def value(self, obs: Any) -> Any:
        """Action values."""
        return self.head(self.trunk(obs))


class AtariQNetwork(QNetwork):
    """Action values `[batch, act_dim]` of stacked frames, over a `NatureCNN`.

    Args:
        act_dim: number of actions.
        dueling: separate value and advantage.
    """

    def __init__(self, act_dim: int, *, dueling: bool = False) -> None:
        super().__init__(act_dim, (), dueling=dueling)
        self.trunk = self._parts.nature_cnn()


class ActorCritic(_Network):
    """Policy and value of observation vectors, with a trunk each.

    Args:
        act_dim: number of actions, or of action dimensions.
        hidden: sizes of the hidden layers (tanh) of each trunk.
        continuous: the policy is a Gaussian with a standard deviation of its own a dimension, 1 at the start.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (64, 64), *, continuous: bool = False) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.policy_trunk = self._parts.mlp(hidden, "tanh", orthogonal=True)
        self.policy_head = self._orthogonal(act_dim, 0.01)
        self.value_trunk = self._parts.mlp(hidden, "tanh", orthogonal=True)
        self.value_head = self._orthogonal(1, 1.0)
        self.log_std = self._parts.layers.create_parameter([act_dim], is_bias=True) if continuous else None

    def policy(self, obs: Any) -> Any:
        """Logits `[batch, act_dim]`, or (mean `[batch, act_dim]`, standard deviation `[act_dim]`)."""
        output = self.policy_head(self.policy_trunk(obs))
        return output if self.log_std is None else (output, self.log_std.exp())

    def value(self, obs: Any) -> Any:
        """Values `[batch, 1]`."""
        return self.value_head(self.value_trunk(obs))


class _Continuous(_Network):
    """Actor and critics of observation vectors, which share nothing."""

    def __init__(self, act_dim: int, hidden: Sequence[int], critics: int, outputs: int) -> None:
        super().__init__()
        self.act_dim = check_int("act_dim", act_dim)
        self.actor_model = self._chain(hidden, outputs)
        self.critic_model = self._parts.layer_list([self._chain(hidden, 1) for _ in range(critics)])

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of the actor."""
        return list(self.actor_model.parameters())

    def get_critic_params(self) -> list[Any]:
        """Return the parameters of all critics."""
        return list(self.critic_model.parameters())

    def _chain(self, hidden: Sequence[int], outputs: int) -> Any:
        return self._parts.sequential(self._parts.mlp(hidden), self._parts.layers.fc(outputs))

    def _critics(self, obs: Any, action: Any, count: int) -> list[Any]:
        both = self._parts.layers.concat([obs, action], axis=-1)
        return [critic(both).squeeze(-1) for critic in list(self.critic_model)[:count]]


class DeterministicActorCritic(_Continuous):
    """One action and one value of observation vectors.

    Args:
        act_dim: number of action dimensions.
        hidden: sizes of the hidden layers (ReLU) of actor and critic each.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(act_dim, hidden, 1, act_dim)

    def policy(self, obs: Any) -> Any:
        """Actions `[batch, act_dim]` in [-1, 1]."""
        return self.actor_model(obs).tanh()

    def value(self, obs: Any, action: Any) -> Any:
        """Values `[batch]`."""
        return self._critics(obs, action, 1)[0]


class TwinActorCritic(_Continuous):
    """One action and the values of two critics.

    Args:
        act_dim: number of action dimensions.
        hidden: sizes of the hidden layers (ReLU) of the actor and each critic.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(act_dim, hidden, 2, act_dim)

    def policy(self, obs: Any) -> Any:
        """Actions `[batch, act_dim]` in [-1, 1]."""
        return self.actor_model(obs).tanh()

    def value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2

    def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that PARL's TD3 asks for
        """Values `[batch]` of the first critic."""
        return self._critics(obs, action, 1)[0]


class SquashedActorCritic(_Continuous):
    """A Gaussian, to be squashed by tanh, and the values of two critics.

    The logarithm of its standard deviation is kept in [-20, 2] (Haarnoja's code).

    Args:
        act_dim: number of action dimensions.
        hidden: sizes of the hidden layers (ReLU) of the actor and each critic.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(act_dim, hidden, 2, 2 * act_dim)

    def policy(self, obs: Any) -> tuple[Any, Any]:
        """(mean, log std) before the tanh, each `[batch, act_dim]`."""
        output = self.actor_model(obs)
        return output[..., : self.act_dim], output[..., self.act_dim :].clip(-20.0, 2.0)

    def value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2


class ImplicitActorCritic(_Continuous):
    """A Gaussian over actions, the values of two critics, and the value of the state alone; nothing is shared.

    The mean goes through tanh; log std is one number a dimension, kept in [-5, 2], 0 at the start (Kostrikov's code).

    Args:
        act_dim: number of action dimensions.
        hidden: sizes of the hidden layers (ReLU) of the actor, each critic and the state's value.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(act_dim, hidden, 2, act_dim)
        self.value_model = self._chain(hidden, 1)
        self.log_std = self._parts.layers.create_parameter([act_dim], is_bias=True)

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of the actor."""
        return [*super().get_actor_params(), self.log_std]

    def get_value_params(self) -> list[Any]:
        """Return the parameters of the state's value."""
        return list(self.value_model.parameters())

    def policy(self, obs: Any) -> tuple[Any, Any]:
        """(mean `[batch, act_dim]` in [-1, 1], log std `[act_dim]`)."""
        return self.actor_model(obs).tanh(), self.log_std.clip(-5.0, 2.0)

    def value(self, obs: Any) -> Any:
        """Return the values of the state `[batch]`."""
        return self.value_model(obs).squeeze(-1)

    def q_value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2


class AtariActorCritic(_Network):
    """Logits and value of stacked frames, over one `NatureCNN`.

    Args:
        act_dim: number of actions.
    """

    def __init__(self, act_dim: int) -> None:
        super().__init__()
        self.trunk = self._parts.nature_cnn()
        self.policy_head = self._orthogonal(check_int("act_dim", act_dim), 0.01)
        self.value_head = self._orthogonal(1, 1.0)

    def policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        """(logits `[batch, act_dim]`, values `[batch, 1]`) in one pass through the trunk."""
        features = self.trunk(obs)
        return self.policy_head(features), self.value_head(features)

    def policy(self, obs: Any) -> Any:
        """Logits `[batch, act_dim]`."""
        return self.policy_and_value(obs)[0]

    def value(self, obs: Any) -> Any:
        """Values `[batch, 1]`."""
        return self.policy_and_value(obs)[1]

"""Ready-made models for the standard algorithms, all lazily shaped: observations decide the input sizes.

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

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from parl_core.checks import check_int
from parl_paddle.layers.shaped import Conv2d, Fc, fc
from parl_paddle.model import Model

__all__ = [
    "MLP",
    "ActorCritic",
    "AtariActorCritic",
    "AtariQNetwork",
    "DeterministicActorCritic",
    "DuelingHead",
    "ImplicitActorCritic",
    "NatureCNN",
    "QNetwork",
    "SquashedActorCritic",
    "TwinActorCritic",
]


class MLP(nn.Sequential):
    """Fully connected layers, all with the same activation.

    Args:
        sizes: outputs of each layer.
        act: activation after each layer.
        orthogonal: start from orthogonal weights of gain sqrt(2) in place of Glorot's uniform ones.
    """

    def __init__(self, sizes: Sequence[int], act: str = "relu", *, orthogonal: bool = False) -> None:
        super().__init__(*(_OrthogonalFc(size, sqrt(2.0), act) if orthogonal else fc(size, act=act) for size in sizes))


class NatureCNN(nn.Sequential):
    """Three convolutions and a layer of 512 units (Mnih et al. 2015, extended data table 1) over stacked frames.

    Input `[batch, frames, 84, 84]` (other sizes of at least 36 work), uint8 in 0..255 or floats of that range; output
    `[batch, 512]`.
    """

    def __init__(self) -> None:
        super().__init__(
            _OrthogonalConv2d(32, 8, 4),
            _OrthogonalConv2d(64, 4, 2),
            _OrthogonalConv2d(64, 3, 1),
            _OrthogonalFc(512, sqrt(2.0), "relu"),
        )

    def forward(self, images: Tensor) -> Tensor:
        features = images / 255.0
        for layer in self:
            features = layer(features)
        return features


class DuelingHead(nn.Layer):
    """V(s) + A(s, a) - mean_a A(s, a): Wang et al. 2016, equation 9."""

    def __init__(self, act_dim: int) -> None:
        super().__init__()
        self.state_value = fc(1)
        self.advantage = fc(act_dim)

    def forward(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.state_value(features)
        return value + advantage - advantage.mean(axis=1, keepdim=True)


class QNetwork(Model):
    """Action values `[batch, act_dim]` of observation vectors.

    Args:
        act_dim: number of actions.
        hidden: sizes of the hidden layers (ReLU).
        dueling: separate value and advantage.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (128, 128), *, dueling: bool = False) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.trunk: nn.Layer = MLP(hidden)
        self.head = DuelingHead(act_dim) if dueling else fc(act_dim)

    def value(self, obs: Tensor) -> Tensor:
        """Action values."""
        values: Tensor = self.head(self.trunk(obs))
        return values


class AtariQNetwork(QNetwork):
    """Action values `[batch, act_dim]` of stacked frames, over a `NatureCNN`.

    Args:
        act_dim: number of actions.
        dueling: separate value and advantage.
    """

    def __init__(self, act_dim: int, *, dueling: bool = False) -> None:
        super().__init__(act_dim, (), dueling=dueling)
        self.trunk = NatureCNN()


class ActorCritic(Model):
    """Policy and value of observation vectors, with a trunk each.

    Args:
        act_dim: number of actions, or of action dimensions.
        hidden: sizes of the hidden layers (tanh) of each trunk.
        continuous: the policy is a Gaussian with a standard deviation of its own a dimension, 1 at the start.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (64, 64), *, continuous: bool = False) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.policy_trunk = MLP(hidden, "tanh", orthogonal=True)
        self.policy_head = _OrthogonalFc(act_dim, 0.01)
        self.value_trunk = MLP(hidden, "tanh", orthogonal=True)
        self.value_head = _OrthogonalFc(1, 1.0)
        self.log_std = self._zeros(act_dim) if continuous else None

    def policy(self, obs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits `[batch, act_dim]`, or (mean `[batch, act_dim]`, standard deviation `[act_dim]`)."""
        output: Tensor = self.policy_head(self.policy_trunk(obs))
        return output if self.log_std is None else (output, self.log_std.exp())

    def value(self, obs: Tensor) -> Tensor:
        """Values `[batch, 1]`."""
        values: Tensor = self.value_head(self.value_trunk(obs))
        return values

    def _zeros(self, size: int) -> Tensor:
        return self.create_parameter([size], default_initializer=nn.initializer.Constant(0.0))


class _Continuous(Model):
    """Actor and critics of observation vectors, which share nothing."""

    def __init__(self, act_dim: int, hidden: Sequence[int], critics: int, outputs: int) -> None:
        super().__init__()
        self.act_dim = check_int("act_dim", act_dim)
        self.actor_model: nn.Layer = nn.Sequential(MLP(hidden), fc(outputs))
        self.critic_model = nn.LayerList([nn.Sequential(MLP(hidden), fc(1)) for _ in range(critics)])

    def get_actor_params(self) -> list[Any]:
        """Parameters of the actor."""
        return list(self.actor_model.parameters())

    def get_critic_params(self) -> list[Any]:
        """Parameters of all critics."""
        return list(self.critic_model.parameters())

    def _critics(self, obs: Tensor, action: Tensor, count: int) -> list[Tensor]:
        both = paddle.concat([obs, action], axis=-1)
        return [critic(both).squeeze(-1) for critic in list(self.critic_model)[:count]]


class DeterministicActorCritic(_Continuous):
    """One action and one value of observation vectors.

    Args:
        act_dim: number of action dimensions.
        hidden: sizes of the hidden layers (ReLU) of actor and critic each.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(act_dim, hidden, 1, act_dim)

    def policy(self, obs: Tensor) -> Tensor:
        """Actions `[batch, act_dim]` in [-1, 1]."""
        return paddle.tanh(self.actor_model(obs))

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
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

    def policy(self, obs: Tensor) -> Tensor:
        """Actions `[batch, act_dim]` in [-1, 1]."""
        return paddle.tanh(self.actor_model(obs))

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2

    def Q1(self, obs: Tensor, action: Tensor) -> Tensor:  # noqa: N802 - the name that PARL's TD3 asks for
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

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, log std) before the tanh, each `[batch, act_dim]`."""
        output: Tensor = self.actor_model(obs)
        return output[..., : self.act_dim], output[..., self.act_dim :].clip(-20.0, 2.0)

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values of both critics, each `[batch]`."""
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
        self.value_model = nn.Sequential(MLP(hidden), fc(1))
        self.log_std = self.create_parameter([act_dim], default_initializer=nn.initializer.Constant(0.0))

    def get_actor_params(self) -> list[Any]:
        """Parameters of the actor."""
        return [*super().get_actor_params(), self.log_std]

    def get_value_params(self) -> list[Any]:
        """Parameters of the state's value."""
        return list(self.value_model.parameters())

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(mean `[batch, act_dim]` in [-1, 1], log std `[act_dim]`)."""
        return paddle.tanh(self.actor_model(obs)), self.log_std.clip(-5.0, 2.0)

    def value(self, obs: Tensor) -> Tensor:
        """Values of the state `[batch]`."""
        values: Tensor = self.value_model(obs).squeeze(-1)
        return values

    def q_value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2


class AtariActorCritic(Model):
    """Logits and value of stacked frames, over one `NatureCNN`.

    Args:
        act_dim: number of actions.
    """

    def __init__(self, act_dim: int) -> None:
        super().__init__()
        self.trunk = NatureCNN()
        self.policy_head = _OrthogonalFc(check_int("act_dim", act_dim), 0.01)
        self.value_head = _OrthogonalFc(1, 1.0)

    def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(logits `[batch, act_dim]`, values `[batch, 1]`) in one pass through the trunk."""
        features = self.trunk(obs)
        return self.policy_head(features), self.value_head(features)

    def policy(self, obs: Tensor) -> Tensor:
        """Logits `[batch, act_dim]`."""
        return self.policy_and_value(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Values `[batch, 1]`."""
        return self.policy_and_value(obs)[1]


class _OrthogonalFc(Fc):
    def __init__(self, size: int, gain: float, act: str | None = None) -> None:
        super().__init__(size, 1, act, True)
        self.gain = gain

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        return np.zeros(shape) if name == "bias" else _orthogonal(shape[::-1], self.gain, generator).T


class _OrthogonalConv2d(Conv2d):
    def __init__(self, num_filters: int, filter_size: int, stride: int) -> None:
        super().__init__(num_filters, filter_size, stride, 0, 1, 1, "relu", True)

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        return np.zeros(shape) if name == "bias" else _orthogonal(shape, sqrt(2.0), generator)


def _orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> NDArray[Any]:
    """`[out, ...]` with orthonormal rows, or columns where there are more rows, times `gain`; uniform among these."""
    rows, columns = shape[0], prod(shape[1:])
    tall, triangle = np.linalg.qr(generator.normal(size=(max(rows, columns), min(rows, columns))))
    tall *= np.sign(np.diag(triangle))  # QR fixes the signs; undone, the distribution is uniform (Mezzadri 2007)
    return gain * (tall if rows >= columns else tall.T).reshape(shape)

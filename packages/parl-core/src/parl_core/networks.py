"""Ready-made models for the standard algorithms, written on `parl.layers`: observations decide the input sizes.

`parl_core.space_networks.for_spaces` chooses one for an environment's spaces, whatever these are. By hand:

    QNetwork                   vectors   -> action values                        DQN
    AtariQNetwork              images    -> action values                        DQN
    QuantileNetwork            vectors   -> quantiles of action values           QRDQN
    CategoricalNetwork         vectors   -> logits of the values of returns      C51, Rainbow
    ActorCritic                vectors   -> policy and value                     PPO (own trunks for both)
    SharedActorCritic          vectors   -> policy and value                     PPO (one trunk, one pass)
    AtariActorCritic           images    -> policy and value                     PPO (one trunk, one pass)
    RecurrentActorCritic       vectors, state -> policy and value, state         PPO, A2C, A3C, IMPALA
    RecurrentQNetwork          vectors, state -> action values, state            DQN, DDQN
    PolicyNetwork              vectors   -> probabilities, or a Gaussian         PolicyGradient
    DeterministicActorCritic   vectors   -> action; its value                    DDPG
    TwinActorCritic            vectors   -> action; its value by two critics     TD3, TD3BC
    NormalisedTwinActorCritic  the same with layer norm. in the critics          ReBRAC
    SquashedActorCritic        vectors   -> Gaussian; values by two critics      SAC, OAC, CQL
    GaussianActorCritic        vectors   -> Gaussian; values by two critics      AWAC
    QuantileActorCritic        vectors   -> Gaussian; quantiles by five critics  TQC
    EnsembleActorCritic        vectors   -> Gaussian; values by ten critics      REDQ, DroQ
    BatchNormActorCritic       vectors   -> Gaussian; values by two critics      CrossQ
    DiscreteActorCritic        vectors   -> policy; action values by two critics DiscreteSAC
    NoveltyNetwork             vectors   -> features twice; value of novelty     RND
    ImplicitActorCritic        vectors   -> Gaussian; two critics; state's value IQL
    TrajectoryTransformer      windows   -> action of each step                  DecisionTransformer

Actor-critics start from orthogonal weights (Saxe et al. 2014) with the gains of OpenAI's baselines, the last layer of
the policy nearly at zero, so that it begins close to uniform.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate, pairwise
from math import sqrt
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from parl_core._encoders import Layer, SpacePart
from parl_core.checks import check_fraction, check_int, check_sizes
from parl_core.contracts.actions import ActionKind
from parl_core.errors import HyperparameterError
from parl_core.layers import Initial, Normal, Orthogonal
from parl_core.model import Model
from parl_core.recurrent import MemoryKind, State, zeros_of

__all__ = [
    "MLP",
    "ActorCritic",
    "AtariActorCritic",
    "AtariQNetwork",
    "BatchNormActorCritic",
    "BatchNormMLP",
    "Body",
    "CategoricalNetwork",
    "CriticTrunk",
    "DeterministicActorCritic",
    "DiscreteActorCritic",
    "DuelingHead",
    "EnsembleActorCritic",
    "GaussianActorCritic",
    "ImplicitActorCritic",
    "NatureCNN",
    "NormalisedTwinActorCritic",
    "NoveltyNetwork",
    "Parts",
    "PolicyNetwork",
    "QNetwork",
    "QuantileActorCritic",
    "QuantileNetwork",
    "RecurrentActorCritic",
    "RecurrentQNetwork",
    "SharedActorCritic",
    "SimBa",
    "SquashedActorCritic",
    "TrajectoryTransformer",
    "TransformerBlock",
    "TwinActorCritic",
]


class MLP(Layer):
    """Fully connected layers, all with the same activation.

    Args:
        sizes: Outputs of each layer.
        act: Activation after each layer.
        orthogonal: Whether the network starts from orthogonal weights of gain sqrt(2) instead of Glorot's uniform ones.
        normalised: Layer normalisation before each activation.
        noisy: Sigma of the layers, which are then `parl.layers.noisy_fc`; None for layers without noise.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        act: str = "relu",
        *,
        orthogonal: bool = False,
        normalised: bool = False,
        noisy: float | None = None,
    ) -> None:
        start = Orthogonal(sqrt(2.0)) if orthogonal else None
        layers: list[Any] = []
        for size in sizes:
            layers.append(_fc(self._layers, size, None if normalised else act, noisy, start))
            if normalised:
                layers.append(self._layers.layer_norm(act=act))
        super().__init__(*layers)


class SimBa(Layer):
    """Residual blocks of layer normalisation and two layers, and a last normalisation (Lee et al. 2024).

    arXiv:2410.09754, section 4.1; the layer inside of a block is four times as wide. The paper's normalisation of
    observations is left to the environment: `parl.env.NormalizeVector`.

    Args:
        sizes: Width of each block; all are equal.
        act: Activation inside of the blocks.

    Raises:
        HyperparameterError: There are no blocks, or widths differ.
    """

    _layer_list: ClassVar[Callable[..., Any]]
    _sequential: ClassVar[Callable[..., Any]]

    def __init__(self, sizes: Sequence[int], act: str = "relu") -> None:
        if len(set(sizes)) != 1:
            raise HyperparameterError(f"SimBa needs one width for all blocks, such as (128, 128), got {tuple(sizes)}")
        super().__init__()
        fc, norm, width = self._layers.fc, self._layers.layer_norm, check_int("hidden[0]", sizes[0])
        self.embedding = fc(width, initial_weight=Orthogonal(1.0))
        self.blocks = self._layer_list(
            [
                self._sequential(
                    norm(),
                    fc(4 * width, act=act, initial_weight=Normal(sqrt(2.0 / width))),
                    fc(width, initial_weight=Normal(sqrt(0.5 / width))),
                )
                for _ in sizes
            ]
        )
        self.norm = norm()

    def forward(self, features: Any) -> Any:
        """Return features `[batch, width]`."""
        features = self.embedding(features)
        for block in self.blocks:
            features = features + block(features)
        return self.norm(features)


class NatureCNN(Layer):
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
        return super().forward(self._divided(images, 255.0))  # type: ignore[misc]  # of the framework's Sequential


class CriticTrunk(Layer):
    """Hidden layers of a critic, with measures against overfitting.

    Each is a layer, dropout, layer normalisation and the activation, as in Hiraoka et al. 2022 (arXiv:2110.02034).

    Args:
        sizes: Outputs of each layer.
        act: Activation after each layer.
        dropout: The share of units that is dropped in training; 0 for none.
    """

    _dropout: ClassVar[Callable[..., Any]]

    def __init__(self, sizes: Sequence[int], act: str = "relu", *, dropout: float = 0.0) -> None:
        layers: list[Any] = []
        for size in sizes:
            layers += [self._layers.fc(size)]
            layers += [self._dropout(dropout)] if dropout else []
            layers += [self._layers.layer_norm(act=act)]
        super().__init__(*layers)


class BatchNormMLP(Layer):
    """Fully connected layers with batch normalisation of the inputs and after each activation.

    As in Bhatt et al. 2024 (arXiv:1902.05605); running statistics keep 0.99 of their values at each batch.

    Args:
        sizes: Outputs of each layer.
        act: Activation after each layer.
    """

    def __init__(self, sizes: Sequence[int], act: str = "relu") -> None:
        norm = self._layers.batch_norm
        layers: list[Any] = [norm(momentum=0.99)]
        for size in sizes:
            layers += [self._layers.fc(size, act=act), norm(momentum=0.99)]
        super().__init__(*layers)


class DuelingHead(Layer):
    """V(s) + A(s, a) - mean_a A(s, a): Wang et al. 2016, equation 9.

    Args:
        act_dim: Number of actions.
        atoms: Number of logits of each action, for distributions of returns (Hessel et al. 2018, section 3).
        noisy: As in `MLP`.
    """

    def __init__(self, act_dim: int, atoms: int | None = None, *, noisy: float | None = None) -> None:
        super().__init__()
        self.act_dim, self.atoms = act_dim, atoms
        self.state_value = _fc(self._layers, atoms or 1, None, noisy)
        self.advantage = _fc(self._layers, (atoms or 1) * act_dim, None, noisy)

    def forward(self, features: Any) -> Any:
        """Return the action values `[batch, act_dim]` of features, or logits `[batch, atoms, act_dim]`."""
        value, advantage = self.state_value(features), self.advantage(features)
        if self.atoms is None:
            return value + advantage - advantage.mean(1, keepdim=True)
        advantage = self._layers.reshape(advantage, [0, self.atoms, self.act_dim])
        return self._layers.reshape(value, [0, self.atoms, 1]) + advantage - advantage.mean(2, keepdim=True)


def _fc(layers: Any, size: int, act: str | None, noisy: float | None, initial_weight: Initial | None = None) -> Any:
    """Return a fully connected layer, with noise of an initial size on its weights where that is given."""
    if noisy is not None:
        return layers.noisy_fc(size, noisy, act=act)
    return layers.fc(size, act=act, initial_weight=initial_weight)


@dataclass(frozen=True)
class Parts:
    """The building blocks of the models below, on one framework.

    Attributes:
        layers: The backend's `parl.layers`.
        sequential: Class of layers one after the other.
        layer_list: Class of a list of layers.
        mlp: `MLP` on the framework's `sequential`.
        nature_cnn: `NatureCNN` likewise.
        critic_trunk: `CriticTrunk` likewise.
        batch_norm_mlp: `BatchNormMLP` likewise.
        dueling_head: `DuelingHead` as a layer of the framework.
        simba: `SimBa` likewise.
        space_encoder: `SpaceEncoder` of `parl_core._encoders` likewise.
        memories: The layers of `parl_core.recurrent` likewise, by kind.
    """

    layers: ModuleType
    sequential: Callable[..., Any]
    layer_list: Callable[..., Any]
    mlp: Callable[..., Any]
    nature_cnn: Callable[..., Any]
    critic_trunk: Callable[..., Any]
    batch_norm_mlp: Callable[..., Any]
    dueling_head: Callable[..., Any]
    simba: Callable[..., Any]
    space_encoder: Callable[..., Any]
    memories: Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Body:
    """The part of a network between observations and heads.

    Attributes:
        hidden: Sizes of the hidden layers.
        act: Activation after each.
        orthogonal: Whether the network starts from orthogonal weights.
        normalised: Layer normalisation before each activation.
        simba: Whether there are residual blocks instead of plain layers.
        noisy: Sigma of the noise of plain layers and of the heads of action values (`parl.layers.noisy_fc`); None for
            no noise.
        observed: The arrays of an observation; None for vectors, which need no encoder.
    """

    hidden: Sequence[int]
    act: str = "relu"
    orthogonal: bool = False
    normalised: bool = False
    simba: bool = False
    noisy: float | None = None
    observed: tuple[SpacePart, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check_sizes("hidden", self.hidden))


class _Network(Model):
    _parts: ClassVar[Parts]

    action_kind: ActionKind | None = None
    """The kind of its actions, which algorithms use as the default; None if it was not made for a space."""

    obs_ndim: Any = None
    """The attribute `parl.Agent.obs_ndim`, which is taken from here."""

    def _trunk(self, body: Body, *, encoded: bool = False) -> Any:
        """Return the layers from observations, or from an encoder's output, to hidden features."""
        layers = [] if encoded or body.observed is None else [self._parts.space_encoder(body.observed)]
        if body.simba:
            layers.append(self._parts.simba(body.hidden, body.act))
        elif body.hidden or not layers:
            layers.append(
                self._parts.mlp(
                    body.hidden, body.act, orthogonal=body.orthogonal, normalised=body.normalised, noisy=body.noisy
                )
            )
        return layers[0] if len(layers) == 1 else self._parts.sequential(*layers)

    def _values_of(self, act_dim: int, atoms: int | None, body: Body, *, dueling: bool) -> Any:
        """Return the head of action values, or of several logits per action value."""
        if dueling:
            return self._parts.dueling_head(act_dim, atoms, noisy=body.noisy)
        return _fc(self._parts.layers, (atoms or 1) * act_dim, None, body.noisy)

    def _orthogonal(self, size: int, gain: float) -> Any:
        return self._parts.layers.fc(size, initial_weight=Orthogonal(gain))


class QNetwork(_Network):
    """Action values `[batch, act_dim]` of observation vectors.

    Args:
        act_dim: Number of actions.
        hidden: Sizes of the hidden layers (ReLU).
        dueling: Whether value and advantage are separate.
        noisy: Sigma of the noise on the weights of all layers, by which it explores (`parl.layers.noisy_fc`; 0.5 in
            Fortunato et al. 2018); None for no noise.
        body: The hidden layers, with more options than `hidden` and `noisy`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (128, 128),
        *,
        dueling: bool = False,
        noisy: float | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        body = body or Body(hidden, noisy=noisy)
        self.trunk = self._trunk(body)
        self.head = self._values_of(act_dim, None, body, dueling=dueling)

    def value(self, obs: Any) -> Any:
        """Return the action values `[batch, act_dim]`."""
        return self.head(self.trunk(obs))


class AtariQNetwork(QNetwork):
    """Action values `[batch, act_dim]` of stacked frames, over a `NatureCNN`.

    Args:
        act_dim: Number of actions.
        dueling: Whether value and advantage are separate.
    """

    def __init__(self, act_dim: int, *, dueling: bool = False) -> None:
        super().__init__(act_dim, (), dueling=dueling)
        self.trunk = self._parts.nature_cnn()


class QuantileNetwork(_Network):
    """Quantiles `[batch, quantiles, act_dim]` of the returns of each action.

    Args:
        act_dim: Number of actions.
        quantiles: Number of quantiles; 200 in Dabney et al. 2018.
        hidden: Sizes of the hidden layers (ReLU).
        noisy: As in `QNetwork`.
        body: The hidden layers, with more options than `hidden` and `noisy`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        quantiles: int = 200,
        hidden: Sequence[int] = (128, 128),
        *,
        noisy: float | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        self._shape = [0, check_int("quantiles", quantiles), check_int("act_dim", act_dim)]
        body = body or Body(hidden, noisy=noisy)
        self.trunk = self._trunk(body)
        self.head = self._values_of(act_dim, quantiles, body, dueling=False)

    def quantiles(self, obs: Any) -> Any:
        """Return the quantiles."""
        return self._parts.layers.reshape(self.head(self.trunk(obs)), self._shape)


class CategoricalNetwork(_Network):
    """Logits `[batch, atoms, act_dim]` of the distribution of the return of each action over fixed values.

    Args:
        act_dim: Number of actions.
        atoms: Number of values; 51 in Bellemare et al. 2017.
        hidden: Sizes of the hidden layers (ReLU).
        dueling: Whether value and advantage have separate logits, as in Rainbow.
        noisy: As in `QNetwork`.
        body: The hidden layers, with more options than `hidden` and `noisy`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        atoms: int = 51,
        hidden: Sequence[int] = (128, 128),
        *,
        dueling: bool = False,
        noisy: float | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        self._shape = [0, check_int("atoms", atoms, at_least=2), check_int("act_dim", act_dim)]
        body = body or Body(hidden, noisy=noisy)
        self.trunk = self._trunk(body)
        self.head = self._values_of(act_dim, atoms, body, dueling=dueling)

    def atoms(self, obs: Any) -> Any:
        """Return the logits."""
        return self._parts.layers.reshape(self.head(self.trunk(obs)), self._shape)


class _Policy(_Network):
    """A policy's head: logits, a Gaussian with a standard deviation per dimension, or both."""

    log_std: Any

    def _set_std(self, act_dim: int, continuous: bool, numbers: int | None) -> None:
        count = numbers if numbers is not None else act_dim if continuous else 0
        self._logits = act_dim - count
        self.log_std = self._parts.layers.create_parameter([count], is_bias=True) if count else None

    def _distributed(self, output: Any) -> Any:
        """Return the distribution by `parl_core.contracts.actions.ActionKind` of the head's outputs."""
        if self.log_std is None:
            return output
        std = self.log_std.exp()
        if not self._logits:
            return output, std
        return output[..., : self._logits], output[..., self._logits :], std


class ActorCritic(_Policy):
    """Policy and value of observation vectors, each with its own trunk.

    Args:
        act_dim: Number of actions, or of action dimensions.
        hidden: Sizes of the hidden layers (tanh) of each trunk.
        continuous: Whether the policy is a Gaussian with one standard deviation per dimension, initially 1.
        numbers: The number of the `act_dim` outputs that are means, for actions with choices and numbers; they are the
            last ones.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        continuous: bool = False,
        numbers: int | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        body = body or Body(hidden, "tanh", orthogonal=True)
        self.policy_trunk = self._trunk(body)
        self.policy_head = self._orthogonal(act_dim, 0.01)
        self.value_trunk = self._trunk(body)
        self.value_head = self._orthogonal(1, 1.0)
        self._set_std(act_dim, continuous, numbers)

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, act_dim]`, or (mean `[batch, act_dim]`, deviation `[act_dim]`), or all three."""
        return self._distributed(self.policy_head(self.policy_trunk(obs)))

    def value(self, obs: Any) -> Any:
        """Return the values `[batch, 1]`."""
        return self.value_head(self.value_trunk(obs))


class SharedActorCritic(_Policy):
    """Policy and value over one trunk.

    Args:
        act_dim: As in `ActorCritic`, like the other arguments.
        hidden: Sizes of the hidden layers (tanh).
        continuous: Whether the policy is a Gaussian.
        numbers: Number of outputs that are means.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        continuous: bool = False,
        numbers: int | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.trunk = self._one_trunk(body or Body(hidden, "tanh", orthogonal=True))
        self.policy_head = self._orthogonal(act_dim, 0.01)
        self.value_head = self._orthogonal(1, 1.0)
        self._set_std(act_dim, continuous, numbers)

    def _one_trunk(self, body: Body) -> Any:
        return self._trunk(body)

    def policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        """Return (result of `policy`, values `[batch, 1]`) from one pass through the trunk."""
        features = self.trunk(obs)
        return self._distributed(self.policy_head(features)), self.value_head(features)

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, act_dim]`, or (mean `[batch, act_dim]`, deviation `[act_dim]`), or all three."""
        return self.policy_and_value(obs)[0]  # with the value's head, so that one pass creates all weights

    def value(self, obs: Any) -> Any:
        """Return the values `[batch, 1]`."""
        return self.value_head(self.trunk(obs))


class AtariActorCritic(SharedActorCritic):
    """Logits and value of stacked frames, over one `NatureCNN`.

    Args:
        act_dim: Number of actions.
    """

    def __init__(self, act_dim: int) -> None:
        super().__init__(act_dim)

    def _one_trunk(self, body: Body) -> Any:  # noqa: ARG002 - there are no hidden layers besides
        return self._parts.nature_cnn()


class _MemoryNetwork(_Network):
    """The part in front of the heads of a model with a memory; `parl_core.recurrent` has the protocol."""

    def _set_memory(self, memory: MemoryKind, memory_size: int, body: Body, options: Mapping[str, Any]) -> None:
        self.encoder, self.memory = self._made_memory(memory, memory_size, body, options)

    def _made_memory(
        self, memory: MemoryKind, memory_size: int, body: Body, options: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Return the layers in front of a memory, and the memory."""
        if memory not in self._parts.memories:
            known = ", ".join(map(repr, self._parts.memories))
            raise HyperparameterError(f"memory must be one of {known}, got {memory!r}")
        made = self._parts.memories[memory]
        own = [name for name, one in signature(made).parameters.items() if one.kind is one.KEYWORD_ONLY]
        if unknown := sorted(set(options) - set(own)):
            has = f"it has {', '.join(own)}" if own else "it has none"
            raise HyperparameterError(f"the memory {memory!r} has no option {', '.join(unknown)}; {has}")
        return self._trunk(body), made(memory_size, body.act, **options)

    def initial_state(self, rows: int) -> dict[str, Any]:
        """Return the state before the first step of an episode: zeros by name, `[rows, ...]`."""
        return zeros_of(self.memory.shapes, rows)

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the features that the heads take, and the state after the last step.

        Args:
            obs: `[rows * T, ...]`, or a dictionary of arrays, ordered by sequence.
            state: The state before the first step of each sequence, `[rows, ...]` by name.
            begins: bool `[rows * T]`, true where a step is the first of its episode; None if no step is.
        """
        features, after = self.memory(self.encoder(obs), state, begins)
        if isinstance(obs, Mapping) and "action_mask" in obs:
            return {"features": features, "action_mask": obs["action_mask"]}, after
        return features, after


def _of_memory(features: Any) -> Any:
    """Return the array in the result of `remember`."""
    return features["features"] if isinstance(features, Mapping) else features


class RecurrentActorCritic(_MemoryNetwork, _Policy):
    """Policy and value over one memory, or over one each.

    Args:
        act_dim: As in `ActorCritic`, like `continuous` and `numbers`.
        memory: "gru", "lstm", or "transformer" for attention to the last steps.
        memory_size: Units of the memory, and of the layer in front of it.
        hidden: Sizes of further layers (tanh) in front of that.
        shared: Whether policy and value share one memory. Otherwise each has its own, with its own layers in front, and
            the state has the value's arrays too: `value_` and their names.
        continuous: Whether the policy is a Gaussian.
        numbers: Number of outputs that are means.
        memory_options: Further arguments of the memory: `reach`, `blocks` and `heads` of the transformer.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        memory: MemoryKind = "gru",
        memory_size: int = 128,
        hidden: Sequence[int] = (),
        *,
        shared: bool = True,
        continuous: bool = False,
        numbers: int | None = None,
        memory_options: Mapping[str, Any] = MappingProxyType({}),
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        body = body or Body(hidden, "tanh", orthogonal=True)
        self._set_memory(memory, memory_size, body, memory_options)
        self.value_encoder: Any = None
        self.value_memory: Any = None
        if not shared:
            self.value_encoder, self.value_memory = self._made_memory(memory, memory_size, body, memory_options)
        self.policy_head = self._orthogonal(act_dim, 0.01)
        self.value_head = self._orthogonal(1, 1.0)
        self._set_std(act_dim, continuous, numbers)

    def value_names(self) -> dict[str, str]:
        """Return the names in the state of the arrays of the value's own memory, by their names there."""
        return {} if self.value_memory is None else {name: f"value_{name}" for name in self.value_memory.shapes}

    def initial_state(self, rows: int) -> dict[str, Any]:
        """Return the state before the first step of an episode: zeros by name, `[rows, ...]`."""
        own = {full: self.value_memory.shapes[name] for name, full in self.value_names().items()}
        return super().initial_state(rows) | zeros_of(own, rows)

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the features that the heads take, and the state after the last step.

        Args:
            obs: `[rows * T, ...]`, or a dictionary of arrays, ordered by sequence.
            state: The state before the first step of each sequence, `[rows, ...]` by name. Without the arrays of the
                value's own memory, the features are for the policy alone.
            begins: bool `[rows * T]`, true where a step is the first of its episode; None if no step is.
        """
        features, after = super().remember(obs, {name: state[name] for name in self.memory.shapes}, begins)
        own = {name: state[full] for name, full in self.value_names().items() if full in state}
        if not own:
            return features, after
        values, last = self.value_memory(self.value_encoder(obs), own, begins)
        parts = features if isinstance(features, Mapping) else {"features": features}
        return {**parts, "values": values}, after | {f"value_{name}": part for name, part in last.items()}

    def policy_and_value(self, features: Any) -> tuple[Any, Any]:
        """Return (result of `policy`, values `[batch, 1]`) for the features that `remember` returns."""
        return self._distributed(self.policy_head(_of_memory(features))), self.value(features)

    def policy(self, features: Any) -> Any:
        """Return logits `[batch, act_dim]`, or (mean `[batch, act_dim]`, deviation `[act_dim]`), or all three."""
        if self.value_memory is None:
            return self.policy_and_value(features)[0]  # with the value's head, so that one pass creates all weights
        return self._distributed(self.policy_head(_of_memory(features)))

    def value(self, features: Any) -> Any:
        """Return the values `[batch, 1]` of the features that `remember` returns."""
        return self.value_head(_of_memory(features) if self.value_memory is None else features["values"])


class RecurrentQNetwork(_MemoryNetwork):
    """Action values over a memory.

    Args:
        act_dim: Number of actions.
        memory: As in `RecurrentActorCritic`, like the other arguments.
        memory_size: Units of the memory, and of the layer in front of it.
        hidden: Sizes of further layers (ReLU) in front of that.
        dueling: Whether value and advantage are separate.
        noisy: As in `QNetwork`; the memory itself has no noise.
        memory_options: Further arguments of the memory.
        body: The hidden layers, with more options than `hidden` and `noisy`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        memory: MemoryKind = "lstm",
        memory_size: int = 128,
        hidden: Sequence[int] = (),
        *,
        dueling: bool = False,
        noisy: float | None = None,
        memory_options: Mapping[str, Any] = MappingProxyType({}),
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        body = body or Body(hidden, noisy=noisy)
        self._set_memory(memory, memory_size, body, memory_options)
        self.head = self._values_of(act_dim, None, body, dueling=dueling)

    def value(self, features: Any) -> Any:
        """Return the action values `[batch, act_dim]` of the features that `remember` returns."""
        return self.head(_of_memory(features))


class PolicyNetwork(_Policy):
    """A policy alone, as `PolicyGradient` needs it.

    Args:
        act_dim: Number of actions, or of action dimensions.
        hidden: Sizes of the hidden layers (tanh).
        continuous: Whether the policy is a Gaussian with one standard deviation per dimension, initially 1.
        nvec: The number of choices of each part of multi-discrete actions.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        continuous: bool = False,
        nvec: Sequence[int] | None = None,
        body: Body | None = None,
    ) -> None:
        super().__init__()
        check_int("act_dim", act_dim)
        self.trunk = self._trunk(body or Body(hidden, "tanh", orthogonal=True))
        self.head = self._orthogonal(act_dim, 0.01)
        self._nvec = tuple(nvec or (act_dim,))
        self._set_std(act_dim, continuous, None)

    def forward(self, obs: Any) -> Any:
        """Return probabilities `[batch, act_dim]`, concatenated over parts; or (mean, standard deviation)."""
        output = self.head(self.trunk(obs))
        if self.log_std is not None:
            return self._distributed(output)
        edges = accumulate(self._nvec, initial=0)
        layers = self._parts.layers
        parts = [layers.softmax(output[:, low:high]) for low, high in pairwise(edges)]
        return parts[0] if len(parts) == 1 else layers.concat(parts, axis=-1)


class NoveltyNetwork(_Network):
    """A random network, one that predicts it, and the value of novelty; they share nothing.

    Args:
        features: Number of outputs of the random network.
        hidden: Sizes of the hidden layers (ReLU) of each.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, features: int = 64, hidden: Sequence[int] = (64, 64), *, body: Body | None = None) -> None:
        super().__init__()
        check_int("features", features)
        self.random_model, self.predictor_model, self.value_model = (
            self._parts.sequential(self._trunk(body or Body(hidden)), self._parts.layers.fc(size))
            for size in (features, features, 1)
        )

    def get_learned_params(self) -> list[Any]:
        """Return the parameters of all but the random network."""
        return [*self.predictor_model.parameters(), *self.value_model.parameters()]

    def random(self, obs: Any) -> Any:
        """Return the features `[batch, features]` of the random network."""
        return self.random_model(obs)

    def predicted(self, obs: Any) -> Any:
        """Return the features `[batch, features]` that are predicted."""
        return self.predictor_model(obs)

    def value(self, obs: Any) -> Any:
        """Return the values of novelty `[batch]`."""
        return self.value_model(obs).squeeze(-1)


class _SeparateActorCritic(_Network):
    """Actor and critics of observation vectors, which share nothing."""

    def __init__(
        self, act_dim: int, body: Body, critics: int, outputs: int, *, values: int = 1, dropout: float | None = None
    ) -> None:
        """Make actor and critics.

        Args:
            act_dim: Number of action dimensions.
            body: Hidden layers of each.
            critics: The number of critics.
            outputs: The number of outputs of the actor.
            values: Outputs of each critic.
            dropout: The dropout of a `CriticTrunk` in each critic; None: critics are like the actor.
        """
        super().__init__()
        self.act_dim = check_int("act_dim", act_dim)
        self.actor_model = self._chain(body, outputs)
        self.critic_encoder = None if body.observed is None else self._parts.space_encoder(body.observed)
        self.critic_model = self._parts.layer_list([self._critic(body, values, dropout) for _ in range(critics)])

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of the actor."""
        return list(self.actor_model.parameters())

    def get_critic_params(self) -> list[Any]:
        """Return the parameters of all critics, and of the encoder that they share."""
        encoder = [] if self.critic_encoder is None else list(self.critic_encoder.parameters())
        return [*encoder, *self.critic_model.parameters()]

    def _chain(self, body: Body, outputs: int, *, encoded: bool = False) -> Any:
        return self._parts.sequential(self._trunk(body, encoded=encoded), self._parts.layers.fc(outputs))

    def _critic(self, body: Body, values: int, dropout: float | None) -> Any:
        if dropout is None:
            return self._chain(body, values, encoded=True)
        trunk = self._parts.critic_trunk(body.hidden, body.act, dropout=check_fraction("dropout", dropout))
        return self._parts.sequential(trunk, self._parts.layers.fc(values))

    def _seen_by_critics(self, obs: Any) -> Any:
        return obs if self.critic_encoder is None else self.critic_encoder(obs)


class _ContinuousActorCritic(_SeparateActorCritic):
    """Separate actor and critics for continuous actions, which are inputs of the critics."""

    def _critics(self, obs: Any, action: Any, count: int) -> list[Any]:
        both = self._parts.layers.concat([self._seen_by_critics(obs), action], axis=-1)
        return [critic(both).squeeze(-1) for critic in list(self.critic_model)[:count]]


class DeterministicActorCritic(_ContinuousActorCritic):
    """One action and one value of observation vectors.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of actor and critic each.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        super().__init__(act_dim, body or Body(hidden), 1, act_dim)

    def policy(self, obs: Any) -> Any:
        """Return actions `[batch, act_dim]` in [-1, 1]."""
        return self.actor_model(obs).tanh()

    def value(self, obs: Any, action: Any) -> Any:
        """Return the values `[batch]`."""
        return self._critics(obs, action, 1)[0]


class TwinActorCritic(_ContinuousActorCritic):
    """One action and the values of two critics.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        super().__init__(act_dim, body or Body(hidden), 2, act_dim)

    def policy(self, obs: Any) -> Any:
        """Return actions `[batch, act_dim]` in [-1, 1]."""
        return self.actor_model(obs).tanh()

    def value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2

    def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that PARL's TD3 asks for
        """Return the values `[batch]` of the first critic."""
        return self._critics(obs, action, 1)[0]


class NormalisedTwinActorCritic(TwinActorCritic):
    """One action and the values of two critics that have layer normalisation.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        _ContinuousActorCritic.__init__(self, act_dim, body or Body(hidden), 2, act_dim, dropout=0.0)


class SquashedActorCritic(_ContinuousActorCritic):
    """A Gaussian, to be squashed by tanh, and the values of two critics.

    The logarithm of its standard deviation is kept in [-20, 2] (Haarnoja's code).

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        super().__init__(act_dim, body or Body(hidden), 2, 2 * act_dim)

    def policy(self, obs: Any) -> tuple[Any, Any]:
        """Return (mean, log std) before the tanh, each `[batch, act_dim]`."""
        output = self.actor_model(obs)
        return output[..., : self.act_dim], output[..., self.act_dim :].clip(-20.0, 2.0)

    def value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2


class BatchNormActorCritic(SquashedActorCritic):
    """A Gaussian, to be squashed by tanh, and the values of two critics, all with batch normalisation.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, of which only sizes and activation are used; it replaces `hidden`.
    """

    def _chain(self, body: Body, outputs: int, *, encoded: bool = False) -> Any:
        observed = None if encoded else body.observed
        encoder = [] if observed is None else [self._parts.space_encoder(observed)]
        trunk = self._parts.batch_norm_mlp(body.hidden, body.act)
        return self._parts.sequential(*encoder, trunk, self._parts.layers.fc(outputs))


class QuantileActorCritic(SquashedActorCritic):
    """A Gaussian, to be squashed by tanh, and quantiles of returns by several critics.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        critics: Number of critics; 5 in Kuznetsov et al. 2020.
        quantiles: The number of quantiles of each critic; 25 in Kuznetsov et al. 2020.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (256, 256),
        *,
        critics: int = 5,
        quantiles: int = 25,
        body: Body | None = None,
    ) -> None:
        count, values = check_int("critics", critics), check_int("quantiles", quantiles)
        _ContinuousActorCritic.__init__(self, act_dim, body or Body(hidden), count, 2 * act_dim, values=values)

    def quantiles(self, obs: Any, action: Any) -> Any:
        """Return the quantiles of all critics, `[batch, critics, quantiles]`."""
        both = self._parts.layers.concat([self._seen_by_critics(obs), action], axis=-1)
        return self._parts.layers.stack([critic(both) for critic in self.critic_model], axis=1)


class EnsembleActorCritic(SquashedActorCritic):
    """A Gaussian, to be squashed by tanh, and the values of many critics.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        critics: Number of critics; 10 in Chen et al. 2021.
        dropout: The share of units that is dropped in training, for critics with layer normalisation; 0.01 in Hiraoka
            et al. 2022. None for plain critics.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(
        self,
        act_dim: int,
        hidden: Sequence[int] = (256, 256),
        *,
        critics: int = 10,
        dropout: float | None = None,
        body: Body | None = None,
    ) -> None:
        count = check_int("critics", critics)
        _ContinuousActorCritic.__init__(self, act_dim, body or Body(hidden), count, 2 * act_dim, dropout=dropout)

    def value(self, obs: Any, action: Any) -> Any:
        """Return the values of all critics, `[batch, critics]`."""
        return self._parts.layers.stack(self._critics(obs, action, len(self.critic_model)), axis=1)


class GaussianActorCritic(SquashedActorCritic):
    """A Gaussian over actions whose mean goes through tanh, and the values of two critics.

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def policy(self, obs: Any) -> tuple[Any, Any]:
        """Return (mean in [-1, 1], log std in [-5, 2]), each `[batch, act_dim]`."""
        output = self.actor_model(obs)
        return output[..., : self.act_dim].tanh(), output[..., self.act_dim :].clip(-5.0, 2.0)


class DiscreteActorCritic(_SeparateActorCritic):
    """Logits of discrete actions, and the values of all of them by two critics.

    Args:
        act_dim: Number of actions.
        hidden: Sizes of the hidden layers (ReLU) of the actor and each critic.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        super().__init__(act_dim, body or Body(hidden), 2, act_dim, values=act_dim)

    def policy(self, obs: Any) -> Any:
        """Return logits `[batch, act_dim]`."""
        return self.actor_model(obs)

    def value(self, obs: Any) -> tuple[Any, Any]:
        """Return the action values of both critics, each `[batch, act_dim]`."""
        features = self._seen_by_critics(obs)
        q1, q2 = (critic(features) for critic in self.critic_model)
        return q1, q2


class ImplicitActorCritic(_ContinuousActorCritic):
    """A Gaussian over actions, the values of two critics, and the value of the state alone; nothing is shared.

    The mean goes through tanh; log std is one number a dimension, kept in [-5, 2], 0 at the start (Kostrikov's code).

    Args:
        act_dim: Number of action dimensions.
        hidden: Sizes of the hidden layers (ReLU) of the actor, each critic and the state's value.
        body: The hidden layers, with more options than `hidden`, which it replaces.
    """

    def __init__(self, act_dim: int, hidden: Sequence[int] = (256, 256), *, body: Body | None = None) -> None:
        super().__init__(act_dim, body or Body(hidden), 2, act_dim)
        self.value_model = self._chain(body or Body(hidden), 1)
        self.log_std = self._parts.layers.create_parameter([act_dim], is_bias=True)

    def get_actor_params(self) -> list[Any]:
        """Return the parameters of the actor."""
        return [*super().get_actor_params(), self.log_std]

    def get_value_params(self) -> list[Any]:
        """Return the parameters of the state's value."""
        return list(self.value_model.parameters())

    def policy(self, obs: Any) -> tuple[Any, Any]:
        """Return (mean `[batch, act_dim]` in [-1, 1], log std `[act_dim]`)."""
        return self.actor_model(obs).tanh(), self.log_std.clip(-5.0, 2.0)

    def value(self, obs: Any) -> Any:
        """Return the values of the state `[batch]`."""
        return self.value_model(obs).squeeze(-1)

    def q_value(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Return the values of both critics, each `[batch]`."""
        q1, q2 = self._critics(obs, action, 2)
        return q1, q2


class TransformerBlock(Layer):
    """A block of GPT-2: attention after normalisation, then two layers after normalisation, each with a shortcut.

    Args:
        hidden: Width of the tokens.
        heads: Number of attention heads.
        dropout: Probability of dropout in training mode.
    """

    _linear: ClassVar[Callable[..., Any]]
    """Class of fully connected layers of known sizes."""
    _norm: ClassVar[Callable[..., Any]]
    _dropout: ClassVar[Callable[..., Any]]
    _gelu: Callable[..., Any]
    """GELU by tanh."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = self._norm(hidden)
        self.query_key_value = self._linear(hidden, 3 * hidden)
        self.project = self._linear(hidden, hidden)
        self.norm2 = self._norm(hidden)
        self.widen = self._linear(hidden, 4 * hidden)
        self.narrow = self._linear(4 * hidden, hidden)
        self.dropout = self._dropout(dropout)

    if TYPE_CHECKING:

        def __call__(self, tokens: Any, bias: Any) -> Any: ...  # type: ignore[override]  # other layers take one input

    def forward(self, tokens: Any, bias: Any) -> Any:
        """Return the block's outputs `[batch * length, hidden]`.

        Args:
            tokens: The inputs, one sequence's after another's: frameworks then multiply one matrix, not one a sequence.
            bias: Added to the scores of attention, `[batch or 1, 1, length, length]`.
        """
        reshape, swap = self._layers.reshape, self._layers.transpose
        length, width = bias.shape[-1], tokens.shape[-1]
        split = reshape(self.query_key_value(self.norm1(tokens)), [-1, length, 3, self.heads, width // self.heads])
        query, key, value = (swap(split[:, :, i], [0, 2, 1, 3]) for i in range(3))
        scores = (query @ swap(key, [0, 1, 3, 2])) / sqrt(width // self.heads)
        attention = self.dropout(self._layers.softmax(scores + bias))
        seen = reshape(swap(attention @ value, [0, 2, 1, 3]), [-1, width])
        tokens = tokens + self.dropout(self.project(seen))
        return tokens + self.dropout(self.narrow(self._gelu(self.widen(self.norm2(tokens)))))


class TrajectoryTransformer(Model):
    """A network that predicts the action of each step from earlier steps, the return-to-go and the observation.

        ... R_t  s_t  a_t  R_t+1  s_t+1  a_t+1 ...      three tokens a step, each with its step's embedding added
                    │                 │
               action a_t        action a_t+1           predicted at the observations' tokens, from all up to them

    Chen et al. 2021 (arXiv:2106.01345), figure 1.

    Args:
        obs_dim: Size of an observation.
        act_dim: Size of an action, whose numbers are in [-1, 1].
        hidden: Width, a multiple of `heads`; default 128 (paper, table 9).
        layers: Number of blocks; default 3.
        heads: Number of attention heads; default 1.
        max_timestep: Length of the longest episode, in steps.
        dropout: Probability of dropout in training mode, 0 to below 1; default 0.1.

    Raises:
        HyperparameterError: An argument is invalid.
    """

    _layers: Any
    _layer_list: ClassVar[Callable[..., Any]]
    _embedding: ClassVar[Callable[..., Any]]
    """Class of tables of known sizes."""
    _block: ClassVar[type[TransformerBlock]]
    """`TransformerBlock` on the framework."""

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        hidden: int = 128,
        layers: int = 3,
        heads: int = 1,
        max_timestep: int = 1000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        for name, value in (("obs_dim", obs_dim), ("act_dim", act_dim), ("layers", layers), ("heads", heads)):
            check_int(name, value)
        if check_int("hidden", hidden) % heads:
            raise HyperparameterError(f"hidden must be a multiple of heads={heads}, got {hidden}")
        linear, norm = self._block._linear, self._block._norm
        self.obs_dim, self.act_dim = obs_dim, act_dim
        self.max_timestep = check_int("max_timestep", max_timestep)
        self.embed_timestep = self._embedding(max_timestep, hidden)
        self.embed_return = linear(1, hidden)
        self.embed_obs = linear(obs_dim, hidden)
        self.embed_action = linear(act_dim, hidden)
        self.norm = norm(hidden)
        self.dropout = self._block._dropout(dropout)
        self.blocks = self._layer_list([self._block(hidden, heads, dropout) for _ in range(layers)])
        self.last_norm = norm(hidden)
        self.head = linear(hidden, act_dim)
        self._start()

    def _start(self) -> None:
        """Backend hook: set the initial weights to those of GPT-2, N(0, 0.02**2), if the framework's differ."""

    def forward(self, obs: Any, action: Any, return_to_go: Any, timestep: Any, mask: Any) -> Any:
        """Return actions `[batch, K, act_dim]` in [-1, 1]; the arguments are those of `parl_core.offline.Window`."""
        reshape = self._layers.reshape
        when = self.embed_timestep(timestep)
        parts = [self.embed_return(return_to_go), self.embed_obs(obs), self.embed_action(action)]
        tokens = self._layers.stack([part + when for part in parts], axis=2)
        steps, hidden = tokens.shape[1], tokens.shape[3]
        tokens = self.dropout(self.norm(reshape(tokens, [-1, hidden])))
        bias = self._bias(mask, when.dtype)
        for block in self.blocks:
            tokens = block(tokens, bias)
        of_obs = self.last_norm(reshape(tokens, [-1, 3, hidden])[:, 1])
        return reshape(self.head(of_obs).tanh(), [-1, steps, self.act_dim])

    def _bias(self, mask: Any, dtype: Any) -> Any:
        """Return the attention bias `[batch, 1, 3 * K, 3 * K]`: -32768 for later tokens and padding, 0 elsewhere.

        A padded token may attend to itself, because attention to no tokens is NaN.
        """
        there = self._layers.cast(mask, "float32").repeat_interleave(3, 1)
        place = (there[:1] * 0.0 + 1.0).cumsum(1)
        visible = (place.unsqueeze(1) <= place.unsqueeze(2)) & self._layers.cast(there.unsqueeze(1), "bool")
        visible = visible | (place.unsqueeze(1) == place.unsqueeze(2))
        # float16 can represent -32768 but not -1e9; exp of either is 0.
        return (self._layers.cast(visible, dtype) * 32768.0 - 32768.0).unsqueeze(1)

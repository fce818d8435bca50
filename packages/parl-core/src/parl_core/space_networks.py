"""Networks from spaces: the model that an algorithm needs for an environment's observations and actions.

    observation space ── parts_of ──> SpaceEncoder ─┐
    action space ─────── kind_of ───> heads ────────┴─ Body ──> a model of `parl_core.networks`

Vectors need no encoder: for them the model equals one made by hand, with the same names and initial weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any, Literal, get_args

import gymnasium

from parl_core import backends
from parl_core._encoders import Channels, parts_of
from parl_core.contracts.actions import ActionKind
from parl_core.errors import HyperparameterError
from parl_core.networks import Body
from parl_core.recurrent import MemoryKind
from parl_core.spaces import action_size, dimensions_of, kind_of, require_one_agent

__all__ = ["Kind", "for_spaces"]

Kind = Literal[
    "actor-critic",
    "policy",
    "q",
    "quantile",
    "categorical",
    "discrete-twin",
    "deterministic",
    "twin",
    "normalised-twin",
    "squashed",
    "gaussian",
    "quantile-critics",
    "ensemble",
    "batch-normalised",
    "implicit",
]
"""The algorithms and action spaces of each kind of network:

    kind             algorithms              action spaces
    actor-critic     PPO, A2C, A3C, IMPALA   all (IMPALA: Discrete, or numbers alone)
    policy           PolicyGradient          all but those with choices and numbers at once
    q                DQN, DDQN, OfflineQ     Discrete
    quantile         QRDQN                   Discrete
    categorical      C51, Rainbow            Discrete
    discrete-twin    DiscreteSAC             Discrete
    deterministic    DDPG                    Box, or a Dict or Tuple of Boxes, like the others below
    twin             TD3, TD3BC
    normalised-twin  ReBRAC
    squashed         SAC, OAC, CQL
    gaussian         AWAC
    quantile-critics TQC
    ensemble         REDQ, DroQ
    batch-normalised CrossQ
    implicit         IQL
"""

_CONTINUOUS = {
    "deterministic": "DeterministicActorCritic",
    "twin": "TwinActorCritic",
    "squashed": "SquashedActorCritic",
    "normalised-twin": "NormalisedTwinActorCritic",
    "gaussian": "GaussianActorCritic",
    "quantile-critics": "QuantileActorCritic",
    "ensemble": "EnsembleActorCritic",
    "batch-normalised": "BatchNormActorCritic",
    "implicit": "ImplicitActorCritic",
}
KINDS_OF_OPTIONS: Mapping[str, tuple[Kind, ...]] = MappingProxyType(
    {
        "shared": ("actor-critic",),
        "dueling": ("q", "categorical"),
        "quantiles": ("quantile", "quantile-critics"),
        "critics": ("quantile-critics", "ensemble"),
        "dropout": ("ensemble",),
        "atoms": ("categorical",),
        "noisy": ("q", "quantile", "categorical"),
        "memory": ("actor-critic", "q"),
        "normalisation": tuple(kind for kind in get_args(Kind) if kind != "batch-normalised"),
        "blocks": tuple(kind for kind in get_args(Kind) if kind not in ("normalised-twin", "batch-normalised")),
    }
)
"""Options of `for_spaces` that only some kinds have."""

_ATOMS = 51
_ON_POLICY = ("actor-critic", "policy")
_VALUES = ("q", "quantile", "categorical")
_CHOOSING = (*_VALUES, "discrete-twin")


def for_spaces(
    observation_space: Any,
    action_space: Any,
    kind: Kind = "actor-critic",
    *,
    hidden: Sequence[int] | None = None,
    activation: str | None = None,
    normalisation: Literal["layer"] | None = None,
    blocks: Literal["mlp", "simba"] = "mlp",
    shared: bool | None = None,
    dueling: bool = False,
    quantiles: int | None = None,
    critics: int | None = None,
    dropout: float | None = None,
    atoms: int = _ATOMS,
    noisy: float | None = None,
    memory: MemoryKind | None = None,
    memory_size: int = 128,
    memory_options: Mapping[str, Any] = MappingProxyType({}),
    channels: Channels = "auto",
    networks: ModuleType | None = None,
) -> Any:
    """Return a model for an environment's spaces.

        model = parl.networks.for_spaces(env.observation_space, env.action_space, "actor-critic")
        agent = parl.Agent(parl.algorithms.PPO(model))

    The model has the kind of its actions and the dimensions of its observations as attributes (`action_kind`,
    `obs_ndim`), so the algorithm's `nvec` and `continuous_action` and the agent's `obs_ndim` can be omitted.

    Args:
        observation_space: Any nesting of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple. The entry
            `action_mask` of a Dict is the mask of actions where these are choices, and no feature.
        action_space: A space that the table of kinds lists for the kind; MultiBinary counts as choices of two.
        kind: The kind that the algorithm needs.
        hidden: Sizes of the hidden layers; default (64, 64) for actor-critics and policies, (128, 128) for action
            values, (256, 256) for the others; none for actor-critics and action values that observe only one image or
            have a memory.
        activation: Function behind each hidden layer; default tanh for actor-critics and policies, else relu.
        normalisation: "layer" for layer normalisation before each activation; not for the kind "batch-normalised".
        blocks: "simba" for residual blocks, as many as `hidden` has sizes, which are equal; not for the kinds
            "normalised-twin" and "batch-normalised", nor with `dropout`, whose critics have layers of their own.
        shared: One trunk for policy and value of an actor-critic; default: where there are images, and with a memory.
            With a memory and `shared=False`, each has its own memory.
        dueling: Whether value and advantage are separate, for the kinds "q" and "categorical".
        quantiles: The number of quantiles for the kind "quantile" (default 200), and for each critic of
            "quantile-critics" (25).
        critics: The number of critics for the kinds "quantile-critics" (default 5) and "ensemble" (10).
        dropout: The share of units that critics of the kind "ensemble" drop in training; they then have layer
            normalisation, as in DroQ (0.01). None for plain critics.
        atoms: The number of atoms for the kind "categorical".
        noisy: The sigma of noise, for "q", "quantile" and "categorical", on the weights of the hidden layers and the
            head, by which they explore without epsilon; 0.5 in Fortunato et al. 2018. Encoders, memories and SimBa's
            blocks have no noise.
        memory: The layer with a memory of earlier steps, for "actor-critic" and "q": "gru", "lstm", or "transformer"
            for attention to the last steps. It is behind the encoder and the `hidden` layers (by default there are
            none), and in front of the heads. `parl_core.recurrent` describes the inputs and outputs of such a model.
        memory_size: Units of the memory, and of the layer in front of it.
        memory_options: Further arguments of the memory: `reach` (steps that it attends to, 16), `blocks` (1) and
            `heads` (2) of the transformer.
        channels: The axis of an image's channels; by default it follows from the shape.
        networks: The backend's networks; default those of the current backend.

    Raises:
        HyperparameterError: A space has a part for which there is no network, the kind does not support the action
            space, a mask and the actions differ in size, or an option is unknown or has no effect.
    """
    networks = networks or backends.current().networks
    if kind not in (*_ON_POLICY, *_CHOOSING, *_CONTINUOUS):
        known = ", ".join(map(repr, (*_ON_POLICY, *_CHOOSING, *_CONTINUOUS)))
        raise HyperparameterError(f"kind must be one of {known}, got {kind!r}")
    for name, given, allowed in (
        ("normalisation", normalisation, (None, "layer")),
        ("blocks", blocks, ("mlp", "simba")),
        ("channels", channels, ("auto", "first", "last")),
        ("memory", memory, (None, *get_args(MemoryKind))),
    ):
        if given not in allowed:
            raise HyperparameterError(f"{name} must be one of {allowed}, got {given!r}")
    options = {"quantiles": quantiles, "critics": critics, "dropout": dropout}
    options = {name: value for name, value in options.items() if value is not None}
    of_some: dict[str, Any] = {
        **options,
        "shared": shared,
        "dueling": dueling or None,
        "noisy": noisy,
        "memory": memory,
    }
    of_some |= {"normalisation": normalisation, "blocks": None if blocks == "mlp" else blocks}
    of_some["atoms"] = None if atoms == _ATOMS else atoms
    for name, value in of_some.items():
        if value is not None and kind not in (kinds := KINDS_OF_OPTIONS[name]):
            raise HyperparameterError(
                f"{name}={value!r} is for networks of the kind {' or '.join(map(repr, kinds))}, got {kind!r}"
            )
    if dropout is not None and blocks != "mlp":
        raise HyperparameterError(f"critics with dropout={dropout} have plain layers: leave out blocks={blocks!r}")
    require_one_agent(f"a network of the kind {kind!r}", observation_space)
    action_kind = _checked_kind(kind, action_space)
    numbers, choices = action_size(action_space) if action_kind.continuous else 0, _choices(action_kind, action_space)
    masked = bool(choices) and _has_mask(observation_space, choices)
    parts = parts_of(observation_space, channels, masked=masked)
    images = [part for part in parts if part.image is not None]
    if channels != "auto" and not any(part.image is not None and part.image.channels for part in parts):
        raise HyperparameterError(
            f"channels={channels!r} has no effect without images that have channels, and the observations are "
            f"{observation_space}: leave it out"
        )
    body = _default_body(kind, without_layers=len(images) == len(parts) or memory is not None)
    changes: dict[str, Any] = {
        "hidden": hidden,
        "act": activation,
        "normalised": normalisation == "layer",
        "simba": blocks == "simba",
        "noisy": noisy,
        "observed": None if _is_vector(observation_space) else parts,
    }
    body = replace(body, **{name: value for name, value in changes.items() if value is not None})
    if kind in _CONTINUOUS:
        model = getattr(networks, _CONTINUOUS[kind])(numbers, **options, body=body)
    elif memory is not None and kind == "q":
        model = networks.RecurrentQNetwork(
            choices, memory, memory_size, dueling=dueling, memory_options=memory_options, body=body
        )
    elif memory is not None:
        model = networks.RecurrentActorCritic(
            choices + numbers,
            memory,
            memory_size,
            shared=shared is not False,
            numbers=numbers,
            memory_options=memory_options,
            body=body,
        )
    elif kind == "actor-critic":
        cls = networks.SharedActorCritic if (bool(images) if shared is None else shared) else networks.ActorCritic
        model = cls(choices + numbers, numbers=numbers, body=body)
    elif kind == "policy":
        model = networks.PolicyNetwork(
            choices + numbers, continuous=action_kind.continuous, nvec=action_kind.nvec, body=body
        )
    elif kind == "quantile":
        model = networks.QuantileNetwork(choices, **options, body=body)
    elif kind == "discrete-twin":
        model = networks.DiscreteActorCritic(choices, body=body)
    elif kind == "categorical":
        model = networks.CategoricalNetwork(choices, atoms, dueling=dueling, body=body)
    else:
        model = networks.QNetwork(choices, dueling=dueling, body=body)
    model.action_kind, model.obs_ndim = action_kind, dimensions_of(observation_space)
    return model


def _default_body(kind: str, *, without_layers: bool) -> Body:
    if kind in _ON_POLICY:
        return Body(() if without_layers else (64, 64), "tanh", orthogonal=True)
    if kind in _VALUES:
        return Body(() if without_layers else (128, 128))
    return Body((256, 256))


def _is_vector(space: Any) -> bool:
    """Return whether observations are vectors of floats, which need no encoder."""
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f"


def _checked_kind(kind: str, space: Any) -> ActionKind:
    """Return the kind of actions.

    Raises:
        HyperparameterError: Networks of this kind do not act so.
    """
    found = kind_of(space)
    if kind in _CONTINUOUS and found != ActionKind(continuous=True):
        raise HyperparameterError(
            f"networks of the kind {kind!r} choose numbers, in a Box or a Dict of Boxes, got {space}: use the kind "
            "'q' (DQN) in Discrete spaces, and 'actor-critic' (PPO, A2C) in any"
        )
    if kind in _CHOOSING and found != ActionKind():
        raise HyperparameterError(
            f"networks of the kind {kind!r} choose in a Discrete space, got {space}: use the kind 'squashed' (SAC) "
            "in Boxes, and 'actor-critic' (PPO, A2C) in any space"
        )
    if kind == "policy" and found.continuous and found.nvec is not None:
        raise HyperparameterError(f"PolicyGradient has no choices and numbers at once, got {space}: use PPO or A2C")
    return found


def _choices(kind: ActionKind, space: Any) -> int:
    if kind.nvec is not None:
        return sum(kind.nvec)
    return 0 if kind.continuous else int(space.n)


def _has_mask(space: Any, choices: int) -> bool:
    """Return whether observations contain a mask of actions.

    Raises:
        HyperparameterError: It has another size than the actions.
    """
    if not isinstance(space, gymnasium.spaces.Dict) or "action_mask" not in space.spaces:
        return False
    shape = space["action_mask"].shape
    if shape != (choices,):
        raise HyperparameterError(
            f"action_mask must have {choices} entries, one for each choice of all parts, got {space['action_mask']}"
        )
    return True

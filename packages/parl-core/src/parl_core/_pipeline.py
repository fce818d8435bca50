"""The path from an observation to an action of an environment, through a trained agent's model.

`parl_core.export` compares exported files with it, and the backends make their own files from `PolicyProgram`.
`describe` returns its description for a file of `parl_core.policy`: spaces, weights, and the network as a tree of
layers. The layers are found in the model, which is one of `parl_core.networks` or `parl_core.team_networks` on either
backend; their weights have PyTorch's names and layouts. Layers of a user's own classes have no numpy form and raise an
error with their names.

The policies of several agents are one path from a joint observation (`parl_core.env.joint`) to a joint action; no agent
sees what others see.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import _encoders, layers, networks, recurrent, team_networks
from parl_core._encoders import SpacePart, parts_of
from parl_core._nested import map_nested
from parl_core.contracts.a2c import A2C
from parl_core.contracts.actions import ActionKind, unit_line
from parl_core.contracts.coma import COMA
from parl_core.contracts.continuous import ContinuousActorCritic
from parl_core.contracts.discrete_sac import DiscreteSAC
from parl_core.contracts.distributional_dqn import C51
from parl_core.contracts.dqn import DQN
from parl_core.contracts.imitation import BC
from parl_core.contracts.impala import IMPALA
from parl_core.contracts.offline import IQL
from parl_core.contracts.policy_gradient import PolicyGradient
from parl_core.contracts.ppo import PPO
from parl_core.contracts.qmix import Team
from parl_core.errors import ModelContractError
from parl_core.spaces import kind_of

__all__ = [
    "Normalization",
    "Pipeline",
    "PolicyProgram",
    "action_leaves",
    "box",
    "describe",
    "observation_leaves",
    "scores",
    "state_names",
]


@dataclass(frozen=True)
class Normalization:
    """The normalisation of observations in training.

    Attributes:
        mean: The mean of observations, `[*obs]`.
        var: The variance of observations, `[*obs]`.
        clip: The bound of normalised observations, which are clipped to [-clip, clip].
        epsilon: The number added to the variance.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    clip: float = 10.0
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Pipeline:
    """The path from an observation to an action of an environment.

    Attributes:
        algorithm: The algorithm that chooses actions.
        observation: The environment's space.
        action: The environment's action space.
        is_flat: True if the model's observations are the results of `gymnasium.spaces.flatten`.
        normalization: The normalisation of the model's inputs; None for none.

    Raises:
        ModelContractError: A file cannot name the parts of observations or actions.
    """

    algorithm: Any
    observation: Any
    action: Any
    is_flat: bool = False
    normalization: Normalization | None = None

    def __post_init__(self) -> None:
        for space, found in ((self.observation, observation_leaves), (self.action, action_leaves)):
            seen: set[str] = set()
            for name, _ in found(space):
                if name in seen:
                    raise ModelContractError(
                        f"two parts of the space {space} have the name {name} in an exported policy: rename a key"
                    )
                seen.add(name)

    @property
    def is_team(self) -> bool:
        """Return whether observations and actions are the joint ones of several agents."""
        return self.algorithm.TEAM is not None

    @property
    def inputs(self) -> Any:
        """Return the space of what the policy takes: observations, of a team's network only what its agents see."""
        model = self.algorithm.model
        if not isinstance(model.agents if isinstance(model, Team) else model, team_networks._TeamNetwork):
            return self.observation
        seen = [name for name in ("obs", "action_mask") if name in self.observation.spaces]
        return gymnasium.spaces.Dict({name: self.observation[name] for name in seen})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of choices of each part of an action; of each agent of a team, the largest of all."""
        if isinstance(self.action, gymnasium.spaces.Discrete):
            return (int(self.action.n),)
        found = kind_of(self.action).nvec or ()
        return (max(found),) * len(found) if found and self.is_team else found

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return the policy's state of one environment before its first step, `[1, ...]`; empty without a memory."""
        model = self.algorithm.model
        found: Mapping[str, NDArray[Any]] = model.initial_state(1) if self.algorithm.remembers else {}
        if not isinstance(model, (networks.RecurrentActorCritic, team_networks.RecurrentCentralActorCritic)):
            return found
        of_value = model.value_names().values()
        return {name: part for name, part in found.items() if name not in of_value}

    @property
    def has_mask(self) -> bool:
        """Return whether observations contain a mask of actions."""
        return (
            bool(self.sizes)
            and isinstance(self.observation, gymnasium.spaces.Dict)
            and "action_mask" in self.observation.spaces
        )

    @property
    def acts_in_unit_box(self) -> bool:
        """Return whether actions lie in [-1, 1] and are mapped to the bounds of a box."""
        return bool(getattr(self.algorithm, "ACTS_IN_UNIT_BOX", False))

    def flat_parts(self) -> tuple[SpacePart, ...]:
        """Return the arrays of observations in the order of flattening, without images."""
        return tuple(SpacePart(part.path, None, part.choices, part.numbers) for part in parts_of(self.observation))


def scores(algorithm: Any, observations: Any, concat: Any) -> Any:
    """Return the outputs by which an algorithm chooses actions, `[n, columns]`: scores of choices, then numbers.

    Of several agents they are `[n, agents, columns]`.

    Args:
        algorithm: The algorithm, of either backend.
        observations: Tensors for the model.
        concat: The function that joins tensors along their last axis.

    Raises:
        ModelContractError: The algorithm chooses actions in another way.
    """
    match algorithm:
        case DiscreteSAC():
            return algorithm.model.policy(observations)
        case DQN() | ContinuousActorCritic() | IQL():
            return algorithm.predict(observations)
        case PolicyGradient():
            output = algorithm.predict(observations)
            return output[0] if algorithm.actions.continuous else output
        case PPO() | A2C() | IMPALA() | BC() | COMA():
            model = algorithm.model
            alone = model.implements("policy")
            output = model.policy(observations) if alone else model.policy_and_value(observations)[0]
            kind = getattr(algorithm, "actions", ActionKind())
            if not kind.continuous:
                return output
            numbers = output[-2].clip(-1.0, 1.0) if isinstance(algorithm, BC) else output[-2]
            return numbers if kind.nvec is None else concat([output[0], numbers])
    raise ModelContractError(f"{type(algorithm).__name__} cannot be exported, because its choice of actions is unknown")


class PolicyProgram:
    """The steps of an agent's policy from the parts of an observation to those of an action, as a program of a backend.

        parts of an observation ──► mask, inputs ──► memory ──► scores ──► parts of an action

    The backend defines and records the arithmetic of each step.
    """

    model: Any

    _pipeline: Pipeline
    _algorithm: Any
    _names: list[str]

    def _take(self, pipeline: Pipeline, model: Any) -> None:
        """Copy the settings and the model of a pipeline."""
        self._pipeline, self._algorithm = pipeline, copy.copy(pipeline.algorithm)
        self.model = self._algorithm.model = model
        self._names = [name for name, _ in observation_leaves(pipeline.inputs)]
        found = pipeline.normalization
        if found is not None:
            self._hold("mean", found.mean)
            self._hold("deviation", np.sqrt(found.var + found.epsilon))
        for i, (_, space) in enumerate(action_leaves(pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                for name, array in box(space, pipeline.acts_in_unit_box).items():
                    self._hold(f"{name}_{i}", array)

    def _run(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Return the parts of the action, scores, and the parts of the state."""
        observations, state = given[: len(self._names)], given[len(self._names) :]
        mask, inputs = self._inputs(observations)
        after: Mapping[str, Any] = {}
        if state:
            inputs, after = self.model.remember(inputs, dict(zip(self._pipeline.state, state, strict=True)))
        columns = self._of_agents(scores(self._algorithm, inputs, self._joined))
        return (*self._actions(columns, mask), columns, *(after[name] for name in self._pipeline.state))

    def _inputs(self, observations: Sequence[Any]) -> tuple[Any, Any]:
        """Return the mask of actions, or None, and the inputs of the model."""
        leaves = dict(zip(self._names, observations, strict=True))
        mask = self._of_agents(leaves["observation.action_mask"]) if self._pipeline.has_mask else None
        is_flat = self._pipeline.is_flat
        inputs = self._flat(leaves) if is_flat else _nested(self._pipeline.inputs, iter(observations))
        found = self._pipeline.normalization
        if found is not None:
            inputs = self._normalized(inputs, found.clip)
        return mask, map_nested(self._of_weights, inputs)

    def _of_agents(self, values: Any) -> Any:
        """Return the values of all agents of a team side by side, `[n, columns]`; those of one agent unchanged."""
        return values.flatten(1) if self._pipeline.is_team else values

    def _flat(self, leaves: Mapping[str, Any]) -> Any:
        features: list[Any] = []
        for part in self._pipeline.flat_parts():
            columns = leaves[".".join(("observation", *part.path))].reshape([-1, len(part.choices) or part.numbers])
            if part.choices:
                features += [self._one_hot(columns[:, i] - start, size) for i, (size, start) in enumerate(part.choices)]
            else:
                features.append(self._as_features(columns))
        return self._joined(features)

    def _actions(self, columns: Any, mask: Any) -> Iterator[Any]:
        sizes, edge = iter(self._pipeline.sizes), 0
        number = sum(self._pipeline.sizes)
        for i, (_, space) in enumerate(action_leaves(self._pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                count = int(np.prod(space.shape))
                numbers = columns[:, number : number + count].reshape([-1, *space.shape])
                number += count
                yield self._mapped(numbers, i, space.dtype)
                continue
            count = 1 if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape))
            chosen = []
            for _ in range(count):
                span = slice(edge, edge + next(sizes))
                chosen.append(self._best(columns[:, span], None if mask is None else mask[:, span]))
                edge = span.stop
            start = np.asarray(getattr(space, "start", 0), np.int64)
            yield self._choices(chosen, [-1, *space.shape], start)

    # Backend hooks

    def _hold(self, name: str, array: NDArray[Any]) -> None:
        """Store a constant as an attribute of that name."""
        raise NotImplementedError

    def _normalized(self, inputs: Any, clip: float) -> Any:
        """Return (inputs - `mean`) / `deviation` in [-clip, clip], float32 of a calculation in float64."""
        raise NotImplementedError

    def _of_weights(self, values: Any) -> Any:
        """Return floats in the dtype of the weights, as agents pass them to models, and other values unchanged."""
        raise NotImplementedError

    def _as_features(self, values: Any) -> Any:
        """Return numbers of any kind in the dtype of the weights."""
        raise NotImplementedError

    def _one_hot(self, values: Any, size: int) -> Any:
        """Return whole numbers `[n]` in 0 ... size - 1 as features `[n, size]`."""
        raise NotImplementedError

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Join tensors along their last axis."""
        raise NotImplementedError

    def _mapped(self, numbers: Any, i: int, dtype: Any) -> Any:
        """Return numbers * `scale_i` + `shift_i` within `low_i` and `high_i`, calculated in float64, of that dtype."""
        raise NotImplementedError

    def _best(self, scores: Any, mask: Any) -> Any:
        """Return the choice with the largest score in each row, among those that a mask allows."""
        raise NotImplementedError

    def _choices(self, chosen: Sequence[Any], shape: Sequence[int], start: NDArray[np.int64]) -> Any:
        """Return choices, each `[n]`, as one tensor of that shape, counted from `start`."""
        raise NotImplementedError


def _parts(space: Any) -> Sequence[tuple[Any, Any]] | None:
    """Return key and space of each part of a dictionary or tuple; None for any other space.

    Raises:
        ModelContractError: A key of a dictionary is not a text.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        if not all(isinstance(key, str) for key in space.spaces):
            raise ModelContractError(f"the keys in an exported policy are texts, and not all in {space} are: use texts")
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, gymnasium.spaces.Tuple) else None


def _nested(space: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _nested(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): _nested(part, leaves) for i, part in enumerate(space.spaces)}
    return next(leaves)


def observation_leaves(space: Any, name: str = "observation") -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield the name of every array of a space, with a function that extracts it from observations in its dtype."""
    parts = _parts(space)
    if parts is None:
        yield name, lambda observation: np.asarray(observation, space.dtype)
        return
    for key, part in parts:
        for inner, leaf in observation_leaves(part, f"{name}.{key}"):
            yield inner, partial(_found_in, key, leaf)


def state_names(pipeline: Pipeline, name: str = "state") -> list[str]:
    """Return the names of the parts of the state of a policy with a memory."""
    return [f"{name}.{part}" for part in pipeline.state]


def _found_in(key: Any, leaf: Callable[[Any], Any], observation: Any) -> Any:
    return leaf(observation[key])


def action_leaves(space: Any, name: str = "action") -> Iterator[tuple[str, Any]]:
    """Yield name and space of every part of an action, in order."""
    parts = _parts(space)
    if parts is None:
        yield name, space
        return
    for key, part in parts:
        yield from action_leaves(part, f"{name}.{key}")


def box(space: Any, in_unit_box: bool) -> Mapping[str, NDArray[np.float64]]:
    """Return `low`, `high`, `scale` and `shift` of a Box: actions are numbers * scale + shift within low and high."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    scale, shift = unit_line(low, high) if in_unit_box else (np.ones(space.shape), np.zeros(space.shape))
    return {"low": low, "high": high, "scale": scale, "shift": shift}


Node = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


def describe(pipeline: Pipeline) -> tuple[Node, Arrays]:
    """Return the description and the arrays of a file.

    Raises:
        ModelContractError: The model or one of its layers has no numpy form, or the algorithm's choice of actions is
            unknown.
    """
    tree = _Tree(pipeline)
    network = tree.network()
    memory = tree.memory() if pipeline.state else None
    if isinstance(pipeline.algorithm, BC) and not pipeline.sizes:
        network = _chain(network, {"kind": "clip", "low": -1.0, "high": 1.0})
    if isinstance(pipeline.algorithm, C51):
        low, high = pipeline.algorithm.v_min, pipeline.algorithm.v_max
        network = _chain(network, {"kind": "expectation", "groups": tree.atoms, "low": low, "high": high})
    steps: list[Node] = []
    dtype = str(tree.dtype)
    if pipeline.is_flat:
        steps.append({"kind": "encoder", "parts": [_part(part) for part in pipeline.flat_parts()]})
    if pipeline.normalization is not None:
        found = pipeline.normalization
        tree.arrays |= {"normalization.mean": found.mean, "normalization.var": found.var}
        names = {"mean": "normalization.mean", "var": "normalization.var"}
        steps.append({"kind": "normalized", **names, "clip": found.clip, "epsilon": found.epsilon})
    if not tree.encodes:
        steps.append({"kind": "cast", "dtype": dtype})
    remembering: Node = {}
    if memory is not None:
        remembering = {"memory": {**memory, "front": _chain(*steps, memory["front"])}}
        steps = []
    description = {
        "algorithm": type(pipeline.algorithm).__name__,
        **remembering,
        "observation": _observation(pipeline.inputs),
        "mask": pipeline.has_mask,
        "network": _chain(*steps, network),
        "sizes": list(pipeline.sizes),
        "action": _Actions(tree.arrays, pipeline.acts_in_unit_box).of(pipeline.action, "action"),
    }
    return description, tree.arrays


def _chain(*steps: Node) -> Node:
    return steps[0] if len(steps) == 1 else {"kind": "chain", "layers": list(steps)}


def _groups(layer: Any) -> Node:
    """Return the agents of each layer of a `PerAgent`, and whether those that share one get their numbers."""
    return {"agents": layer._agents, "groups": [list(group) for group in layer._groups], "numbered": layer._ids}


class _Tree:
    """The layers by which a model chooses actions, as nodes of a description, and their weights.

    Attributes:
        arrays: Weights by the names in the nodes.
        encodes: True if observations go into an encoder, which takes arrays of any dtype.
        atoms: The number of fixed values of a distribution; 0 without a distribution.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._model = pipeline, pipeline.algorithm.model
        self._policy = self._model.agents if isinstance(self._model, Team) else self._model
        self._names = {id(layer): name for name, layer in self._model._all_layers().items()}
        self._tensors = self._model._named_tensors()
        self.arrays: Arrays = {}
        self.encodes = False
        self.atoms = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights."""
        return next(iter(self.arrays.values())).dtype

    def network(self) -> Node:
        """Return the node that computes the result of `scores`, or logits instead of probabilities.

        Raises:
            ModelContractError: The model or one of its layers has no numpy form.
        """
        model = self._policy
        methods = ("policy", "value", "quantiles", "atoms", "policy_and_value", "forward", "_distributed", "_seen")
        own = {method: getattr(getattr(type(model), method, None), "__module__", "") for method in methods}
        changed = [
            name for name, module in own.items() if module and not module.startswith(("parl_core.", *_FRAMEWORKS))
        ]
        match model:
            case _ if changed:
                pass
            case networks.RecurrentQNetwork() | networks.RecurrentActorCritic():
                return self._layer(model.head if isinstance(model, networks.RecurrentQNetwork) else model.policy_head)
            case networks.QNetwork() | networks.SharedActorCritic():
                head = model.head if isinstance(model, networks.QNetwork) else model.policy_head
                return _chain(self._layer(model.trunk), self._layer(head))
            case networks.QuantileNetwork():
                groups = {"kind": "mean", "groups": model._shape[1]}
                return _chain(self._layer(model.trunk), self._layer(model.head), groups)
            case networks.CategoricalNetwork():
                self.atoms = model._shape[1]
                return _chain(self._layer(model.trunk), self._layer(model.head))
            case networks.ActorCritic():
                return _chain(self._layer(model.policy_trunk), self._layer(model.policy_head))
            case networks.PolicyNetwork():
                return _chain(self._layer(model.trunk), self._layer(model.head))
            case networks.DiscreteActorCritic():
                return self._layer(model.actor_model)
            case networks.SquashedActorCritic():
                mean = {"kind": "columns", "stop": model.act_dim}
                return _chain(self._layer(model.actor_model), mean, _TANH)
            case networks.DeterministicActorCritic() | networks.TwinActorCritic() | networks.ImplicitActorCritic():
                return _chain(self._layer(model.actor_model), _TANH)
            case team_networks.RecurrentTeamQNetwork():
                return self._layer(model.values)
            case team_networks.RecurrentCentralActorCritic():
                return self._layer(model.policy_head)
            case team_networks.RecurrentCounterfactualActorCritic():
                return self._layer(model.actor)
            case team_networks.TeamQNetwork():
                return _chain(*self._seen_by_agents(model), self._layer(model.values))
            case team_networks.CentralActorCritic():
                layers_of_policy = self._layer(model.policy_trunk), self._layer(model.policy_head)
                return _chain(*self._seen_by_agents(model), *layers_of_policy)
            case team_networks.CounterfactualActorCritic():
                return _chain(*self._seen_by_agents(model), self._layer(model.actor))
            case team_networks.TeamActorCritic():
                squashed = [_TANH] if model._continuous else []
                return _chain(*self._seen_by_agents(model), self._layer(model.actor), *squashed)
        raise ModelContractError(
            f"{type(model).__name__} has no numpy form; only models of parl.networks (including those of for_spaces "
            "and for_team) with unchanged methods have one: export others by --to onnx, torch-export or "
            "paddle-inference"
        )

    def memory(self) -> Node:
        """Return the node of the memory; `front` has the layers before it.

        Raises:
            ModelContractError: A layer has no numpy form.
        """
        if self._pipeline.is_team:
            return self._memories()
        return self._memory(self._policy.memory, self._layer(self._policy.encoder))

    def _memories(self) -> Node:
        """Return the node of the memories of a team's agents."""
        model = self._policy
        is_central = isinstance(model, team_networks.RecurrentCentralActorCritic)
        layer = model.policy_trunk if is_central else model.memory
        state = {name: list(part.shape[1:]) for name, part in self._pipeline.state.items()}
        parts = [self._memory(part) for part in layer.parts.children()]
        front = _chain(*self._seen_by_agents(model))
        return {**_groups(layer), "kind": "agents", "state": state, "front": front, "parts": parts}

    def _memory(self, layer: Any, *before: Node) -> Node:
        """Return the node of a layer with a memory, behind other layers."""
        state = {name: list(shape) for name, shape in layer.shapes.items()}
        node = {"state": state, "front": _chain(*before, self._layer(layer.embedding))}
        match layer:
            case recurrent.GRU() | recurrent.LSTM():
                kind = "gru" if isinstance(layer, recurrent.GRU) else "lstm"
                cell = self._names[id(layer.cell)]
                names = [f"{cell}.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
                for name in names:
                    self.arrays[name] = self._model._array_of(self._tensors[name])
                return {**node, "kind": kind, "weights": names}
            case recurrent.CausalTransformer():
                blocks = [self._attention(block) for block in layer.blocks.children()]
                return {**node, "kind": "transformer", "blocks": blocks, "norm": self._layer(layer.norm)}
        raise ModelContractError(f"{type(self._model).__name__}.memory is {layer}, which has no numpy form")

    def _seen_by_agents(self, model: Any) -> list[Node]:
        """Return the nodes that make one row of all agents' features of a joint observation."""
        self.encodes = True
        space = self._pipeline.inputs["obs"]
        size = int(np.prod(space.shape))
        nodes: list[Node] = [{"kind": "encoder", "parts": [{"path": ["obs"], "numbers": size}]}]
        if model._obs_scale is not None:
            agents = space.shape[0]
            low, span = (np.broadcast_to(part, (1, agents, size // agents)).reshape(-1) for part in model._obs_scale)
            self.arrays["obs.weight"] = (1.0 / span).astype(np.float32)
            self.arrays["obs.bias"] = (-low / span).astype(np.float32)
            nodes.append({"kind": "affine", "weight": "obs.weight", "bias": "obs.bias", "act": None})
        return nodes

    def _attention(self, layer: Any) -> Node:
        parts = ("norm", "query", "key", "value", "project", "wide_norm", "wide", "narrow")
        key = f"{self._names[id(layer)]}.nearness"
        self.arrays[key] = self._model._array_of(self._tensors[key])
        layers = {name: self._layer(getattr(layer, name)) for name in parts}
        return {**layers, "heads": layer._heads, "nearness": key}

    def _layer(self, layer: Any) -> Node:
        """Return the node of a layer.

        Raises:
            ModelContractError: It has no numpy form.
        """
        is_known = type(layer).__module__.startswith(_FRAMEWORKS)
        match layer:
            case networks.SimBa() if is_known:
                blocks = [{"kind": "residual", "layer": self._layer(block)} for block in layer.blocks.children()]
                return _chain(self._layer(layer.embedding), *blocks, self._layer(layer.norm))
            case networks.DuelingHead() if is_known:
                value, advantage = self._layer(layer.state_value), self._layer(layer.advantage)
                return {"kind": "dueling", "value": value, "advantage": advantage, "groups": layer.atoms or 1}
            case networks.NatureCNN() if is_known:
                return _chain({"kind": "scaled", "divisor": 255.0}, *self._children(layer))
            case _encoders.ImageEncoder() if is_known:
                form = {name: getattr(layer.form, name) for name in _FORM}
                return _chain({"kind": "planes", **form}, *self._children(layer))
            case _encoders.SpaceEncoder() if is_known:
                return self._encoder(layer)
            case team_networks.PerAgent() if is_known:
                return {"kind": "agents", **_groups(layer), "parts": self._children(layer.parts)}
            case layers.Fc() if is_known and layer.num_flatten_dims == 1:
                return {"kind": "fc", **self._parameters(layer)}
            case layers.Conv2d() if is_known and layer.groups == 1 and not isinstance(layer.padding, str):
                pairs = {name: _pair(getattr(layer, name)) for name in ("stride", "padding", "dilation")}
                return {"kind": "conv2d", **self._parameters(layer), **pairs}
            case layers.BatchNorm() if is_known:
                return self._normalised_by_statistics(layer)
            case layers.LayerNorm() if is_known:
                return {"kind": "layer_norm", **self._parameters(layer), "epsilon": layer.epsilon}
            case _ if is_known and isinstance(layer, self._policy._parts.sequential):
                return {"kind": "chain", "layers": self._children(layer)}
        raise ModelContractError(
            f"{type(self._model).__name__}.{self._names.get(id(layer), '?')} is {layer}, which has no numpy form: "
            "only fc, conv_2d (of one group), batch_norm and layer_norm of parl.layers have one; export with --to "
            "onnx, torch-export or paddle-inference"
        )

    def _children(self, layer: Any) -> list[Node]:
        return [self._layer(child) for child in layer.children()]

    def _encoder(self, layer: Any) -> Node:
        self.encodes = True
        images, tables = iter(layer.images.children()), iter(layer.tables.children())
        parts = []
        for part in layer._plan:
            node = _part(part)
            if part.image is not None:
                node = {"path": list(part.path), "image": self._layer(next(images))}
            for choice in node.get("choices", ()):
                if choice[0] > _encoders.LARGEST_ONE_HOT:
                    choice[2] = self._parameters(next(tables))["weight"]
            parts.append(node)
        return {"kind": "encoder", "parts": parts}

    def _normalised_by_statistics(self, layer: Any) -> Node:
        """Return the node of batch normalisation in evaluation mode: one scale and one shift of each feature."""
        name = self._names[id(layer)]
        keys = {part: f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var")}
        weight, bias, mean, variance = (self._model._array_of(self._tensors[key]) for key in keys.values())
        scale = weight / np.sqrt(variance.astype(np.float64) + layer.epsilon)
        self.arrays[keys["weight"]] = scale.astype(weight.dtype)
        self.arrays[keys["bias"]] = (bias - mean * scale).astype(bias.dtype)
        return {"kind": "affine", "weight": keys["weight"], "bias": keys["bias"], "act": layer.activation}

    def _parameters(self, layer: Any) -> Node:
        found: Node = {"weight": None, "bias": None, "act": layer.activation}
        for name in layer.own_parameters:
            if name not in found:  # the sigma of noise that is used only in learning
                continue
            key = f"{self._names[id(layer)]}.{name}"
            weights = self._model._to_portable({key: self._model._array_of(self._tensors[key])})
            found[name], self.arrays[key] = key, weights[key]
        return found


_FRAMEWORKS = ("parl_torch.", "parl_paddle.", "torch.", "paddle.")
_TANH: Node = {"kind": "activation", "act": "tanh"}
_FORM = ("frames", "channels", "height", "width", "last", "low", "span")


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else [int(part) for part in size]


def _part(part: SpacePart) -> Node:
    node: Node = {"path": list(part.path)}
    if part.choices:
        node["choices"] = [[size, start, None] for size, start in part.choices]
    else:
        node["numbers"] = part.numbers
    return node


def _observation(space: Any) -> Node:
    match space:
        case gymnasium.spaces.Dict():
            return {"dict": {key: _observation(part) for key, part in space.spaces.items()}}
        case gymnasium.spaces.Tuple():
            return {"tuple": [_observation(part) for part in space.spaces]}
    node = {"shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)):
        node["first"] = np.asarray(getattr(space, "start", 0)).tolist()
    return node


class _Actions:
    """Makes the nodes of an action space; bounds and first choices become arrays."""

    def __init__(self, arrays: Arrays, in_unit_box: bool) -> None:
        self._arrays, self._in_unit_box = arrays, in_unit_box

    def of(self, space: Any, name: str) -> Node:
        match space:
            case gymnasium.spaces.Dict():
                return {"dict": {key: self.of(part, f"{name}.{key}") for key, part in space.spaces.items()}}
            case gymnasium.spaces.Tuple():
                return {"tuple": [self.of(part, f"{name}.{i}") for i, part in enumerate(space.spaces)]}
            case gymnasium.spaces.Discrete():
                return {"choice": int(space.start)}
            case gymnasium.spaces.Box():
                self._arrays |= {f"{name}.{key}": array for key, array in box(space, self._in_unit_box).items()}
                return {"box": name, "shape": list(space.shape), "dtype": str(space.dtype)}
        start = np.asarray(getattr(space, "start", 0), np.int64)
        self._arrays[f"{name}.start"] = np.ascontiguousarray(np.broadcast_to(start, space.shape))
        return {"choices": f"{name}.start", "shape": list(space.shape)}

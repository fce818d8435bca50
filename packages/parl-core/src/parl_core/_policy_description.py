"""What a file of `parl_core.policy` says of a trained agent: its network as a tree of layers, its spaces, its weights.

The layers are found in the model, which is one of `parl_core.networks` on either backend; their weights have PyTorch's
names and layouts. Layers that a user wrote have no numpy form, and are refused by their names.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import encoders, layers, networks, recurrent
from parl_core._pipeline import Pipeline, box
from parl_core.contracts.distributional_dqn import C51
from parl_core.contracts.imitation import BC
from parl_core.encoders import SpacePart
from parl_core.errors import ModelContractError

__all__ = ["describe"]

Node = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


def describe(pipeline: Pipeline) -> tuple[Node, Arrays]:
    """Return description and arrays of a file.

    Raises:
        ModelContractError: the model, or a layer of it, has no numpy form, or how the algorithm chooses is not known.
    """
    tree = _Tree(pipeline.algorithm.model)
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
        "observation": _observation(pipeline.observation),
        "mask": pipeline.has_mask,
        "network": _chain(*steps, network),
        "sizes": list(pipeline.sizes),
        "action": _Actions(tree.arrays, pipeline.acts_in_unit_box).of(pipeline.action, "action"),
    }
    return description, tree.arrays


def _chain(*steps: Node) -> Node:
    return steps[0] if len(steps) == 1 else {"kind": "chain", "layers": list(steps)}


class _Tree:
    """The layers by which a model chooses actions, as nodes of a description, and their weights.

    Attributes:
        arrays: weights that the nodes name.
        encodes: observations go into an encoder, which takes arrays of any dtype.
        atoms: of distributions over fixed values, how many these are; else 0.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = {id(layer): name for name, layer in model._all_layers().items()}
        self._tensors = model._named_tensors()
        self.arrays: Arrays = {}
        self.encodes = False
        self.atoms = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights."""
        return next(iter(self.arrays.values())).dtype

    def network(self) -> Node:
        """Return the node that computes what `scores` gives, or logits instead of probabilities.

        Raises:
            ModelContractError: the model, or a layer of it, has no numpy form.
        """
        model = self._model
        methods = ("policy", "value", "quantiles", "atoms", "policy_and_value", "forward", "_distributed")
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
        raise ModelContractError(
            f"{type(model).__name__} has no numpy form: that have the models of parl.networks (made by hand, or by "
            "for_spaces), with their own methods; export others with --to onnx, torch-export or paddle-inference"
        )

    def memory(self) -> Node:
        """Return the node of what remembers; `front` has the layers before it.

        Raises:
            ModelContractError: a layer has no numpy form.
        """
        layer = self._model.memory
        state = {name: list(shape) for name, shape in layer.shapes.items()}
        node = {"state": state, "front": _chain(self._layer(self._model.encoder), self._layer(layer.embedding))}
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

    def _attention(self, layer: Any) -> Node:
        parts = ("norm", "query", "key", "value", "project", "wide_norm", "wide", "narrow")
        key = f"{self._names[id(layer)]}.nearness"
        self.arrays[key] = self._model._array_of(self._tensors[key])
        layers = {name: self._layer(getattr(layer, name)) for name in parts}
        return {**layers, "heads": layer._heads, "nearness": key}

    def _layer(self, layer: Any) -> Node:
        """Return the node of a layer.

        Raises:
            ModelContractError: it has none.
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
            case encoders.ImageEncoder() if is_known:
                form = {name: getattr(layer.form, name) for name in _FORM}
                return _chain({"kind": "planes", **form}, *self._children(layer))
            case encoders.SpaceEncoder() if is_known:
                return self._encoder(layer)
            case layers.Fc() if is_known and layer.num_flatten_dims == 1:
                return {"kind": "fc", **self._parameters(layer)}
            case layers.Conv2d() if is_known and layer.groups == 1 and not isinstance(layer.padding, str):
                pairs = {name: _pair(getattr(layer, name)) for name in ("stride", "padding", "dilation")}
                return {"kind": "conv2d", **self._parameters(layer), **pairs}
            case layers.LayerNorm() if is_known:
                return {"kind": "layer_norm", **self._parameters(layer), "epsilon": layer.epsilon}
            case _ if is_known and isinstance(layer, self._model._parts.sequential):
                return {"kind": "chain", "layers": self._children(layer)}
        raise ModelContractError(
            f"{type(self._model).__name__}.{self._names.get(id(layer), '?')} is {layer}, which has no numpy form: that "
            "have fc, conv_2d (of one group) and layer_norm of parl.layers; export with --to onnx, torch-export or "
            "paddle-inference"
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
                if choice[0] > encoders.LARGEST_ONE_HOT:
                    choice[2] = self._parameters(next(tables))["weight"]
            parts.append(node)
        return {"kind": "encoder", "parts": parts}

    def _parameters(self, layer: Any) -> Node:
        found: Node = {"weight": None, "bias": None, "act": layer.activation}
        for name in layer.own_parameters:
            if name not in found:  # the sigma of a noise that only learning has
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
    """Makes nodes of an action space; bounds and first choices go into arrays."""

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

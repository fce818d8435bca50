"""The interface of `parl_core._small_networks` to the framework: chains of layers are read from the graph of a pass."""

import operator
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as every_module
from torch.nn.parameter import is_lazy

from parl_core._small_networks import Deviation, Framework, Layer, Output, flat

__all__ = ["TORCH"]

_ACTIVATIONS = {"ReluBackward0": "relu", "TanhBackward0": "tanh", "EluBackward0": "elu"}
_SHAPING = ("SqueezeBackward", "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Torch(Framework):
    package, backend = "torch", "parl_torch"
    module, tensor, is_turned = nn.Module, Tensor, True
    state: ClassVar = frozenset(vars(nn.Module()))
    children, hooks = "_modules", _HOOKS
    global_hooks = tuple(getattr(every_module, f"_global{name}") for name in _HOOKS)
    layers: ClassVar = frozenset((nn.Linear, nn.ReLU, nn.Tanh, nn.ELU, nn.Identity, nn.Sequential, nn.ModuleList))
    passes = (nn.Sequential.forward, nn.Module.forward)
    activations = (torch.relu, torch.relu_, torch.tanh, torch.tanh_, F.relu, F.tanh, F.elu)
    names = Framework.names | {"cat", "elu", "elu_", "float"}
    address, strides = staticmethod(Tensor.data_ptr), staticmethod(Tensor.stride)

    def modules(self, model: Any) -> Iterable[nn.Module]:
        found: Iterable[nn.Module] = model.modules()
        return found

    def is_waiting(self, tensor: Any) -> bool:
        return bool(is_lazy(tensor))

    def rows(self, model: Any, width: int) -> Tensor | None:
        example = next(model.parameters(), None)
        if example is None or not example.is_floating_point() or example.device.type != "cpu":
            return None
        return torch.zeros(2, width, dtype=example.dtype)

    def read(self, model: Any, method: str, like: Any) -> list[Output | Deviation | None]:
        with torch.enable_grad():
            inputs = like if isinstance(like, tuple) else (like,)
            probes = [torch.zeros_like(each[:2]).requires_grad_() for each in inputs]
            return [_read(output, probes) for output in flat(getattr(model, method)(*probes))]

    def view(self, parameter: Tensor) -> NDArray[Any]:
        return parameter.detach().numpy()

    def impossible(self, dtype: Any) -> float:
        return float(np.finfo(dtype).min)

    def choose(self, logits: NDArray[Any], log_probabilities: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        probabilities = np.exp(log_probabilities)
        # As in torch.multinomial: the first of exponential waiting times with these rates.
        waiting = np.empty_like(probabilities)
        torch.from_numpy(waiting).exponential_()
        return np.asarray((probabilities / waiting).argmax(1))

    def normal(self, like: NDArray[Any]) -> NDArray[Any]:
        drawn = np.empty(like.shape, like.dtype)
        torch.from_numpy(drawn).normal_()
        return drawn


TORCH = _Torch()


def _read(output: Any, probes: list[Tensor]) -> Output | Deviation | None:
    node = output.grad_fn if isinstance(output, Tensor) else None
    deviation, layers = _deviation(node), _layers(node, probes)
    if deviation is not None or layers is None:
        return deviation
    return Output(layers, output.ndim == 1) if output.ndim <= 2 else None


def _deviation(node: Any) -> Deviation | None:
    if node is None or node.name() != "ExpBackward0":
        return None
    logarithm = getattr(node.next_functions[0][0], "variable", None)
    return None if logarithm is None or not _is_array(logarithm) else Deviation(logarithm)


def _is_array(parameter: Tensor) -> bool:
    return parameter.device.type == "cpu" and parameter.dtype in (torch.float32, torch.float64)


def _are_inputs(node: Any, probes: list[Tensor]) -> bool:
    """Return whether a node represents the inputs: a single one, or all of them joined."""
    if len(probes) == 1:
        return getattr(node, "variable", None) is probes[0]
    if node is None or node.name() != "CatBackward0":
        return False
    joined = [getattr(part, "variable", None) for part, _ in node.next_functions]
    return len(joined) == len(probes) and all(map(operator.is_, joined, probes))


def _layers(node: Any, probes: list[Tensor]) -> list[Layer] | None:
    """Return the layers whose graph ends in a node."""
    shaped = False
    while node is not None and node.name().startswith(_SHAPING):
        node, shaped = node.next_functions[0][0], True
    found: list[Layer] = []
    while not _are_inputs(node, probes):
        activation, alpha = None, 1.0
        if node is not None and node.name() in _ACTIVATIONS:
            activation = _ACTIVATIONS[node.name()]
            if activation == "elu":
                alpha = node._saved_alpha
                if not (node._saved_scale == node._saved_input_scale == 1.0 and alpha >= 0.0):
                    return None
            node = node.next_functions[0][0]
        if node is None or node.name() != "AddmmBackward0":
            return None
        bias, inputs, turned = (part for part, _ in node.next_functions)
        weight = turned.next_functions[0][0] if turned is not None and turned.name() == "TBackward0" else None
        parts = [getattr(part, "variable", None) for part in (weight, bias)]
        if not all(part is not None and part.requires_grad and _is_array(part) for part in parts):
            return None
        found.insert(0, Layer(parts[0], parts[1], activation, alpha))
        node = inputs
    if not found or (shaped and len(found[-1].bias) != 1):
        return None
    return found if found[0].weight.shape[1] == sum(probe.shape[1] for probe in probes) else None

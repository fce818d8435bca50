"""The parts of models: detection of changes, and of code that does more than calling layers."""

import dis
from collections.abc import Sequence
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as every_module
from torch.nn.parameter import is_lazy

from parl_core.layers import NoisyFc

__all__ = ["Parts", "only_passes"]

_PLAIN_LAYERS = frozenset((nn.Linear, nn.ReLU, nn.Tanh, nn.ELU, nn.Identity, nn.Sequential, nn.ModuleList))
_OUR_LAYERS = frozenset(("parl_core.networks", "parl_torch.networks", "parl_torch.layers"))
_FUNCTIONS = (torch.relu, torch.relu_, torch.tanh, torch.tanh_, F.relu, F.tanh, F.elu)
_NAMES = frozenset(("nn", "functional", "relu", "relu_", "tanh", "tanh_", "elu", "elu_", "float", "squeeze"))
_PASSES: tuple[str, ...] = (
    "COPY",
    "SWAP",
    "NOP",
    "GET_ITER",
    "FOR_ITER",
    "JUMP_BACKWARD",
    "END_FOR",
    "POP_ITER",
    "CACHE",
)
_PASSES += (
    "BUILD_TUPLE",
    "LOAD",
    "STORE_FAST",
    "CALL",
    "PRECALL",
    "RETURN",
    "PUSH_NULL",
    "POP_TOP",
    "KW_NAMES",
    "RESUME",
    "NOT_TAKEN",
)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_STATE = frozenset(vars(nn.Module()))
_OUR_PACKAGES = frozenset(("builtins", "torch", "parl_core", "parl_torch"))


class Parts:
    """The present layers and tensors of models, and some of their methods.

    Args:
        models: the models.
        methods: (model, name of a method).

    Attributes:
        hooks: dictionaries of the hooks that a pass of a layer would call; all are empty if there is none.
    """

    def __init__(self, models: Sequence[Any], methods: Sequence[tuple[Any, str]] = ()) -> None:
        layers = {id(layer): layer for model in models for layer in model.modules()}.values()
        self._holders = [
            part for layer in layers for part in (layer._modules, layer._parameters, layer._buffers) if part
        ]
        places = [(part, name) for part in self._holders for name in part]
        places += [(vars(layer), name) for layer in layers for name in _doing(layer)]
        self._owners, self._names = [part for part, _ in places], [name for _, name in places]
        self._found = list(map(dict.get, self._owners, self._names))
        self._sizes = list(map(len, self._holders))
        self._tensors = [value for value in self._found if isinstance(value, Tensor) and not is_lazy(value)]
        self._memory = list(map(Tensor.data_ptr, self._tensors))
        self._matrices = [tensor for tensor in self._tensors if tensor.dim() > 1]
        self._strides = list(map(Tensor.stride, self._matrices))
        self._models, self._named = [model for model, _ in methods], [name for _, name in methods]
        self._methods = list(map(getattr, self._models, self._named))
        self.hooks = [getattr(layer, name) for layer in layers for name in _HOOKS]
        self.hooks += [getattr(every_module, f"_global{name}") for name in _HOOKS]

    def are_same(self) -> bool:
        """Return whether all layers, tensors, activations and methods are the same, at the same addresses."""
        return (
            all(map(is_, map(dict.get, self._owners, self._names), self._found))
            and list(map(len, self._holders)) == self._sizes
            and list(map(Tensor.data_ptr, self._tensors)) == self._memory
            and list(map(Tensor.stride, self._matrices)) == self._strides
            and list(map(getattr, self._models, self._named)) == self._methods
        )


def _doing(layer: nn.Module) -> list[str]:
    """Return the names of a layer's own attributes that may say what it does: functions, and where one may come."""
    given = [name for name, value in vars(layer).items() if name not in _STATE and (value is None or callable(value))]
    return ["forward", "alpha", *given] if isinstance(layer, nn.ELU) else ["forward", *given]


def only_passes(model: Any, method: str) -> bool:
    """Return whether the code of a model's method, and that of its layers, only calls layers and activations.

    Each call then uses the same ones, without side effects.
    """
    layers = [layer for layer in model.modules() if type(layer) not in _PLAIN_LAYERS]
    if any(isinstance(layer, NoisyFc) or layer._buffers for layer in layers):
        return False  # each pass draws, or changes what it keeps, as statistics of batches
    return all(_is_plain(getattr(layer, method if layer is model else "forward"), layer) for layer in layers)


def _is_plain(method: Any, layer: nn.Module) -> bool:
    """Return whether the code of a layer's method only calls layers and activations, each time the same ones."""
    if not isinstance(method, MethodType) or method.__self__ is not layer:
        return False
    if type(layer).__call__ is not nn.Module.__call__:
        return False
    return _is_pass(method.__func__, layer)


def _is_pass(function: Any, layer: nn.Module) -> bool:
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    if function.__module__ in _OUR_LAYERS:
        return all(_is_pass(own, layer) for own in _overridden(code.co_names, layer))
    if function in (nn.Sequential.forward, nn.Module.forward):
        return True
    if code.co_freevars or not all(step.opname.startswith(_PASSES) for step in dis.get_instructions(code)):
        return False
    return all(_is_known(name, function, layer) for name in code.co_names)


def _overridden(names: Sequence[str], layer: nn.Module) -> list[Any]:
    """Return what a user's class has under names that code of ours asks for."""
    homes = [(name, next((kind for kind in type(layer).__mro__ if name in vars(kind)), object)) for name in names]
    return [vars(kind)[name] for name, kind in homes if kind.__module__.partition(".")[0] not in _OUR_PACKAGES]


def _is_known(name: str, function: FunctionType, layer: nn.Module) -> bool:
    given = function.__globals__.get(name)
    if given is not None:
        is_torch = isinstance(given, ModuleType) and given.__name__.partition(".")[0] == "torch"
        return is_torch or _is_activation(given)
    if name in _NAMES or any(name in part._modules for part in layer.modules()):
        return True
    if name in vars(layer):
        return _is_activation(vars(layer)[name])
    own = getattr(type(layer), name, None)
    return own is not function and _is_pass(own, layer)


def _is_activation(value: Any) -> bool:
    return any(value is function for function in _FUNCTIONS)

"""Whether models still are what they were when something about them was looked up."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.modules import module as every_module
from torch.nn.parameter import is_lazy

__all__ = ["Parts"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Parts:
    """The layers and tensors of models as they are now, and some of their methods.

    Args:
        models: the models.
        methods: (model, name of a method).
    """

    def __init__(self, models: Sequence[Any], methods: Sequence[tuple[Any, str]] = ()) -> None:
        layers = {id(layer): layer for model in models for layer in model.modules()}.values()
        self._holders = [
            part for layer in layers for part in (layer._modules, layer._parameters, layer._buffers) if part
        ]
        self._owners = [part for part in self._holders for _ in part]
        self._names = [name for part in self._holders for name in part]
        self._found = [part[name] for part in self._holders for name in part]  # held, so that no other gets its id
        self._ids, self._sizes = list(map(id, self._found)), list(map(len, self._holders))
        self._tensors = [value for value in self._found if isinstance(value, Tensor) and not is_lazy(value)]
        self._memory = list(map(Tensor.data_ptr, self._tensors))
        self._methods = [(model, name, getattr(model, name)) for model, name in methods]
        self._hooks = [getattr(layer, name) for layer in layers for name in _HOOKS]
        self._hooks += [getattr(every_module, f"_global{name}") for name in _HOOKS]

    def are_same(self) -> bool:
        """Return whether no layer, tensor or method is another one, and no tensor has other memory."""
        return (
            list(map(id, map(dict.get, self._owners, self._names))) == self._ids
            and list(map(len, self._holders)) == self._sizes
            and list(map(Tensor.data_ptr, self._tensors)) == self._memory
            and all(getattr(model, name) == method for model, name, method in self._methods)
        )

    def have_hooks(self) -> bool:
        """Return whether a hook is told of a pass of a layer."""
        return any(self._hooks)

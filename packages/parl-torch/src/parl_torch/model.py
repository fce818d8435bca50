"""`parl.Model` on PyTorch: a `torch.nn.Module` with the contract's methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from parl_core import model as contract
from parl_core._small_networks import Parts
from parl_core.model import Weights
from parl_torch._graphs import TORCH
from parl_torch._tensors import to_array

__all__ = ["Model"]

_COUNTER = "num_batches_tracked"  # a buffer of batch normalisation that other frameworks do not have


class _SeededInitialisation:
    """Draws the initial weights of one of PyTorch's lazily shaped layers from a seed, as `parl.layers` do.

    Copies of the layer then begin with equal weights, whichever runs first.
    """

    def __init__(self, layer: Any, seed: int) -> None:
        self._layer, self._seed = layer, seed

    def __call__(self, *inputs: Any, **options: Any) -> None:
        layer = self._layer
        del layer.initialize_parameters  # this object replaced it for one call
        devices = {parameter.device.index for parameter in layer.parameters() if parameter.is_cuda}
        with torch.random.fork_rng(devices):
            torch.manual_seed(self._seed)
            layer.initialize_parameters(*inputs, **options)


class Model(nn.Module, contract.Model):
    CONTAINERS: ClassVar[str] = "torch.nn.ModuleList or torch.nn.ModuleDict"

    _lazy_seeds: Mapping[str, int] = MappingProxyType({})
    """The seeds that the initial weights of PyTorch's own lazily shaped layers are drawn from."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Model:
        # A subclass need not call super().__init__(), so the state that PyTorch needs before the first layer is set up
        # here.
        model = super().__new__(cls)
        nn.Module.__init__(model)
        model._model_id = model._fresh_id()
        return model

    def __init__(self, model_id: str | None = None) -> None:
        if model_id is not None:
            self.set_model_id(model_id)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        self._seed_lazy_layers()
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        empty: Any = nn.UninitializedBuffer
        for buffer in self.buffers():
            if is_lazy(buffer):  # PyTorch cannot copy it
                memo[id(buffer)] = empty(device=buffer.device, dtype=buffer.dtype)
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        duplicate.set_model_id(duplicate._fresh_id())
        duplicate._pack_recurrent_weights()
        return duplicate

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        self._pack_recurrent_weights()

    def _pack_recurrent_weights(self) -> None:
        # cuDNN wants the weights of a recurrent layer in one block, which a copy of each of them loses.
        for layer in self.modules():
            if isinstance(layer, nn.RNNBase):
                layer.flatten_parameters()

    def _seed_lazy_layers(self) -> None:
        """Let PyTorch's lazily shaped layers that have no seed yet draw their initial weights from one of their own."""
        for name, layer in self.named_modules():
            lazy: Any = layer  # PyTorch's types allow `nn.Module` only
            waits = isinstance(layer, LazyModuleMixin) and lazy.has_uninitialized_params()
            if waits and not isinstance(lazy.initialize_parameters, _SeededInitialisation):
                seed = int(torch.randint(2**62, ()).item())
                lazy.initialize_parameters = _SeededInitialisation(lazy, seed)
                self._lazy_seeds = {**self._lazy_seeds, name: seed}

    def _plain_model(self) -> type[contract.Model]:
        return Model

    def _named_parameters(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())

    def _layer_class(self) -> type[nn.Module]:
        return nn.Module

    def _all_layers(self) -> dict[str, nn.Module]:
        return dict(self.named_modules())

    def _named_tensors(self) -> dict[str, Tensor]:
        # A layer that two attributes share is listed under both names; the first one counts.
        named: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, value in self.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                named[name] = value
        return named

    def _array_of(self, tensor: Tensor) -> NDArray[Any]:
        return to_array(tensor)

    @torch.no_grad()
    def _assign(self, tensors: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, tensor in tensors.items():
            array = arrays[name]
            if _is_viewed(tensor) and array.dtype == np.float32:
                np.copyto(tensor.detach().numpy(), array)  # arrays of actors are read-only, which tensors cannot be
            else:
                tensor.copy_(torch.tensor(array))

    @torch.no_grad()
    def _blend(self, target: list[Tensor], source: list[Tensor], decay: float) -> None:
        if decay and all(map(torch.is_floating_point, target)):
            torch._foreach_lerp_(target, source, 1.0 - decay)
            return
        pairs = list(zip(target, source, strict=True))
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        counters = [pair for pair in pairs if not pair[0].is_floating_point()]
        for pairs, weight in ((floating, 1.0 - decay), (counters, 1.0)):
            if not pairs:
                continue
            targets, sources = [list(column) for column in zip(*pairs, strict=True)]
            if weight == 1.0:
                torch._foreach_copy_(targets, sources)
            else:
                torch._foreach_lerp_(targets, sources, weight)

    def _views_of(self, tensors: Mapping[str, Tensor]) -> contract.Weights | None:
        if not all(map(_is_viewed, tensors.values())):
            return None
        # other tensors are made anew for each `get_weights`
        lasting = set(map(id, (*self.parameters(), *self.buffers())))
        if not lasting.issuperset(map(id, tensors.values())):
            return None
        return {name: tensor.detach().numpy() for name, tensor in tensors.items()}

    def _watch(self, other: contract.Model) -> Callable[[], bool] | None:
        plain = nn.Module.state_dict
        if any(getattr(type(model), "state_dict", None) is not plain for model in (self, other)):
            return None
        return Parts(TORCH, (self, other)).are_same

    def _beside_weights(self, layer: nn.Module) -> dict[str, Any]:
        return {} if isinstance(layer, LazyModuleMixin) else super()._beside_weights(layer)

    def _passing_buffers(self, layer: nn.Module) -> dict[str, Any]:
        held = list(layer._buffers.items())  # a copy, because another thread may add one meanwhile
        return {name: value for name, value in held if name in layer._non_persistent_buffers_set}

    def _begins_as(self, other: contract.Model) -> bool:
        return self._lazy_seeds == getattr(other, "_lazy_seeds", None)

    def _waiting(self) -> list[str]:
        waiting = [name for name, tensor in (*self.named_parameters(), *self.named_buffers()) if is_lazy(tensor)]
        for name, layer in self._lazy_layers().items():
            waiting += [f"{name}.{buffer}" for buffer in layer.BUFFERS if not layer.shaped]
        return waiting

    def _take_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super()._take_shapes(shapes)
        for name, tensor in self._named_tensors().items():  # of PyTorch's own lazily shaped layers
            if is_lazy(tensor) and name in shapes:
                tensor.materialize(shapes[name])

    def take_shapes_of(self, other: contract.Model) -> None:
        waiting = {name for name, tensor in self._named_tensors().items() if is_lazy(tensor)}
        for prefix in self._lazy_layers():  # these layers draw their initial weights themselves
            waiting = {name for name in waiting if not name.startswith(f"{prefix}.")}
        super().take_shapes_of(other)
        mine, theirs = self._named_tensors(), other._shaped_tensors()
        with torch.no_grad():
            for name in waiting & theirs.keys():
                mine[name].copy_(theirs[name])

    def _from_portable(self, weights: Weights) -> Weights:
        counters = {name: to_array(value) for name, value in self._named_tensors().items() if name.endswith(_COUNTER)}
        return {**counters, **weights}


def _is_viewed(tensor: Tensor) -> bool:
    """Return whether numpy has the memory of a tensor as an array of float32."""
    is_host = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return is_host and tensor.dtype is torch.float32 and not is_lazy(tensor)

"""`parl.Model` on PaddlePaddle: a `paddle.nn.Layer` with the contract's methods."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.utils import unique_name

from parl_core import model as contract
from parl_core.model import Weights
from parl_paddle._static_graphs import eager, in_program, operand, overwrite
from parl_paddle._tensors import device_name, to_array
from parl_paddle.layers import LazyLayer

__all__ = ["Model"]

# Names of weights that differ from PyTorch's, by layer; PyTorch's names and layouts are those of checkpoints.
_PORTABLE_NAMES = {"_mean": "running_mean", "_variance": "running_var"}
_COUNTER = ".num_batches_tracked"  # a buffer of PyTorch's batch normalisation that paddle's does not have


class _NoTensorYet:
    """Placeholder for a parameter of a lazily shaped layer that has not processed a batch."""

    shape = ()


_NO_TENSOR_YET = _NoTensorYet()


class Model(paddle.nn.Layer, contract.Model):
    CONTAINERS: ClassVar[str] = "paddle.nn.LayerList or paddle.nn.LayerDict"

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        # A subclass need not call super().__init__(), so the state that paddle needs before the first layer is set up
        # here.
        del args, kwargs  # the arguments are those of __init__
        self: Self = super().__new__(cls)
        paddle.nn.Layer.__init__(self)
        self._model_id = self._fresh_id()
        return self

    def __init__(self, model_id: str | None = None) -> None:
        # Not paddle's __init__ again: it would drop layers that a subclass has created before this call.
        if model_id is not None:
            self._model_id = model_id

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Paddle gives unpickled tensors names that other tensors may have, and programs identify parameters by name.
        super().__setstate__(state)
        for name, tensor in self._named_tensors().items():
            if tensor is not _NO_TENSOR_YET:
                tensor.name = unique_name.generate(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        model_id = twin._model_id
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin._model_id = model_id
        return twin

    def to(self, device: Any = None, dtype: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Move and convert the weights as `paddle.nn.Layer.to`; lazily shaped layers create theirs accordingly."""
        for layer in self.sublayers():
            if isinstance(layer, LazyLayer):
                layer.device = layer.device if device is None else device_name(device)
                layer.dtype = layer.dtype if dtype is None else dtype
        if dtype is not None or not self._is_on(device):
            super().to(device, dtype, *args, **kwargs)
        return self

    def _is_on(self, device: Any) -> bool:
        tensors = (tensor for tensor in self._named_tensors().values() if tensor is not _NO_TENSOR_YET)
        return device is not None and all(device_name(tensor.place) == device_name(device) for tensor in tensors)

    def _plain_model(self) -> type[contract.Model]:
        return Model

    def _layer_class(self) -> type[paddle.nn.Layer]:
        return paddle.nn.Layer

    def _all_layers(self) -> dict[str, paddle.nn.Layer]:
        return dict(self.named_sublayers(include_self=True))

    def _named_parameters(self) -> dict[str, paddle.Tensor]:
        # Paddle's batch normalisation keeps its statistics as parameters that are not trained.
        return {name: parameter for name, parameter in self.named_parameters() if not parameter.stop_gradient}

    def _named_tensors(self) -> dict[str, Any]:
        # Recurrent layers list the same tensor under two names; the first is also PyTorch's.
        named: dict[str, Any] = {}
        seen: set[int] = set()
        for prefix, layer in self.named_sublayers(include_self=True):
            waiting = layer.waiting if isinstance(layer, LazyLayer) else ()
            own = dict.fromkeys(waiting, _NO_TENSOR_YET) if waiting else layer.state_dict(include_sublayers=False)
            for name, tensor in own.items():
                if tensor is _NO_TENSOR_YET or id(tensor) not in seen:
                    seen.add(id(tensor))
                    named[f"{prefix}.{name}" if prefix else name] = tensor
        return named

    def _array_of(self, tensor: paddle.Tensor) -> NDArray[Any]:
        return to_array(tensor)

    def _assign(self, tensors: Mapping[str, paddle.Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, tensor in tensors.items():
            with eager():
                tensor.set_value(paddle.to_tensor(arrays[name], dtype=tensor.dtype, place=tensor.place))

    def _blend(self, target: list[paddle.Tensor], source: list[paddle.Tensor], decay: float) -> None:
        with paddle.no_grad():
            for old, new in zip(target, source, strict=True):
                if decay == 0.0 or not old.is_floating_point():
                    overwrite(old, operand(new))
                elif in_program() and decay < 1.0:
                    overwrite(old, decay * operand(old) + (1.0 - decay) * operand(new))
                elif decay < 1.0:
                    # Three passes in place take half the time of lerp_ and of decay * old + (1 - decay) * new.
                    old.scale_(decay / (1.0 - decay))
                    old.add_(new)
                    old.scale_(1.0 - decay)

    def _passing_buffers(self, layer: paddle.nn.Layer) -> dict[str, Any]:
        # Paddle makes such a buffer from each tensor that is assigned to an attribute.
        held = list(layer._buffers.items())  # a copy, because another thread may add one meanwhile
        return {name: value for name, value in held if name in layer._non_persistable_buffer_names_set}

    def _waiting(self) -> list[str]:
        return [f"{prefix}.{name}" for prefix, layer in self._lazy_layers().items() for name in layer.waiting]

    def _transposed(self) -> set[str]:
        """Return the names of the weights that are transposed in PyTorch."""
        return {
            f"{prefix}.weight" if prefix else "weight"
            for prefix, layer in self.named_sublayers(include_self=True)
            if isinstance(layer, paddle.nn.Linear) or (isinstance(layer, LazyLayer) and layer.TRANSPOSED)
        }

    def _to_portable(self, weights: Weights) -> Weights:
        transposed = self._transposed()
        return {
            _renamed(name, _PORTABLE_NAMES): np.ascontiguousarray(array.T) if name in transposed else array
            for name, array in weights.items()
        }

    def _from_portable(self, weights: Weights) -> Weights:
        transposed, known = self._transposed(), self._named_tensors()
        theirs_to_ours = {theirs: ours for ours, theirs in _PORTABLE_NAMES.items()}
        converted: Weights = {}
        for name, array in weights.items():
            # Only paddle's own layers have other names; those of parl.layers are the same on both backends.
            own = name if name in known else _renamed(name, theirs_to_ours)
            if own.endswith(_COUNTER) and own not in known:
                continue
            converted[own] = np.ascontiguousarray(array.T) if own in transposed else array
        return converted


def _renamed(name: str, table: Mapping[str, str]) -> str:
    prefix, dot, last = name.rpartition(".")
    return prefix + dot + table.get(last, last)

"""Models in torch: a module whose parameters become views of the flat vector.

On the CPU and in float32 nothing is copied: writing into the vector changes the module. Parameters on a GPU or in
another precision are copied whenever the vector has changed; updates and files keep what is rounded there in float32.
Buffers do not evolve.
"""

import copy
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parl_evokit._directories import path_of
from parl_evokit._params import FlatVector, ParameterLayout
from parl_evokit.errors import EvolutionError, LayoutMismatch, SolverError, StorageError

__all__ = ["TorchModel"]

WEIGHTS = "params.safetensors"
Predict = Callable[[torch.nn.Module, Any], Any]


class TorchModel:
    """A `ModelAdapter` for a `torch.nn.Module`, and so for a `parl.Model` of parl-torch.

    Args:
        module: The module; its parameters are bound, so that predictions of the adapter and calls of the module are
            the same. Put it into `eval()` mode if it has dropout or batch statistics.
        parameters: Patterns of the names of the parameters that evolve, such as `["policy.*"]`. Default: all that
            require a gradient.
        predict: Function of the module and the input that returns the output; it is called without gradients. Default:
            a call of the module with the input as a tensor; the output is a numpy array unless the input is a tensor.

    Raises:
        EvolutionError: No parameter matches, or the shape of one is not known yet.
    """

    def __init__(
        self, module: torch.nn.Module, *, parameters: Sequence[str] | None = None, predict: Predict | None = None
    ) -> None:
        self._module = module
        self._patterns = None if parameters is None else tuple(parameters)
        self._predict = predict
        chosen = {name: parameter for name, parameter in module.named_parameters() if self._evolves(name, parameter)}
        if not chosen:
            matching = "" if parameters is None else f" that matches {parameters}"
            raise EvolutionError(f"{type(module).__name__} has no trainable parameter{matching}")
        if lazy := [name for name, parameter in chosen.items() if torch.nn.parameter.is_lazy(parameter)]:
            raise EvolutionError(f"{type(module).__name__} has no shape of {lazy[0]} yet: call it with an input first")
        self._parameters = chosen
        self._layout = ParameterLayout(tuple(chosen), tuple(tuple(parameter.shape) for parameter in chosen.values()))
        self._views: dict[str, FlatVector] = {}
        self._copied: dict[str, torch.Tensor] = {}

    @property
    def module(self) -> torch.nn.Module:
        """The module, bound to the present parameters."""
        return self._module

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""
        return self._layout

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""
        return self._layout.flatten({name: _array(self._unrounded(name, self._copied)) for name in self._parameters})

    def bind(self, flat: FlatVector) -> None:
        """Use `flat`, float32 `[n]`, as parameters from now on; those on the CPU in float32 become views of it."""
        if not flat.flags.writeable:  # torch has no read-only memory
            flat = flat.copy()
        self._views = self._layout.views(flat)
        self._copied = {}
        for name, view in self._views.items():
            parameter, shared = self._parameters[name], torch.from_numpy(view)
            if parameter.device.type == "cpu" and parameter.dtype is torch.float32:
                parameter.data = shared
            else:
                self._copied[name] = shared
        self.refresh()

    def refresh(self) -> None:
        """Copy the bound vector to the parameters that are not on the CPU or not in float32."""
        with torch.no_grad():
            for name, source in self._copied.items():
                self._parameters[name].copy_(source)

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`, without gradients."""
        with torch.no_grad():
            if self._predict is not None:
                return self._predict(self._module, x)
            if isinstance(x, torch.Tensor):
                return self._module(x)
            return _arrays(self._module(self._input(x)))

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population, `[k, ...]`, as one batch by `torch.func.vmap`.

        Raises:
            EvolutionError: The model has its own `predict` function.
        """
        if self._predict is not None:
            raise EvolutionError("predict_many calls the module itself, but this model has its own predict function")
        stacked: dict[str, torch.Tensor] = {}
        # also under a second name for tied parameters
        evolving = {id(parameter) for parameter in self._parameters.values()}
        whole = self._module.state_dict(keep_vars=True)
        rest = {name: tensor.detach() for name, tensor in whole.items() if id(tensor) not in evolving}
        start = 0
        for name, shape in zip(self._layout.names, self._layout.shapes, strict=True):
            stop = start + int(np.prod(shape))
            like = self._parameters[name]
            block = torch.from_numpy(np.ascontiguousarray(flats[:, start:stop]).reshape(len(flats), *shape))
            stacked[name] = block.to(like.device, like.dtype)
            start = stop
        inputs = x if isinstance(x, torch.Tensor) else self._input(x)

        def one(parameters: dict[str, torch.Tensor], given: torch.Tensor) -> Any:
            return torch.func.functional_call(self._module, {**rest, **parameters}, (given,))

        with torch.no_grad():
            outputs = torch.func.vmap(one, in_dims=(0, 0 if each else None), randomness="different")(stacked, inputs)
        return outputs if isinstance(x, torch.Tensor) else _arrays(outputs)

    def clone(self) -> "TorchModel":
        """Return a copy of the model, which can be bound to another vector."""
        return TorchModel(copy.deepcopy(self._module), parameters=self._patterns, predict=self._predict)

    def save(self, directory: Path) -> None:
        """Write parameters and buffers as `params.safetensors` into an existing directory.

        Raises:
            StorageError: The file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = path_of(directory, StorageError) / WEIGHTS
        evolving = {id(parameter): self._unrounded(name, self._copied) for name, parameter in self._parameters.items()}
        state = self._module.state_dict(keep_vars=True)
        tensors = {name: evolving.get(id(tensor), tensor).detach().cpu().clone() for name, tensor in state.items()}
        try:
            path.unlink(missing_ok=True)  # it may be a link to a file that others read
            save_file(tensors, path)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"{path} cannot be written: {error}") from error

    def load(self, directory: Path) -> None:
        """Use the parameters that `save` wrote from now on."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = path_of(directory, SolverError) / WEIGHTS
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise SolverError(f"{path} cannot be read: {error}") from error
        try:
            # Into new memory, because another clone may still use the present vector.
            for parameter in self._parameters.values():
                parameter.data = parameter.data.clone()
            self._module.load_state_dict(tensors)
        except RuntimeError as error:
            raise LayoutMismatch(f"{path} is of another model: {error}") from error
        # The module may have changed what it read, such as weights of an older version.
        found = {name: _array(self._unrounded(name, tensors)) for name in self._parameters}
        self.bind(self._layout.flatten(found))

    def _unrounded(self, name: str, sources: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a parameter; if it holds its source's numbers, perhaps rounded, the source."""
        parameter, source = self._parameters[name], sources.get(name)
        if source is None or not torch.equal(source.to(parameter.device, parameter.dtype), parameter):
            return parameter
        return source

    def _evolves(self, name: str, parameter: torch.nn.Parameter) -> bool:
        if self._patterns is None:
            return bool(parameter.requires_grad)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def _input(self, x: Any) -> torch.Tensor:
        # The first layer reads it, which may be frozen and of another precision than what evolves.
        like = next(filter(torch.is_floating_point, self._module.parameters()), next(iter(self._parameters.values())))
        array = np.asarray(x)
        tensor = torch.as_tensor(array, device=like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


def _array(parameter: torch.Tensor) -> NDArray[Any]:
    kept = parameter.dtype if parameter.is_complex() else torch.float32  # the layout refuses complex numbers
    array: NDArray[Any] = parameter.detach().to("cpu", kept).numpy()
    return array


def _arrays(value: Any) -> Any:
    """Return tensors as numpy arrays, within tuples, lists and dictionaries, too."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, tuple | list):
        return type(value)(_arrays(item) for item in value)
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value

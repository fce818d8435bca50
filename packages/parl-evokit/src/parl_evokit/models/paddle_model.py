"""Models in paddle: a layer whose parameters become views of the flat vector.

Some versions of paddle use numpy's memory without a copy; `bind` tests this. With other versions, and for parameters on
a GPU or in another precision, numbers are copied whenever the vector has changed; updates and files keep what is
rounded there in float32. Buffers do not evolve.
"""

import copy
import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_evokit._directories import path_of
from parl_evokit._params import FlatVector, ParameterLayout
from parl_evokit.errors import EvolutionError, LayoutMismatch, SolverError, StorageError

__all__ = ["PaddleModel"]

WEIGHTS = "params.safetensors"
Predict = Callable[[Any, Any], Any]


class PaddleModel:
    """A `ModelAdapter` for a `paddle.nn.Layer`, and so for a `parl.Model` of parl-paddle.

    Args:
        layer: The layer; its parameters are bound, so that predictions of the adapter and calls of the layer are the
            same. Put it into `eval()` mode if it has dropout or batch statistics.
        parameters: Patterns of the names of the parameters that evolve, such as `["policy.*"]`. Default: all with a
            gradient.
        predict: Function of the layer and the input that returns the output; it is called without gradients. Default:
            a call of the layer with the input as a tensor; the output is a numpy array unless the input is a tensor.

    Raises:
        EvolutionError: No parameter matches.
    """

    samples_in_threads = False  # paddle's switches between modes are those of the whole process

    def __init__(self, layer: Any, *, parameters: Sequence[str] | None = None, predict: Predict | None = None) -> None:
        self._layer = layer
        self._patterns = None if parameters is None else tuple(parameters)
        self._predict = predict
        chosen = {name: parameter for name, parameter in layer.named_parameters() if self._evolves(name, parameter)}
        if not chosen:
            matching = "" if parameters is None else f" that matches {parameters}"
            raise EvolutionError(f"{type(layer).__name__} has no trainable parameter{matching}")
        self._parameters = chosen
        self._layout = ParameterLayout(tuple(chosen), tuple(tuple(parameter.shape) for parameter in chosen.values()))
        self._views: dict[str, FlatVector] = {}
        self._copied: list[str] = []

    @property
    def layer(self) -> Any:
        """The layer, bound to the present parameters."""
        return self._layer

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""
        return self._layout

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""
        return self._layout.flatten({name: self._unrounded(name) for name in self._parameters})

    def bind(self, flat: FlatVector) -> None:
        """Use `flat`, float32 `[n]`, as parameters from now on, without a copy if paddle can use its memory."""
        if not flat.flags.writeable:  # paddle has no read-only memory
            flat = flat.copy()
        self._views = self._layout.views(flat)
        self._copied = [name for name, view in self._views.items() if not _share(self._parameters[name], view)]
        self.refresh()

    def refresh(self) -> None:
        """Copy the bound vector to the parameters that cannot share its memory."""
        for name in self._copied:
            self._parameters[name].set_value(self._rounded(name))

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`, without gradients."""
        with paddle.no_grad():
            if self._predict is not None:
                return self._predict(self._layer, x)
            if isinstance(x, paddle.Tensor):
                return self._layer(x)
            return _arrays(self._layer(self._input(x)))

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population, `[k, ...]`, one by one, since paddle has no vmap."""
        model = self.clone()
        buffer = np.empty(flats.shape[1], np.float32)
        model.bind(buffer)
        outputs = []
        for k, flat in enumerate(flats):
            np.copyto(buffer, flat)
            model.refresh()
            outputs.append(model.predict(x[k] if each else x))
        return paddle.stack(outputs) if isinstance(outputs[0], paddle.Tensor) else np.stack(outputs)

    def clone(self) -> "PaddleModel":
        """Return a copy of the model, which can be bound to another vector."""
        return PaddleModel(copy.deepcopy(self._layer), parameters=self._patterns, predict=self._predict)

    def save(self, directory: Path) -> None:
        """Write parameters and buffers as `params.safetensors` into an existing directory.

        Raises:
            StorageError: The file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        path = path_of(directory, StorageError) / WEIGHTS
        evolving = {name: self._unrounded(name) for name in self._parameters}
        state = self._layer.state_dict()
        arrays = {name: np.ascontiguousarray(evolving.get(name, tensor.numpy())) for name, tensor in state.items()}
        try:
            path.unlink(missing_ok=True)  # it may be a link to a file that others read
            save_file(arrays, path)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"{path} cannot be written: {error}") from error

    def load(self, directory: Path) -> None:
        """Use the parameters that `save` wrote from now on."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = path_of(directory, SolverError) / WEIGHTS
        try:
            arrays = load_file(path)
        except (OSError, SafetensorError) as error:
            raise SolverError(f"{path} cannot be read: {error}") from error
        wanted = {name: tuple(tensor.shape) for name, tensor in self._layer.state_dict().items()}
        found = {name: array.shape for name, array in arrays.items()}
        if wanted != found:
            raise LayoutMismatch(f"{path} is of another model: it has {found}, this model {wanted}")
        flat = self._layout.flatten({name: arrays[name] for name in self._layout.names})
        for name, tensor in self._layer.state_dict().items():
            if name not in self._parameters:
                tensor.set_value(arrays[name])
        self.bind(flat)

    def _rounded(self, name: str) -> Any:
        """Return the bound vector's numbers for a parameter, in its precision."""
        parameter = self._parameters[name]
        return paddle.to_tensor(self._views[name], place=parameter.place).astype(parameter.dtype)

    def _unrounded(self, name: str) -> NDArray[Any]:
        """Return a parameter as an array; if it is a copy of the bound vector's numbers, these."""
        array = _array(self._parameters[name])
        copied = name in self._copied and np.array_equal(_array(self._rounded(name)), array)
        return self._views[name] if copied else array

    def _evolves(self, name: str, parameter: Any) -> bool:
        if self._patterns is None:
            return not parameter.stop_gradient
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def _input(self, x: Any) -> Any:
        # The first layer reads it, which may be frozen and of another precision than what evolves.
        like = next((each for each in self._layer.parameters() if each.dtype in _FLOATING), None)
        like = next(iter(self._parameters.values())) if like is None else like
        tensor = paddle.to_tensor(np.asarray(x), place=like.place)
        return tensor.astype(like.dtype) if tensor.dtype in _FLOATING else tensor


_FLOATING = (paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64)


def _share(parameter: Any, view: FlatVector) -> bool:
    """Make a parameter use a view's memory; return False if this paddle cannot, or the parameter is elsewhere."""
    if parameter.dtype != paddle.float32 or not parameter.place.is_cpu_place() or not view.size:
        return False
    try:
        source = paddle.base.core.eager.Tensor(
            value=view, place=paddle.CPUPlace(), persistable=False, zero_copy=True, name="evokit", stop_gradient=True
        )
        parameter.get_tensor()._share_data_with(source.get_tensor())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False
    first = view.flat[0]
    view.flat[0] = 1.0 if first != 1.0 else 2.0  # a test whether writes to the vector are visible in the layer
    shared = bool(parameter.numpy().flat[0] == view.flat[0])
    view.flat[0] = first
    return shared


def _array(parameter: Any) -> NDArray[Any]:
    array: NDArray[Any] = parameter.detach().cpu().astype("float32").numpy()
    return array


def _arrays(value: Any) -> Any:
    """Return tensors as numpy arrays, within tuples, lists and dictionaries, too."""
    if isinstance(value, paddle.Tensor):
        return value.numpy()
    if isinstance(value, tuple | list):
        return type(value)(_arrays(item) for item in value)
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value

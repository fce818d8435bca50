"""Models in numpy: a dictionary of arrays with a function, and a ready-made multilayer perceptron."""

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._directories import path_of
from parl_evokit._params import FlatVector, ParameterLayout, read_arrays, write_arrays
from parl_evokit.errors import LayoutMismatch, SolverError, StorageError
from parl_evokit.noise._gaussian import GaussianNoise
from parl_evokit.noise._spec import NoiseSpec

__all__ = ["NumpyModel", "mlp"]


WEIGHTS = "params.npz"
Predict = Callable[[dict[str, FlatVector], Any], Any]
ACTIVATIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "linear": lambda x: x,
}


class NumpyModel:
    """A `ModelAdapter` for numpy.

    Args:
        arrays: The parameters by name; they are copied as float32.
        predict: Function of the arrays and the input that returns the output. The arrays are views of the flat vector:
            do not keep them. For use in other processes it must be a function that they can import.
        predict_many: The same function for a population: the arrays have the axis of the population in front, and the
            input broadcasts against it. With None, `predict` is called for each member.

    Attributes:
        built_in: Name of a built-in model, such as `mlp:4-20-2`; None for a model of the user.
    """

    built_in: str | None = None

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], predict: Predict, predict_many: Predict | None = None
    ) -> None:
        self._layout = ParameterLayout.of(arrays)
        self._predict = predict
        self._predict_many = predict_many
        self._flat = self._layout.flatten(arrays)
        self._views = self._layout.views(self._flat)

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""
        return self._layout

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""
        return self._flat.copy()

    def bind(self, flat: FlatVector) -> None:
        """Use `flat`, float32 `[n]`, as parameters from now on; the arrays become views of it."""
        self._views = self._layout.views(flat)
        self._flat = flat

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""
        return self._predict(self._views, x)

    def refresh(self) -> None:
        """Do nothing: the arrays are views of the bound vector."""

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> NDArray[Any]:
        """Return the outputs of a whole population, `[k, ...]`."""
        if self._predict_many is None:
            rows = (self._layout.views(flat) for flat in flats)
            return np.stack([self._predict(views, x[k] if each else x) for k, views in enumerate(rows)])
        k, start = len(flats), 0
        arrays: dict[str, FlatVector] = {}
        for name, shape in zip(self._layout.names, self._layout.shapes, strict=True):
            stop = start + prod(shape)
            arrays[name] = flats[:, start:stop].reshape(k, *shape)
            start = stop
        inputs = np.asarray(x, np.float32)
        result: NDArray[Any] = self._predict_many(arrays, inputs if each else inputs[np.newaxis])
        return result

    def clone(self) -> "NumpyModel":
        """Return a copy of the model, which can be bound to another vector."""
        return NumpyModel(self._views, self._predict, self._predict_many)

    def save(self, directory: str | PathLike[str]) -> None:
        """Write the parameters as `params.npz` into a directory, which is made if necessary.

        Raises:
            StorageError: The file cannot be written.
        """
        target = path_of(directory, StorageError)
        try:
            target.mkdir(parents=True, exist_ok=True)
            write_arrays(target / WEIGHTS, self._views)
        except OSError as error:
            raise StorageError(f"{directory} cannot be written: {error}") from error

    def load(self, directory: str | PathLike[str]) -> None:
        """Use the parameters that `save` wrote from now on."""
        path = path_of(directory, SolverError) / WEIGHTS
        try:
            self.bind(self._layout.flatten(read_arrays(path)))
        except LayoutMismatch as error:
            raise LayoutMismatch(f"{path} is of another model: {error}") from error

    def __reduce__(self) -> tuple[Callable[..., "NumpyModel"], tuple[Any, ...]]:
        return NumpyModel, (
            {name: view.copy() for name, view in self._views.items()},
            self._predict,
            self._predict_many,
        )


def mlp(
    sizes: Sequence[int], *, activation: str = "tanh", softmax: bool = True, bias: bool = True, seed: int = 0
) -> NumpyModel:
    """Return a multilayer perceptron, such as `mlp([4, 20, 2])` for CartPole.

    Args:
        sizes: Numbers of inputs, of units of each hidden layer, and of outputs; at least two numbers, 1 or more.
        activation: Activation of the hidden layers: `tanh`, `relu` or `linear`.
        softmax: True if the outputs are probabilities.
        bias: True if layers have biases, which are initially 0.
        seed: Seed of the initial weights, which are normal with standard deviation 1 / sqrt(inputs) and the same on
            every machine.

    Returns:
        A model of float32 arrays `w0` `[inputs, outputs]`, `b0`, `w1`, ... whose `predict` takes `[inputs]` or
        `[batch, inputs]`.

    Raises:
        LayoutMismatch: `sizes` has fewer than two numbers, or one below 1.
        ValueError: `activation` has another value.
    """
    if len(sizes) < 2:
        raise LayoutMismatch(
            f"a perceptron needs two sizes or more, those of inputs and outputs included, not {list(sizes)}"
        )
    if min(sizes) < 1:
        raise LayoutMismatch(f"each layer must have 1 unit or more, not {list(sizes)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    noise = GaussianNoise(NoiseSpec(seed))
    arrays: dict[str, NDArray[Any]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        draws = noise.perturb(np.zeros(inputs * outputs, np.float32), 2 * (layer + 1), inputs**-0.5)
        arrays[f"w{layer}"] = draws.reshape(inputs, outputs)
        if bias:
            arrays[f"b{layer}"] = np.zeros(outputs, np.float32)
    layers = len(sizes) - 1
    model = NumpyModel(
        arrays,
        functools.partial(_forward, activation, softmax, bias, layers),
        functools.partial(_forward_many, activation, softmax, bias, layers),
    )
    words = ["mlp", "-".join(map(str, sizes)), activation]
    model.built_in = ":".join(words + ["logits"] * (not softmax) + ["nobias"] * (not bias))
    return model


def _forward(
    activation: str, softmax: bool, bias: bool, layers: int, arrays: Mapping[str, FlatVector], x: NDArray[Any]
) -> NDArray[Any]:
    out = np.asarray(x, np.float32)
    for layer in range(layers):
        out = out @ arrays[f"w{layer}"]
        if bias:
            out = out + arrays[f"b{layer}"]
        if layer < layers - 1:
            out = ACTIVATIONS[activation](out)
    return _softmax(out) if softmax else out


def _forward_many(
    activation: str, softmax: bool, bias: bool, layers: int, arrays: Mapping[str, FlatVector], x: NDArray[Any]
) -> NDArray[Any]:
    """Return the outputs of `k` networks: weights `[k, in, out]`, inputs `[k or 1, in]` or `[k or 1, batch, in]`."""
    out = x[:, np.newaxis, :] if x.ndim == 2 else x
    for layer in range(layers):
        out = out @ arrays[f"w{layer}"]
        if bias:
            out = out + arrays[f"b{layer}"][:, np.newaxis, :]
        if layer < layers - 1:
            out = ACTIVATIONS[activation](out)
    if softmax:
        out = _softmax(out)
    return out[:, 0, :] if x.ndim == 2 else out


def _softmax(logits: NDArray[Any]) -> NDArray[Any]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: NDArray[Any] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result

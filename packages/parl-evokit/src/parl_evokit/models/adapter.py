"""The interface of models of any framework that evolution needs."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector, ParameterLayout

__all__ = ["ModelAdapter", "Predictor"]


class Predictor(Protocol):
    """An object with `predict`, such as an agent or a clone."""

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""


class ModelAdapter(Protocol):
    """A model whose parameters can be put into one flat vector.

    An adapter is bound to one vector at a time. Changes of the vector change the model, without a copy if the framework
    allows that.
    """

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""

    def bind(self, flat: FlatVector) -> None:
        """Use `flat`, float32 `[n]`, as parameters from now on; later changes of `flat` change the parameters."""

    def refresh(self) -> None:
        """Apply changes of the bound vector if the adapter had to copy it."""

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population; the model stays bound to its vector.

        Args:
            flats: Parameters `[k, n]`.
            x: One input for all, or with `each` an array with one input for each, `[k, ...]`.
            each: True if `x` has one input for each.

        Returns:
            Outputs `[k, ...]`.
        """

    def clone(self) -> "ModelAdapter":
        """Return a copy of the model, which can be bound to another vector."""

    def save(self, directory: Path) -> None:
        """Write the parameters, without code or names of code, into an existing directory.

        Raises:
            StorageError: The files cannot be written; an adapter may raise an `OSError` instead.
        """

    def load(self, directory: Path) -> None:
        """Use the parameters that `save` wrote from now on.

        Raises:
            SolverError: The file is missing or damaged.
            LayoutMismatch: The arrays of the file are not those of this model.
        """

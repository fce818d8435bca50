"""The interface that evolution needs of a model, whatever framework it is written in."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector, ParameterLayout

__all__ = ["ModelAdapter", "Predictor"]


class Predictor(Protocol):
    """Anything with `predict`: an agent or a clone."""

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""


class ModelAdapter(Protocol):
    """A model whose parameters can be put into one flat vector.

    An adapter is bound to one vector at a time: changes of the vector change the model, without a copy if the
    framework allows it.
    """

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""

    def bind(self, flat: FlatVector) -> None:
        """Use the numbers in `flat` `[n]` as parameters from now on; later changes of `flat` change the parameters."""

    def refresh(self) -> None:
        """Apply changes of the bound vector, if the adapter had to copy it."""

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population; the model stays bound to its vector.

        Args:
            flats: Parameters `[k, n]`.
            x: One input for all, or with `each` an array with one input for each, `[k, ...]`.
            each: Whether `x` has one input for each.

        Returns:
            Outputs `[k, ...]`.
        """

    def clone(self) -> "ModelAdapter":
        """Return the same model, to be bound to another vector."""

    def save(self, directory: Path) -> None:
        """Write the parameters, and nothing that names code, into an existing directory.

        Raises:
            StorageError: They cannot be written; an adapter may raise an `OSError` instead.
        """

    def load(self, directory: Path) -> None:
        """Bind the model to the parameters that `save` wrote.

        Raises:
            SolverError: The file is missing or damaged.
            LayoutMismatch: Its arrays are not those of this model.
        """

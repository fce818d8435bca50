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

    An adapter is bound to one vector at a time: what changes there changes the model, without a copy where the
    framework allows it.
    """

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and order of the parameters that evolve."""

    def parameters(self) -> FlatVector:
        """Return a copy of the present parameters `[n]`."""

    def bind(self, flat: FlatVector) -> None:
        """Use the numbers in `flat` `[n]` as parameters from now on, also those that are written there later."""

    def refresh(self) -> None:
        """Take over changed numbers of the bound vector, where the adapter had to copy them."""

    def predict(self, x: Any) -> Any:
        """Return the model's output for the input `x`."""

    def predict_many(self, flats: NDArray[np.float32], x: Any, *, each: bool) -> Any:
        """Return the outputs of a whole population, without changing what the model is bound to.

        Args:
            flats: Parameters `[k, n]`.
            x: The input of all, or with `each` an array whose first axis has one input for each, `[k, ...]`.
            each: Which of both.

        Returns:
            Outputs `[k, ...]`.
        """

    def clone(self) -> "ModelAdapter":
        """Return the same model, to be bound to another vector."""

    def save(self, directory: Path) -> None:
        """Write the parameters, and nothing that names code, into an existing directory.

        Raises:
            StorageError: They cannot be written; an `OSError` will do as well.
        """

    def load(self, directory: Path) -> None:
        """Bind the model to the parameters that `save` wrote.

        Raises:
            SolverError: The file is missing or damaged.
            LayoutMismatch: Its arrays are not those of this model.
        """

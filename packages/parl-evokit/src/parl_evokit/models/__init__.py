"""Models of every framework behind one interface; a framework is imported when one of its models is given."""

from collections.abc import Mapping
from typing import Any

from parl_evokit.errors import EvolutionError
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.numpy_model import NumpyModel, mlp

__all__ = ["ModelAdapter", "NumpyModel", "adapt", "mlp"]

VERBS = ("parameters", "bind", "predict", "clone", "save", "load")


def adapt(model: Any) -> ModelAdapter:
    """The adapter for what a user gave as `model=`.

    Args:
        model: A `ModelAdapter`, a pair (arrays, predict) for numpy, or a function without arguments that makes one.

    Raises:
        EvolutionError: It is none of these.
    """
    if all(hasattr(model, verb) for verb in (*VERBS, "layout")):
        adapter: ModelAdapter = model
        return adapter
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Mapping) and callable(model[1]):
        return NumpyModel(*model)
    if callable(model):
        return adapt(model())
    raise EvolutionError(
        f"{type(model).__name__} is no model: give a ModelAdapter, a pair (arrays, predict), or a function making one"
    )

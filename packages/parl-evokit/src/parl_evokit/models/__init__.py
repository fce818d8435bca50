"""Models of every framework behind one interface; a framework is imported when one of its models is given."""

import sys
from collections.abc import Mapping
from typing import Any

from parl_evokit.errors import EvolutionError
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.numpy_model import NumpyModel, mlp

__all__ = ["ModelAdapter", "NumpyModel", "adapt", "mlp"]

VERBS = ("parameters", "bind", "refresh", "predict", "predict_many", "clone", "save", "load")


def adapt(model: Any) -> ModelAdapter:
    """The adapter for what a user gave as `model=`.

    Args:
        model: A `ModelAdapter`; a pair (arrays, predict) for numpy; a `torch.nn.Module` or `paddle.nn.Layer` (a
            `parl.Model` is one of them); or a function without arguments that makes one of these.

    Raises:
        EvolutionError: It is none of these.
    """
    if all(hasattr(model, verb) for verb in (*VERBS, "layout")):
        adapter: ModelAdapter = model
        return adapter
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Mapping) and callable(model[1]):
        return NumpyModel(*model)
    framework = _framework_of(model)
    if framework == "torch":
        from parl_evokit.models.torch_model import TorchModel

        return TorchModel(model)
    if framework == "paddle":
        from parl_evokit.models.paddle_model import PaddleModel

        return PaddleModel(model)
    if callable(model) and not isinstance(model, type):
        return adapt(model())
    raise EvolutionError(
        f"{type(model).__name__} is no model: give a ModelAdapter, a torch or paddle module, a pair (arrays, predict), "
        "or a function that makes one of these"
    )


def _framework_of(model: Any) -> str:
    """The framework whose module it is, "torch" or "paddle", else nothing; neither is imported to find out."""
    for framework, kind in (("torch", "torch.nn.Module"), ("paddle", "paddle.nn.Layer")):
        package = sys.modules.get(framework)
        if package is not None:
            _, holder, name = kind.split(".")
            if isinstance(model, getattr(getattr(package, holder), name)):
                return framework
    return ""

"""Adapters for models that a user passes, names, or stores in a directory.

A framework is imported when one of its models is passed. Built-in models have names, which a solver's file may contain,
since a name contains no code:

    cartpole                             4-20-2, no hidden activation: the network of the PARL 1.x manual
    mlp:4-20-2[:relu][:logits][:nobias]  `mlp` with these sizes, activation, and without softmax or biases
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parl_evokit._solver_dir import SUMMARY, read_summary
from parl_evokit.errors import EvolutionError
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.numpy_model import ACTIVATIONS, NumpyModel, mlp

__all__ = ["adapt", "built_in", "has_program", "model_in"]

VERBS = ("parameters", "bind", "refresh", "predict", "predict_many", "clone", "save", "load")
ALIASES = {"cartpole": "mlp:4-20-2:linear"}


def adapt(model: Any) -> ModelAdapter:
    """Return the adapter of a model.

    Args:
        model: A `ModelAdapter`; a pair (arrays, predict) for numpy; a `torch.nn.Module` or `paddle.nn.Layer` (a
            `parl.Model` is one of them); or a function without arguments that returns one of these.

    Raises:
        EvolutionError: The model is none of these.
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
        f"{type(model).__name__} is not a model: give a ModelAdapter, a torch or paddle module, a pair (arrays, "
        "predict), or a function that makes one of these"
    )


def built_in(name: str) -> NumpyModel | None:
    """Return the built-in model of this name, or None.

    Raises:
        EvolutionError: The name begins with `mlp:`, and the rest is invalid.
    """
    kind, *words = ALIASES.get(name, name).split(":")
    if kind != "mlp" or not words:
        return None
    sizes, options = words[0].split("-"), words[1:]
    unknown = [word for word in options if word not in {*ACTIVATIONS, "logits", "nobias"}]
    activations = [word for word in options if word in ACTIVATIONS]
    if unknown or len(activations) > 1 or len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise EvolutionError(
            f"{name!r} is not a model: a perceptron's name is mlp:<inputs>-<hidden>-...-<outputs>, then perhaps one of "
            f"{', '.join(ACTIVATIONS)}, logits, nobias, each after a colon"
        )
    return mlp(
        [int(size) for size in sizes],
        activation=activations[0] if activations else "tanh",
        softmax="logits" not in options,
        bias="nobias" not in options,
    )


def model_in(directory: Path) -> ModelAdapter | None:
    """Return the model in a directory if it needs no code of the user; else None.

    Raises:
        SolverError: `solver.json` is damaged, or the inference program cannot be read.
    """
    if (directory / SUMMARY).exists():
        name = read_summary(directory).get("model")
        found = built_in(name) if isinstance(name, str) else None
        if found is not None:
            return found
    if has_program(directory):
        from parl_evokit.models.paddle_program import PaddleProgram  # here, because paddle is optional

        return PaddleProgram(directory)
    return None


def has_program(directory: Path) -> bool:
    """Return whether a directory has an inference program of paddle, by its file names and without importing paddle."""
    return any(directory.glob("*.pdiparams")) or all((directory / name).is_file() for name in ("model", "params"))


def _framework_of(model: Any) -> str:
    """Return "torch" or "paddle" for a module of that framework, else an empty text, without importing either."""
    for framework, kind in (("torch", "torch.nn.Module"), ("paddle", "paddle.nn.Layer")):
        package = sys.modules.get(framework)
        if package is not None:
            _, holder, name = kind.split(".")
            if isinstance(model, getattr(getattr(package, holder), name)):
                return framework
    return ""

"""What an agent says of an update, or of a choice of actions, that went wrong."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_core.checks import check_finite
from parl_core.errors import ParlError
from parl_core.nested import leaves

__all__ = ["check_figures", "explain"]


def explain(
    error: Exception, algorithm: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Say beside an error out of the framework or the model which arrays led there, and what a model has to do."""
    if isinstance(error, ParlError) or getattr(error, "__notes__", None):
        return
    try:
        names = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # what is no Python function
        names = [f"argument {i}" for i in range(len(args))]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    arrays = [
        f"{name} {array.dtype} {list(array.shape)}"
        for key, value in given.items()
        if isinstance(value, (np.ndarray, list, dict))
        for name, array in leaves(key, value).items()
    ]
    error.add_note(
        f"It came out of {algorithm}.{getattr(method, '__name__', 'learn')} with {', '.join(arrays) or 'no arrays'}. "
        "The model has to take such observations, casting whole numbers where its layers want others, and to "
        f"return what {algorithm}'s documentation says: help(parl.algorithms.{algorithm})"
    )


def check_figures(source: str, figures: Any) -> None:
    """Refuse NaN and infinity among what an algorithm's method returned: a number, a tuple or a dictionary of some.

    Raises:
        DivergedError: it names the figures, and what usually helps.
    """
    if isinstance(figures, float):
        check_finite(source, {"the loss": figures})
    elif isinstance(figures, tuple):
        names = getattr(figures, "_fields", None) or [f"figure {i}" for i in range(len(figures))]
        parts = dict(zip(names, figures, strict=True))
        check_finite(source, {name: part for name, part in parts.items() if isinstance(part, float)})
        for part in figures:
            check_figures(source, part if isinstance(part, tuple) else None)
    elif isinstance(figures, dict):
        check_finite(source, {name: part for name, part in figures.items() if isinstance(part, float)})

"""The ranking model: a score for each item from features of the visitor and of the item.

    score(item) = visitor · W · item + b · item

Service and offline job share this code; the weights are in the model directory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

VISITOR_FEATURES, ITEM_FEATURES = 4, 6


def scores(arrays: Mapping[str, np.ndarray], request: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return scores `[n]` for a visitor `[4]` and items `[n, 6]`."""
    visitor, items = request
    result: np.ndarray = items @ (visitor @ arrays["w"] + arrays["b"])
    return result


def model() -> tuple[dict[str, np.ndarray], Any]:
    """Return the model for `ESAgent` and the `evokit` command: initial weights, and the function of them."""
    shapes = {"w": (VISITOR_FEATURES, ITEM_FEATURES), "b": (ITEM_FEATURES,)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, scores


def catalogue(seed: int = 7, n: int = 40) -> np.ndarray:
    """Return the features `[n, 6]` of the items."""
    return np.random.default_rng(seed).normal(size=(n, ITEM_FEATURES)).astype(np.float32)

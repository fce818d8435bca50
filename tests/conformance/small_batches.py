"""Batches of eight transitions with four numbers and two actions, for tests of what a model or an optimizer keeps."""

import numpy as np

from parl_core.contracts.batches import Transitions

__all__ = ["eight_transitions"]


def eight_transitions() -> Transitions:
    """Return transitions none of which is terminal."""
    rng = np.random.default_rng(0)
    return Transitions(
        rng.normal(size=(8, 4)).astype(np.float32),
        rng.integers(2, size=8),
        rng.normal(size=8).astype(np.float32),
        rng.normal(size=(8, 4)).astype(np.float32),
        np.zeros(8, np.float32),
    )

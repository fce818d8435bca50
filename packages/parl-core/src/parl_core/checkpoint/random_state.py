"""Random generators that nobody owns: Python's `random`, numpy's global state, and the framework's.

Programs draw from them where libraries give no choice (a framework's dropout, an environment of somebody else's), so a
run goes on exactly only where they do, too.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_core import backends

__all__ = ["get_random_state", "set_random_state"]


def get_random_state(backend: str = "") -> dict[str, Any]:
    """Copies of the states, for a checkpoint.

    Args:
        backend: the backend whose framework's generators belong to it; empty for none.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    if backend:
        state[backend] = backends.load(backend).random_state.get_random_state()
    return state


def set_random_state(state: Mapping[str, Any], backend: str = "") -> bool:
    """Go on from what `get_random_state` returned.

    Returns:
        Whether the state has the generators of `backend`; a run of another backend has those of its own.
    """
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    if not backend:
        return True
    if backend in state:
        backends.load(backend).random_state.set_random_state(state[backend])
    return backend in state

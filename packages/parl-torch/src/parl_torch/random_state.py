"""The states of PyTorch's own generators, as arrays for a checkpoint."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["get_random_state", "set_random_state"]


def get_random_state() -> dict[str, NDArray[np.uint8]]:
    """Return copies of the states of the generators of the CPU and, if CUDA is in use, of every GPU."""
    states = {"cpu": torch.get_rng_state().numpy().copy()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda:{index}"] = state.numpy().copy()
    return states


def set_random_state(states: Mapping[str, NDArray[np.uint8]]) -> None:
    """Restore states that `get_random_state` returned; states of GPUs that this machine does not have are left out."""
    torch.set_rng_state(torch.tensor(states["cpu"]))
    for index in range(torch.cuda.device_count()):
        if f"cuda:{index}" in states:
            torch.cuda.set_rng_state(torch.tensor(states[f"cuda:{index}"]), index)

"""The states of PyTorch's own generators, as arrays for a checkpoint."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parl_core import logger
from parl_core._attached_state import StateAccessor

__all__ = ["accessor_of_generator", "get_random_state", "set_random_state"]


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


def accessor_of_generator(generator: torch.Generator) -> StateAccessor:
    """Return an object that reads and writes the state of one generator.

    A generator of the CPU cannot take the state of one of a GPU, nor vice versa: it then keeps its own state and logs a
    warning.
    """

    def restore(state: Tensor) -> None:
        if state.numel() == generator.get_state().numel():
            generator.set_state(state)
        else:
            where = generator.device
            logger.warning("A generator on the %s keeps its state, because the saved state is of another device", where)

    return StateAccessor(generator.get_state, restore)

"""The states of paddle's own generators, as arrays for a checkpoint."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

__all__ = ["get_random_state", "set_random_state"]


def get_random_state() -> dict[str, NDArray[Any]]:
    """Return copies of the states of the CPU's generator and, where paddle is built for CUDA, of every GPU's.

    A state is the numbers that paddle itself pickles: device, seed, offset, and the engine's words as bytes.
    """
    states: dict[str, NDArray[Any]] = {}
    for name, generator in _generators().items():
        *numbers, engine = generator.get_state().__getstate__()
        states[f"{name}/numbers"] = np.array(numbers, np.int64)
        states[f"{name}/engine"] = np.array(engine, np.uint8)
    return states


def set_random_state(states: Mapping[str, NDArray[Any]]) -> None:
    """Continue from what `get_random_state` returned; GPUs that are not there are left out."""
    for name, generator in _generators().items():
        if f"{name}/numbers" in states:
            kind: Any = type(generator.get_state())
            state = kind.__new__(kind)  # a new one, because the state that is there belongs to the generator
            state.__setstate__((*states[f"{name}/numbers"].tolist(), states[f"{name}/engine"].tolist()))
            generator.set_state(state)


def _generators() -> dict[str, Any]:
    core = paddle.base.core
    found = {"cpu": core.default_cpu_generator()}
    if paddle.device.is_compiled_with_cuda():
        for index in range(paddle.device.cuda.device_count()):
            found[f"cuda:{index}"] = core.default_cuda_generator(index)
    return found

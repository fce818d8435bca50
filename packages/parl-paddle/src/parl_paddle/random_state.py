"""The states of paddle's own generators, as arrays for a checkpoint."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_core._attached_state import StateAccessor

__all__ = ["accessor_of_generator", "get_random_state", "set_random_state"]


def get_random_state() -> dict[str, NDArray[Any]]:
    """Return copies of the states of the generators of the CPU and, if paddle is built for CUDA, of every GPU.

    A state consists of the numbers that paddle itself pickles: device, seed, offset, and the words of the engine as
    bytes.
    """
    states: dict[str, NDArray[Any]] = {}
    for name, generator in _generators().items():
        states |= {f"{name}/{part}": array for part, array in _state(generator).items()}
    return states


def set_random_state(states: Mapping[str, NDArray[Any]]) -> None:
    """Restore states that `get_random_state` returned; states of GPUs that this machine does not have are left out."""
    for name, generator in _generators().items():
        if f"{name}/numbers" in states:
            _restore(generator, {part: states[f"{name}/{part}"] for part in ("numbers", "engine")})


def accessor_of_generator(generator: Any) -> StateAccessor:
    """Return an object that reads and writes the state of one generator."""
    return StateAccessor(lambda: _state(generator), lambda state: _restore(generator, state))


def _state(generator: Any) -> dict[str, NDArray[Any]]:
    *numbers, engine = generator.get_state().__getstate__()
    return {"numbers": np.array(numbers, np.int64), "engine": np.array(engine, np.uint8)}


def _restore(generator: Any, saved: Mapping[str, NDArray[Any]]) -> None:
    present = generator.get_state()
    device, *_ = present.__getstate__()  # the saved generator may belong to a GPU that this machine does not have
    kind: Any = type(present)
    state = kind.__new__(kind)  # a new object, because the present one belongs to the generator
    state.__setstate__((device, *saved["numbers"].tolist()[1:], saved["engine"].tolist()))
    generator.set_state(state)


def _generators() -> dict[str, Any]:
    core = paddle.base.core
    found = {"cpu": core.default_cpu_generator()}
    if paddle.device.is_compiled_with_cuda():
        for index in range(paddle.device.cuda.device_count()):
            found[f"cuda:{index}"] = core.default_cuda_generator(index)
    return found

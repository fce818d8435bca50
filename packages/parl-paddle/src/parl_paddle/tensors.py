"""The only place that turns numpy arrays into paddle tensors and back, and that chooses devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from parl_core import config

__all__ = ["resolve_device", "to_numpy", "to_tensor"]


def resolve_device(device: str = "auto") -> Any:
    """The place that a device's name means.

    Args:
        device: `"auto"` (the environment variable `PARL_DEVICE`, else a GPU when paddle can use one, else the CPU),
            `"cpu"`, `"cuda"`, `"cuda:1"`, or paddle's own spelling, `"gpu:1"`.

    Raises:
        ValueError: paddle knows no such device, or was built without it.
    """
    name = device if device != "auto" else config.device_choice() or _best_device()
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        return paddle.CPUPlace()
    if kind in {"cuda", "gpu"}:
        if not paddle.device.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
            raise ValueError(f"device {name!r} was asked for, but this paddle sees no GPU; use device='cpu'")
        return paddle.CUDAPlace(int(index or 0))
    raise ValueError(f"unknown device {name!r}; use 'auto', 'cpu', 'cuda' or 'cuda:<index>'")


def to_tensor(array: Any, place: Any) -> paddle.Tensor:
    """A tensor at `place` with the array's values; float64 becomes float32, the precision networks have.

    A tensor passes unchanged if it is at `place` already.
    """
    if isinstance(array, paddle.Tensor):
        return array if array.place._equals(place) else array._copy_to(place, False)
    values = np.asarray(array)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return paddle.to_tensor(values, place=place)


def to_numpy(tensor: Any) -> NDArray[Any] | Any:
    """A numpy array with the tensor's values, in memory of its own; what is no tensor passes unchanged."""
    return tensor.numpy() if isinstance(tensor, paddle.Tensor) else tensor


def _best_device() -> str:
    has_gpu = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    return "cuda" if has_gpu else "cpu"

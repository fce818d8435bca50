"""Conversion between numpy arrays and tensors, and the choice of the device; no other module does either."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_core import _config
from parl_core.errors import HyperparameterError
from parl_paddle._static_graphs import eager

__all__ = ["device_name", "place_of", "resolve_device", "to_array", "to_tensor"]

# Paddle interprets the bits of uint16 as bfloat16, and has no wider unsigned integers.
_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
_NUMPY_DTYPES = {paddle.float16: np.float16, paddle.float32: np.float32, paddle.float64: np.float64}


def resolve_device(device: str = "auto") -> str:
    """Return the device to use, in paddle's spelling: `"cpu"` or `"gpu:0"`.

    Args:
        device: `"auto"` (the environment variable `PARL_DEVICE`, else CUDA when there is one, else the CPU), `"cpu"`,
            `"cuda"`, `"cuda:1"`, or as paddle calls them `"gpu"` and `"gpu:1"`.

    Raises:
        HyperparameterError: The name is unknown, or the machine has no such device.
    """
    asked = device_name(device)
    if asked == "auto":
        asked = _config.device_choice() or ("cuda" if _gpus() else "cpu")
    kind, _, index = asked.partition(":")
    if asked == "cpu":
        return asked
    if kind not in {"cuda", "gpu"} or not (index or "0").isdigit():
        raise HyperparameterError(f"device {asked!r} is unknown to paddle; use auto, cpu, cuda or cuda:<n>")
    if int(index or 0) >= _gpus():
        raise HyperparameterError(
            f"device {asked!r} is not there: this paddle sees {_gpus()} CUDA devices; "
            'use device="cpu", or unset PARL_DEVICE'
        )
    return f"gpu:{int(index or 0)}"


def device_name(device: Any) -> str:
    """Return the name of a device in paddle's spelling, from a name or a place such as `Place(gpu:0)`."""
    return str(device).removeprefix("Place(").removesuffix(")")


@functools.cache
def place_of(device: str) -> Any:
    """Return paddle's place for a device that `resolve_device` returned."""
    return paddle.CPUPlace() if device == "cpu" else paddle.CUDAPlace(int(device.partition(":")[2]))


def to_tensor(values: Any, device: str, float_dtype: Any = paddle.float32) -> paddle.Tensor:
    """Return a tensor with the values of an array, in memory of its own.

    Args:
        values: An array, a value that numpy converts to one, or a tensor; one of another framework is shared by DLPack.
        device: The device of the tensor, in paddle's spelling.
        float_dtype: The dtype of floating-point numbers; other dtypes are kept, except for unsigned integers of 16 bits
            and more, which become signed ones.
    """
    if hasattr(values, "__dlpack__") and not isinstance(values, (np.ndarray, np.generic)):
        is_own = isinstance(values, paddle.Tensor)
        shared: paddle.Tensor = (values if is_own else paddle.utils.dlpack.from_dlpack(values)).to(device)
        is_exact = shared.dtype == float_dtype or not shared.is_floating_point()
        return shared if is_exact else shared.astype(float_dtype)
    array = np.asarray(values)
    if array.dtype.kind != "f":
        if array.dtype in _WIDER:
            array = array.astype(_WIDER[array.dtype])
        return paddle.to_tensor(array, place=place_of(device))
    if float_dtype in _NUMPY_DTYPES:  # numpy converts in a third of the time, if a conversion is needed at all
        if array.dtype != _NUMPY_DTYPES[float_dtype]:
            with np.errstate(over="ignore"):  # too large numbers become infinite, as in paddle
                array = array.astype(_NUMPY_DTYPES[float_dtype])
        return paddle.to_tensor(array, place=place_of(device))
    return paddle.to_tensor(array, dtype=float_dtype, place=place_of(device))


def to_array(tensor: paddle.Tensor) -> NDArray[Any]:
    """Return a copy of the values of a tensor, which later updates do not change; bfloat16 becomes float32."""
    if not paddle.in_dynamic_mode():  # detach() would abort the process here
        with eager():
            return to_array(tensor)
    if tensor.dtype == paddle.bfloat16:
        tensor = tensor.astype("float32")
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def _gpus() -> int:
    return int(paddle.device.cuda.device_count()) if paddle.device.is_compiled_with_cuda() else 0

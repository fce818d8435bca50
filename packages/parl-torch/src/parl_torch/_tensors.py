"""Conversion between numpy arrays and tensors, and the choice of the device; no other module does either."""

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

from parl_core import _config
from parl_core.errors import HyperparameterError

__all__ = [
    "is_followed",
    "keep_freed_memory",
    "orthogonal_",
    "resolve_device",
    "settle_threads",
    "tanh_",
    "to_array",
    "to_tensor",
    "with_channels_last",
]

SMALL = 2**20
"""Number of parameters up to which a second thread is slower; two layers of 512 have a quarter, the Nature network 1.6
times."""

_FEW_CHANNELS = 4
"""Number of channels up to which copying them one by one is faster."""

_MANY = 2**14
"""Numbers from which a tanh by a sigmoid is faster without AVX-512."""

_HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"

_threads: dict[str, int] = {}  # one per process, like PyTorch's number of threads itself

_KEPT = 2**30
_LARGEST = 2**27  # size of a block in bytes; the largest in an update with 320 stacks of frames has 36 MB
_MOST_OF_OLDER_GLIBC = 2**25  # size of a block in bytes; glibc 2.34 and earlier refuse larger values
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt`


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device to use.

    Args:
        device: `"auto"` (the environment variable `PARL_DEVICE`, else CUDA when there is one, else the CPU), or a name
            of PyTorch's; `gpu` and `gpu:1`, as paddle calls them, mean CUDA, too.

    Raises:
        HyperparameterError: PyTorch does not know the name, or the machine has no such device.
    """
    asked = str(device)
    if asked == "auto":
        asked = _config.device_choice() or ("cuda" if torch.cuda.is_available() else "cpu")
    name = asked.replace("gpu", "cuda", 1) if asked.startswith("gpu") else asked
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise HyperparameterError(f"device {asked!r} is unknown to PyTorch; use auto, cpu, cuda or cuda:<n>") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise HyperparameterError(
            f"device {asked!r} is not there: this PyTorch sees {torch.cuda.device_count()} CUDA devices; "
            'use device="cpu", or unset PARL_DEVICE'
        )
    return found


@functools.cache
def keep_freed_memory() -> None:
    """Make the C library keep memory that an update frees for the next one.

    glibc returns freed memory to the kernel if a few hundred kilobytes are free at the top of its heap, and maps each
    larger block anew. Updates free megabytes, so that each begins with page faults, which take a tenth of the time of
    DDPG's updates, a quarter of TD3's and a third of those of A2C with frames. With this, up to 1 GiB stays at the top
    of the heap, and more below blocks in use; blocks of 128 MiB and more, such as the arrays of data sets, always go
    back. glibc is left alone where the environment sets its thresholds, and other C libraries have none.
    """
    if os.name != "posix" or _config.sets_malloc(os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST) or mallopt(_MMAP_THRESHOLD, _MOST_OF_OLDER_GLIBC)


def settle_threads(numbers: int) -> None:
    """Use one thread if all models of this process on the CPU are small, else PyTorch's own number of threads.

    A second thread costs a few microseconds per operation, which is more than it saves for small operations, and on a
    busy machine each operation waits for the slower thread. A number that the user has set by `OMP_NUM_THREADS` or a
    similar variable, or by `torch.set_num_threads`, is kept.

    Args:
        numbers: Number of parameters of the largest model of an algorithm.
    """
    now = torch.get_num_threads()
    if _config.chosen_variables(os.environ) or now not in (1, *_usual_threads()):
        return
    if numbers > SMALL:
        if "taken" in _threads and now == 1:
            torch.set_num_threads(_threads["taken"])
        _threads["large"] = now
    elif "large" not in _threads and now > 1:
        torch.set_num_threads(1)
        _threads["taken"] = now


def orthogonal_(weights: Tensor, gain: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill weights with a random orthogonal matrix, in one thread, because the rounding depends on the threads.

    A process sets its number of threads after its first model was made (`settle_threads`), so that equal seeds would
    give the next model other weights.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return nn.init.orthogonal_(weights, gain, generator=generator)
    finally:
        torch.set_num_threads(threads)


def _usual_threads() -> tuple[int, int]:
    """Return PyTorch's own choices of a number of threads: the logical processors of this process, or the cores."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for number in processors:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(number))
    return len(processors), len(cores)


def to_tensor(values: Any, device: torch.device, float_dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor with the values of an array.

    On the CPU it shares the memory of the array if no conversion is needed; a copy to CUDA uses pinned memory and does
    not wait.

    Args:
        values: An array, a value that numpy converts to one, or a tensor; one of another framework is shared by DLPack.
        device: The device of the tensor.
        float_dtype: The dtype of floating-point numbers; other dtypes are kept.
    """
    if hasattr(values, "__dlpack__") and not isinstance(values, (np.ndarray, np.generic)):
        shared: Tensor = values if isinstance(values, Tensor) else torch.utils.dlpack.from_dlpack(values)
        return shared.to(device, float_dtype if shared.is_floating_point() else shared.dtype)
    array = np.asarray(values)
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()  # PyTorch has neither read-only tensors nor negative strides
    tensor = torch.from_numpy(array)
    if tensor.is_floating_point() and tensor.dtype != float_dtype:
        tensor = tensor.to(float_dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if device.type == "cpu" else tensor.to(device)


def with_channels_last(tensor: Tensor) -> Tensor:
    """Return images `[n, channels, height, width]` with the channels of each pixel side by side in memory.

    Tensors that are no such images are returned unchanged.
    """
    if tensor.dim() != 4 or tensor.shape[1] >= min(tensor.shape[2:]) or tensor.stride(1) == 1:
        return tensor
    if tensor.shape[1] > _FEW_CHANNELS:
        return tensor.contiguous(memory_format=torch.channels_last)
    images = torch.empty_like(tensor, memory_format=torch.channels_last)
    for channel in range(tensor.shape[1]):
        images[:, channel] = tensor[:, channel]
    return images


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a copy of the values of a tensor, which later updates do not change; bfloat16 becomes float32."""
    detached = tensor.detach()
    if detached.dtype == torch.bfloat16:
        detached = detached.float()
    return np.array(detached.numpy(force=True))  # also for conjugate views


def is_followed() -> bool:
    """Return True while compilers, traces, transforms, modes or dual numbers must see each operation."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return True
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return bool(modes) or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def tanh_(values: Tensor) -> Tensor:
    """Replace the values of a tensor on the CPU, outside of autograd's graph, by their tanh; return the tensor.

    With AVX-512 and one thread numpy's takes a sixth of the time of PyTorch's. Otherwise a sigmoid of many numbers
    takes half the time of either, also because several threads share it; its error is at most 2e-7.
    """
    if values.dtype is not torch.float32:
        return values.tanh_()
    if torch.get_num_threads() > 1 or (values.numel() >= _MANY and not _HAS_AVX512):
        return values.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
    array = values.numpy()
    np.tanh(array, out=array)
    return values

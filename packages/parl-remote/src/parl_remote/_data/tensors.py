"""Pickling of arrays, and of torch and paddle tensors, with their memory out of band, without importing a framework.

    reducers() --> a pickler's `dispatch_table`
    numpy      ndarray of numbers: type, shape and buffer; a third of the time that numpy's own way takes
    torch      Tensor, Parameter: the elements in one buffer, whatever the size of their storage
    paddle     Tensor, parameters: as arrays

The other end imports the framework when the first tensor arrives. TensorFlow does not need this: its tensors are
pickled as arrays. A tensor that is not plain (sparse, quantized, a subclass, with hooks or attributes of the user's) is
pickled in its framework's own way. A tensor on a GPU arrives on the CPU: the receiver may have another GPU, or none,
and moves it where it is needed. Two views of one storage arrive as two tensors; one tensor that is sent twice arrives
as one.
"""

from __future__ import annotations

import copyreg
import importlib
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_remote._transport import Buffer

__all__ = ["OUT_OF_BAND_BYTES", "Reducers", "reducers"]

OUT_OF_BAND_BYTES = 8192  # below this a copy into the pickle stream is cheaper than one more frame

Reducers = dict[type[Any], Callable[[Any], Any]]

_made: dict[tuple[bool, bool, bool, int], Reducers] = {}  # by libraries loaded and size of copyreg's own table


def reducers() -> Reducers:
    """Return a pickler's table with `copyreg`'s entries, arrays, and the tensors of the frameworks that are loaded."""
    modules = sys.modules
    numpy, torch, paddle = modules.get("numpy"), modules.get("torch"), modules.get("paddle")
    # A library that another thread is just importing lacks its names; there are no arrays or tensors of it yet.
    has_numpy, has_torch, has_paddle = hasattr(numpy, "ndarray"), hasattr(torch, "nn"), hasattr(paddle, "Tensor")
    key = has_numpy, has_torch, has_paddle, len(copyreg.dispatch_table)
    table = _made.get(key)
    if table is None:
        _made.clear()
        table = _made[key] = dict(copyreg.dispatch_table)
        if numpy is not None and has_numpy and numpy.ndarray not in table:
            table[numpy.ndarray] = _array_reducer(numpy)
        if torch is not None and has_torch:
            table |= {torch.Tensor: _reduce_torch, torch.nn.Parameter: _reduce_torch}
        if paddle is not None and has_paddle:
            table |= {paddle.Tensor: _reduce_paddle, _parameter_class(paddle): _reduce_paddle}
    return table


# -- numpy -------------------------------------------------------------------------------------------------------

_NUMBERS = "?bhilqBHILQefdFD"  # type codes


def _array_reducer(numpy: Any) -> Callable[[Any], Any]:
    """Return the reducer of arrays: numpy's own spends most of its time on the type, for which a name is enough."""
    ndarray, buffer = numpy.ndarray, pickle.PickleBuffer
    # By identity, because a type with metadata of the user's is equal to the one without.
    known = {id(kind): kind.str for kind in map(numpy.dtype, _NUMBERS)}

    def reduce(array: Any) -> Any:
        kind, flags = known.get(id(array.dtype)), array.flags
        if kind is None or not flags.c_contiguous:
            return array.__reduce_ex__(5)
        if array.nbytes < OUT_OF_BAND_BYTES and flags.writeable:
            # It saves the check whether it goes out of band. bytearray(array) takes an integer without axes as a size.
            return ndarray, (array.shape, kind, bytearray(array.data))
        return ndarray, (array.shape, kind, buffer(array))

    return reduce


def _parameter_class(paddle: Any) -> type[Any]:
    found: type[Any] = getattr(
        getattr(getattr(paddle, "base", None), "framework", None), "EagerParamBase", paddle.Tensor
    )
    return found


# -- torch -------------------------------------------------------------------------------------------------------


def _reduce_torch(tensor: Any) -> Any:
    torch: Any = importlib.import_module("torch")

    plain = (
        tensor.layout is torch.strided
        and tensor.device.type in {"cpu", "cuda"}
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.__dict__
        and not tensor._backward_hooks
    )
    if not plain:
        return tensor.__reduce_ex__(5)
    dense = tensor.detach()
    if dense.device.type != "cpu":
        dense = dense.cpu()
    if dense.is_conj() or dense.is_neg():
        dense = dense.resolve_conj().resolve_neg()
    order = tuple(range(dense.dim()))
    if not dense.is_contiguous():
        dense, order = _compact(dense)
    raw = (dense if dense.dim() else dense.reshape(1)).view(torch.uint8).numpy() if dense.numel() else b""
    is_parameter = type(tensor) is torch.nn.Parameter
    return _make_torch, (
        pickle.PickleBuffer(raw),
        str(dense.dtype).removeprefix("torch."),
        tuple(dense.shape),
        order,
        tensor.requires_grad,
        is_parameter,
    )


def _compact(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the tensor as contiguous memory, and the order of its dimensions there.

    Dimensions go from the widest stride to the narrowest, so that a transposed or channels-last tensor keeps its
    layout.
    """
    order = tuple(sorted(range(tensor.dim()), key=lambda i: (-tensor.stride(i), i)))
    dense = tensor.permute(order)
    return (dense, order) if dense.is_contiguous() else (tensor.contiguous(), tuple(range(tensor.dim())))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _make_torch(
    raw: Buffer, dtype: str, shape: Sequence[int], order: Sequence[int], requires_grad: bool, is_parameter: bool
) -> Any:
    torch: Any = importlib.import_module("torch")

    if not len(raw):
        flat = torch.empty(0, dtype=getattr(torch, dtype))
    else:
        memory = memoryview(raw)
        if memory.readonly:  # torch knows no tensors that must not be written to
            memory = memoryview(bytearray(memory))
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        kind = getattr(torch, dtype)
        flat = (flat if flat.data_ptr() % kind.itemsize == 0 else flat.clone()).view(kind)
    tensor = flat.reshape(tuple(shape)).permute(_inverse(order))
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


# -- paddle ------------------------------------------------------------------------------------------------------


def _reduce_paddle(tensor: Any) -> Any:
    if not (tensor.is_dense() and tensor._is_initialized()):
        return tensor.__reduce_ex__(5)
    is_parameter = hasattr(tensor, "trainable")
    dtype = str(tensor.dtype).removeprefix("paddle.")
    return _make_paddle, (tensor.numpy(), dtype, tensor.stop_gradient, is_parameter)


def _make_paddle(array: Any, dtype: str, stop_gradient: bool, is_parameter: bool) -> Any:
    paddle: Any = importlib.import_module("paddle")

    tensor = paddle.to_tensor(array, place=paddle.CPUPlace())
    if str(tensor.dtype) != f"paddle.{dtype}":  # of a type that numpy lacks, and has come as integers of its size
        tensor = tensor.view(dtype)
    if is_parameter:
        parameter_class: Any = _parameter_class(paddle)
        return parameter_class.from_tensor(tensor, trainable=not stop_gradient)
    tensor.stop_gradient = stop_gradient
    return tensor

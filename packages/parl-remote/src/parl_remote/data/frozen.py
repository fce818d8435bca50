"""Values that many share: pickled so that their arrays come out read-only, without a copy.

    freeze(value) -> frames, kinds           every array's elements in a frame of their own, whatever their number
    thaw(frames) -> value                    arrays are views of the frames

Arrays that pickle in other ways (of objects, of subclasses, of elements without size) are copies, read-only as well.
Tensors cannot be read-only. Their frames are of the kind OWN_COPY: mapped so that writing into them touches only the
writer's own copy of the page.
"""

from __future__ import annotations

import copyreg
import importlib
import pickle
from collections.abc import Sequence
from typing import Any

from parl_remote.data import serialize
from parl_remote.data.object_memory import FrameKind
from parl_remote.data.tensors import Reducers, reducers
from parl_remote.transport import Buffer

__all__ = ["freeze", "thaw"]

_TIMES = frozenset("mM")  # datetime64 and timedelta64, which numpy gives nobody a buffer of


def freeze(value: object, references: list[object]) -> tuple[list[Buffer], list[int]]:
    """Return the value as frames, the pickle first, and each frame's kind.

    Args:
        value: What to pickle.
        references: Filled as by `serialize.dumps`.

    Raises:
        Exception: Whatever pickling raised.
    """
    import numpy as np  # here, because importing this module must cost nothing

    own: dict[int, pickle.PickleBuffer] = {}  # of tensors, by identity
    kept: list[tuple[Buffer, int]] = [(b"", FrameKind.READ_ONLY)]

    def keep_outside(buffer: pickle.PickleBuffer) -> bool:
        kept.append((buffer.raw(), FrameKind.OWN_COPY if id(buffer) in own else FrameKind.READ_ONLY))
        return False

    def reduce_tensor(tensor: Any) -> Any:
        reduced = tensors[type(tensor)](tensor)
        own.update((id(part), part) for part in reduced[1] if isinstance(part, pickle.PickleBuffer))
        return reduced

    tensors = reducers() or {}
    table: Reducers = dict(tensors or copyreg.dispatch_table)
    table |= {kind: reduce_tensor for kind in tensors if kind not in copyreg.dispatch_table}
    table |= dict.fromkeys((np.ndarray, np.matrix, np.recarray, np.ma.MaskedArray), _reduce_array)
    data = serialize.pickled(value, keep_outside, table, kept, references)
    kept[0] = data, FrameKind.READ_ONLY
    return [frame for frame, _ in kept], [kind for _, kind in kept]


def thaw(frames: Sequence[memoryview], kinds: Sequence[int]) -> Any:
    """The value that `freeze` took apart.

    Raises:
        Exception: Whatever unpickling raised.
    """
    buffers = [
        frame if kind == FrameKind.OWN_COPY else frame.toreadonly() for frame, kind in zip(frames, kinds, strict=True)
    ]
    return serialize.loads(buffers[0], buffers[1:])


def _reduce_array(array: Any) -> Any:
    numpy: Any = importlib.import_module("numpy")
    if type(array) is numpy.ndarray and not array.dtype.hasobject and array.dtype.itemsize:
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            array = numpy.ascontiguousarray(array)
        if array.dtype.kind in _TIMES:
            return _view, (array.view(numpy.int64), array.dtype)
        reduced = array.__reduce_ex__(5)
        if any(isinstance(part, pickle.PickleBuffer) for part in reduced[1]):
            return reduced
    make, arguments, state, *_ = array.__reduce__()
    return make, arguments, state, None, None, _set_state


def _view(array: Any, dtype: Any) -> Any:
    return array.view(dtype)


def _set_state(array: Any, state: Any) -> None:
    array.__setstate__(state)
    array.flags.writeable = False

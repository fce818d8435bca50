"""`put`: values stored once on each host that needs them, and sent by reference.

    ref = put(weights)         the value is in shared memory (see `object_memory`), or in the reference if it is small
    actor.set(ref)             the method gets the value itself; its arrays are read-only views of that memory
    actor.keep([ref])          inside another object it arrives as the reference, with `ref.get()`

A process that has a reference has the memory's file open, so a value lives as long as any process refers to it, even if
the one that stored it ends. On another host, where the memory cannot be mapped, `object_transfer` stores a copy, one
for each worker.

`freeze` pickles a value so that every array's elements are in a frame of their own; `thaw` makes read-only views of the
frames. Arrays that pickle in other ways (of objects, of subclasses, of elements without size) are copies, read-only as
well. Tensors cannot be read-only: their frames are of the kind OWN_COPY, mapped so that writing into them touches only
the writer's own copy of the page.
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import importlib
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from parl_remote import _current
from parl_remote._config import environment, same_host_shortcut
from parl_remote._data import object_memory, serialize
from parl_remote._data.object_memory import (
    FrameKind,
    Memory,
    MemoryGone,
    MemoryPool,
    ValueAddress,
    adopt,
    read,
    read_image,
)
from parl_remote._data.tensors import Reducers, reducers
from parl_remote._future import RemoteFuture
from parl_remote._links.identity import host_id, new_id
from parl_remote._options import seconds_of
from parl_remote._system.facilities import is_portable
from parl_remote._system.interrupts import uninterrupted
from parl_remote._system.texts import described
from parl_remote._transport import Buffer
from parl_remote.errors import ObjectLost, SerializationError

__all__ = ["ObjectRef", "freeze", "put", "received", "record_values", "recorded", "thaw"]


_TIMES = frozenset("mM")  # datetime64 and timedelta64, which numpy exports no buffer of


def freeze(value: object, references: list[object]) -> tuple[list[Buffer], list[int]]:
    """Return the value as frames, the pickle first, and each frame's kind.

    Args:
        value: The value to pickle.
        references: Filled as by `serialize.dumps`.

    Raises:
        Exception: Any error of pickling.
    """
    import numpy as np  # imported here, because importing this module must cost nothing

    own: dict[int, pickle.PickleBuffer] = {}  # the tensors' frames, by identity
    kept: list[tuple[Buffer, int]] = [(b"", FrameKind.READ_ONLY)]

    def keep_outside(buffer: pickle.PickleBuffer) -> bool:
        kept.append((buffer.raw(), FrameKind.OWN_COPY if id(buffer) in own else FrameKind.READ_ONLY))
        return False

    def reduce_tensor(tensor: Any) -> Any:
        reduced = tensors[type(tensor)](tensor)
        own.update((id(part), part) for part in reduced[1] if isinstance(part, pickle.PickleBuffer))
        return reduced

    tensors = reducers()
    table: Reducers = dict(tensors)
    table |= {kind: reduce_tensor for kind in tensors if kind not in copyreg.dispatch_table}
    table |= dict.fromkeys((np.ndarray, np.matrix, np.recarray, np.ma.MaskedArray), _reduce_array)
    data = serialize.pickled(value, keep_outside, table, kept, references)
    kept[0] = data, FrameKind.READ_ONLY
    return [frame for frame, _ in kept], [kind for _, kind in kept]


def thaw(frames: Sequence[memoryview], kinds: Sequence[int]) -> Any:
    """Return the value of a `freeze`.

    Raises:
        Exception: Any error of unpickling.
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


T = TypeVar("T")

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})  # values are then sent in their references, like small ones
_TIDY_S = 0.5  # see `MemoryPool.tidy`
_SMALL = 2**16  # bytes sent within the reference: a file, a mapping and its page faults cost more than the copy


class ObjectRef(serialize.Reference, Generic[T]):
    """A reference to a value stored by `put`.

    As an argument of a call it arrives as the value itself. Inside another argument, and in a result, it arrives as a
    reference.

    Attributes:
        id: The value's id, the same in all processes.
        nbytes: The size of the stored value in bytes.
    """

    __slots__ = ("__weakref__", "_companions", "_frames", "_memory", "_source", "id", "nbytes")

    def __init__(self, object_id: str, nbytes: int) -> None:
        self.id = object_id
        self.nbytes = nbytes
        self._frames: tuple[tuple[bytes, int], ...] = ()  # of a small value
        self._memory: Memory | None = None  # of a large one
        self._source: object_memory.Source | None = None
        self._companions: tuple[object, ...] = ()  # handles and references within the value
        serialize.stand_in(ObjectRef, _DirectArgument)  # here: calls search for references as soon as one exists

    @property
    def is_here(self) -> bool:
        """Return whether this process has the value, so that `get` needs no other process."""
        return bool(self._frames) or self._memory is not None

    @property
    def is_inline(self) -> bool:
        """Return whether the value is small and therefore sent within the reference."""
        return bool(self._frames)

    def get(self, timeout: float | None = None) -> T:
        """Return the value: arrays are read-only views of shared memory, and each call makes new containers.

        Args:
            timeout: Seconds to wait for a value on another host; None waits without limit.

        Raises:
            ObjectLost: Every process that had the value has ended or dropped it.
            ResultTimeout: The value did not arrive before the timeout.
            TypeError: `timeout` is not a number.
        """
        timeout = seconds_of("timeout", timeout)
        value: T
        if self._frames:
            value = thaw([memoryview(frame) for frame, _ in self._frames], [kind for _, kind in self._frames])
        else:
            value = _read_value(self.id, self._here(timeout).place())
        return value

    def image(self) -> memoryview | None:
        """Return the bytes to send to a node without access to this host's memory; None if the reference has the value.

        Raises:
            ObjectLost: Every process that had the value has ended or dropped it.
        """
        return None if self._frames else read_image(self._here(None).place())

    def _here(self, timeout_s: float | None) -> Memory:
        if self._memory is None:
            self._bring(timeout_s)
        assert self._memory is not None
        return self._memory

    def _bring(self, timeout_s: float | None) -> None:
        """Fetch a value that another process has."""
        if self._source is None:
            raise ObjectLost(f"the value of {self!r} is gone: every process that had it has ended, or dropped it")
        self._own(_pool.store_image(self._source.fetch(self.id, timeout_s)))

    def _own(self, memory: Memory) -> None:
        self._memory = memory
        _pool.lend(memory, self)

    def _find(self, host: str, place: ValueAddress) -> None:
        """Find the value's memory: at its sender on this host, else the copy on this node, else a remote source."""
        if host and host == _host():
            with contextlib.suppress(MemoryGone):
                self._memory = adopt(place)
                return
        brought = object_memory.find_sent(self.id)
        if brought is not None:
            with contextlib.suppress(MemoryGone):
                self._memory = adopt(brought)
                return
        self._source = object_memory.sender()
        if self._source is not None:
            self._source.hold(self, place)

    def __reduce_ex__(self, protocol: object) -> Any:
        return _arrive, self._pickled_state()

    def _parl_referents(self) -> tuple[ObjectRef[T]]:
        return (self,)

    def _pickled_state(self) -> tuple[Any, ...]:
        """Return the pickled state: the value or its location, and its references with their current locations.

        The copies stored with the value have the locations of that time, whose process may have ended.
        """
        within = tuple(one for one in self._companions if isinstance(one, ObjectRef))
        if self._frames:
            return self.id, self.nbytes, self._frames, "", None, within
        if getattr(_current.peek(), "values_travel", False):  # for hosts without a worker of this cluster
            frames, kinds = read(self._here(None).place())
            return self.id, self.nbytes, tuple(zip(map(bytes, frames), kinds, strict=True)), "", None, within
        return self.id, self.nbytes, (), _host(), tuple(self._here(None).place()), within

    def __copy__(self) -> ObjectRef[T]:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef[T]:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<ObjectRef {self.id}, {self.nbytes} bytes>"


class _DirectArgument(serialize.Reference):
    """A reference that is an argument by itself, and arrives as the value."""

    __slots__ = ("ref",)

    def __init__(self, ref: ObjectRef[Any]) -> None:
        self.ref = ref

    def __reduce_ex__(self, protocol: object) -> Any:
        return _arrive_value, self.ref._pickled_state()

    def _parl_referents(self) -> tuple[ObjectRef[Any]]:
        return (self.ref,)


@uninterrupted
def put(value: T) -> ObjectRef[T]:
    """Store a value once, to pass it to many actors, and return a reference to it.

    Actors of the same host get read-only views of the same memory for its arrays; `array.copy()` makes a writable
    array. Tensors are writable, and a change is visible only to the actor that makes it.

    Args:
        value: Any value that can be an argument of a call. Later changes to it do not affect the stored value.

    Raises:
        NotConnected: There is no connection.
        SerializationError: The value cannot be sent.
        TypeError: The value is a reference already, or a future.
        MemoryError: There is not enough memory.

    Example:
        `weights = parl.put(model.get_weights()); [actor.set_weights(weights) for actor in actors]`
    """
    if _current.peek() is None and not environment().inside_actor:
        _current.client()  # it raises NotConnected
    if isinstance(value, ObjectRef):
        raise TypeError(f"{value!r} is stored already")
    if isinstance(value, RemoteFuture):
        raise TypeError(f"put stores values, and {value!r} does not have one yet: put(future.result())")
    try:
        companions: list[object] = []
        frames, kinds = freeze(value, companions)
    except Exception as error:
        what = f"the value given to put (a {type(value).__name__})"
        raise SerializationError(f"{what} cannot be stored: {described(error)}", what=what) from error
    size = sum(map(len, frames))
    ref: ObjectRef[T] = ObjectRef(new_id("object"), size)
    if size >= _SMALL and not is_portable():  # except on Linux, values are sent within their references
        try:
            ref._own(_pool.store(frames, kinds))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise MemoryError(f"no memory to store {size} bytes: {error.strerror}") from error
    if ref._memory is None:
        ref._frames = tuple((bytes(frame), kind) for frame, kind in zip(frames, kinds, strict=True))
    ref._companions = tuple(companions)
    _known[ref.id] = ref
    return ref


# The references of this process, so that a returning one finds the memory that is already mapped.
_known: weakref.WeakValueDictionary[str, ObjectRef[Any]] = weakref.WeakValueDictionary()


def _arrive(
    object_id: str,
    nbytes: int,
    frames: tuple[tuple[bytes, int], ...],
    host: str,
    place: tuple[int, ...] | None,
    within: tuple[ObjectRef[Any], ...] = (),
) -> ObjectRef[Any]:
    """Rebuild a reference from its pickle; errors are raised when its value is requested."""
    ref = _known.get(object_id)
    if ref is None:
        ref = _known.setdefault(object_id, ObjectRef(object_id, nbytes))
    ref._companions = ref._companions or within
    if not ref.is_here:
        if frames:
            ref._frames = frames
        elif place is not None:
            ref._find(host, ValueAddress(*place))
    return ref


def _arrive_value(
    object_id: str,
    nbytes: int,
    frames: tuple[tuple[bytes, int], ...],
    host: str,
    place: tuple[int, ...] | None,
    within: tuple[ObjectRef[Any], ...] = (),
) -> Any:
    """Rebuild the value of a reference that is an argument by itself."""
    if place is not None and host and host == _host() and object_id not in _known:
        with contextlib.suppress(MemoryGone):
            return _read_value(object_id, ValueAddress(*place))
    return _arrive(object_id, nbytes, frames, host, place, within).get()


def _read_value(object_id: str, place: ValueAddress) -> Any:
    frames, kinds = read(place)
    if _record_value is not None:
        _record_value(object_id, frames, kinds)
    return thaw(frames, kinds)


_record_value: Callable[[str, Sequence[memoryview], Sequence[int]], None] | None = None


def record_values(record: Callable[[str, Sequence[memoryview], Sequence[int]], None]) -> None:
    """Call a function with the id, the frames and their kinds before a value in shared memory is unpickled."""
    global _record_value
    _record_value = record


def recorded(object_id: str, frames: Sequence[bytes], kinds: Sequence[int]) -> ObjectRef[Any]:
    """Return the reference of a value that was recorded; while it is alive, references with its id find the value."""
    ref: ObjectRef[Any] = ObjectRef(object_id, sum(map(len, frames)))
    ref._frames = tuple(zip(frames, kinds, strict=True))
    _known[object_id] = ref
    return ref


def received(object_id: str, nbytes: int, fetch: Callable[[], memoryview]) -> ObjectRef[Any]:
    """Return the reference of a value received beside a message; later references with its id find it.

    Args:
        object_id: Its id.
        nbytes: Its size in bytes.
        fetch: Returns its image; called if this process lacks it.
    """
    ref = _known.setdefault(object_id, ObjectRef(object_id, nbytes))
    if not ref.is_here:
        ref._own(_pool.store_image(fetch()))
    return ref


def _start_cleanup_thread(pool: MemoryPool) -> None:
    threading.Thread(target=_tidy, args=(pool,), name="parl-objects", daemon=True).start()


def _tidy(pool: MemoryPool) -> None:
    while True:
        pool.wait()
        while pool.tidy():
            time.sleep(_TIDY_S)


_pool = MemoryPool(_start_cleanup_thread)

if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_pool.begin)


def _host() -> str:
    """Return this host's id, empty where the connection treats its processes like those of another host."""
    connection = _current.peek()
    shortcut = same_host_shortcut() if connection is None else getattr(connection, "same_host_shortcut", True)
    return host_id() if shortcut else ""

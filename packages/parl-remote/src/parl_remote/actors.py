"""The implementation of `parl_core.actors` with processes, for training loops on a private or a shared cluster.

    open_actors("remote", cpu_num=2) ──> RemoteActors ── create ──> one actor, as `@remote_class` makes them

The class passed in is not changed and need not be decorated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from parl_remote import _connect, _current
from parl_remote._data.class_spec import ClassSpec, ShippedSpec
from parl_remote._data.serialize import Reference
from parl_remote._future import RemoteFuture
from parl_remote._object_ref import put
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorRef
from parl_remote._program.proxy import unpacked
from parl_remote.errors import ActorError

__all__ = ["RemoteActors"]


class RemoteActors:
    """Actors of the cluster that this program is connected to; a context manager.

    If the program is not connected, this object opens a connection, and `close` closes it.

    Args:
        address: The address of a cluster. None uses the existing connection, or else a private cluster of this machine.
        n_cpu: CPUs reserved for each actor, 0 or more; fractions share a CPU.
        connect: Further options of `parl_remote.connect`, such as `cpu_num=2` and `preload=["gymnasium"]`.

    Raises:
        ValueError: The program is connected already, and an address or options were given; or an option is out of its
            range.
        RemoteError: Connecting failed; see `parl_remote.connect`.
    """

    def __init__(self, address: str | None = None, *, n_cpu: float = 1, **connect: Any) -> None:
        self._options = ActorOptions.of({"n_cpu": n_cpu})
        self._handles: list[_RemoteHandle] = []
        is_asked_for = address is not None or bool(connect)
        self._owns_connection = (_current.peek() if is_asked_for else _current.client_if_any()) is None
        self._slots: int | None = None
        if self._owns_connection:
            _connect.connect(address, **connect)
            if (cpu_num := connect.get("cpu_num")) is not None:
                self._slots = max(1, 1000 * cpu_num // round(1000 * (self._options.resources.cpu or 1)))
        elif is_asked_for:
            given = ", ".join([*([repr(address)] if address else []), *(f"{k}={v!r}" for k, v in connect.items())])
            raise ValueError(f"there is a connection already; call parl.disconnect() first, or leave out {given}")

    @property
    def slots(self) -> int | None:
        """The number of actors that the private cluster has CPUs for, or its `cpu_num` if they take none.

        None if `cpu_num` was not given.
        """
        return self._slots

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> _RemoteHandle:
        """Construct `cls(*args, **kwargs)` in a new actor and return its handle.

        Raises:
            NoResources: The cluster cannot provide the resources, at all or before the timeout.
            ActorLost: The process ended in the constructor.
            Exception: The exception that the constructor raised.
        """
        handle = _RemoteHandle(_current.client().create(ClassSpec(cls), self._options, args, kwargs))
        self._handles.append(handle)
        return handle

    def put(self, value: Any, /) -> Any:
        """Store a value once per host and return a reference to it; actors get read-only views of its arrays."""
        return put(value)

    def close(self) -> None:
        """End all actors of this object, and the connection if this object opened it."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()
        if self._owns_connection:
            self._owns_connection = False
            _connect.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _RemoteHandle(Reference):
    def __init__(self, ref: ActorRef) -> None:
        self._ref: ActorRef | None = ref

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._open(method).call(method, args, kwargs)

    def submit(self, method: str, *args: Any, **kwargs: Any) -> RemoteFuture[Any]:
        return self._open(method).submit(method, args, kwargs)

    def close(self) -> None:
        self._ref = None  # the actor ends with its last reference

    def kill(self) -> None:
        if self._ref is not None:
            self._ref.destroy()
        self.close()

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the handle, as an argument or result of a call, so that it leads to the same actor."""
        ref = self._open("pickle")
        return _arrive, (ref.place, ref.spec.shipped())

    def _parl_referents(self) -> tuple[ActorRef]:
        return (self._open("pickle"),)

    def _open(self, method: str) -> ActorRef:
        if self._ref is None:
            raise ActorError(f"{method!r} was called on an actor that is closed; create a new one")
        return self._ref


def _arrive(place: Any, shipped: ShippedSpec) -> _RemoteHandle:
    """Make a handle from its pickle."""
    spec, _ = unpacked(shipped)
    return _RemoteHandle(_current.client().borrow(place, spec, None))

"""Proxies of remote objects: they look like the object, and every operation runs in the actor.

    proxy.method(...)   a call          len(proxy), proxy[i], proxy(...)   calls of special methods
    proxy.name          a read          proxy.name = value, del proxy.name a write

An object that is made while the program has no connection is an `UnconnectedObject`: it holds the constructor's
arguments for `as_remote`, and every other use of it raises `NotConnected`.

Names are looked up in the class and in the actor's last reply; the actor is asked for the names of its attributes
before another name is said to be missing, because its threads and other callers may have added it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

from parl_remote import _current, _display
from parl_remote._data.answers import STAYS
from parl_remote._data.class_spec import ClassSpec, ShippedSpec
from parl_remote._data.serialize import Reference
from parl_remote._future import RemoteFuture
from parl_remote._program.actor_ref import ActorPlace, ActorRef, FrozenArguments, unreached_reference
from parl_remote.errors import ActorLost, NotConnected, RemoteAttributeError, RemoteError, SerializationError

__all__ = [
    "RemoteMethod",
    "RemoteObject",
    "UnconnectedObject",
    "arrive",
    "arrive_method",
    "bound_method",
    "make_proxy",
    "proxy_class",
    "reference_of",
    "served_object",
    "unconnected_class",
    "unpacked",
]


def arrive(place: Any, shipped: ShippedSpec, wait: bool, attributes: tuple[str, ...]) -> RemoteObject:
    """Make a proxy from its pickle. In a program without a connection it connects when it is first used.

    Args:
        place: The actor's address, in a form that the connected cluster understands.
        shipped: Its class.
        wait: Whether the proxy's methods wait for their results.
        attributes: Names of its attributes when the handle was pickled.

    Raises:
        NotConnected: This process is connected to no cluster, and the actor is on Ray or in the process that made it.
    """

    spec, proxies = unpacked(shipped)
    if isinstance(place, ActorPlace) and _current.peek() is None and not _current.inside_actor():
        ref = _current.unreached(place.lease_id)
        if ref is None:
            ref = unreached_reference(spec, place, attributes, _current.reach)
            _current.inherit({place.lease_id: ref})
    else:
        ref = _current.client().borrow(place, spec, attributes)
    return make_proxy(proxies, ref, wait=wait)


@functools.lru_cache(maxsize=512)
def unpacked(shipped: ShippedSpec) -> tuple[ClassSpec, type[RemoteObject]]:
    """Return the class of a received handle and its proxy class; cached for all handles of that class."""

    spec = ClassSpec.of_shipped(shipped)
    return spec, proxy_class(spec)


def arrive_method(proxy: RemoteObject, name: str, wait: bool) -> Any:
    """Make a bound method from its pickle."""

    return bound_method(proxy, name, wait=wait)


_set = object.__setattr__
_get = object.__getattribute__


class RemoteMethod:
    """A method of a remote object, bound to it."""

    __slots__ = ("__name__", "_ref", "_wait")

    def __init__(self, ref: ActorRef, name: str, wait: bool) -> None:
        self._ref = ref
        self.__name__ = name
        self._wait = wait

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # as in `RemoteFuture.result`
        if self._wait:
            return self._ref.call(self.__name__, args, kwargs)
        return self._ref.begin(self.__name__, args, kwargs)

    def submit(self, /, *args: Any, **kwargs: Any) -> RemoteFuture[Any]:
        """Call the method and return its future, whatever the `wait` of the class."""
        return self._ref.begin(self.__name__, args, kwargs)

    def begin_frozen(self, arguments: FrozenArguments) -> RemoteFuture[Any]:
        """Call the method as `submit` does, with arguments that were serialized earlier."""
        return self._ref.begin_frozen(self.__name__, arguments)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # the method's own, not this class's
        return getattr(getattr(self._ref.spec.cls, self.__name__, None), "__doc__", None)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The underlying function, so that `inspect.signature` and notebooks show its parameters."""
        function = getattr(self._ref.spec.cls, self.__name__, None)
        if function is None:
            raise AttributeError(self.__name__)
        method = getattr(function, "__get__", None)
        return method(self._ref) if method is not None else function  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        handle = make_proxy(RemoteObject, self._ref, wait=self._wait)
        return arrive_method, (handle, self.__name__, self._wait)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteMethod) and other._ref is self._ref and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash((self._ref, self.__name__))

    def __repr__(self) -> str:
        return f"<remote method {self._ref.spec.name}.{self.__name__}>"


class RemoteObject(Reference):
    """A proxy of an object in an actor.

    `isinstance` accepts it as an object of the class. Attributes whose names begin with `_parl_` belong to the proxy.
    """

    __slots__ = ("__dict__", "__weakref__", "_parl_ref", "_parl_wait")

    _parl_ref: ActorRef
    _parl_wait: bool

    def _parl_referents(self) -> tuple[ActorRef]:
        return (_get(self, "_parl_ref"),)

    def __getattr__(self, name: str) -> Any:
        """Return a remote attribute or method; called only for names that the proxy itself lacks."""
        if name[:1] == "_" and (name.startswith("_parl_") or (name.startswith("__") and name.endswith("__"))):
            raise AttributeError(name)
        ref: ActorRef = _get(self, "_parl_ref")
        spec = ref.spec
        if name in ref.attributes.names or name in spec.values:
            return self._parl_read(name)
        if name in spec.methods:
            return RemoteMethod(ref, name, _get(self, "_parl_wait") or (name[:1] == "_" and _display.is_hook(name)))
        if _display.is_hook(name):  # every notebook looks these up, and the actor may be busy
            return _display.actor_hook(name, class_name=spec.name, place=ref.place, cls=spec.cls, methods=spec.methods)
        if name == "destroy":
            return ref.destroy
        if name == "as_remote" and (own := spec.as_remote) is not None:
            return own.__get__(self, spec.cls)
        if spec.dynamic:
            return self._parl_read(name)
        ref.refresh()
        if name in ref.attributes:
            return self._parl_read(name)
        missing = RemoteAttributeError(spec.unknown(name, ref.attributes.names), type_name="AttributeError")
        missing.name = name
        raise missing

    def _parl_read(self, name: str) -> Any:
        ref: ActorRef = _get(self, "_parl_ref")
        value = ref.get(name)
        return RemoteMethod(ref, name, _get(self, "_parl_wait")) if value is STAYS else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_parl_"):
            raise AttributeError(f"names that begin with _parl_ are reserved, {name!r} does")
        _get(self, "_parl_ref").set(name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_parl_"):
            raise AttributeError(f"names that begin with _parl_ are reserved, {name!r} does")
        _get(self, "_parl_ref").call("__delattr__", (name,), {})

    @property  # type: ignore[misc]  # read-only here
    def __class__(self) -> type:  # what isinstance looks at
        return self._parl_ref.spec.cls

    def __dir__(self) -> list[str]:
        ref = self._parl_ref
        with contextlib.suppress(ActorLost):  # debuggers and `help` list lost actors as well
            ref.refresh()
        return sorted({*ref.spec.names, *ref.spec.values, *ref.attributes.names})

    def __repr__(self) -> str:
        lease = _display.short_id(self._parl_ref.place)
        return f"<remote {self._parl_ref.spec.name}{f' {lease}' if lease else ''}>"

    def __eq__(self, other: object) -> bool:
        return reference_of(other) is self._parl_ref

    def __hash__(self) -> int:
        return hash(self._parl_ref)

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        ref: ActorRef = _get(self, "_parl_ref")
        if isinstance(ref.place, ActorPlace) and not ref.place.node_id:
            raise TypeError(
                f"only the program with the RemoteManager can call a {ref.spec.name} that another program serves with "
                "as_remote; call it there, and send the result"
            )
        return arrive, (ref.place, ref.spec.shipped(), _get(self, "_parl_wait"), tuple(ref.attributes.names))


def proxy_class(spec: ClassSpec) -> type[RemoteObject]:
    """Return the proxy class of a decorated class; special methods must be defined on the type."""
    namespace: dict[str, Any] = {name: _forward(name) for name in spec.special_methods}
    special = {"__exit__": _leave, "__aexit__": _leave_async, "__aiter__": _iterate_async}
    namespace |= {name: method for name, method in special.items() if name in namespace}
    namespace["__slots__"] = ()
    namespace["__doc__"] = spec.cls.__doc__
    namespace["__module__"] = spec.cls.__module__
    return type(spec.cls.__name__, (RemoteObject,), namespace)


def _forward(name: str) -> Callable[..., Any]:
    def special(self: RemoteObject, *args: Any, **kwargs: Any) -> Any:
        # Python itself needs the result of a special method, so it waits whatever `wait` says.
        value = self._parl_ref.call(name, args, kwargs)
        return self if value is STAYS else value

    async def awaited(self: RemoteObject, *args: Any, **kwargs: Any) -> Any:
        value = await self._parl_ref.begin(name, args, kwargs)
        return self if value is STAYS else value

    forwarded = awaited if name in _AWAITED else special
    forwarded.__name__ = name
    return forwarded


_AWAITED = {"__aenter__", "__anext__"}


def _leave(self: RemoteObject, kind: type[BaseException] | None, error: BaseException | None, _: object, /) -> Any:
    """Call the remote `__exit__` without the traceback, whose frames cannot be sent."""
    try:
        return self._parl_ref.call("__exit__", (kind, error, None), {})
    except SerializationError:
        substitute = RemoteError(f"{type(error).__name__}: {error}")
        return self._parl_ref.call("__exit__", (RemoteError, substitute, None), {})


async def _leave_async(
    self: RemoteObject, kind: type[BaseException] | None, error: BaseException | None, _: object, /
) -> Any:
    """Call the remote `__aexit__` as `_leave` does."""
    try:
        return await self._parl_ref.begin("__aexit__", (kind, error, None), {})
    except SerializationError:
        substitute = RemoteError(f"{type(error).__name__}: {error}")
        return await self._parl_ref.begin("__aexit__", (RemoteError, substitute, None), {})


async def _iterate_async(self: RemoteObject) -> AsyncIterator[Any]:
    """Yield the items of the remote asynchronous iterator, which the first step asks for."""
    iterator = await self._parl_ref.begin("__aiter__", (), {})
    if iterator is STAYS:
        iterator = self
    while True:
        try:
            item = await iterator.__anext__()
        except StopAsyncIteration:
            return
        yield item


def make_proxy(cls: type[RemoteObject], ref: ActorRef, *, wait: bool) -> RemoteObject:
    """Return a new proxy of an actor."""
    proxy = object.__new__(cls)
    _set(proxy, "_parl_ref", ref)
    _set(proxy, "_parl_wait", wait)
    return proxy


def bound_method(proxy: RemoteObject, name: str, *, wait: bool) -> RemoteMethod:
    """Return a method of a proxy, even if an attribute of the same name hides it."""
    return RemoteMethod(_get(proxy, "_parl_ref"), name, wait)


def reference_of(proxy: object) -> ActorRef | None:
    """Return the reference to the actor behind a proxy, None for anything else.

    Raises:
        NotConnected: The object was made without a connection.
    """
    if issubclass(type(proxy), RemoteObject):
        ref: ActorRef = _get(proxy, "_parl_ref")
        return ref
    if issubclass(type(proxy), UnconnectedObject):
        raise _not_connected(proxy)
    return None


class UnconnectedObject:
    """An object of a decorated class that was made while the program had no connection.

    It holds the arguments of its constructor. `as_remote` builds the object in this process and serves it; every other
    use raises `NotConnected`.
    """

    __slots__ = ("__weakref__", "_parl_arguments", "_parl_building", "_parl_built")

    _parl_spec: ClassSpec  # of the subclass that `unconnected_class` makes

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        _set(self, "_parl_arguments", (args, kwargs))
        _set(self, "_parl_built", [])
        _set(self, "_parl_building", threading.RLock())

    def __getattr__(self, name: str) -> Any:
        if name[:1] == "_" and (name.startswith("_parl_") or (name.startswith("__") and name.endswith("__"))):
            raise AttributeError(name)
        spec = self._parl_spec
        if name == "as_remote" and (own := spec.as_remote) is not None:
            return own.__get__(self, spec.cls)
        raise _not_connected(self)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise _not_connected(self)

    def __delattr__(self, name: str) -> NoReturn:
        raise _not_connected(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise _not_connected(self)

    @property  # type: ignore[misc]  # read-only here
    def __class__(self) -> type:  # what isinstance looks at
        return self._parl_spec.cls

    def __repr__(self) -> str:
        return f"<unconnected {self._parl_spec.name}>"


def unconnected_class(spec: ClassSpec) -> type[UnconnectedObject]:
    """Return the class of a decorated class's unconnected objects: its special methods raise `NotConnected`."""

    def refuse(self: UnconnectedObject, *_: Any, **__: Any) -> NoReturn:
        raise _not_connected(self)

    namespace: dict[str, Any] = dict.fromkeys(spec.special_methods, refuse)
    namespace["__slots__"] = ()
    namespace["__doc__"] = spec.cls.__doc__
    namespace["__module__"] = spec.cls.__module__
    namespace["_parl_spec"] = spec
    return type(f"Unconnected{spec.cls.__name__}", (UnconnectedObject,), namespace)


def served_object(obj: Any) -> Any:
    """Return the object that `as_remote` serves: build an unconnected object once, return any other as it is."""
    if not issubclass(type(obj), UnconnectedObject):
        return obj
    built: list[Any] = _get(obj, "_parl_built")
    with _get(obj, "_parl_building"):
        if not built:
            args, kwargs = _get(obj, "_parl_arguments")
            built.append(_current.construct_here(obj._parl_spec.cls, args, kwargs))
    return built[0]


def _not_connected(obj: Any) -> NotConnected:
    return NotConnected(
        f"this {obj._parl_spec.name} was made without a connection and holds only its arguments: call parl.connect() "
        "before making objects of remote classes, or serve this one to a RemoteManager with its as_remote(address)"
    )

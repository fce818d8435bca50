"""`@remote_class`, which makes the objects of a class in actors.

    @remote_class               A(1)                    a proxy; the object itself is made in a separate process
    class A: ...                A.options(n_cpu=2)(1)   the same with other options

A class that is being defined keeps its name, docstring, pickling, `isinstance`, `super(A, self)` and, for type
checkers, its type: the decorator changes the class itself. It replaces `__new__` by one that decides where an object is
made, and adds `options` and `as_remote`. A class that exists already, because its module has it under its name or it is
decorated, is not changed: the decorator returns a separate remote class, a `ConfiguredClass`. No module has a class of
a function, so such a class is taken for one that is being defined.

    A(1)  -->  RemoteNew --remote--> the client makes an actor, the program holds a proxy
                         --local---> an ordinary object: in actors that cannot reach their cluster, and for subclasses
                                     that are not decorated themselves
                         `--nowhere: an `UnconnectedObject`, where the program has no connection

Only the class has `options`: objects do not have it, a class that defines `options` keeps its own, and a subclass that
is not decorated has none. A class stays remote when it is sent, and an object stays an object; see `reduce_object` and
`RemoteNew.__reduce__`.
"""

from __future__ import annotations

import copyreg
import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from parl_remote import _connect, _current
from parl_remote._data.class_spec import ClassAttribute, ClassSpec
from parl_remote._future import RemoteFuture
from parl_remote._options import ActorOptions
from parl_remote._program.proxy import (
    RemoteMethod,
    RemoteObject,
    UnconnectedObject,
    make_proxy,
    proxy_class,
    unconnected_class,
)

if TYPE_CHECKING:
    from parl_remote._serving import Serving

__all__ = ["remote_class", "submit", "with_options"]


class RemoteNew:
    """The `__new__` of a decorated class.

    Args:
        cls: The class.
        options: The default options of its objects.
    """

    def __init__(self, cls: type, options: ActorOptions) -> None:
        self.cls = cls
        self.options = options
        self.original = _own_new(cls)
        self.__signature__ = _new_signature(cls)
        self._spec: ClassSpec | None = None
        self._proxies: type[RemoteObject] | None = None
        self._unconnected: type[UnconnectedObject] | None = None

    def __call__(self, cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if cls is not self.cls:
            return self.local(cls, args, kwargs)
        maker = _current.maker_of(cls)
        if maker == _current.HERE:
            return self.local(cls, args, kwargs)
        return self.remote(maker, self.options, args, kwargs)

    def local(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an ordinary object; Python itself calls `__init__` next."""
        if self.original is None:
            inherited = super(self.cls, cls).__new__  # type: ignore[arg-type]  # a subclass is an instance of nothing here
            if inherited is object.__new__:  # it takes no arguments; __init__ does
                if (args or kwargs) and inspect.getattr_static(cls, "__init__") is object.__init__:  # it ignores them
                    raise TypeError(f"{cls.__name__}() takes no arguments")
                return inherited(cls)
            return inherited(cls, *args, **kwargs)
        return self.original(cls, *args, **kwargs)

    def remote(
        self, maker: _current.ActorMaker | None, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RemoteObject | UnconnectedObject:
        """Return a proxy of a new actor; without a connection, an object that only `as_remote` can build."""
        if self._spec is None or self._proxies is None:
            self._spec = ClassSpec(self.cls, ServeAttribute())
            self._proxies = proxy_class(self._spec)
        if maker is None:
            if self._unconnected is None:
                self._unconnected = unconnected_class(self._spec)
            return self._unconnected(args, kwargs)
        ref = maker.create(self._spec, options, args, kwargs)
        return make_proxy(self._proxies, ref, wait=options.wait)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, ActorOptions, Any]]:
        return _rebuild, (self.cls, self.options, self.original)


def _rebuild(cls: type, options: ActorOptions, original: Any) -> RemoteNew:
    """Rebuild the hook of a class pickled by value; a class known here keeps its own."""
    known = cls.__dict__.get("__new__")
    if isinstance(known, RemoteNew):
        return known
    hook = RemoteNew.__new__(RemoteNew)
    hook.cls, hook.options, hook.original = cls, options, original
    hook.__signature__ = inspect.Signature()  # the class has no methods yet, and no code in an actor needs it
    hook._spec = hook._proxies = hook._unconnected = None
    return hook


def _own_new(cls: type) -> Callable[..., Any] | None:
    own = cls.__dict__.get("__new__")
    if isinstance(own, RemoteNew):
        return own.original  # the class is decorated, and this is a separate remote class of it
    if isinstance(own, staticmethod):
        function: Callable[..., Any] = own.__func__
        return function
    return cast("Callable[..., Any] | None", own)


def _new_signature(cls: type) -> inspect.Signature:
    """Return the constructor's signature, as `help` and `inspect.signature` show it for the class."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)])
    name = "cls"
    while name in signature.parameters:  # users' keyword arguments may have any name
        name += "_"
    first = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def reduce_object(self: Any, protocol: Any) -> Any:
    """Pickle an object of a decorated class, in an actor, so that it is rebuilt as an object and not as an actor."""
    decorated: Any = next(c for c in type(self).__mro__ if is_decorated(c))
    reduced = super(decorated, self).__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]  # unknown to its stub
        return (_make_local, reduced[1], *reduced[2:])
    return reduced


def _make_local(cls: type, *args: Any) -> Any:
    with _current.local_objects():
        return cls.__new__(cls, *args)


def is_decorated(cls: type) -> bool:
    """Return whether this class itself is decorated, not only a base class."""
    return isinstance(cls.__dict__.get("__new__"), RemoteNew)


def hook_of(cls: type) -> RemoteNew:
    """Return the `__new__` hook of a decorated class.

    Raises:
        TypeError: The class is not decorated.
    """
    if isinstance(cls, ConfiguredClass):
        return RemoteNew(cls._hook.cls, cls._options)
    hook = cls.__dict__.get("__new__") if isinstance(cls, type) else None
    if not isinstance(hook, RemoteNew):
        raise TypeError(f"{cls!r} is not decorated with @remote_class")
    return hook


_NAME = "options"


class ConfiguredClass:
    """A remote class with options bound: calling it makes an object, other attributes are the class's.

    Args:
        hook: The class's `__new__`.
        options: The options of the objects made.
    """

    def __init__(self, hook: RemoteNew, options: ActorOptions) -> None:
        self._hook = hook
        self._options = options
        self.__doc__ = hook.cls.__doc__
        self.__name__ = hook.cls.__name__
        self.__qualname__ = hook.cls.__qualname__
        self.__module__ = hook.cls.__module__
        self.__wrapped__ = hook.cls
        self.__signature__ = hook.__signature__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        maker = _current.maker_of(type(self))  # `construct_here` makes no object of this class
        if maker == _current.HERE:
            return self._hook.cls(*args, **kwargs)
        return self._hook.remote(maker, self._options, args, kwargs)

    def options(self, **options: Any) -> ConfiguredClass:
        """Return the class with some options changed further; raise what `with_options` raises."""
        return ConfiguredClass(self._hook, self._options.changed(options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by copying and pickling before the object is complete
            raise AttributeError(name)
        return getattr(self._hook.cls, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._hook.cls)

    def __subclasscheck__(self, other: type) -> bool:
        return issubclass(other, self._hook.cls)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self._hook.cls,)  # a subclass is one of the class

    def __reduce__(self) -> tuple[Any, ...]:
        return _choose, (self._hook.cls, self._options)

    def __repr__(self) -> str:
        return f"<{self._hook.cls.__qualname__} with {self._options}>"


def _choose(cls: type, options: ActorOptions) -> ConfiguredClass:
    return ConfiguredClass(hook_of(cls) if is_decorated(cls) else RemoteNew(cls, options), options)


def _exists(cls: type) -> bool:
    """Return whether a class is more than a definition: it is decorated, or its module has it under its name."""
    if is_decorated(cls):
        return True
    try:
        return operator.attrgetter(cls.__qualname__)(sys.modules.get(cls.__module__)) is cls
    except AttributeError:  # a class being defined, a class of a function, or no such module
        return False


class OptionsAttribute(ClassAttribute):
    """The attribute `options` of decorated classes."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None or not is_decorated(owner):
            kind = "object" if instance is not None else "class (it is not decorated with @remote_class)"
            raise AttributeError(f"{owner.__name__!r} {kind} has no attribute {_NAME!r}", name=_NAME)
        hook = hook_of(owner)
        return ConfiguredClass(hook, hook.options).options


def add_options(cls: type) -> None:
    """Add the attribute `options` to a decorated class, unless it defines one itself."""
    for base in cls.__mro__:
        own = base.__dict__.get(_NAME)
        if own is not None and not isinstance(own, OptionsAttribute):
            return
        if _NAME in inspect.get_annotations(base):
            return
    setattr(cls, _NAME, OptionsAttribute())


T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@overload
def remote_class(cls: type[T], /) -> type[T]: ...
@overload
def remote_class(
    *,
    wait: Literal[True] = True,
    n_cpu: float = 1,
    n_gpu: float = 0,
    memory: float = 0,
    max_memory: float | None = None,
    labels: Mapping[str, float] | None = None,
    placement: Literal["spread", "pack"] = "spread",
    node: str | None = None,
    name: str | None = None,
    detached: bool = False,
    max_restarts: int = 0,
    max_concurrency: int | None = None,
    max_pending_calls: int | None = None,
    when_full: Literal["wait", "raise"] = "wait",
    record: str | None = None,
    lease_timeout_s: float | None = None,
) -> Callable[[type[T]], type[T]]: ...
@overload
def remote_class(
    *,
    wait: bool,
    n_cpu: float = 1,
    n_gpu: float = 0,
    memory: float = 0,
    max_memory: float | None = None,
    labels: Mapping[str, float] | None = None,
    placement: Literal["spread", "pack"] = "spread",
    node: str | None = None,
    name: str | None = None,
    detached: bool = False,
    max_restarts: int = 0,
    max_concurrency: int | None = None,
    max_pending_calls: int | None = None,
    when_full: Literal["wait", "raise"] = "wait",
    record: str | None = None,
    lease_timeout_s: float | None = None,
) -> Callable[[type[Any]], Any]: ...  # what methods return then, no type checker can be told; `submit` is typed
def remote_class(cls: type[Any] | None = None, /, **options: Any) -> Any:
    """Make the objects of a class actors, each in its own process on this machine or another one of the cluster.

    The decorator works with and without parentheses. For a class of a module that exists already, `remote_class(Class)`
    returns a separate remote class, and the class itself stays local. A class of a function is changed itself, as in
    its definition; decorate a subclass to keep it local. A class is changed once: `remote_class(...)` of a decorated
    class returns a separate remote class with the given options. Within an actor, objects of decorated classes are
    actors of the same cluster, too; they belong to the actor that makes them and end with it.

    Args:
        cls: The class.
        **options: See below.

    Options:
        wait: Whether a method call waits for its result (default True). With `wait=False` it returns a
            `RemoteFuture` at once; any number of calls may be in flight, and the actor runs them in order.
        n_cpu: CPUs reserved for an actor, 0 or more in steps of 0.001 (default 1); fractions share a CPU.
        n_gpu: GPUs reserved for an actor: a whole number, or a fraction below 1 of a shared GPU (default 0). With 0, no
            GPU is visible in the actor.
        memory: MiB of its node's memory reserved for an actor, 0 or more (default 0).
        max_memory: MiB by which the actor's process may grow, above 0; if it exceeds them, it is ended (default: no
            limit).
        labels: Amounts of resources that the cluster's owner has named, for example `{"license": 1}` (default: none).
        placement: "spread" puts an actor on the node with the most free resources (default), "pack" on the fullest node
            that has enough.
        node: The name or id of the only node that may run the actor (default: any node).
        name: The actor's name for `get_actor`: up to 200 characters, unique in the cluster (default: none).
        detached: Whether the actor outlives the program that made it (default False); not on a private cluster.
        max_restarts: The maximum number of restarts of a lost actor, with the same arguments; -1 for no limit (default
            0). Calls that were in flight raise `ActorLost`; later calls wait for the new actor.
        max_concurrency: The maximum number of calls that run in the actor at once, 1 or more. The default is 1, or 1000
            for a class with `async def` methods, which run on an event loop in the actor. Above 1, methods of other
            classes run in threads, started in order.
        max_pending_calls: The maximum number of unanswered calls of one caller, 1 or more (default: no limit; all calls
            are kept in memory).
        when_full: The effect of a call above `max_pending_calls`: "wait" for an answer (default), or "raise"
            `TooManyPendingCalls`.
        record: A folder on the actor's host for a journal of the actor's calls, which `xparl replay` runs again, in a
            debugger if wanted (default: none).
        lease_timeout_s: Seconds that making an object waits for free resources, 0 or more (default: that of `connect`).

    Raises:
        TypeError: An option is unknown, or the decorated object is not a class.
        ValueError: An option is out of its range.
    """
    chosen = ActorOptions.of(options)

    def decorate(decorated: type[Any]) -> Any:
        given: object = decorated
        if isinstance(given, ConfiguredClass):
            return ConfiguredClass(given._hook, chosen)
        if not isinstance(decorated, type):
            raise TypeError(f"@remote_class decorates classes, not {decorated!r}")
        if _exists(decorated):
            return ConfiguredClass(RemoteNew(decorated, chosen), chosen)
        # setattr, because type checkers rightly reject assigning to a class's __new__
        setattr(decorated, "__new__", RemoteNew(decorated, chosen))  # noqa: B010
        if "__reduce_ex__" not in decorated.__dict__:
            setattr(decorated, "__reduce_ex__", reduce_object)  # noqa: B010
        add_options(decorated)
        if not hasattr(decorated, "as_remote"):
            setattr(decorated, "as_remote", ServeAttribute())  # noqa: B010
        return decorated

    return decorate if cls is None else decorate(cls)


class ServeAttribute(ClassAttribute):
    """The method `as_remote` of objects; a class with a method of that name keeps its own."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self

        def as_remote(*args: Any, **kwargs: Any) -> Serving:
            """Serve this object to the `RemoteManager` at an address; see `parl_remote.as_remote`."""
            return _connect.serve(instance, *args, **kwargs)

        return as_remote


def with_options(cls: type[T], /, **options: Any) -> type[T]:
    """Return a remote class with other options; they apply to objects made by calling what is returned.

    `Actor.options(...)` does the same. This function also works for classes that define `options` themselves, and type
    checkers understand it; they do not see an attribute that a decorator adds.

    Args:
        cls: A class decorated with `remote_class`.
        **options: The options to change, as for `remote_class`.

    Example:
        `fast = with_options(Actor, wait=False); actor = fast(1)`

    Raises:
        TypeError: The class is not decorated, or an option is unknown.
        ValueError: An option is out of its range.
    """
    hook = hook_of(cls)
    return cast("type[T]", ConfiguredClass(hook, hook.options.changed(options)))


def submit(method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RemoteFuture[R]:
    """Call a remote object's method and return its future, whatever the `wait` of its class.

    Type checkers see the types of the method.

    Args:
        method: A method of a remote object, for example `actor.run`.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Example:
        `futures = [submit(actor.run, n) for actor in actors]`

    Raises:
        TypeError: `method` is not a method of a remote object.
        SerializationError: An argument cannot be sent.
    """
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"submit takes a method of a remote object, not {method!r}")
    return method.submit(*args, **kwargs)

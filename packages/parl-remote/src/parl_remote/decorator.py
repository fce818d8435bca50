"""`@remote_class`: the same class, whose objects are made in actors.

    @remote_class               A(1)  ->  a proxy; the object itself is made in a process of its own
    class A: ...                in an actor, or with the class of a subclass that is not decorated: an ordinary object

The class stays the class that was written: its name, docstring, pickling, `isinstance` and, for type checkers, its
type. Only its `__new__` is replaced, by an object that knows where the class's objects are to be made.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from parl_remote import current
from parl_remote.class_spec import ClassSpec
from parl_remote.future import RemoteFuture
from parl_remote.options import ActorOptions
from parl_remote.proxy import RemoteMethod, RemoteObject, make_proxy, proxy_class

__all__ = ["remote_class", "submit", "with_options"]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class _RemoteNew:
    """A decorated class's `__new__`."""

    def __init__(self, cls: type, options: ActorOptions) -> None:
        self.cls = cls
        self.options = options
        self.original = _own_new(cls)
        self.__signature__ = _new_signature(cls)
        self._spec: ClassSpec | None = None
        self._proxies: type[RemoteObject] | None = None

    def __call__(self, cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if cls is not self.cls or current.objects_are_local():
            return self.local(cls, args, kwargs)
        return self.remote(self.options, args, kwargs)

    def local(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An ordinary object; `__init__` follows from Python itself."""
        if self.original is None:
            inherited = super(self.cls, cls).__new__  # type: ignore[arg-type]  # a subclass is an instance of nothing here
            if inherited is object.__new__:  # it takes no arguments; __init__ does
                return inherited(cls)
            return inherited(cls, *args, **kwargs)
        return self.original(cls, *args, **kwargs)

    def remote(self, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
        """A proxy of a new actor."""
        if self._spec is None or self._proxies is None:
            self._spec = ClassSpec(self.cls)
            self._proxies = proxy_class(self._spec)
        ref = current.client().create(self._spec, options, args, kwargs)
        return make_proxy(self._proxies, ref, wait=options.wait)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, ActorOptions, Any]]:
        return _rebuild, (self.cls, self.options, self.original)


def _rebuild(cls: type, options: ActorOptions, original: Any) -> _RemoteNew:
    """For classes that travel by value; one that comes home is as it was."""
    known = cls.__dict__.get("__new__")
    if isinstance(known, _RemoteNew):
        return known
    hook = _RemoteNew.__new__(_RemoteNew)
    hook.cls, hook.options, hook.original = cls, options, original
    hook.__signature__ = inspect.Signature()  # the class has no methods yet, and nobody in an actor asks
    hook._spec = hook._proxies = None
    return hook


def _own_new(cls: type) -> Callable[..., Any] | None:
    own = cls.__dict__.get("__new__")
    if isinstance(own, _RemoteNew):
        return own.original  # decorated twice: the outer options win
    if isinstance(own, staticmethod):
        function: Callable[..., Any] = own.__func__
        return function
    return cast("Callable[..., Any] | None", own)


def _new_signature(cls: type) -> inspect.Signature:
    """The constructor's parameters, as `help` and `inspect.signature` show them for the class."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)])
    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def _reduce_object(self: Any, protocol: Any) -> Any:
    """Pickle an object of a decorated class, in an actor, so that it comes out as an object and not as an actor."""
    decorated: Any = next(c for c in type(self).__mro__ if _is_decorated(c))
    reduced = super(decorated, self).__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]  # unknown to its stub
        return (_make_local, reduced[1], *reduced[2:])
    return reduced


def _make_local(cls: type, *args: Any) -> Any:
    with current.local_objects():
        return cls.__new__(cls, *args)


def _is_decorated(cls: type) -> bool:
    return isinstance(cls.__dict__.get("__new__"), _RemoteNew)


def _hook_of(cls: type) -> _RemoteNew:
    hook = cls.__dict__.get("__new__") if isinstance(cls, type) else None
    if not isinstance(hook, _RemoteNew):
        raise TypeError(f"{cls!r} is not decorated with @remote_class")
    return hook


@overload
def remote_class(cls: type[T], /) -> type[T]: ...
@overload
def remote_class(
    *,
    wait: Literal[True] = True,
    n_cpu: float = 1,
    n_gpu: float = 0,
    max_memory: float | None = None,
    lease_timeout_s: float | None = None,
) -> Callable[[type[T]], type[T]]: ...
@overload
def remote_class(
    *,
    wait: bool,
    n_cpu: float = 1,
    n_gpu: float = 0,
    max_memory: float | None = None,
    lease_timeout_s: float | None = None,
) -> Callable[[type[Any]], Any]: ...  # what methods return then, no type checker can be told; `submit` is typed
def remote_class(cls: type[Any] | None = None, /, **options: Any) -> Any:
    """Make a class whose objects live in actors: processes of their own, on this machine or another of the cluster.

    Use it with or without parentheses. Within an actor, objects of decorated classes are ordinary local objects.

    Args:
        cls: The class.
        **options: See below.

    Options:
        wait: Whether a method call waits for its result (default True). With `wait=False` it returns a
            `RemoteFuture` at once and any number of calls may be outstanding, run in order.
        n_cpu: CPUs that an actor takes (default 1); fractions share one.
        n_gpu: GPUs that an actor takes (default 0).
        max_memory: MiB that the actor's process may grow by before it is ended (default: no limit).
        lease_timeout_s: Seconds that creating an object waits for free resources (default: what `connect` was given).

    Raises:
        TypeError: An option is unknown, or what is decorated is not a class.
        ValueError: An option is out of its range.
    """
    chosen = ActorOptions.of(options)

    def decorate(decorated: type[Any]) -> type[Any]:
        if not isinstance(decorated, type):
            raise TypeError(f"@remote_class decorates classes, not {decorated!r}")
        # setattr, because a type checker rightly thinks that a class's __new__ is none of our business
        setattr(decorated, "__new__", _RemoteNew(decorated, chosen))  # noqa: B010
        if "__reduce_ex__" not in decorated.__dict__:
            setattr(decorated, "__reduce_ex__", _reduce_object)  # noqa: B010
        return decorated

    return decorate if cls is None else decorate(cls)


def with_options(cls: type[T], /, **options: Any) -> type[T]:
    """The same remote class with other options, for the objects that are made through the returned callable.

    Example:
        `fast = with_options(Actor, wait=False); actor = fast(1)`

    Raises:
        TypeError: The class is not decorated, or an option is unknown.
        ValueError: An option is out of its range.
    """
    hook = _hook_of(cls)
    changed = hook.options.changed(options)

    def create(*args: Any, **kwargs: Any) -> Any:
        if current.objects_are_local():
            return cls(*args, **kwargs)
        return hook.remote(changed, args, kwargs)

    return cast("type[T]", create)


def submit(method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RemoteFuture[R]:
    """Call a remote object's method without waiting, whatever its class's `wait` says; typed as the method is.

    Example:
        `futures = [submit(actor.run, n) for actor in actors]`

    Raises:
        TypeError: It is not a method of a remote object.
        SerializationError: An argument cannot be sent.
    """
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"submit takes a method of a remote object, not {method!r}")
    return method.submit(*args, **kwargs)

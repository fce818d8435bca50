"""The `__new__` of decorated classes: decides where an object is made, an actor or here.

    Actor(1)  -->  RemoteNew --remote--> the client makes an actor, the program holds a proxy
                             --local---> an ordinary object: in actors that cannot reach their cluster, and for
                                         subclasses that are not decorated themselves
                             `--nowhere: an `UnconnectedObject`, where the program has no connection

Objects and classes that travel come out as what they were, see `reduce_object` and `RemoteNew.__reduce__`.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable
from typing import Any, cast

from parl_remote import current
from parl_remote.options import ActorOptions
from parl_remote.program.proxy import RemoteObject, UnconnectedObject, make_proxy, proxy_class, unconnected_class
from parl_remote.shipping.class_spec import ClassSpec

__all__ = ["RemoteNew", "hook_of", "is_decorated", "reduce_object"]


class RemoteNew:
    """A decorated class's `__new__`.

    Args:
        cls: The class.
        options: What its objects are made with unless something else is said.
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
        if cls is not self.cls or current.objects_are_local() or current.is_constructed_here(cls):
            return self.local(cls, args, kwargs)
        return self.remote(self.options, args, kwargs)

    def local(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An ordinary object; `__init__` follows from Python itself."""
        if self.original is None:
            inherited = super(self.cls, cls).__new__  # type: ignore[arg-type]  # a subclass is an instance of nothing here
            if inherited is object.__new__:  # it takes no arguments; __init__ does
                if (args or kwargs) and inspect.getattr_static(cls, "__init__") is object.__init__:  # it would trust us
                    raise TypeError(f"{cls.__name__}() takes no arguments")
                return inherited(cls)
            return inherited(cls, *args, **kwargs)
        return self.original(cls, *args, **kwargs)

    def remote(
        self, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RemoteObject | UnconnectedObject:
        """Return a proxy of a new actor; without a connection, an object that only `as_remote` can build."""
        if self._spec is None or self._proxies is None:
            self._spec = ClassSpec(self.cls)
            self._proxies = proxy_class(self._spec)
        if not current.can_connect():
            if self._unconnected is None:
                self._unconnected = unconnected_class(self._spec)
            return self._unconnected(args, kwargs)
        ref = current.client().create(self._spec, options, args, kwargs)
        return make_proxy(self._proxies, ref, wait=options.wait)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, ActorOptions, Any]]:
        return _rebuild, (self.cls, self.options, self.original)


def _rebuild(cls: type, options: ActorOptions, original: Any) -> RemoteNew:
    """For classes that travel by value; one that comes home is as it was."""
    known = cls.__dict__.get("__new__")
    if isinstance(known, RemoteNew):
        return known
    hook = RemoteNew.__new__(RemoteNew)
    hook.cls, hook.options, hook.original = cls, options, original
    hook.__signature__ = inspect.Signature()  # the class has no methods yet, and nobody in an actor asks
    hook._spec = hook._proxies = hook._unconnected = None
    return hook


def _own_new(cls: type) -> Callable[..., Any] | None:
    own = cls.__dict__.get("__new__")
    if isinstance(own, RemoteNew):
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


def reduce_object(self: Any, protocol: Any) -> Any:
    """Pickle an object of a decorated class, in an actor, so that it comes out as an object and not as an actor."""
    decorated: Any = next(c for c in type(self).__mro__ if is_decorated(c))
    reduced = super(decorated, self).__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]  # unknown to its stub
        return (_make_local, reduced[1], *reduced[2:])
    return reduced


def _make_local(cls: type, *args: Any) -> Any:
    with current.local_objects():
        return cls.__new__(cls, *args)


def is_decorated(cls: type) -> bool:
    """Whether this very class is decorated, not only one that it inherits from."""
    return isinstance(cls.__dict__.get("__new__"), RemoteNew)


def hook_of(cls: type) -> RemoteNew:
    """What makes a decorated class's objects.

    Raises:
        TypeError: The class is not decorated.
    """
    hook = cls.__dict__.get("__new__") if isinstance(cls, type) else None
    if not isinstance(hook, RemoteNew):
        raise TypeError(f"{cls!r} is not decorated with @remote_class")
    return hook

"""Options for single objects of a remote class: `Actor.options(n_cpu=2)(...)`, or `with_options(Actor, n_cpu=2)(...)`.

    Actor.options(...)  --OptionsAttribute-->  ChosenClass, which is called as the class is

The attribute belongs to the class alone. Objects do not have it, a class that has an `options` of its own keeps that,
and a subclass that is not decorated has none.
"""

from __future__ import annotations

import inspect
from typing import Any

from parl_remote import current
from parl_remote.options import ActorOptions
from parl_remote.remote_new import RemoteNew, hook_of, is_decorated
from parl_remote.shipping.class_spec import ClassAttribute

__all__ = ["ChosenClass", "OptionsAttribute", "offer_options"]

_NAME = "options"


class ChosenClass:
    """A remote class together with options: calling it makes an object, everything else is the class's.

    Args:
        hook: The class's `__new__`.
        options: What objects are made with.
    """

    def __init__(self, hook: RemoteNew, options: ActorOptions) -> None:
        self._hook = hook
        self._options = options
        self.__doc__ = hook.cls.__doc__
        self.__name__ = hook.cls.__name__
        self.__signature__ = hook.__signature__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current.objects_are_local():
            return self._hook.cls(*args, **kwargs)
        return self._hook.remote(self._options, args, kwargs)

    def options(self, **options: Any) -> ChosenClass:
        """The same with some options changed further; raises as `with_options` does."""
        return ChosenClass(self._hook, self._options.changed(options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copying and pickling, which ask before the object is whole
            raise AttributeError(name)
        return getattr(self._hook.cls, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._hook.cls)

    def __reduce__(self) -> tuple[Any, ...]:
        return _choose, (self._hook.cls, self._options)

    def __repr__(self) -> str:
        return f"<{self._hook.cls.__qualname__} with {self._options}>"


def _choose(cls: type, options: ActorOptions) -> ChosenClass:
    return ChosenClass(hook_of(cls), options)


class OptionsAttribute(ClassAttribute):
    """What a decorated class has under the name `options`."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None or not is_decorated(owner):
            kind = "object" if instance is not None else "class (it is not decorated with @remote_class)"
            raise AttributeError(f"{owner.__name__!r} {kind} has no attribute {_NAME!r}", name=_NAME)
        hook = hook_of(owner)
        return ChosenClass(hook, hook.options).options


def offer_options(cls: type) -> None:
    """Give a decorated class its `options`, unless it has something of that name itself."""
    for base in cls.__mro__:
        own = base.__dict__.get(_NAME)
        if own is not None and not isinstance(own, OptionsAttribute):
            return
        if _NAME in inspect.get_annotations(base):
            return
    setattr(cls, _NAME, OptionsAttribute())

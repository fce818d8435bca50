"""How a class gets to an actor: by name where the actor can import it, else itself."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Iterable
from types import ModuleType

from parl_remote.data import serialize
from parl_remote.errors import SerializationError

__all__ = ["dumps_class", "importable_elsewhere"]


def dumps_class(cls: type) -> bytes:
    """A class as bytes: its name where the actor can import it, else the class itself.

    Raises:
        SerializationError: Something that the class needs cannot be sent.
    """
    module = sys.modules.get(cls.__module__)
    if module is not None and cls.__module__ != "__main__" and not importable_elsewhere(module):
        serialize.ship_by_value(module)
    serialize.look_at_new_modules()  # of others, the class may use some that cannot be imported either
    try:
        return bytes(serialize.dumps(cls)[0])
    except Exception as error:
        from parl_remote.shipping.class_culprit import culprit_of

        culprit = culprit_of(cls)
        blamed = culprit or f"something that its methods use, in {cls.__module__}"
        raise SerializationError(
            f"class {cls.__qualname__} cannot be sent to an actor: {type(error).__name__}: {error}. "
            f"The culprit is {blamed}: make it inside the actor, in __init__ for example.",
            what=culprit or f"class {cls.__qualname__}",
        ) from error


def importable_elsewhere(module: ModuleType) -> bool:
    """Whether another process with the same `sys.path` would find the same module under its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    return _is_found(module.__name__, file, tuple(map(str, sys.path)))


@functools.lru_cache(maxsize=1024)
def _is_found(module: str, file: str, sys_path: tuple[str, ...]) -> bool:  # noqa: ARG001  # the finders look at sys.path
    path = None
    name = ""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return False  # a name that a test runner made of a path; no import statement can say it
    for part in parts:
        name = f"{name}.{part}" if name else part
        spec = _find(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == file


def _find(name: str, path: Iterable[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec
    return None

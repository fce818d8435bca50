"""How a class gets to an actor: by name where the actor can import it, else itself."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterable
from types import ModuleType

from parl_remote import serialize
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
    try:
        return bytes(serialize.dumps(cls)[0])
    except Exception as error:
        raise SerializationError(
            f"class {cls.__qualname__} cannot be sent to an actor: {type(error).__name__}: {error}. "
            f"Something that its methods use, a global of {cls.__module__} perhaps, cannot be pickled.",
            what=f"class {cls.__qualname__}",
        ) from error


def importable_elsewhere(module: ModuleType) -> bool:
    """Whether another process with the same `sys.path` would find the same module under its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    path = None
    name = ""
    parts = module.__name__.split(".")
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

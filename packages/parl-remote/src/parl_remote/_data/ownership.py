"""Distinction of the user's own files and modules, and of modules that other processes cannot import.

    sys.modules --own?--> --at its name's path on sys.path?--> (yes: sent by name)
                                   `--no--> --would a finder find it?--> no: unshared, and sent by value

Unshared modules are those loaded from a path, and those of a test runner that derives names from paths.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterable
from types import ModuleType

__all__ = ["absolute", "expect_elsewhere", "importable_elsewhere", "is_own", "new_unshared_modules"]


_INSTALLED = frozenset({"site-packages", "dist-packages"})


def absolute(path: str) -> str:
    """Return the absolute path; a relative one unchanged if the current directory was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


def is_own(path: str) -> bool:
    """Return whether a file is the user's own: neither of the standard library nor installed."""
    if not os.path.isabs(path):
        return False  # "built-in", "frozen"
    return not (_INSTALLED & set(path.split(os.sep)) or path.startswith(_library()))


@functools.cache
def _library() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{place}{os.sep}" for place in places if place)


_PROGRAM = {"__main__", "__mp_main__"}  # which are never sent by name

# Names of modules that were looked at; it only grows, as `sys.modules` does.
_looked_at: set[str] = set()


def new_unshared_modules() -> list[ModuleType]:
    """Return the unshared modules among those loaded since the last call."""
    if getattr(sys, "path", None) is None:  # a finalizer calls an actor while the interpreter ends
        return []
    # Names alone: to touch a thousand modules copies the memory that an actor shares with others, 2 MB of it.
    new = [name for name in list(sys.modules) if name not in _looked_at]
    _looked_at.update(new)
    places = {absolute(place) for place in sys.path}
    found = []
    for name in new:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and _is_unshared(name, module, places):
            found.append(module)
    return found


def expect_elsewhere() -> None:
    """Take the modules that are loaded now for importable elsewhere: actors have them from the process before them."""
    _looked_at.update(sys.modules)


def _is_unshared(name: str, module: ModuleType, places: set[str]) -> bool:
    file = vars(module).get("__file__")  # not getattr, which would trigger modules that load their names lazily
    if not isinstance(file, str) or not file.endswith(".py") or _place_of(name, file) in places:
        return False  # the cheap check, which suffices for nearly all
    if name in _PROGRAM or module.__name__ != name or not is_own(file):
        return False
    return not importable_elsewhere(module)


def _place_of(name: str, file: str) -> str:
    """Return the directory on `sys.path` from which the module's name leads to this file; empty if none does."""
    path = file.removesuffix(".py").removesuffix(f"{os.sep}__init__")
    tail = os.sep + name.replace(".", os.sep)
    return path.removesuffix(tail) if path.endswith(tail) else ""


def importable_elsewhere(module: ModuleType) -> bool:
    """Return whether another process with the same `sys.path` would find the same module under its name."""
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

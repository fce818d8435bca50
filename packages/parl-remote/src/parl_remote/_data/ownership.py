"""Distinction of the user's own files and modules, and of modules that other processes cannot import.

    sys.modules --own?--> --at its name's path on sys.path?--> (yes: sent by name)
                                   `--no--> --would a finder find it?--> no: unshared, and sent by value

Unshared modules are those loaded from a path, those of a test runner that derives names from paths, those that a
program makes without a file, and the main module of a child that `multiprocessing` started as a fresh interpreter.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterable
from types import ModuleType

__all__ = ["absolute", "expect_elsewhere", "importable_elsewhere", "is_own", "new_unshared_modules", "working_dir"]


_INSTALLED = frozenset({"site-packages", "dist-packages"})


def absolute(path: str) -> str:
    """Return the absolute path; a relative one unchanged if the current directory was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


def working_dir() -> str:
    """Return the current directory, empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def is_own(path: str) -> bool:
    """Return whether a file is the user's own: neither of the standard library nor installed."""
    if not os.path.isabs(path):
        return False  # "built-in", "frozen"
    return not (_INSTALLED & set(path.split(os.sep)) or path.startswith(_library()))


@functools.cache
def _library() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{place}{os.sep}" for place in places if place)


# The main module in a child that `multiprocessing` started as a fresh interpreter; elsewhere, that of `__main__`.
_PROGRAM_OF_CHILD = "__mp_main__"

# Names of modules that were checked; it only grows, as `sys.modules` does.
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
    """Treat the modules that are loaded now as importable elsewhere: actors inherit them from this process."""
    _looked_at.update(sys.modules)


def _is_unshared(name: str, module: ModuleType, places: set[str]) -> bool:
    if name == _PROGRAM_OF_CHILD:
        return module.__name__ == name
    file = _file_of(module)
    if file is None:
        if "__builtins__" not in vars(module):
            return False  # no Python code has run in it: it is built in, or of an extension module
    elif file.endswith(_EXTENSIONS) or _place_of(name, file) in places or not is_own(file):
        return False  # true of nearly all modules
    if name == "__main__" or module.__name__ != name:
        return False
    return not importable_elsewhere(module)


_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def _file_of(module: ModuleType) -> str | None:
    """Return the absolute path of a module's file; None if it has none, or names one that does not exist."""
    file = vars(module).get("__file__")  # getattr would trigger modules that load their names lazily
    if not isinstance(file, str):
        return None
    if os.path.isabs(file):
        return file  # unchanged: finders report the same path
    path = absolute(file)  # of a script that `runpy.run_path` runs
    return path if os.path.exists(path) else None


def _place_of(name: str, file: str) -> str:
    """Return the directory on `sys.path` from which the module's name leads to this file; empty if none does."""
    path = file.removesuffix(".py").removesuffix(f"{os.sep}__init__")
    tail = os.sep + name.replace(".", os.sep)
    return path.removesuffix(tail) if path.endswith(tail) else ""


def importable_elsewhere(module: ModuleType) -> bool:
    """Return whether another process with the same `sys.path` would find the same module under its name."""
    file, name = _file_of(module), module.__name__
    if file is None:  # built in, a namespace package, or made by a program, or by the package that it is a part of
        package, _, last = name.rpartition(".")
        if getattr(sys.modules.get(package), "__dict__", {}).get(last) is module:
            name = name.partition(".")[0]  # importing the package makes this module as well
    return _is_found(name, file, tuple(map(str, sys.path)))


@functools.lru_cache(maxsize=1024)
def _is_found(module: str, file: str | None, sys_path: tuple[str, ...]) -> bool:  # noqa: ARG001  # the finders look at sys.path
    path = None
    name = ""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return False  # a name that a test runner made of a path; no import statement can contain it
    for part in parts:
        name = f"{name}.{part}" if name else part
        spec = _find(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations or []  # a plain module has no submodules
    return spec is not None and (file is None or spec.origin == file)


def _find(name: str, path: Iterable[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec
    return None

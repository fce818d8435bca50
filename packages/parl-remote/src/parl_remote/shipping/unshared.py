"""The program's own modules that no other process can import: what they define travels itself.

    sys.modules --own?--> --where its name says, on sys.path?--> (yes: goes by name)
                                   `--no--> --would a finder find it?--> no: by value from now on

Such are modules that were loaded from a path, and those of a test runner that makes names of paths.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from parl_remote.data import serialize
from parl_remote.shipping.class_shipping import importable_elsewhere
from parl_remote.shipping.ownership import is_own

__all__ = ["ship_unshared"]

_PROGRAM = {"__main__", "__mp_main__"}  # which never go by name

# Names of modules that were looked at; it only grows, as `sys.modules` does.
_looked_at: set[str] = set()


def ship_unshared() -> None:
    """Look at the modules that were loaded since the last time, and have the unshared ones sent by value."""
    places = {os.path.abspath(place) for place in sys.path}
    for name, module in list(sys.modules.items()):
        if name not in _looked_at:
            _looked_at.add(name)
            if isinstance(module, ModuleType) and _is_unshared(name, module, places):
                serialize.ship_by_value(module)


def _is_unshared(name: str, module: ModuleType, places: set[str]) -> bool:
    file = vars(module).get("__file__")  # not getattr: modules that load their names late would be woken up
    if not isinstance(file, str) or not file.endswith(".py") or _place_of(name, file) in places:
        return False  # which is the cheap question, with the answer for nearly all
    if name in _PROGRAM or module.__name__ != name or not is_own(file):
        return False
    return not importable_elsewhere(module)


def _place_of(name: str, file: str) -> str:
    """The directory on `sys.path` from which an import statement gives this file; empty if its name is another one."""
    path = file.removesuffix(".py").removesuffix(f"{os.sep}__init__")
    tail = os.sep + name.replace(".", os.sep)
    return path.removesuffix(tail) if path.endswith(tail) else ""

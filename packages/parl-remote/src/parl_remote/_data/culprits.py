"""The part of a value that cannot be pickled, by the name under which it is found: `config['logs'][2].file`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["culprit_in", "is_open_file"]

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DEEPEST = 20
_LOCKS = {type(threading.Lock()): "a lock", type(threading.RLock()): "a lock"}


def is_open_file(value: object) -> bool:
    """Return whether a value is a file of this process; its standard streams have a counterpart in every process."""
    memory = io.StringIO | io.BytesIO
    return isinstance(value, io.IOBase) and not isinstance(value, memory) and value not in (sys.stdout, sys.stderr)


def culprit_in(value: object, name: str, check: Callable[[object], object]) -> str:
    """Return where in a value, and what, cannot be pickled: "config['log'] is an open file ('/tmp/x')".

    Args:
        value: A value that cannot be pickled.
        name: Its name.
        check: Pickles a value; raises what pickling raises.

    Returns:
        The text; empty if it is the value itself, and its type says all there is to say.
    """
    path, seen = name, {id(value)}
    for _ in range(_DEEPEST):
        for inner_path, inner in _parts(value, path):
            if type(inner) in _PLAIN or id(inner) in seen:
                continue
            try:
                check(inner)
            except Exception:
                seen.add(id(inner))
                value, path = inner, inner_path
                break
        else:
            break
    kind = _kind_of(value)
    return f"{path} is {kind}" if path != name or kind != _type_of(value) else ""


def _parts(value: Any, path: str) -> Iterator[tuple[str, object]]:
    """Yield what a value is made of, with names."""
    if isinstance(value, Mapping):
        for key, part in list(value.items()):
            yield f"{path}[{key!r:.80}]", part
            yield f"the key {key!r:.80} of {path}", key
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", ())
        for index, part in enumerate(value):
            yield f"{path}.{names[index]}" if names else f"{path}[{index}]", part
    elif isinstance(value, set | frozenset):
        for part in list(value):
            yield f"an item of {path}", part
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it has no value yet
                yield f"{variable} in {path}", cell.cell_contents
    elif isinstance(value, functools.partial):
        for index, part in enumerate(value.args):
            yield f"{path}.args[{index}]", part
        for key, part in value.keywords.items():
            yield f"{path}.keywords[{key!r}]", part
    for attribute, part in list(getattr(value, "__dict__", {}).items()):
        yield f"{path}.{attribute}", part
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(value, slot):
                yield f"{path}.{slot}", getattr(value, slot)


def _kind_of(value: object) -> str:
    if is_open_file(value):
        file = getattr(value, "name", None)
        return f"an open file ({file!r})" if file is not None else "an open file"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return f"a generator ({value.__qualname__})"
    if type(value) in _LOCKS:
        return _LOCKS[type(value)]
    return _type_of(value)


def _type_of(value: object) -> str:
    return f"a {type(value).__name__}"

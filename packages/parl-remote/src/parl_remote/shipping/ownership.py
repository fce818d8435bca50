"""Which files are the user's own."""

from __future__ import annotations

import functools
import os
import sysconfig

__all__ = ["is_own"]

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def is_own(path: str) -> bool:
    """Whether a file is the user's own: neither of the standard library nor installed."""
    if not os.path.isabs(path):
        return False  # "built-in", "frozen"
    return not (_INSTALLED & set(path.split(os.sep)) or path.startswith(_library()))


@functools.cache
def _library() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{place}{os.sep}" for place in places if place)

"""Exceptions made a second time: from what makes them up, also where their constructors want something else."""

from __future__ import annotations

import copy

__all__ = ["from_parts", "unraised"]


def from_parts(kind: type[Exception], args: tuple[object, ...], attributes: dict[str, object]) -> Exception:
    """An exception from what makes it up, also where its constructor wants other arguments than it keeps."""
    try:
        error = kind(*args)
    except Exception:
        error = kind.__new__(kind, *args)
        error.args = args
    error.__dict__.update(attributes)
    return error


def unraised(error: BaseException) -> BaseException:
    """The same exception without what raising it leaves behind; itself if its class allows no second one."""
    try:
        other: BaseException = copy.copy(error)
    except Exception:
        if not isinstance(error, Exception):
            return error
        try:
            other = from_parts(type(error), error.args, error.__dict__)
        except Exception:
            return error
    if type(other) is not type(error):
        return error
    other.__cause__ = error.__cause__
    other.__suppress_context__ = error.__suppress_context__
    return other

"""How many calls an actor runs at once, and on what: decided once, from its class and `max_concurrency`.

    methods           max_concurrency   calls run
    ordinary          not given, or 1   one after the other, in the actor's main thread
    ordinary          more              in so many threads, started in order
    some async def    not given         on an event loop in the main thread, up to 1000 at once
    some async def    given             the same, up to so many at once

Where there is an event loop, ordinary methods run on it as well, between the steps of the others: what one of them
changes, no other call sees half changed. One that blocks keeps all of them waiting.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import NamedTuple

__all__ = ["MANY", "ONE_BY_ONE", "Concurrency", "How", "concurrency_of"]

MANY = 1000  # coroutines are cheap; a limit keeps an actor that is flooded from holding everything at once


class How(Enum):
    """What calls run on."""

    SERIAL = "one after the other"
    THREADS = "threads"
    LOOP = "an event loop"


class Concurrency(NamedTuple):
    """How calls run, and how many at once."""

    how: How
    limit: int


ONE_BY_ONE = Concurrency(How.SERIAL, 1)


def concurrency_of(cls: type, asked: int | None) -> Concurrency:
    """Return what a class gets.

    Args:
        cls: The actor's class.
        asked: `max_concurrency`, 1 or more; None if it was not given.
    """
    if _has_async_methods(cls):
        return Concurrency(How.LOOP, asked or MANY)
    return ONE_BY_ONE if asked in {None, 1} else Concurrency(How.THREADS, asked or 1)


def _has_async_methods(cls: type) -> bool:
    """Return whether any method is `async def`, under decorators that say what they wrap."""
    for base in cls.__mro__:
        for attribute in base.__dict__.values():
            function = getattr(attribute, "__func__", attribute)
            if callable(function):
                unwrapped = inspect.unwrap(function)
                if inspect.iscoroutinefunction(unwrapped) or inspect.isasyncgenfunction(unwrapped):
                    return True
    return False

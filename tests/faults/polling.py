"""Waiting for states that have no event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["eventually"]


def eventually(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return the first result of `look` that is true; look every hundredth of a second.

    Raises:
        AssertionError: It was false for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (result := look()):
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.01)
    return result

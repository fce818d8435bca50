"""The start of a thread that nobody waits for, not even its start."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

__all__ = ["start_daemon"]


def start_daemon(run: Callable[[], None], name: str) -> None:
    """Start a thread that does not keep the process alive.

    `threading.Thread.start` waits for the new thread, which never answers if there is no memory for its first step.

    Raises:
        RuntimeError: There is no thread left.
    """

    def named() -> None:
        threading.current_thread().name = name
        run()

    _thread.start_new_thread(named, ())

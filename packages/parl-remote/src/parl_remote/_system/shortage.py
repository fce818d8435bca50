"""Shortages of the operating system: no descriptors, memory, processes, threads or disk are left.

They pass, and a program continues: what was asked for fails, with the shortage as the cause, and nothing else. So the
loops of nodes (`links.loop`) and actors (`actor.process`) tell a shortage from a bug by `is_shortage`, and start
threads by `start_daemon`.
"""

from __future__ import annotations

import _thread
import errno
import os
import threading
from collections.abc import Callable

__all__ = ["is_shortage", "names_shortage", "shortage_of", "start_daemon"]


_NUMBERS = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ENOSPC", "EDQUOT")
    if hasattr(errno, name)
)
_NO_THREAD = "can't start new thread"  # as Python says it, in a RuntimeError


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is a shortage of the system."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_THREAD in str(error)):
            return True
        if isinstance(error, OSError) and error.errno in _NUMBERS:
            return True
        error = error.__cause__
    return False


def shortage_of(error: BaseException) -> str:
    """Return the system's name for a shortage: "Too many open files"."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "Cannot allocate memory"


def names_shortage(report: str) -> bool:
    """Return whether another process's report has the system's name for a shortage in parentheses as its reason."""
    return any(f"({os.strerror(number)})" in report for number in _NUMBERS)


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

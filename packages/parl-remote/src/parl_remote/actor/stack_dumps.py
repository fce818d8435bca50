"""Stacks of an actor's threads, printed by the actor itself on a signal: also while it is busy in C code or hangs.

    actor   allow_stack_dumps: faulthandler listens to STACK_SIGNAL, and writes behind the page of the actor's calls
    worker  StackFile.clear --signal, by way of the zygote--> actor --writes--> StackFile.read, until it grows no more

faulthandler needs neither the interpreter's lock nor memory, so a deadlocked actor answers as well. Spare processes and
whatever an actor starts ignore the signal.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from parl_remote.actor.stats import PAGE_BYTES
from parl_remote.system.facilities import CLOSE_ON_EXEC, NO_FOLLOW

__all__ = [
    "STACK_SIGNAL",
    "StackFile",
    "allow_stack_dumps",
    "ignore_stack_signal",
]

# One that nobody else uses: the usual ones belong to the user's code.
STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", 0))) - 2 * hasattr(signal, "SIGRTMAX")
_MOST_BYTES = 256 * 1024  # a thousand threads of some ten frames


def ignore_stack_signal() -> None:
    """Until `allow_stack_dumps`, a signal that came too early shall not end this process; children inherit that."""
    if STACK_SIGNAL:  # Windows has none for this
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def allow_stack_dumps(path: str | os.PathLike[str]) -> None:
    """Have this process print its stacks behind its page on `STACK_SIGNAL`, from now on.

    Args:
        path: Where `CallMeter.publish` has put the page.

    Raises:
        OSError: The file cannot be opened.
    """
    if not hasattr(faulthandler, "register"):
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | CLOSE_ON_EXEC | NO_FOLLOW)
    faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True)  # keeps the descriptor for good


class StackFile:
    """The worker's side of one actor's file.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def clear(self) -> None:
        """Make room for a new dump.

        Raises:
            OSError: There is no such file.
        """
        os.truncate(self._path, PAGE_BYTES)

    def size(self) -> int:
        """How much of a dump is there."""
        try:
            return max(0, self._path.stat().st_size - PAGE_BYTES)
        except OSError:
            return 0

    def read(self) -> str:
        """What is there."""
        try:
            with open(self._path, "rb") as file:
                file.seek(PAGE_BYTES)
                return _without_origin(file.read(_MOST_BYTES).decode(errors="replace"))
        except OSError:
            return ""


def _without_origin(text: str) -> str:
    """Without how the process was forked and came to its loop: the lowest frames of every main thread."""
    kept, skipping = [], False
    for line in text.splitlines():
        if not line.startswith("  "):
            skipping = False
        if not skipping:
            kept.append(line)
        skipping = skipping or line.endswith(" in run_actor")
    return "\n".join(kept) + "\n"

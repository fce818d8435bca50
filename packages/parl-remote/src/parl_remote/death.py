"""Why an actor ended: one typed record, made where the death is seen and carried unchanged to the caller.

Who fills it in: the worker for processes that ended (exit code, signal, memory), the master for lost nodes
and lost clients. `errors.ActorLost` carries it to the user.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import Enum

__all__ = ["DeathCause", "DeathKind"]


class DeathKind(Enum):
    """What ended the actor."""

    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    NODE_LOST = "node_lost"
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"
    CONSTRUCTOR = "constructor"
    KILLED_BY_USER = "killed_by_user"


@dataclass(frozen=True, slots=True)
class DeathCause:
    """One actor's end.

    Attributes:
        kind: What ended it.
        exit_code: The process's exit status, where it exited by itself.
        signal: The number of the signal that ended it, where one did.
        detail: One sentence for people: limits and sizes, the node's name, the constructor's error.
        log_tail: The last lines that the actor wrote, oldest first.
        last_call: The method that ran last, empty if none did.
    """

    kind: DeathKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    log_tail: tuple[str, ...] = ()
    last_call: str = ""

    def describe(self) -> str:
        """The cause in one line, without the log."""
        text = _WHAT_HAPPENED[self.kind]
        if self.kind is DeathKind.EXIT and self.exit_code is not None:
            text += f" with status {self.exit_code}"
        if self.signal is not None:
            text += f" ({_signal_name(self.signal)})"
        if self.detail:
            text += f": {self.detail}"
        if self.last_call:
            text += f"; its last call was {self.last_call}()"
        return text


_WHAT_HAPPENED = {
    DeathKind.EXIT: "its process exited",
    DeathKind.SIGNAL: "its process was killed by a signal",
    DeathKind.MEMORY: "it passed its memory limit",
    DeathKind.NODE_LOST: "its node was lost",
    DeathKind.CLIENT_GONE: "the program that owned it is gone",
    DeathKind.STOPPED: "its cluster was stopped",
    DeathKind.CONSTRUCTOR: "its constructor failed",
    DeathKind.KILLED_BY_USER: "it was destroyed by its owner",
}


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"

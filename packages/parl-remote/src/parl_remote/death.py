"""Why an actor ended: one typed record, made where the death is seen and carried unchanged to the caller.

    worker: a process ended (exit code, signal, memory) --\
    master: a node was lost                            ----> DeathCause --> ActorLost, to whoever called it
                                                              `-> DeathRecord --> master, for xparl and the monitor

`DeathCause` says what happened; `DeathRecord` adds whose end it was.
"""

from __future__ import annotations

import signal as signals
from enum import Enum

from parl_remote.records import Record, record

__all__ = ["DeathCause", "DeathKind", "DeathRecord", "MemorySample"]

_MIB = 2**20


class DeathKind(Enum):
    """What ended the actor.

    EXIT: its process exited by itself. SIGNAL: a signal killed it that parl-remote did not send. MEMORY: it passed its
    `max_memory`. OUT_OF_MEMORY: SIGKILL, just when its host ran out of memory. NODE_LOST: nobody knows, its node does
    not answer. CLIENT_GONE: the program that owned it ended or broke off. STOPPED: program or cluster were closed.
    CONSTRUCTOR: `__init__` raised. IMPORT: its class could not be loaded in the actor. KILLED_BY_USER: `destroy`,
    `xparl kill` and the like. DRAINED: its node was drained. RELEASED: nobody held it any more.
    """

    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"
    CONSTRUCTOR = "constructor"
    IMPORT = "import"
    KILLED_BY_USER = "killed_by_user"
    DRAINED = "drained"
    RELEASED = "released"

    @property
    def is_loss(self) -> bool:
        """Return whether somebody may miss the actor: not so where its program let go of it, or ended."""
        return self not in (DeathKind.RELEASED, DeathKind.CLIENT_GONE, DeathKind.STOPPED)


@record
class MemorySample(Record):
    """How large a process was: `resident` bytes of it were in memory at the Unix time `at`."""

    at: float
    resident: int


@record
class DeathCause(Record):
    """One actor's end.

    Attributes:
        kind: What ended it.
        exit_code: The process's exit status, where it exited by itself.
        signal: The number of the signal that ended it, where one did.
        detail: One sentence for people: limits and sizes, the node's name, the constructor's error.
        log_tail: The last lines that the actor wrote, oldest first.
        last_call: The method that ran last, empty if none did.
        memory: How large its process was in its last minute, oldest first; the last one is the size it died with.
        memory_peak: The most bytes of its process that were ever in memory, as the kernel counted them; 0 if not known.
        memory_limit: Bytes that it was allowed to grow by; None for no limit.
        node: The name of the node that it ran on, empty where that is not known.
        pid: Its process there, 0 where that is not known or there was none.
        at: When it ended, Unix time in seconds; 0 where that is not known.
        lease_id: The actor's id in its cluster; this and the rest is empty where only the connection to it broke.
        class_name: Its class.
        name: What `get_actor` found it by, empty for none.
        restarts: How often it had been made again before.
    """

    kind: DeathKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    log_tail: tuple[str, ...] = ()
    last_call: str = ""
    memory: tuple[MemorySample, ...] = ()
    memory_peak: int = 0
    memory_limit: int | None = None
    node: str = ""
    pid: int = 0
    at: float = 0.0
    lease_id: str = ""
    class_name: str = ""
    name: str = ""
    restarts: int = 0

    def describe(self) -> str:
        """Return the cause in one line, without the log."""
        text = _WHAT_HAPPENED[self.kind]
        if self.kind is DeathKind.KILLED_BY_USER and self.detail:
            text = "it was destroyed"  # by whom and why is said there
        if self.kind is DeathKind.EXIT and self.exit_code is not None:
            text += f" with status {self.exit_code}"
        if self.signal is not None:
            text += f" ({_signal_name(self.signal)})"
        if self.detail:
            text += f": {self.detail}"
        if self.last_call:
            text += f"; its last call was {self.last_call}()"
        return text

    def describe_memory(self) -> str:
        """Return how its size went, in one line; empty if nobody has looked."""
        if not self.memory:
            return ""
        end = self.memory[-1].at
        shown = self.memory[:: max(1, (len(self.memory) - 1) // 6)]
        if shown[-1] is not self.memory[-1]:
            shown = (*shown, self.memory[-1])
        return ", ".join(f"{one.resident / _MIB:.0f} MiB {one.at - end:+.1f} s" for one in shown)


@record
class DeathRecord(Record):
    """Whose end it was.

    Attributes:
        lease_id: The actor's id.
        class_name: Its class.
        name: What `get_actor` found it by, empty for none.
        client_id: The client that had made it.
        owner: That client for people: its program's name and process number.
        node_id: The worker that it ran on.
        restarts: How often it had been made again before.
        cause: Why it ended, where and when.
    """

    lease_id: str
    class_name: str
    name: str
    client_id: str
    owner: str
    node_id: str
    restarts: int
    cause: DeathCause


_WHAT_HAPPENED = {
    DeathKind.EXIT: "its process exited",
    DeathKind.SIGNAL: "its process was killed by a signal",
    DeathKind.MEMORY: "it passed its memory limit",
    DeathKind.OUT_OF_MEMORY: "its host ran out of memory, and the kernel probably killed it",
    DeathKind.NODE_LOST: "its node was lost",
    DeathKind.CLIENT_GONE: "the program that owned it is gone",
    DeathKind.STOPPED: "its cluster was stopped",
    DeathKind.CONSTRUCTOR: "its constructor failed",
    DeathKind.IMPORT: "its class could not be loaded",
    DeathKind.KILLED_BY_USER: "it was destroyed by its owner",
    DeathKind.DRAINED: "its node was drained",
    DeathKind.RELEASED: "nobody held it any more",
}


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"

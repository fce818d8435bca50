"""The cause of an actor's end: a record made where the death is detected and passed unchanged to the caller.

    worker: a process ended (exit code, signal, memory) --\
    master: a node was lost                            ----> DeathCause --> ActorLost, to the callers
                                                              `-> DeathRecord --> master, for xparl and the monitor

`DeathCause` has the cause; `DeathRecord` adds the actor's identity.
"""

from __future__ import annotations

import signal as signals
from enum import Enum

from parl_remote._records import Record, record

__all__ = ["DeathCause", "DeathKind", "DeathRecord", "MemorySample"]

_MIB = 2**20


class DeathKind(Enum):
    """The kinds of an actor's end.

    EXIT: its process exited by itself. SIGNAL: it was killed by a signal that parl-remote did not send. MEMORY: it
    passed its `max_memory`. OUT_OF_MEMORY: SIGKILL, just when its host ran out of memory. NODE_LOST: unknown, its node
    does not answer. CLIENT_GONE: the program that owned it ended or broke off. STOPPED: program or cluster were closed.
    CONSTRUCTOR: `__init__` raised. IMPORT: its class could not be loaded in the actor. KILLED_BY_USER: `destroy`,
    `xparl kill` and the like. DRAINED: its node was drained. RELEASED: it had no holders any more.
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
        """Return whether the end counts as a loss: not if the actor's program released it or ended."""
        return self not in (DeathKind.RELEASED, DeathKind.CLIENT_GONE, DeathKind.STOPPED)


@record
class MemorySample(Record):
    """A process's memory size: `resident` bytes at the Unix time `at`."""

    at: float
    resident: int


@record
class DeathCause(Record):
    """The cause of one actor's end.

    Attributes:
        kind: The kind of end.
        exit_code: The process's exit status, where it exited by itself.
        signal: The number of the signal that ended it, where one did.
        detail: One sentence for display: limits and sizes, the node's name, the constructor's error.
        log_tail: The last lines that the actor wrote, oldest first.
        last_call: The method that ran last, empty if none did.
        memory: Samples of its process's size in its last minute, oldest first; the last one is the size at its end.
        memory_peak: The peak size of its process in bytes, as the kernel counted it; 0 if not known.
        memory_limit: The growth that it was allowed, in bytes; None for no limit.
        node: The name of the node that it ran on, empty if not known.
        pid: Its process id there, 0 if not known or if there was none.
        at: When it ended, Unix time in seconds; 0 if not known.
        lease_id: The actor's id in its cluster; this and the following are empty where only the connection broke.
        class_name: Its class.
        name: Its name for `get_actor`, empty for none.
        restarts: The number of its restarts.
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
            text = "it was destroyed"  # the detail has by whom and why
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
        """Return the memory samples in one line; empty if there are none."""
        if not self.memory:
            return ""
        end = self.memory[-1].at
        shown = self.memory[:: max(1, (len(self.memory) - 1) // 6)]
        if shown[-1] is not self.memory[-1]:
            shown = (*shown, self.memory[-1])
        return ", ".join(f"{one.resident / _MIB:.0f} MiB {one.at - end:+.1f} s" for one in shown)


@record
class DeathRecord(Record):
    """The record of one actor's end, for status displays.

    Attributes:
        lease_id: The actor's id.
        class_name: Its class.
        name: Its name for `get_actor`, empty for none.
        client_id: The client that made it.
        owner: That client for display: its program's name and process id.
        node_id: The worker that it ran on.
        restarts: The number of its restarts.
        cause: Why it ended, where and when.
        node_address: That worker's address, "host:port"; empty in a private cluster.
    """

    lease_id: str
    class_name: str
    name: str
    client_id: str
    owner: str
    node_id: str
    restarts: int
    cause: DeathCause
    node_address: str = ""


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

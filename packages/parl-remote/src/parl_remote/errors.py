"""The exceptions of parl-remote.

    ParlError
    └─ RemoteError
       ├─ NotConnected
       │  └─ ClusterUnreachable (ConnectionError)
       ├─ VersionMismatch
       ├─ AuthenticationFailed
       ├─ NoResources
       ├─ NameTaken (ValueError)
       ├─ NoSuchActor (LookupError)
       ├─ ActorError
       │  ├─ ActorLost (parl_core.errors.LostActor)
       │  ├─ ItemLost (concurrent.futures.BrokenExecutor)
       │  ├─ QueueClosed
       │  ├─ ExecutorBroken (concurrent.futures.BrokenExecutor)
       │  └─ RemoteCallError
       │     └─ RemoteAttributeError (AttributeError)
       ├─ SerializationError (pickle.PicklingError)
       ├─ ObjectLost
       ├─ ResultTimeout (TimeoutError)
       ├─ TooManyPendingCalls
       ├─ ChannelClosed (ConnectionError)
       └─ ProtocolError
          ├─ LocalProtocolError        this side broke the protocol: a bug here
          └─ RemoteProtocolError       the peer broke the protocol

Other error names of PARL are aliases: `RemoteSerializeError` and `RemoteDeserializeError` are `SerializationError`,
`ResourceError` is `NoResources`, `FutureFunctionError` is `RemoteCallError`, `FutureObjectEmpty` is `ResultTimeout`.
`FutureGetRepeatedlyError` is never raised, because a result can be read any number of times.

All errors keep their attributes when they are pickled, because an actor may call other actors and pass their errors on.
"""

from __future__ import annotations

import functools
import signal as signals
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from enum import Enum
from pickle import PicklingError
from typing import Any

from parl_core.errors import LostActor, ParlError
from parl_remote._records import Record, record

__all__ = [
    "ActorError",
    "ActorLost",
    "AuthenticationFailed",
    "ChannelClosed",
    "ClusterUnreachable",
    "DeathCause",
    "DeathKind",
    "ExecutorBroken",
    "FutureFunctionError",
    "FutureGetRepeatedlyError",
    "FutureObjectEmpty",
    "ItemLost",
    "LocalProtocolError",
    "MemorySample",
    "NameTaken",
    "NoResources",
    "NoSuchActor",
    "NotConnected",
    "ObjectLost",
    "ProtocolError",
    "QueueClosed",
    "RemoteAttributeError",
    "RemoteCallError",
    "RemoteDeserializeError",
    "RemoteError",
    "RemoteProtocolError",
    "RemoteSerializeError",
    "ResourceError",
    "ResultTimeout",
    "SerializationError",
    "TooManyPendingCalls",
    "VersionMismatch",
]


# Messages of errors that are raised in several places.
CONNECTION_CLOSED = "the connection is closed; call parl.connect() again"
WAITS_IN_FINALIZER = (
    "a finalizer (`__del__`) waits for a result, and the garbage collector has run it within parl's own code, on which "
    "the result may depend: make the call without waiting, or end such objects by a method or a `with` statement"
)
WAITS_FOR_ITSELF = (
    "a signal handler cannot wait for an actor while the code that it interrupted waits for the same one: "
    "make the call without waiting, or set a flag that the program looks at"
)

_MIB = 2**20


class DeathKind(Enum):
    """The kinds of an actor's end.

    EXIT: its process exited by itself. SIGNAL: a signal that parl-remote did not send killed its process. MEMORY: its
    process exceeded `max_memory`. OUT_OF_MEMORY: its process was killed by SIGKILL while its host was out of memory.
    NODE_LOST: its node no longer answers, so the cause is unknown. CLIENT_GONE: the program that owned it ended or
    lost its connection. STOPPED: the program disconnected, or the cluster was stopped. CONSTRUCTOR: `__init__` raised.
    IMPORT: its class could not be loaded in the actor. KILLED_BY_USER: `parl.kill`, `xparl kill` or similar. DRAINED:
    its node was drained. RELEASED: no handle of it was left. UNREACHABLE: this process could not connect to it, or its
    connection ended, because a process on the way has no descriptors or memory left; an actor that another process has
    made lives on, and a later call tries to connect again.
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
    UNREACHABLE = "unreachable"

    @property
    def is_loss(self) -> bool:
        """Return whether the end is a loss: not if its program released it or ended, or its cluster was stopped."""
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
        exit_code: The exit status of the process; None unless it exited by itself.
        signal: The number of the signal that ended the process; None if no signal did.
        detail: One sentence for display: limits and sizes, the node's name, the constructor's error.
        log_tail: The last lines of the actor's output, oldest first.
        last_call: The name of the method that ran last; empty if none did.
        memory: The sizes of its process in the last minute, oldest first; the last one is the size at its end.
        memory_peak: The peak size of its process in bytes, as measured by the kernel; 0 if unknown.
        memory_limit: The number of bytes by which its process was allowed to grow; None for no limit.
        node: The name of its node; empty if unknown.
        pid: Its process id on that node; 0 if unknown or if there was no process.
        at: The Unix time of its end in seconds; 0 if unknown.
        lease_id: The actor's id in its cluster. If only the connection broke, this and the following are empty.
        class_name: The name of its class.
        name: Its name for `get_actor`; empty if it has none.
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
            text = "it was destroyed"  # the detail names the process and the reason
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
    DeathKind.RELEASED: "it had no holders any more",
    DeathKind.UNREACHABLE: "the connection to it failed",
}


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RemoteError(ParlError):
    """Base class of all errors of parl-remote."""

    @functools.cached_property  # not a property: an attribute of this name of the user's own exception is preferred
    def error_info(self) -> str:
        """The whole message; the attribute has this name in PARL 2.x."""
        return str(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[RemoteError], args: tuple[Any, ...], attributes: dict[str, Any]) -> RemoteError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class NotConnected(RemoteError):
    """A remote object was used before `parl.connect`, after `parl.disconnect` or after the cluster ended."""


class ClusterUnreachable(NotConnected, ConnectionError):
    """No process answers at the address, or the connection to the master was lost.

    It is a subclass of `NotConnected`, so one `except NotConnected` catches the loss of a cluster at any time.

    Attributes:
        address: The address tried, "host:port".
    """

    def __init__(self, message: str, *, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class VersionMismatch(RemoteError):
    """The two sides have no protocol version in common, or run different minor versions of Python.

    Attributes:
        ours: The versions that this side supports, (lowest, highest).
        theirs: The versions that the peer supports, (lowest, highest).
    """

    def __init__(self, message: str, *, ours: tuple[int, int] = (0, 0), theirs: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.ours = ours
        self.theirs = theirs


class AuthenticationFailed(RemoteError):
    """The cluster's key is missing, unreadable or different from the peer's."""


class NoResources(RemoteError):
    """The cluster cannot provide the resources of an actor, at all or before the timeout.

    Attributes:
        asked: The requested resources, as text.
        available: The cluster's resources, as text.
        may_pass: Whether a later attempt can succeed: a node is large enough, but other actors use its resources.
    """

    def __init__(self, message: str, *, asked: str = "", available: str = "", may_pass: bool = False) -> None:
        super().__init__(message)
        self.asked = asked
        self.available = available
        self.may_pass = may_pass


class NameTaken(RemoteError, ValueError):
    """Another actor of the cluster has the requested name."""


class NoSuchActor(RemoteError, LookupError):
    """No actor of the cluster has the name."""


class ActorError(RemoteError):
    """Base class of errors of an actor or its calls."""


_FROM_OUTSIDE = (
    DeathKind.NODE_LOST,
    DeathKind.DRAINED,
    DeathKind.KILLED_BY_USER,
    DeathKind.STOPPED,
    DeathKind.UNREACHABLE,
)


class ActorLost(ActorError, LostActor):
    """The actor has ended; its pending calls and all later calls raise this error.

    If the kind of its cause is UNREACHABLE, only the connection to it has ended, see `DeathKind`.

    Args:
        cause: The cause of its end; or the whole message, for code that raises this error itself.
        class_name: The name of the actor's class.
        note: Text that follows the cause in the message.
        is_restarting: The attribute of this name.

    Attributes:
        cause: The cause of its end.
        from_outside: Whether the cause lies outside the actor, so that the actor's work cannot be the cause.
        log_tail: The last lines of the actor's output, oldest first.
        class_name: The name of the actor's class.
        is_restarting: Whether the actor is being restarted; if so, a later call reaches the new actor.
        was_sent: Whether the call may have reached the actor; if False, the call has not run.
    """

    was_sent = True

    def __init__(
        self,
        cause: DeathCause | str = "the actor is lost",
        *,
        class_name: str = "actor",
        note: str = "",
        is_restarting: bool = False,
    ) -> None:
        message = ""
        if isinstance(cause, str):
            message, cause = cause, DeathCause(DeathKind.EXIT, detail=cause)
        event = "cannot be reached" if cause.kind is DeathKind.UNREACHABLE else "is lost"
        lines = [f"{class_name} {event}: {cause.describe()}{note and f'; {note}'}"]
        if cause.kind in (DeathKind.MEMORY, DeathKind.OUT_OF_MEMORY) and cause.memory:
            lines.append(f"its memory, in seconds before the end: {cause.describe_memory()}")
        if cause.log_tail:
            lines.append("last lines of its log:")
            lines.extend(f"  | {line}" for line in cause.log_tail)
        super().__init__(message or "\n".join(lines))
        self.cause = cause
        self.from_outside = cause.kind in _FROM_OUTSIDE
        self.log_tail = cause.log_tail
        self.class_name = class_name
        self.is_restarting = is_restarting


class ExecutorBroken(ActorError, BrokenExecutor):
    """An executor has no workers: its initializer failed, or no worker could be made; `__cause__` is the error."""


class QueueClosed(ActorError):
    """A `parl.Queue` is closed: it accepts no items, and `get` finds none left."""


class ItemLost(ActorError, BrokenExecutor):
    """An item was given up because several workers ended while they processed it; `__cause__` is the last error.

    The standard library's executors raise `BrokenExecutor` in this case, which is a base class of this error.

    Attributes:
        index: The item's index, from 0.
        attempts: The number of workers that ended.
    """

    def __init__(self, message: str, *, index: int = 0, attempts: int = 0) -> None:
        super().__init__(message)
        self.index = index
        self.attempts = attempts


class RemoteCallError(ActorError):
    """A method raised an exception in its actor, or a function in its worker; the actor or worker keeps running.

    The caller gets an object of the exception's own class that is also a `RemoteCallError`; its `__cause__` contains
    the traceback. If the exception cannot be rebuilt, because the caller does not know its class or because it cannot
    be pickled, the caller gets an object of this class.

    Attributes:
        method: The name of the method or function that was called.
        remote_traceback: The traceback, formatted in the actor.
        type_name: The qualified name of the exception's class in the actor.
    """

    def __init__(self, message: str, *, method: str = "", remote_traceback: str = "", type_name: str = "") -> None:
        super().__init__(message)
        self.method = method
        self.remote_traceback = remote_traceback
        self.type_name = type_name

    @functools.cached_property
    def error_info(self) -> str:
        """The message with the method and the actor's traceback; the attribute has this name in PARL 2.x."""
        message = str(self)
        if type(self).__str__ is RemoteCallError.__str__:  # it has both already
            return message
        # The exception may have attributes of these names; the cause has those of the call.
        call = self.__cause__ if isinstance(self.__cause__, RemoteCallError) else self
        return call._with_traceback(f"{call.method}() raised {call.type_name}: {message}")

    def __str__(self) -> str:
        return self._with_traceback(super().__str__())

    def _with_traceback(self, message: str) -> str:
        if not self.remote_traceback:
            return message
        framed = "\n".join(f"  | {line}" for line in self.remote_traceback.rstrip().splitlines())
        return f"{message}\n  +-- remote traceback\n{framed}\n  +--"


class RemoteAttributeError(RemoteCallError, AttributeError):
    """The actor has no such method or attribute; the message lists similar names."""


class SerializationError(RemoteError, PicklingError):
    """An argument, a return value or a class could not be serialized or deserialized.

    Attributes:
        what: The name of the object, for example "argument 'lock' of Worker.run".
    """

    def __init__(self, message: str, *, what: str = "") -> None:
        super().__init__(message)
        self.what = what


class ObjectLost(RemoteError):
    """The value of an `ObjectRef` is gone: every process that had it has ended or dropped it."""


class ResultTimeout(RemoteError, TimeoutError):
    """A result did not arrive before the timeout; the call may still finish."""


class TooManyPendingCalls(RemoteError):
    """A call was refused because `max_pending_calls` calls are unanswered and `when_full` is "raise".

    Attributes:
        limit: The maximum number of unanswered calls.
    """

    def __init__(self, message: str, *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


class ChannelClosed(RemoteError, ConnectionError):
    """The connection to a peer is closed; no more messages will arrive.

    Calls of actors never raise it; they raise `ActorLost` or `ClusterUnreachable` instead.
    """


class ProtocolError(RemoteError):
    """A message violates the protocol; the text names the state, the field and the value."""


class LocalProtocolError(ProtocolError):
    """This side violated the protocol, which is a bug of parl-remote."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a malformed or unexpected message."""


RemoteSerializeError = SerializationError
RemoteDeserializeError = SerializationError
ResourceError = NoResources
FutureFunctionError = RemoteCallError
FutureObjectEmpty = ResultTimeout


class FutureGetRepeatedlyError(RemoteError):
    """PARL's error for a second `get` of a future; it is never raised, because `get` returns the result again."""

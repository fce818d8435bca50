"""Messages of the other services of a node: values, files, health, logs, stacks, actors by name.

Files and values go from a client to a worker on a link of their own: the worker holds them until they are
released, or the link ends. Contents and images of values are opaque frames after the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parl_remote._records import Message, record
from parl_remote.errors import DeathCause

__all__ = [
    "ActorFound",
    "ActorOutput",
    "ActorOutputs",
    "ActorReached",
    "ActorWatched",
    "CallSpan",
    "CheckHost",
    "CompareDirectories",
    "DescribeActor",
    "DirectoriesCompared",
    "DirectoryIdentity",
    "DumpStack",
    "FetchObject",
    "FindActor",
    "FolderAnswer",
    "FollowActors",
    "HoldObject",
    "HostReport",
    "LogPiece",
    "LogText",
    "NodeReached",
    "ObjectContent",
    "OpenSealed",
    "Part",
    "PrepareFolder",
    "ReachNode",
    "ReadCalls",
    "ReadLog",
    "RecordCalls",
    "RecordedCalls",
    "ReleaseObject",
    "SealedOpened",
    "StackDump",
    "StoreObject",
    "StoreParts",
    "UnwatchActor",
    "WatchActor",
]


@record
class OpenSealed(Message):
    """Request another connection to a node, see `transport.sealed`; answered by SealedOpened.

    Attributes:
        port: The port at which this link has found the node; if it is not the node's own, it is forwarded, and no
            other port is.
    """

    request_id: int
    port: int


@record
class SealedOpened(Message):
    """The port, ticket and key of a connection, valid for some seconds; sent on encrypted links only.

    Attributes:
        port: The TCP port, on the host that the request went to.
        ticket: The first bytes to send, in hexadecimal digits; they open one connection.
        key: The connection's key, in hexadecimal digits.
    """

    request_id: int
    port: int
    ticket: str
    key: str = field(repr=False)


@record
class StoreObject(Message):
    """Store a value for actors of the worker; the image follows. Answered by Done."""

    request_id: int
    object_id: str


@record
class HoldObject(Message):
    """Hold a value that a process of the worker's host has; answered by Done.

    Attributes:
        place: See `object_memory.ValueAddress`.
    """

    request_id: int
    object_id: str
    place: tuple[int, ...]


@record
class FetchObject(Message):
    """Request the image of a value that the worker holds; answered by ObjectContent."""

    request_id: int
    object_id: str


@record
class ObjectContent(Message):
    """The answer to FetchObject; the image follows."""

    request_id: int


@record
class ReleaseObject(Message):
    """Release a value that the client does not need any more; not answered."""

    object_id: str


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """A directory as the program sees it; device and inode identify it among directories of the same path."""

    path: str
    device: int
    inode: int


@record
class CompareDirectories(Message):
    """Request DirectoriesCompared: whether these directories are the same for the worker."""

    request_id: int
    places: tuple[DirectoryIdentity, ...]


@record
class DirectoriesCompared(Message):
    """The answer to CompareDirectories: whether all of the directories are the same."""

    request_id: int
    all: bool


@record
class PrepareFolder(Message):
    """Request a folder for this link's actors; the worker removes it when the link and its actors have ended.

    Attributes:
        request_id: The client's number for it.
        digest: Hash of the folder's manifest, which the worker may lack like any other content.
        size: Bytes of the manifest.
    """

    request_id: int
    digest: str
    size: int


@record
class FolderAnswer(Message):
    """The folder's path, or else some of the hashes of contents to send before the next request."""

    request_id: int
    folder: str = ""
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a content: `length` bytes from `offset` of the `size` bytes whose hash is `digest`."""

    digest: str
    size: int
    offset: int
    length: int


@record
class StoreParts(Message):
    """Pieces of contents to store; the next frame has their bytes, one after the other."""

    request_id: int
    parts: tuple[Part, ...]


@record
class CheckHost(Message):
    """Request HostReport.

    Attributes:
        request_id: The client's number for it.
        modules: Names of modules to look for, 500 at most; nothing is imported.
        paths: Further directories to search: the client's `sys.path`, 100 at most.
    """

    request_id: int
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@record
class HostReport(Message):
    """The state of a node's host.

    Attributes:
        request_id: The number of the request.
        name: The host's name.
        host_id: Equal for nodes of one host.
        time_s: Its clock, Unix time in seconds.
        python: The path of its Python.
        versions: Versions of Python and of the packages that both sides must agree on.
        disk: The directory of its logs and files.
        disk_free: Free bytes there, -1 if unknown.
        disk_error: The reason why it cannot write there; empty if it can.
        shared_free: Free bytes in /dev/shm, -1 if there is none.
        descriptors: The maximum number of open files of its process.
        missing: The modules that it does not find.
    """

    request_id: int
    name: str
    host_id: str
    time_s: float
    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    disk: str = ""
    disk_free: int = -1
    disk_error: str = ""
    shared_free: int = -1
    descriptors: int = 0
    missing: tuple[str, ...] = ()


@record
class ReachNode(Message):
    """Request the master to connect to a worker at the address that the worker has reported."""

    request_id: int
    node_id: str


@record
class NodeReached(Message):
    """The answer to ReachNode; `problem` is the reason if it failed, `took_s` the time that it tried."""

    request_id: int
    reached: bool
    problem: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text of one stream; `is_error` is set if it was written to Python's `sys.stderr`."""

    text: str
    is_error: bool = False


@record
class ReadLog(Message):
    """Request LogText.

    Attributes:
        request_id: The client's number for it.
        lease_id: The actor, running or not.
        start: Position to read from; below 0 for the end of the log.
        lines: The number of last lines to read, with `start` below 0; below 0 as many as fit into `most_bytes`.
        most_bytes: The maximum number of bytes to read; 1 to 1,048,576.
        wait_s: The time to wait if there is nothing at `start` yet; the answer comes with the next line, with the
            actor's end, or empty when the time is over. 0 to 60.
    """

    request_id: int
    lease_id: str
    start: int = -1
    lines: int = -1
    most_bytes: int = 65536
    wait_s: float = 0.0


@record
class LogText(Message):
    """A piece of an actor's log.

    Attributes:
        request_id: The number of the request.
        start: The position of the text; above the requested one if that is gone.
        end: The position to continue from.
        size: The end of the log now.
        pieces: The text, in the order in which it was written.
        ended: Whether the actor has ended and `end` is the end of its log.
    """

    request_id: int
    start: int
    end: int
    size: int
    pieces: tuple[LogPiece, ...] = ()
    ended: bool = False


@record
class FollowActors(Message):
    """Request ActorOutputs: the output of the client's actors on this worker since the previous answer.

    Attributes:
        request_id: The client's number for it.
        wait_s: The time to wait if there is nothing, 0 to 60. 0 answers at once, with more than usual, for the last
            output.
        positions: The positions to start from, by lease, for the first request on a link; 0 for actors that are not
            listed.
    """

    request_id: int
    wait_s: float = 0.0
    positions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActorOutput:
    """Output of one actor: whole lines, except the last one of an actor that has ended, and very long ones.

    Attributes:
        lease_id: The actor's lease.
        class_name: Its class.
        actor_name: Its name, empty for none.
        pid: Its process id.
        pieces: The lines, in the order in which they were written.
        end: The position after them.
        dropped: The number of lines before them that were skipped, because the actor wrote more than can be forwarded.
        ended: Whether the actor has ended and this is its last output.
    """

    lease_id: str
    class_name: str
    actor_name: str
    pid: int
    pieces: tuple[LogPiece, ...]
    end: int
    dropped: int = 0
    ended: bool = False


@record
class ActorOutputs(Message):
    """New output by actor; empty if there is none. More may be available already."""

    request_id: int
    outputs: tuple[ActorOutput, ...] = ()


@record
class DumpStack(Message):
    """Request StackDump; answered by Failed if there is no such actor, or its process does not respond."""

    request_id: int
    lease_id: str


@record
class StackDump(Message):
    """The stacks of all Python threads of an actor, the deepest frame first, as faulthandler prints them.

    Attributes:
        request_id: The number of the request.
        text: The stacks; cut off after 256 KiB.
    """

    request_id: int
    text: str


@record
class FindActor(Message):
    """Request ActorFound: the actor with a name, or the one that replaced the actor on a lease.

    The client waits for `timeout_s` seconds, and the master drops the request after that; None means without limit.
    """

    request_id: int
    actor_name: str = ""
    lease_id: str = ""
    timeout_s: float | None = None


@record
class ActorFound(Message):
    """The location of an actor; the fields are those of LeaseGranted."""

    request_id: int
    lease_id: str
    node_id: str
    node_addresses: tuple[str, ...]
    socket_dir: str
    host_id: str


@record
class WatchActor(Message):
    """Request a connection to another client's actor; the actor is held until the client connects or is gone.

    Attributes:
        request_id: The client's number for it.
        lease_id: The actor's lease.
        described: Whether the client needs its description; the answer then waits until the actor has one.
    """

    request_id: int
    lease_id: str
    described: bool = False


@record
class ActorWatched(Message):
    """The location of an actor, or the cause of its end.

    Attributes:
        request_id: The number of the request.
        address: A unix socket's path on the worker's host.
        description: Its description from DescribeActor.
        cause: The cause of its end; None while it runs.
    """

    request_id: int
    address: str = ""
    description: str = ""
    cause: DeathCause | None = None


@record
class ActorReached(Message):
    """The client is connected to the actor, by the actor's own socket."""

    lease_id: str


@record
class UnwatchActor(Message):
    """The client has released the actor, or waits no longer for the answer to a request.

    Attributes:
        lease_id: The actor's lease.
        watch_id: The number of the WatchActor that it gives up; 0 if it has released the actor.
    """

    lease_id: str
    watch_id: int = 0


@record
class DescribeActor(Message):
    """The description of a named actor, for clients that look it up: its class, opaque to the worker."""

    lease_id: str
    description: str


@record
class RecordCalls(Message):
    """Record the times of all calls of this worker's actors from now on, for some seconds; answered by Done.

    Attributes:
        request_id: The client's number for it.
        seconds: The duration, above 0 and up to 3,600.
    """

    request_id: int
    seconds: float


@record
class ReadCalls(Message):
    """Request RecordedCalls.

    Attributes:
        request_id: The client's number for it.
        actor: The number of the recorded actor, from 0.
        offset: The position to continue from (`RecordedCalls.offset`).
    """

    request_id: int
    actor: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call of an actor: the method, Unix times, the name of the error that it raised, and whether it still runs."""

    method: str
    began: float
    ended: float
    error: str = ""
    runs: bool = False


@record
class RecordedCalls(Message):
    """A piece of the recorded calls of one actor.

    Attributes:
        request_id: The number of the request.
        actors: The number of recorded actors.
        lease_id: This actor's lease; empty if there is none of that number.
        class_name: Its class.
        actor_name: Its name, empty for none.
        pid: Its process id.
        calls: Its calls, in the order in which they ended.
        offset: The position of the next piece; -1 if this was the last one.
    """

    request_id: int
    actors: int
    lease_id: str = ""
    class_name: str = ""
    actor_name: str = ""
    pid: int = 0
    calls: tuple[CallSpan, ...] = ()
    offset: int = -1

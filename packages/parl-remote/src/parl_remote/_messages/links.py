"""Messages common to all links: handshake and end, heartbeats, and failed requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from parl_remote._records import Message, Record, record

__all__ = [
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "Bye",
    "Done",
    "Failed",
    "GpuUse",
    "Heartbeat",
    "Hello",
    "RefusalCode",
    "Refused",
    "Role",
    "Welcome",
]

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Role(Enum):
    """The roles of peers."""

    CLIENT = "client"
    MASTER = "master"
    WORKER = "worker"


class RefusalCode(Enum):
    """The reasons for refusing a peer or a request."""

    VERSION = "version"
    PYTHON = "python"
    NOT_HERE = "not_here"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    STOPPING = "stopping"
    DUPLICATE = "duplicate"
    NAME_TAKEN = "name_taken"
    KILLED = "killed"


@record
class Hello(Message):
    """The first message on every link.

    Attributes:
        role: The sender's role.
        to: The requested role; a node's one port serves master and worker.
        id: The sender's id, globally unique.
        protocol_min: Lowest protocol version spoken.
        protocol_max: Highest protocol version spoken.
        host_id: Equal for two processes exactly if they run on the same host.
        pid: The sender's process id on its host.
        versions: Versions of parl_remote, python and so on, for error messages.
        name: The sender's displayed name: a program's name, a host's name.
    """

    role: Role
    to: Role
    id: str
    protocol_min: int
    protocol_max: int
    host_id: str
    pid: int
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@record
class Welcome(Message):
    """The acceptance of a Hello; `protocol` is the version that both sides use, `id` the sender's own id."""

    protocol: int
    id: str
    cluster_id: str
    host_id: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@record
class Refused(Message):
    """The refusal of a Hello; the sender closes the link after it."""

    code: RefusalCode
    reason: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


@record
class Bye(Message):
    """The sender ends the link on purpose."""

    reason: str


@record
class GpuUse(Record):
    """The last sampled state of one GPU of a node.

    Attributes:
        name: As CUDA_VISIBLE_DEVICES names it.
        model: Its model name.
        busy: Its utilization, 0 to 1; None if the driver does not report it.
        memory_used: Bytes of its memory in use.
        memory_total: Its total memory in bytes.
    """

    name: str
    model: str = ""
    busy: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@record
class Heartbeat(Message):
    """A sign of life in both directions.

    Attributes:
        seq: Counts up on each link.
        load: The node's load average over one minute, 0 from a master.
        memory_free: Available memory of the node in bytes, 0 from a master.
        memory_total: Total memory of the node's host in bytes, 0 from a master.
        cpu_busy: The utilization of its host's CPUs since the last heartbeat, 0 to 1.
        gpus: Its GPUs, as far as their driver reports them.
    """

    seq: int
    load: float = 0.0
    memory_free: int = 0
    memory_total: int = 0
    cpu_busy: float = 0.0
    gpus: tuple[GpuUse, ...] = ()


@record
class Done(Message):
    """The success of a request without a result."""

    request_id: int


@record
class Failed(Message):
    """The failure of a request; the peer and the link stay alive.

    Attributes:
        request_id: The number of the request.
        reason: One or two sentences for display: what is wrong, with the values, and what to do.
    """

    request_id: int
    reason: str

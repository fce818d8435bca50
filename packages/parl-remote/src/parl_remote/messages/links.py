"""What is said on every link: how it begins and ends, signs of life, and how a request fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from parl_remote.records import Message, Record, record

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
    """Who speaks."""

    CLIENT = "client"
    MASTER = "master"
    WORKER = "worker"


class RefusalCode(Enum):
    """Why a peer or a request is refused."""

    VERSION = "version"
    NOT_HERE = "not_here"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    STOPPING = "stopping"
    DUPLICATE = "duplicate"
    NAME_TAKEN = "name_taken"


@record
class Hello(Message):
    """The first message on every link.

    Attributes:
        role: Who is speaking.
        to: Whom it wants to speak to; a node's one port serves master and worker.
        id: The speaker's id, unique in time and space.
        protocol_min: Lowest protocol version spoken.
        protocol_max: Highest protocol version spoken.
        host_id: Equal on two processes exactly if they can reach each other's unix sockets' host.
        pid: The speaker's process number on its host.
        versions: Versions of parl_remote, python and so on, for messages to people.
        name: What people call the speaker: a program's name, a host's name.
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
    """The peer accepts; `protocol` is the version both will speak, `id` its own id."""

    protocol: int
    id: str
    cluster_id: str
    host_id: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@record
class Refused(Message):
    """The peer does not accept; it closes the link after this."""

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
    """One GPU of a node as it was seen last.

    Attributes:
        name: As CUDA_VISIBLE_DEVICES names it.
        model: What its maker calls it.
        busy: The share of the time in which it worked, 0 to 1; None if the driver does not say.
        memory_used: Bytes of its memory in use.
        memory_total: Bytes of memory that it has.
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
        memory_free: Bytes that the node could still give, 0 from a master.
        memory_total: Bytes that the node's host has, 0 from a master.
        cpu_busy: The share of its host's CPUs that was busy since the last one, 0 to 1.
        gpus: Its GPUs, as far as their driver says how busy they are.
    """

    seq: int
    load: float = 0.0
    memory_free: int = 0
    memory_total: int = 0
    cpu_busy: float = 0.0
    gpus: tuple[GpuUse, ...] = ()


@record
class Done(Message):
    """What a request asked for has been done, and there is nothing to tell about it."""

    request_id: int


@record
class Failed(Message):
    """What a request asked for could not be done; the peer lives on and so does the link.

    Attributes:
        request_id: Which request this answers.
        reason: One or two sentences for people: what is wrong, with the values, and what to do.
    """

    request_id: int
    reason: str

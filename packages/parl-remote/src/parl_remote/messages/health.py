"""What `xparl doctor` asks nodes about themselves and about each other.

client -> worker, master   CheckHost   -> HostReport    its clock, versions, disk, limits, which modules it finds
client -> master           ReachNode   -> NodeReached   whether the master can reach a worker where that says it is
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = ["CheckHost", "HostReport", "NodeReached", "ReachNode"]


@record
class CheckHost(Message):
    """Asks for HostReport.

    Attributes:
        request_id: The asker's number for it.
        modules: Names of modules to look for, 500 at most; nothing is imported.
        paths: Where else to look than the node itself does: the asking program's `sys.path`, 100 at most.
    """

    request_id: int
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@record
class HostReport(Message):
    """How a node's host is.

    Attributes:
        request_id: Which request this answers.
        name: The host's name.
        host_id: Equal for nodes of one host.
        time_s: Its clock, Unix time in seconds.
        python: The path of its Python.
        versions: Versions of Python and of the packages that both sides must agree on.
        disk: Where it writes logs and files.
        disk_free: Bytes that are free there, -1 if it cannot say.
        disk_error: Why it cannot write there, empty if it can.
        shared_free: Bytes that are free in /dev/shm, -1 if there is none.
        descriptors: How many files its process may have open.
        missing: Those of the modules that it does not find.
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
    """Asks the master to connect to a worker at the address that this has told it."""

    request_id: int
    node_id: str


@record
class NodeReached(Message):
    """Whether it could; `problem` says why not, `took_s` how long it tried."""

    request_id: int
    reached: bool
    problem: str = ""
    took_s: float = 0.0

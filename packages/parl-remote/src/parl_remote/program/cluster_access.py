"""What a client needs of a cluster to reach it, and how it introduces itself there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Protocol

from parl_remote.errors import ClusterUnreachable
from parl_remote.links.identity import host_id, new_id, versions
from parl_remote.messages import PROTOCOL_MAX, PROTOCOL_MIN, Hello, Role
from parl_remote.transport import Channel

__all__ = ["ClientIdentity", "Cluster"]


class Cluster(Protocol):
    """A cluster that a client can connect to."""

    @property
    def may_return(self) -> bool:
        """Whether a master that is gone may be started again."""

    def connect_master(self) -> Channel:
        """A channel to the master.

        Raises:
            ClusterUnreachable: Nobody answers.
        """

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """A channel to a worker that is not on this host.

        Raises:
            ClusterUnreachable: Nobody answers.
        """

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """The error for a master that was there and does not answer."""

    def close(self) -> None:
        """End what has to end with the connection; called once, after the goodbye."""

    def abandon(self) -> None:
        """Forget all that, in the child of a fork."""


class ClientIdentity:
    """Who a client is, the same on all its links.

    Args:
        name: What people call it; empty for the program's own name.

    Attributes:
        id: Unique in time and space.
        host_id: The host it runs on.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self.id = new_id("client")
        self.host_id = host_id()
        self._pid = os.getpid()

    def hello(self, to: Role) -> Hello:
        """The first message on a link."""
        return Hello(
            role=Role.CLIENT,
            to=to,
            id=self.id,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            host_id=self.host_id,
            pid=self._pid,
            versions=versions(),
            name=self._name or (os.path.basename(sys.argv[0]) if sys.argv else ""),
        )

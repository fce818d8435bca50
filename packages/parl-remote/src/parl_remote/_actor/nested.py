"""An actor's own connection to its cluster, made when it first makes or receives another actor.

    worker --CONFIGURE (socket directory, master, key file)--> actor --when needed--> a Client as in any program

It ends with the actor's process, as do the actors made through it. Importing this module takes 25 ms in an actor's
process, so it is imported with the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parl_remote import _current
from parl_remote._config import Environment, environment
from parl_remote._connecting import mind_forks
from parl_remote._files.places import Places
from parl_remote._links.call_messages import ClusterReach
from parl_remote._program.client import Client
from parl_remote._program.rendezvous import ClusterAddress, RealCluster
from parl_remote._transport import Channel
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed, ClusterUnreachable

__all__ = ["NodeCluster", "connect"]

_LEASE_TIMEOUT_S = 30.0  # as for programs, see `connecting`


class NodeCluster:
    """Fills `handshake.Cluster` for an actor.

    Args:
        reach: The settings that its node has sent.
        environment: Where to look for keys; limits.
    """

    def __init__(self, reach: ClusterReach, environment: Environment) -> None:
        self._reach = reach
        self._environment = environment
        self._afar: RealCluster | None = None

    @property
    def may_return(self) -> bool:
        """Return whether a master that is gone may be started again; a private one, which has no key, may not."""
        return bool(self._reach.key_file)

    def connect_master(self) -> Channel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: The master does not answer.
        """
        here = self._reach.master_is_here and (self._environment.same_host_shortcut or not self._reach.key_file)
        if not here:
            return self._cluster().connect_master()
        try:
            return UnixChannel.connect(f"{self._reach.socket_dir}/node.sock")
        except ChannelClosed as error:
            raise self.unreachable(str(error)) from error

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """Return a channel to a worker on another host.

        Raises:
            ClusterUnreachable: The worker does not answer.
        """
        if not self._reach.key_file:
            raise self.unreachable(f"its directory {self._reach.socket_dir} is gone")
        return self._cluster().connect_node(node_addresses)

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a master that does not answer."""
        address = self._reach.address
        return ClusterUnreachable(f"this actor cannot reach its cluster at {address}: {reason}", address=address)

    def close(self) -> None:
        """Do nothing: the cluster goes on."""

    def abandon(self) -> None:
        """Do nothing: the cluster goes on."""

    def _cluster(self) -> RealCluster:
        if self._afar is None:
            address = ClusterAddress(self._reach.address, self._environment, Path(self._reach.key_file))
            self._afar = RealCluster(address)
        return self._afar


def connect(reach: Sequence[object], lease_id: str, class_name: str) -> _current.ActorMaker:
    """Return a new client for this actor.

    Args:
        reach: A `ClusterReach`, decoded from JSON.
        lease_id: The actor's own lease.
        class_name: Its class, for display.
    """
    found = environment()
    told = ClusterReach(*reach)  # type: ignore[arg-type]  # the worker of the same version wrote it
    mind_forks()
    return Client(
        told.address,
        NodeCluster(told, found),
        limits=found.limits,
        lease_timeout_s=_LEASE_TIMEOUT_S,
        places=Places(same_host_shortcut=found.same_host_shortcut),
        same_host_shortcut=found.same_host_shortcut or not told.key_file,
        inside_actor=lease_id,
        name=f"actor {class_name}",
    )

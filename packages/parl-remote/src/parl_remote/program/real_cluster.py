"""A cluster that others have started, as a client sees it: it is there before and after the connection."""

from __future__ import annotations

from collections.abc import Sequence

from parl_remote.errors import ClusterUnreachable
from parl_remote.program.rendezvous import ClusterAddress
from parl_remote.transport import Channel

__all__ = ["RealCluster"]


class RealCluster:
    """Fills `client.Cluster`.

    Args:
        address: Where it is, with its key.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address

    @property
    def may_return(self) -> bool:
        """It may: whoever started it can start it again."""
        return True

    def connect_master(self) -> Channel:
        """See `ClusterAddress.connect_master`."""
        return self._address.connect_master()

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """See `ClusterAddress.connect_node`."""
        return self._address.connect_node(node_addresses)

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """The error for a master that was there and does not answer."""
        return ClusterUnreachable(
            f"the master at {self._address} took the connection but does not answer: {reason}",
            address=str(self._address),
        )

    def close(self) -> None:
        """Nothing: the cluster goes on."""

    def abandon(self) -> None:
        """Nothing: the cluster goes on."""

"""The part of a node that opens sealed connections: tickets for clients of other hosts, and the port that takes them.

The port is opened, and `cryptography` imported, when the first client asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from parl_remote._config import Limits
from parl_remote._links.handshake import Link, Reception
from parl_remote._messages import Message
from parl_remote._messages.parts import OpenSealed, SealedOpened
from parl_remote._system.facilities import is_portable
from parl_remote._transport.addresses import Address
from parl_remote._transport.sealed import SealedListener
from parl_remote.errors import RemoteError, RemoteProtocolError

__all__ = ["SealedLinks"]


class SealedLinks:
    """Hands out tickets; implements `handshake.Part`.

    Args:
        reception: Accepts the connections.
        address: The interface and the port that the node listens on.
        port: The port for sealed connections; 0 for a free one.
        limits: Times.
    """

    def __init__(self, reception: Reception, address: Address, port: int, limits: Limits) -> None:
        self._reception = reception
        self._port = port
        self._address = address
        self._limits = limits
        self._listener: SealedListener | None = None

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002  # as in Part
        """Answer a request for a connection."""
        if not isinstance(message, OpenSealed):
            raise RemoteProtocolError(f"{type(message).__name__} is not for sealed connections")
        if message.port != self._address.port:
            raise RemoteError(f"the port {message.port} is forwarded to this node, which listens on {self._address}")
        if self._listener is None:
            if is_portable():
                raise RemoteError("a process cannot pass sockets on to others here")
            try:
                self._listener = SealedListener(self._address.host, self._port, limits=self._limits)
            except ImportError as error:
                raise RemoteError("this node lacks `cryptography`: pip install parl-remote[fast]") from error
            self._reception.listen(self._listener)
        ticket, key = self._listener.new_ticket()
        link.tell(SealedOpened(message.request_id, self._listener.port, ticket.hex(), key.hex()))

    def closed(self, link: Link) -> None:
        """Do nothing: a ticket ends by itself."""

    def close(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._listener.close()

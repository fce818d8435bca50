"""ZAP (rfc.zeromq.org/spec/27): zmq's thread asks here whether a peer that wants in may, by its public CURVE key."""

from __future__ import annotations

import hmac

import zmq
from zmq.utils import z85

from parl_remote.transport.zmq.sockets import Context, Socket, readable

__all__ = ["ZapHandler"]

_ADDRESS = "inproc://zeromq.zap.01"  # zmq looks here, in the context of the listening socket
_REQUEST_FRAMES = 7  # version, request id, domain, peer's address, routing id, mechanism, credentials


class ZapHandler:
    """Lets in peers with one public key and nobody else.

    Attributes:
        socket: Where requests come in; readable when `serve` has something to do.
        refused: How many peers were turned away.
    """

    def __init__(self, context: Context, public_key: bytes) -> None:
        self._allowed = z85.decode(public_key)
        self.refused = 0
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.bind(_ADDRESS)

    def serve(self) -> None:
        """Answer all requests that wait."""
        while readable(self.socket):
            request = self.socket.recv_multipart()
            known = (
                len(request) == _REQUEST_FRAMES
                and request[5] == b"CURVE"
                and hmac.compare_digest(request[6], self._allowed)
            )
            self.refused += not known
            status, text = (b"200", b"OK") if known else (b"400", b"not this cluster's key")
            number = request[1] if len(request) > 1 else b""
            self.socket.send_multipart([b"1.0", number, status, text, b"member" if known else b"", b""])

    def close(self) -> None:
        """Stop answering."""
        self.socket.close(0)

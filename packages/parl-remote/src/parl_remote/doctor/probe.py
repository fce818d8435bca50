"""What is at the other end of an address, as far as one can see without a key.

name --> route --> TCP --> the first bytes          the first step that fails says what it is
"""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from enum import Enum

from parl_remote.transport.addresses import Address

__all__ = ["Probe", "Seen", "probe"]

_SILENCE_S = 1.0  # a PARL node speaks first and at once; a line that takes longer takes longer for everything
_QUESTION = (
    b"GET / HTTP/1.0\r\n\r\n"  # to who waits for us to speak: the monitor's port is easily taken for the cluster's
)
_ANSWER_S = 0.5
_GREETING = 10  # bytes of ZMTP's signature, which zmq sends to whoever connects


class Seen(Enum):
    """What was seen.

    UNKNOWN_NAME: the host's name means nothing here. NO_ROUTE: there is no way to it. NO_ANSWER: nothing came back in
    time. REFUSED: the host is there, and nobody listens at the port. SILENT: something takes connections and does not
    speak. STRANGER: it speaks, and not as a node does. NODE: a node.
    """

    UNKNOWN_NAME = "unknown name"
    NO_ROUTE = "no route"
    NO_ANSWER = "no answer"
    REFUSED = "refused"
    SILENT = "silent"
    STRANGER = "stranger"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Probe:
    """One look.

    Attributes:
        seen: What was seen.
        detail: The system's reason, or what a stranger said first.
        took_s: How long the connection took.
    """

    seen: Seen
    detail: str = ""
    took_s: float = 0.0


def probe(address: Address, timeout_s: float) -> Probe:
    """Look at an address, waiting so long for a connection, and a second more for its first bytes."""
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Probe(Seen.UNKNOWN_NAME, error.strerror or str(error))
    began = time.monotonic()
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            took_s = time.monotonic() - began
            return _by_its_words(_first_bytes(connection), took_s)
    except TimeoutError:
        return Probe(Seen.NO_ANSWER, f"no answer within {timeout_s:g} s")
    except OSError as error:
        seen = Seen.REFUSED if error.errno == errno.ECONNREFUSED else Seen.NO_ROUTE
        return Probe(seen, error.strerror or str(error))


def _first_bytes(connection: socket.socket) -> bytes:
    connection.settimeout(_SILENCE_S)
    data = b""
    try:
        while len(data) < _GREETING and (more := connection.recv(64)):
            data += more
    except OSError:  # it says no more in time, or hangs up
        pass
    return data or _answer(connection)


def _answer(connection: socket.socket) -> bytes:
    """What a server says that speaks only when it is asked."""
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(_QUESTION)
        return connection.recv(64)
    except OSError:
        return b""


def _by_its_words(data: bytes, took_s: float) -> Probe:
    if data[:1] == b"\xff" and data[_GREETING - 1 : _GREETING] == b"\x7f":
        return Probe(Seen.NODE, "", took_s)
    if data:
        return Probe(Seen.STRANGER, data[:40].decode("ascii", "replace").splitlines()[0], took_s)
    return Probe(Seen.SILENT, "", took_s)

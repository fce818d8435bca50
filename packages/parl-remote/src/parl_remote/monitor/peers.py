"""Which user of this host is at the other end of a connection over loopback, as the kernel knows it.

request --> the peer's socket: ours, with its ends the other way round
            |-- asked for by netlink (sock_diag), which takes some microseconds however many sockets there are
            `-- looked up in /proc/net/tcp where that is not offered
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Peers"]

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns of /proc/net/tcp
_NETLINK, _NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST = 16, 4, 20, 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBxI")  # inet_diag_req_v2 up to its sockid: family, protocol, extensions, states
_ENDS = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports and addresses of the socket that is meant
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_ENDS = _HEADER.size + 4
_ANSWER_UID = _ANSWER_ENDS + _ENDS.size + len(_ANY_COOKIE) + 12
_ANSWER_BYTES = 4096
_PATIENCE_S = 1.0


class Peers:
    """Finds out about the visitors of one listening socket.

    Args:
        host: The interface that is listened on.
        tables: Where the kernel's tables are.
    """

    def __init__(self, host: str, tables: Path = Path("/proc/net")) -> None:
        self._tables = tables
        try:
            found = {target[4][0] for target in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except OSError:
            found = set()
        self._own = [ipaddress.ip_address(str(name).partition("%")[0]) for name in sorted(found, key=str)]

    def uid_of(self, environ: Mapping[str, Any]) -> int | None:
        """The user whose process has sent a WSGI request; None if that is not to be found out, as for other hosts."""
        try:
            address = ipaddress.ip_address(environ["REMOTE_ADDR"])
            theirs, ours = int(environ["REMOTE_PORT"]), int(environ["SERVER_PORT"])
        except (KeyError, ValueError):
            return None
        if not address.is_loopback or not (0 < theirs < 65536 and 0 < ours < 65536):
            return None
        try:
            for own in self._own:
                if own.version == address.version:
                    uid = _ask_kernel(address, theirs, own, ours)
                    if uid is not None:
                        return uid
        except OSError:
            return self._look_up(address, theirs, ours)
        return None

    def _look_up(self, address: _Address, theirs: int, ours: int) -> int | None:
        local, remote = f"{_as_kernel_prints(address)}:{theirs:04X}", f":{ours:04X}"
        try:
            table = (self._tables / ("tcp" if address.version == 4 else "tcp6")).read_text()
        except OSError:
            return None
        for line in table.splitlines():
            if local in line:
                fields = line.split()
                if fields[_LOCAL] == local and fields[_REMOTE].endswith(remote):
                    return int(fields[_UID])
        return None


def _ask_kernel(address: _Address, port: int, own: _Address, own_port: int) -> int | None:
    """The owner of the socket that leads from `address` to `own`, None if there is no such socket.

    Raises:
        OSError: This kernel does not answer such questions.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    ends = _ENDS.pack(port, own_port, address.packed, own.packed)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _ANY_COOKIE
    with socket.socket(_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_PATIENCE_S)
        link.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = link.recv(_ANSWER_BYTES)
    if len(answer) < _ANSWER_UID + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    if answer[_ANSWER_ENDS : _ANSWER_ENDS + _ENDS.size] != ends:
        return None  # somebody who listens on that port, because the socket itself is gone
    return int(struct.unpack_from("=I", answer, _ANSWER_UID)[0])


def _as_kernel_prints(address: _Address) -> str:
    """In words of 32 bits, each as this machine reads them."""
    packed = address.packed
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)

"""The transport on one host: plain unix stream sockets in private directories, or TCP on loopback (`portable.sockets`).

    UnixChannel --- stream socket --- UnixListener        callers; servers
                                      UnixPeers           the connections of a listener; can also connect

Only processes of the same user are accepted.
"""

from parl_remote._transport.unix.channel import UnixChannel
from parl_remote._transport.unix.listener import Acceptor, UnixListener, UnixPeers
from parl_remote._transport.unix.sockets import (
    Listening,
    listen_at,
    listening_socket,
    private_directory,
    sweep_directories,
)

__all__ = [
    "Acceptor",
    "Listening",
    "UnixChannel",
    "UnixListener",
    "UnixPeers",
    "listen_at",
    "listening_socket",
    "private_directory",
    "sweep_directories",
]

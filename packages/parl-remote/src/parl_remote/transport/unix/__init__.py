"""The transport on one host: plain unix stream sockets in private directories, or TCP on loopback (`portable.sockets`).

    UnixChannel --- stream socket --- UnixListener        callers; who serves them
                                      UnixPeers           what a listener is made of; connects by itself, too

Only processes of the same user get in.
"""

from parl_remote.transport.unix.channel import UnixChannel
from parl_remote.transport.unix.listener import UnixListener, UnixPeers
from parl_remote.transport.unix.sockets import (
    Listening,
    is_own_user,
    listen_at,
    listening_socket,
    private_directory,
    sweep_directories,
)

__all__ = [
    "Listening",
    "UnixChannel",
    "UnixListener",
    "UnixPeers",
    "is_own_user",
    "listen_at",
    "listening_socket",
    "private_directory",
    "sweep_directories",
]

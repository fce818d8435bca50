"""Ports for servers that another process starts."""

import itertools
import os
import socket

__all__ = ["unused_port"]

# Below the ports that Linux gives to whoever asks for any (32768 on), so that no connection takes one by chance, and
# apart from those of `parl_core._hosts.get_free_tcp_port`, which a test's cluster may take.
# The monitor of a cluster takes the port a hundred above, so every other hundred is left out.
_PORTS = [port for port in range(10_000, 20_000) if port // 100 % 2 == 0]
_turns = itertools.count(os.getpid() * 97)  # processes begin at different ports


def unused_port() -> int:
    """Return a TCP port at which nothing listens, and which no other test gets as long as this process lives."""
    for turn in itertools.islice(_turns, len(_PORTS)):
        port = _PORTS[turn % len(_PORTS)]
        ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # the same number of UDP, which no server here uses
        try:
            ours.bind(("127.0.0.1", port))
            socket.create_server(("", port)).close()
        except OSError:
            ours.close()
        else:
            ours.detach()  # which keeps it open until the process ends
            return port
    raise OSError(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free")

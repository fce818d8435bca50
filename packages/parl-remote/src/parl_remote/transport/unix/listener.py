"""The end that peers connect to: a listening socket and its peers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from parl_remote.config import Limits
from parl_remote.system.pollers import IN, new_poller
from parl_remote.transport import Buffer, Event, Opened
from parl_remote.transport.unix.peers import UnixPeers
from parl_remote.transport.unix.sockets import NONE_LEFT, Listening, is_own_user, listen_at

__all__ = ["UnixListener"]


class UnixListener:
    """Listens at a path; peers are served by whoever calls `poll`.

    Args:
        path: Where to listen; a socket that exists there is an error.
        listening: An already listening socket to use instead of making one; `path` says where it is.
        max_bytes: Largest message that is accepted.
        first_bytes: Largest first message of a connection that is accepted, where that is less.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        listening: Listening | None = None,
        max_bytes: int = Limits.max_frame_bytes,
        first_bytes: int | None = None,
    ) -> None:
        self._path = str(path)
        self._socket = listen_at(self._path) if listening is None else listening
        self._socket.setblocking(False)
        self._peers = UnixPeers(max_bytes, first_bytes)
        self._poller = new_poller()
        self._poller.register(self._socket.fileno(), IN)
        self._poller.register(self._peers.fileno(), IN)
        self._reserve = os.open(os.devnull, os.O_RDONLY)  # given up for a moment to refuse connections
        self._closed = False

    @property
    def address(self) -> str:
        """The path."""
        return self._path

    def fileno(self) -> int:
        """Readable while there is something to do for `poll`."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Always false: the descriptor says it all."""
        return False

    def poll(self) -> list[Event]:
        """What happened since the last call; see `Listener.poll`."""
        events: list[Event] = []
        ready = {fd for fd, _ in self._poller.poll(0)}
        if self._socket.fileno() in ready:
            self._accept(events)
        if self._peers.fileno() in ready:
            events.extend(self._peers.poll())
        return events

    def _accept(self, events: list[Event]) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NONE_LEFT:
                    raise
                self._turn_away()
                return
            if is_own_user(connection):
                events.append(Opened(self._peers.add(connection)))
            else:
                connection.close()

    def _turn_away(self) -> None:
        """Refuse a connection for which there is no descriptor; left alone it would keep `poll` busy for ever."""
        os.close(self._reserve)
        with contextlib.suppress(OSError):
            self._socket.accept()[0].close()
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer; see `Listener.send`."""
        self._peers.send(peer, frames)

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after what was queued; see `Listener.drop`."""
        self._peers.drop(peer)

    def close(self) -> None:
        """Drop all peers, waiting a little for those that are slow to read, and stop listening."""
        if self._closed:
            return
        self._closed = True
        self._peers.close()
        os.close(self._reserve)
        self._poller.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

"""Acceptance of connections at a listening socket, with or without descriptors left for them."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from parl_remote._system.shortage import is_shortage, shortage_of
from parl_remote._transport import Buffer
from parl_remote._transport.unix.sockets import Listening, is_own_user, stream

__all__ = ["Acceptor", "Refusal"]

Refusal = Callable[[str], Sequence[Buffer]]

_REST_S = 0.01  # where not even a refusal is possible, so that a loop does not spin


class Acceptor:
    """Accepts the connections of this user's processes, or of anybody.

    One descriptor is kept in reserve. Where no other is left, it is given up for the moment that it takes to tell a
    peer why it is refused; a connection that nobody takes would keep the listening socket ready.

    Args:
        listening: The listening socket, which the acceptor owns from now on.
        refusal: Returns the only message to a peer for which there is no descriptor, from the reason.
        anybody: Whether peers may be of other users and on other hosts; they have to prove themselves in another way.
    """

    def __init__(self, listening: Listening, refusal: Refusal | None = None, *, anybody: bool = False) -> None:
        self._anybody = anybody
        self._listening = listening
        self._listening.setblocking(False)
        self._refusal = refusal
        self._reserve = -1
        self._reserve_one()

    def fileno(self) -> int:
        """Return the descriptor that is readable while connections are waiting."""
        return self._listening.fileno()

    def waiting(self) -> Iterator[socket.socket]:
        """Yield the connections that are waiting, without blocking."""
        self._reserve_one()
        while True:
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_shortage(error):
                    raise
                self._refuse_one(shortage_of(error))
                return
            if self._anybody or is_own_user(connection):
                yield connection
            else:
                connection.close()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._listening.close()
        self._give_up_reserve()

    def _refuse_one(self, reason: str) -> None:
        self._give_up_reserve()
        try:
            connection, _ = self._listening.accept()
        except OSError:
            time.sleep(_REST_S)
            return
        with connection, contextlib.suppress(OSError):  # it has gone, or reads nothing
            connection.setblocking(False)
            if self._refusal is not None and is_own_user(connection):
                connection.sendmsg(stream(self._refusal(reason)))
        self._reserve_one()

    def _reserve_one(self) -> None:
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY)

    def _give_up_reserve(self) -> None:
        reserve, self._reserve = self._reserve, -1
        if reserve >= 0:
            os.close(reserve)

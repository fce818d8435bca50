"""A TCP connection on loopback that behaves as the transport expects of a unix socket on Linux.

Calls may say "not now" one by one (MSG_DONTWAIT), which not every system knows: the socket itself never blocks, and
calls that shall wait do so here. A thread that waits is woken by `shutdown` of another, within `_LOOK_AGAIN_S` where
the system does not do that by itself. What the other end says first is its proof that it is who it should be; nothing
that comes later is handed on before that has been checked.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["DONT_WAIT", "NO_SIGNAL", "LoopbackSocket", "wait_for"]

DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0x40)  # where there is none, the number means something to this module only
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_LOOK_AGAIN_S = 0.5
_GATHER = 2**16  # bytes that are copied together where the system does not write from several places


class LoopbackSocket(socket.socket):
    """One end of a connection.

    Args:
        connection: A connected TCP socket; this object takes its descriptor over.
        proof: What the other end has to say first; empty if it has proved itself already.
    """

    def __init__(self, connection: socket.socket, proof: bytes = b"") -> None:
        super().__init__(connection.family, connection.type, connection.proto, connection.detach())
        self._patience_s: float | None = None
        self._down = False
        self._proof = proof
        self._said = b""
        super().setblocking(False)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def setblocking(self, flag: bool, /) -> None:
        """Whether calls that do not say otherwise wait."""
        self._patience_s = None if flag else 0.0

    def settimeout(self, value: float | None, /) -> None:
        """How long they wait."""
        self._patience_s = value

    def gettimeout(self) -> float | None:
        """How long they wait, None for as long as it takes."""
        return self._patience_s

    def await_proof(self, timeout_s: float) -> None:
        """Wait until the other end has proved itself.

        Raises:
            OSError: It has not in time, or it is somebody else.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(BlockingIOError):
                if self._is_proved():
                    return
            if not self._wait(deadline, write=False):
                raise TimeoutError(f"it has not said who it is within {timeout_s:g} s")

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send what the system takes."""
        return self._sent([data], flags)

    def sendmsg(  # type: ignore[override]  # only what the transport uses of it
        self, buffers: Iterable[Any], ancdata: tuple[()] = (), flags: int = 0, /
    ) -> int:
        """The same from several places; nothing goes with them."""
        del ancdata
        return self._sent(list(buffers), flags)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send all of it."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self.send(rest, flags) :]

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        """Receive what there is; 0 at the end."""
        deadline = self._deadline(flags)
        while True:
            with contextlib.suppress(BlockingIOError):
                if self._down:
                    return 0
                if self._is_proved():
                    return super().recv_into(buffer, nbytes, flags & ~(DONT_WAIT | NO_SIGNAL))
            if not self._wait(deadline, write=False):
                raise BlockingIOError("nothing has come")

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, None]:
        """The same, into the first of several places; nothing comes with it."""
        del ancbufsize
        return self.recv_into(next(iter(buffers)), 0, flags), [], 0, None

    def shutdown(self, how: int, /) -> None:
        """End the connection, and what waits on it."""
        self._down = True
        super().shutdown(how)

    def _is_proved(self) -> bool:
        """Whether the other end is known for who it is, as far as it has spoken.

        Raises:
            BlockingIOError: It has not said enough.
            ConnectionError: It is somebody else, or gone.
        """
        while len(self._said) < len(self._proof):
            said = super().recv(len(self._proof) - len(self._said))
            if not said:
                raise ConnectionResetError("the peer closed the connection before it proved who it is")
            self._said += said
        from hmac import compare_digest  # here, because most systems never need it, nor OpenSSL

        if self._proof and not compare_digest(self._said, self._proof):
            raise ConnectionRefusedError("somebody else listens there now")
        self._proof = self._said = b""
        return True

    def _sent(self, buffers: Sequence[Any], flags: int) -> int:
        deadline = self._deadline(flags)
        while True:
            with contextlib.suppress(BlockingIOError):
                if self._down:
                    raise BrokenPipeError("the connection was ended")
                if len(buffers) == 1:
                    return super().send(buffers[0], NO_SIGNAL)
                if hasattr(socket.socket, "sendmsg"):
                    return super().sendmsg(buffers, (), NO_SIGNAL)
                return super().send(_together(buffers), NO_SIGNAL)
            if not self._wait(deadline, write=True):
                raise BlockingIOError("the peer takes nothing")

    def _deadline(self, flags: int) -> float | None:
        if flags & DONT_WAIT:
            return 0.0
        return None if self._patience_s is None else time.monotonic() + self._patience_s

    def _wait(self, deadline: float | None, *, write: bool) -> bool:
        """Wait for something to happen; False once the deadline has passed."""
        patience_s = _LOOK_AGAIN_S if deadline is None else min(_LOOK_AGAIN_S, deadline - time.monotonic())
        if patience_s <= 0:
            return False
        descriptor = self.fileno()
        if descriptor < 0:
            raise OSError("the connection was closed")
        wait_for(descriptor, patience_s, write=write)
        return True


def wait_for(descriptor: int, patience_s: float, *, write: bool) -> None:
    """Wait for one descriptor; `select.select`, which every system has, takes only small numbers on some."""
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT if write else select.POLLIN)
        poller.poll(patience_s * 1000)
    elif write:
        select.select([], [descriptor], [descriptor], patience_s)
    else:
        select.select([descriptor], [], [], patience_s)


def _together(buffers: Sequence[Any]) -> Any:
    """The beginning of what the buffers hold: the first one, with those after it while they are small."""
    first = memoryview(buffers[0]).cast("B")
    if len(first) >= _GATHER:
        return first
    gathered = bytearray()
    for buffer in buffers:
        if len(gathered) + len(buffer) > _GATHER:
            break
        gathered += buffer
    return gathered

"""The portable replacement of unix sockets: TCP on 127.0.0.1, and a private file with the port.

    <path>  {"port": 40123, "secret": "..."}    readable by its owner only

    caller --connect--> LoopbackListener     nonce, HMAC(secret, "caller" + nonce)
           <-----------                      HMAC(secret, "listener" + nonce)   then the transport's data

The secret itself is never sent: a process that takes over the port of an ended listener learns nothing of use and
cannot authenticate itself. A thread accepts callers, so that a silent one does not block others; `accept` returns
authenticated connections only.

A `LoopbackSocket` behaves like a unix socket on Linux, as the transport expects. Single calls may be non-blocking
(MSG_DONTWAIT), which not every system supports: the socket itself never blocks, and blocking calls wait here. A waiting
thread is woken by another's `shutdown`, within `_LOOK_AGAIN_S` where the system does not do that. The other end first
sends its proof of identity; no later data is returned before that has been verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from threading import Thread
from typing import Any

from parl_core.atomic_write import atomic_write
from parl_remote._system.facilities import NO_FOLLOW, Waker, max_unauthenticated

__all__ = [
    "DONT_WAIT",
    "NO_SIGNAL",
    "LoopbackListener",
    "LoopbackSocket",
    "connect_loopback",
    "is_abandoned",
    "is_listener_file",
]


# Plain numbers: `&` of the standard library's flags takes 2 us. Where there is no MSG_DONTWAIT, its number is known to
# this module only.
DONT_WAIT = int(getattr(socket, "MSG_DONTWAIT", 0x40))
NO_SIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))
_LOOK_AGAIN_S = 0.5
_GATHER = 2**16  # bytes that are copied together where the system does not write from several places


class LoopbackSocket(socket.socket):
    """One end of a loopback connection.

    Args:
        connection: A connected TCP socket; this object takes its descriptor over.
        proof: The proof that the other end has to send first; empty if it is authenticated already.
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
        """Set whether calls block by default."""
        self._patience_s = None if flag else 0.0

    def settimeout(self, value: float | None, /) -> None:
        """Set how long such calls wait."""
        self._patience_s = value

    def gettimeout(self) -> float | None:
        """Return the timeout of blocking calls, None for none."""
        return self._patience_s

    def await_proof(self, timeout_s: float) -> None:
        """Wait until the other end is authenticated.

        Raises:
            OSError: It is not in time, or it is another process.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(BlockingIOError):
                if self._is_authenticated():
                    return
            if not self._wait(deadline, write=False):
                raise TimeoutError(f"it has not authenticated itself within {timeout_s:g} s")

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send as much as the system accepts."""
        return self._sent([data], flags)

    def sendmsg(  # type: ignore[override]  # only what the transport uses of it
        self, buffers: Iterable[Any], ancdata: tuple[()] = (), flags: int = 0, /
    ) -> int:
        """Send from several buffers as much as the system accepts; ancillary data is not supported."""
        del ancdata
        return self._sent(list(buffers), flags)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send all data."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self.send(rest, flags) :]

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        """Receive available data; return 0 at the end."""
        deadline = self._deadline(flags)
        while True:
            is_down = self._down  # before reading: what arrived before the end is returned before the end
            try:
                if self._is_authenticated():
                    return super().recv_into(buffer, nbytes, flags & ~(DONT_WAIT | NO_SIGNAL))
            except OSError as error:
                if is_down:
                    return 0
                if not isinstance(error, BlockingIOError):
                    raise
            if not self._wait(deadline, write=False):
                raise BlockingIOError("nothing has arrived")

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, None]:
        """Receive into the first of several buffers; ancillary data is not supported."""
        del ancbufsize
        return self.recv_into(next(iter(buffers)), 0, flags), [], 0, None

    def shutdown(self, how: int, /) -> None:
        """Shut the connection down and wake waiting threads."""
        self._down = True
        super().shutdown(how)

    def _is_authenticated(self) -> bool:
        """Return True once the other end is authenticated.

        Raises:
            BlockingIOError: The proof is not complete yet.
            ConnectionError: It is another process, or gone.
        """
        while len(self._said) < len(self._proof):
            said = super().recv(len(self._proof) - len(self._said))
            if not said:
                raise ConnectionResetError("the peer closed the connection before it authenticated itself")
            self._said += said
        if self._proof and not compare_digest(self._said, self._proof):
            raise ConnectionRefusedError("another process listens there now")
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
                return super().send(_first_chunk(buffers), NO_SIGNAL)
            if not self._wait(deadline, write=True):
                raise BlockingIOError("the peer does not receive")

    def _deadline(self, flags: int) -> float | None:
        if flags & DONT_WAIT:
            return 0.0
        return None if self._patience_s is None else time.monotonic() + self._patience_s

    def _wait(self, deadline: float | None, *, write: bool) -> bool:
        """Wait for an event; return False once the deadline has passed."""
        patience_s = _LOOK_AGAIN_S if deadline is None else min(_LOOK_AGAIN_S, deadline - time.monotonic())
        if patience_s <= 0:
            return False
        descriptor = self.fileno()
        if descriptor < 0:
            raise OSError("the connection was closed")
        wait_for(descriptor, patience_s, write=write)
        return True


def wait_for(descriptor: int, patience_s: float, *, write: bool) -> None:
    """Wait for one descriptor; with poll if available, since `select.select` may take only small numbers."""
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT if write else select.POLLIN)
        poller.poll(patience_s * 1000)
    elif write:
        select.select([], [descriptor], [descriptor], patience_s)
    else:
        select.select([descriptor], [], [], patience_s)


def _first_chunk(buffers: Sequence[Any]) -> Any:
    """Return the beginning of the buffers' data: the first one, with those after it while they are small."""
    first = memoryview(buffers[0]).cast("B")
    if len(first) >= _GATHER:
        return first
    gathered = bytearray()
    for buffer in buffers:
        if len(gathered) + len(buffer) > _GATHER:
            break
        gathered += buffer
    return gathered


_NONCE_BYTES = _PROOF_BYTES = 32
_TO_PROVE_S = 5.0  # a caller on the same host sends its proof at once; a swapping host needs a while
_MOST_FILE_BYTES = 4096
_FULL_REST_S = 0.05  # before the next attempt where no descriptors are left


class LoopbackListener:
    """A listener instead of a unix socket; readable while `accept` has authenticated connections.

    Args:
        path: The path to listen at; an existing file there is an error.

    Raises:
        OSError: The path is taken or cannot be made, or there is no loopback.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._secret = os.urandom(32)
        self._waker = Waker()
        self._leave = Waker()
        self._authenticated: deque[LoopbackSocket] = deque()
        self._closed = False
        self._listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # elsewhere no process may take a port that is in use
                self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            self._listening.bind(("127.0.0.1", 0))
            self._listening.listen(4096)
            self._listening.setblocking(False)
            _write(path, {"port": self._listening.getsockname()[1], "secret": self._secret.hex()})
        except BaseException:
            self._listening.close()
            raise
        self._thread = Thread(target=self._accept_callers, name="parl-listener", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable while connections are waiting."""
        return self._waker.fileno()

    def getsockname(self) -> str:
        """Return the path."""
        return self._path

    def setblocking(self, flag: bool) -> None:
        """Do nothing: `accept` never waits."""

    def accept(self) -> tuple[LoopbackSocket, str]:
        """Return the next authenticated connection.

        Raises:
            BlockingIOError: No connection is waiting.
        """
        if not self._authenticated:
            self._waker.clear()
        try:
            return self._authenticated.popleft(), ""
        except IndexError:
            raise BlockingIOError("no connection is waiting") from None

    def close(self) -> None:
        """Stop listening and close waiting connections; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._leave.wake()
        self._thread.join()
        for connection in self._authenticated:
            connection.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _accept_callers(self) -> None:
        """Accept and authenticate callers until the listener is closed."""
        unauthenticated: dict[int, _Caller] = {}
        most = max_unauthenticated()
        with selectors.DefaultSelector() as selector, self._listening:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._leave.fileno(), selectors.EVENT_READ)
            while not self._closed:
                first = min((one.deadline for one in unauthenticated.values()), default=None)
                ready = selector.select(None if first is None else max(0.0, first - time.monotonic()))
                for key, _ in ready:
                    if key.fileobj is self._listening:
                        self._greet(selector, unauthenticated)
                    elif key.fd in unauthenticated:
                        self._check(key.fd, selector, unauthenticated)
                now = time.monotonic()
                late = [fd for fd, one in unauthenticated.items() if one.deadline <= now]
                for fd in (late + list(unauthenticated))[: max(len(late), len(unauthenticated) - most)]:
                    selector.unregister(fd)
                    unauthenticated.pop(fd).connection.close()
            for one in unauthenticated.values():
                one.connection.close()

    def _greet(self, selector: selectors.BaseSelector, unauthenticated: dict[int, _Caller]) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptors left; pending callers wait a little longer
            time.sleep(_FULL_REST_S)
            return
        connection.setblocking(False)
        unauthenticated[connection.fileno()] = _Caller(connection)
        selector.register(connection.fileno(), selectors.EVENT_READ)

    def _check(self, fd: int, selector: selectors.BaseSelector, unauthenticated: dict[int, _Caller]) -> None:
        caller = unauthenticated[fd]
        try:
            if not caller.read():
                return
            nonce, proof = caller.said[:_NONCE_BYTES], caller.said[_NONCE_BYTES:]
            if not compare_digest(proof, _proof(self._secret, b"caller", nonce)):
                raise ConnectionRefusedError("it does not know the secret")
            caller.connection.send(_proof(self._secret, b"listener", nonce))  # the first bytes: they fit
        except BlockingIOError:
            return
        except OSError:
            caller.connection.close()
        else:
            self._authenticated.append(LoopbackSocket(caller.connection))
            self._waker.wake()
        selector.unregister(fd)
        del unauthenticated[fd]


class _Caller:
    """A connection that is not authenticated yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _TO_PROVE_S
        self.said = b""

    def read(self) -> bool:
        """Receive at most the missing bytes of the proof; return whether it is complete."""
        said = self.connection.recv(_NONCE_BYTES + _PROOF_BYTES - len(self.said))
        if not said:
            raise ConnectionResetError("it has gone")
        self.said += said
        return len(self.said) == _NONCE_BYTES + _PROOF_BYTES


def connect_loopback(path: str, *, wait: bool) -> LoopbackSocket:
    """Connect to the listener at `path`.

    Args:
        path: The listener's file.
        wait: Whether to wait until the listener has authenticated itself; if not, no data is received before it has.

    Raises:
        OSError: Nothing listens there, or another process does.
    """
    port, secret = _read(path)
    nonce = os.urandom(_NONCE_BYTES)
    connection = socket.create_connection(("127.0.0.1", port), _TO_PROVE_S)
    try:
        connection.sendall(nonce + _proof(secret, b"caller", nonce))
        ours = LoopbackSocket(connection, _proof(secret, b"listener", nonce))
    except BaseException:
        connection.close()
        raise
    try:
        if wait:
            ours.await_proof(_TO_PROVE_S)
    except BaseException:
        ours.close()
        raise
    return ours


def is_listener_file(path: Path) -> bool:
    """Return whether a listener has written this file."""
    try:
        return bool(_read(str(path)))
    except OSError:
        return False


def is_abandoned(path: Path) -> bool:
    """Return whether the listener that wrote this file has certainly gone."""
    try:
        connect_loopback(str(path), wait=True).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except OSError:
        return False
    return False


def _proof(secret: bytes, who: bytes, nonce: bytes) -> bytes:
    return blake2b(who + nonce, key=secret, digest_size=_PROOF_BYTES).digest()


def _write(path: str, content: dict[str, Any]) -> None:
    """Write a file that no other user can read, never over an existing one."""
    with atomic_write(path, "w", permissions=0o600, durable=False, replace=False, encoding="ascii") as file:
        json.dump(content, file)


def _read(path: str) -> tuple[int, bytes]:
    """Return port and secret of a listener's file.

    Raises:
        OSError: There is no such file, or it is not one of a listener of this user.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise PermissionError(f"{path} is not private to this user")
        try:
            content = json.loads(file.read(_MOST_FILE_BYTES))
            return int(content["port"]), bytes.fromhex(content["secret"])
        except (ValueError, TypeError, KeyError):
            raise ConnectionRefusedError(f"{path} was not written by a listener") from None

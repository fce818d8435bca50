"""Listening at a path without unix sockets: a TCP port of 127.0.0.1, and a private file that says which.

    <path>  {"port": 40123, "secret": "..."}    readable by its owner only

    caller --connect--> Door     nonce, HMAC(secret, "caller" + nonce)
           <-----------          HMAC(secret, "listener" + nonce)       then whatever the transport has to say

The secret itself never travels: who took over the port of a listener that has ended learns nothing of use and can
prove nothing. A thread lets callers in, so that one who says nothing holds up nobody; what is behind the door, sees
proved connections only.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections import deque
from pathlib import Path
from threading import Thread
from typing import Any

from parl_core.atomic_write import atomic_write
from parl_remote.portable.stream import LoopbackSocket
from parl_remote.system.bell import Bell
from parl_remote.system.facilities import NO_FOLLOW

__all__ = ["Door", "connect_through", "is_door", "nobody_behind"]

_NONCE_BYTES = _PROOF_BYTES = 32
_TO_PROVE_S = 5.0  # what a caller on the same host sends at once; a swapping host needs a while
_MOST_UNPROVED = 256  # more are closed, oldest first
_MOST_FILE_BYTES = 4096
_FULL_REST_S = 0.05  # before the next attempt where no descriptors are left


class Door:
    """Stands in for a listening unix socket: readable while there are proved connections, which `accept` gives.

    Args:
        path: Where to listen; a file that exists there is an error.

    Raises:
        OSError: The path is taken or cannot be made, or there is no loopback.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._secret = os.urandom(32)
        self._bell = Bell()
        self._leave = Bell()
        self._proved: deque[LoopbackSocket] = deque()
        self._closed = False
        self._listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # elsewhere nobody may take a port that is in use
                self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            self._listening.bind(("127.0.0.1", 0))
            self._listening.listen(4096)
            self._listening.setblocking(False)
            _write(path, {"port": self._listening.getsockname()[1], "secret": self._secret.hex()})
        except BaseException:
            self._listening.close()
            raise
        self._thread = Thread(target=self._let_in, name="parl-door", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable while somebody waits."""
        return self._bell.fileno()

    def getsockname(self) -> str:
        """The path."""
        return self._path

    def setblocking(self, flag: bool) -> None:
        """`accept` never waits anyway."""

    def accept(self) -> tuple[LoopbackSocket, str]:
        """The next proved connection.

        Raises:
            BlockingIOError: Nobody waits.
        """
        if not self._proved:
            self._bell.quiet()
        try:
            return self._proved.popleft(), ""
        except IndexError:
            raise BlockingIOError("nobody waits") from None

    def close(self) -> None:
        """Stop listening and turn away who waits; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._leave.ring()
        self._thread.join()
        for connection in self._proved:
            connection.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _let_in(self) -> None:
        """Accept and check callers until the door is closed."""
        unproved: dict[int, _Caller] = {}
        with selectors.DefaultSelector() as selector, self._listening:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._leave.fileno(), selectors.EVENT_READ)
            while not self._closed:
                first = min((one.deadline for one in unproved.values()), default=None)
                ready = selector.select(None if first is None else max(0.0, first - time.monotonic()))
                for key, _ in ready:
                    if key.fileobj is self._listening:
                        self._greet(selector, unproved)
                    elif key.fd in unproved:
                        self._check(key.fd, selector, unproved)
                now = time.monotonic()
                late = [fd for fd, one in unproved.items() if one.deadline <= now]
                for fd in (late + list(unproved))[: max(len(late), len(unproved) - _MOST_UNPROVED)]:
                    selector.unregister(fd)
                    unproved.pop(fd).connection.close()
            for one in unproved.values():
                one.connection.close()

    def _greet(self, selector: selectors.BaseSelector, unproved: dict[int, _Caller]) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptors left; whoever waits, waits a little longer
            time.sleep(_FULL_REST_S)
            return
        connection.setblocking(False)
        unproved[connection.fileno()] = _Caller(connection)
        selector.register(connection.fileno(), selectors.EVENT_READ)

    def _check(self, fd: int, selector: selectors.BaseSelector, unproved: dict[int, _Caller]) -> None:
        caller = unproved[fd]
        try:
            if not caller.read():
                return
            nonce, proof = caller.said[:_NONCE_BYTES], caller.said[_NONCE_BYTES:]
            from hmac import compare_digest  # here, because most systems never need it, nor OpenSSL

            if not compare_digest(proof, _proof(self._secret, b"caller", nonce)):
                raise ConnectionRefusedError("it does not know the secret")
            caller.connection.send(_proof(self._secret, b"listener", nonce))  # the first bytes: there is room
        except BlockingIOError:
            return
        except OSError:
            caller.connection.close()
        else:
            self._proved.append(LoopbackSocket(caller.connection))
            self._bell.ring()
        selector.unregister(fd)
        del unproved[fd]


class _Caller:
    """A connection that has not proved itself yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _TO_PROVE_S
        self.said = b""

    def read(self) -> bool:
        """Take what has come, and not a byte more than the proof; whether that is complete."""
        said = self.connection.recv(_NONCE_BYTES + _PROOF_BYTES - len(self.said))
        if not said:
            raise ConnectionResetError("it has gone")
        self.said += said
        return len(self.said) == _NONCE_BYTES + _PROOF_BYTES


def connect_through(path: str, *, wait: bool) -> LoopbackSocket:
    """Connect to the door at `path`.

    Args:
        path: Its file.
        wait: Whether to wait until the listener has proved itself; if not, nothing is received before it has.

    Raises:
        OSError: Nobody listens there, or somebody else does.
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


def is_door(path: Path) -> bool:
    """Whether a listener has written this file."""
    try:
        return bool(_read(str(path)))
    except OSError:
        return False


def nobody_behind(path: Path) -> bool:
    """Whether the listener that wrote this file has gone for sure."""
    try:
        connect_through(str(path), wait=True).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except OSError:
        return False
    return False


def _proof(secret: bytes, who: bytes, nonce: bytes) -> bytes:
    from hashlib import blake2b  # see above

    return blake2b(who + nonce, key=secret, digest_size=_PROOF_BYTES).digest()


def _write(path: str, content: dict[str, Any]) -> None:
    """Write a file that no other user can read, never over one that is there."""
    with atomic_write(path, "w", permissions=0o600, durable=False, replace=False, encoding="ascii") as file:
        json.dump(content, file)


def _read(path: str) -> tuple[int, bytes]:
    """Port and secret.

    Raises:
        OSError: There is no such file, or it is not one of a door of this user.
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

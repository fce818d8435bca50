"""Unix stream sockets as both ends need them, or what stands in for them elsewhere (`portable.sockets`)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from parl_remote.portable.sockets import (
    DONT_WAIT,
    NO_SIGNAL,
    LoopbackListener,
    LoopbackSocket,
    connect_loopback,
    is_abandoned,
    is_listener_file,
)
from parl_remote.system.facilities import is_portable
from parl_remote.transport import Buffer
from parl_remote.transport.framing import frame_prefix

with contextlib.suppress(ImportError):  # neither is there on Windows
    import fcntl
    import termios

__all__ = [
    "DONT_WAIT",
    "JOIN_BELOW",
    "NONE_LEFT",
    "NOW",
    "PARTS_AT_ONCE",
    "Listening",
    "after",
    "connect_to",
    "is_own_user",
    "listen_at",
    "listening_socket",
    "peer_pid",
    "private_directory",
    "stream",
    "sweep_directories",
    "unread_bytes",
    "widen",
]

_LONGEST_PATH = 80  # the kernel takes 107 bytes for a socket's path, and names follow
_SOCKET_BUFFER = 2**20  # larger ones save wake-ups on arrays; the kernel caps it at net.core.wmem_max
JOIN_BELOW = 2**14  # copying so little is cheaper than handing the kernel a list
NONE_LEFT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))  # of this process or its host
PARTS_AT_ONCE = 512  # the kernel takes 1024 (IOV_MAX)
NOW = DONT_WAIT | NO_SIGNAL

Listening: TypeAlias = socket.socket | LoopbackListener


def widen(connection: socket.socket) -> None:
    """Give a connection room for large messages."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)


def stream(frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write for a message: one for a small message."""
    prefix = frame_prefix(frames)
    if len(frames) == 1 and len(frames[0]) < JOIN_BELOW:
        return [b"".join((prefix, frames[0]))]
    return [prefix, *frames]


def after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Return what is left of `parts` once `sent` bytes are gone."""
    rest: list[Buffer] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        elif sent:
            rest.append(memoryview(part)[sent:])
            sent = 0
        else:
            rest.append(part)
    return rest


def listen_at(path: str) -> Listening:
    """Return what listens at `path`, for this user only.

    Raises:
        OSError: The path is taken, too long (107 bytes), or cannot be made.
    """
    return LoopbackListener(path) if is_portable() else listening_socket(path)


def listening_socket(path: str) -> socket.socket:
    """Return a unix socket that listens at `path`; see `listen_at`."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(4096)  # an actor that is busy accepts nobody, and whoever comes meanwhile must not wait for it
    except BaseException:
        listening.close()
        raise
    return listening


def connect_to(path: str, *, wait: bool) -> socket.socket:
    """Return a connection to what listens at `path`.

    Args:
        path: The path.
        wait: Whether to wait, where the listener has to prove who it is, until it has.

    Raises:
        OSError: Nobody listens there.
    """
    if is_portable():
        return connect_loopback(path, wait=wait)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def private_directory(parent: Path) -> Path:
    """Return a new directory for sockets, for this user only: below `parent`, or below /tmp where that would not do.

    Raises:
        OSError: Both have too long a name or cannot be written to.
    """
    if is_portable():
        return Path(tempfile.mkdtemp(prefix="parl-", dir=parent))
    for place in (parent, Path("/tmp")):
        with contextlib.suppress(OSError):
            if len(os.fsencode(place)) <= _LONGEST_PATH:
                return Path(tempfile.mkdtemp(prefix="parl-", dir=place))
    raise OSError(f"{parent} and /tmp are too long or cannot be written to")


def sweep_directories(parent: Path) -> list[Path]:
    """Remove directories of nodes that were killed with everybody who could have cleared up; returns which.

    Such a one is ours alone, and has a node's socket at which nobody listens any more; where clearing up was cut short
    after that was removed, the same is true of its actors' sockets.
    """
    swept = []
    for place in {parent} if is_portable() else {parent, Path("/tmp")}:
        for directory in place.glob("parl-*"):
            with contextlib.suppress(OSError):
                found = directory.lstat()
                is_ours = stat.S_ISDIR(found.st_mode) and (
                    not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
                )
                node = directory / "node.sock"
                sockets = [node] if node.exists() else list(directory.glob("*.sock"))
                if is_ours and sockets and all(map(_is_abandoned, sockets)):
                    shutil.rmtree(directory)
                    swept.append(directory)
    return swept


def _is_abandoned(path: Path) -> bool:
    if is_portable():
        return is_listener_file(path) and is_abandoned(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return stat.S_ISSOCK(path.lstat().st_mode) and probe.connect_ex(str(path)) == errno.ECONNREFUSED


def is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end is this user's; on loopback it has proved that before it got here."""
    return isinstance(connection, LoopbackSocket) or _peer_credentials(connection)[1] == os.getuid()


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end (that began to listen, for a connecting end); 0 if it is not seen here."""
    return 0 if isinstance(connection, LoopbackSocket) else _peer_credentials(connection)[0]


def unread_bytes(connection: socket.socket) -> int:
    """Return bytes that were sent and the peer has not read; 0 where that is not told, or the connection is closed."""
    if isinstance(connection, LoopbackSocket):
        return 0
    unread = bytearray(4)
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, unread)
    except OSError:
        return 0
    return int.from_bytes(unread, sys.byteorder)


def _peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid

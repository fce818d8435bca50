"""What both ends need of unix stream sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parl_remote.framing import frame_prefix
from parl_remote.transport import Buffer

__all__ = [
    "JOIN_BELOW",
    "NOW",
    "PARTS_AT_ONCE",
    "after",
    "listen_at",
    "peer_uid",
    "private_directory",
    "stream",
    "sweep_directories",
    "widen",
]

_LONGEST_PATH = 80  # the kernel takes 107 bytes for a socket's path, and names follow
_SOCKET_BUFFER = 2**20  # larger ones save wake-ups on arrays; the kernel caps it at net.core.wmem_max
JOIN_BELOW = 2**14  # copying so little is cheaper than handing the kernel a list
PARTS_AT_ONCE = 512  # the kernel takes 1024 (IOV_MAX)
NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def widen(connection: socket.socket) -> None:
    """Give a connection room for large messages."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)


def stream(frames: Sequence[Buffer]) -> list[Buffer]:
    """The buffers to write for a message: one for a small message."""
    prefix = frame_prefix(frames)
    if len(frames) == 1 and len(frames[0]) < JOIN_BELOW:
        return [b"".join((prefix, frames[0]))]
    return [prefix, *frames]


def after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of `parts` once `sent` bytes are gone."""
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


def listen_at(path: str) -> socket.socket:
    """A stream socket that listens at `path`, for this user only.

    Raises:
        OSError: The path is taken, too long (107 bytes), or cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(4096)  # an actor that is busy accepts nobody, and whoever comes meanwhile must not wait for it
    except BaseException:
        listening.close()
        raise
    return listening


def private_directory(parent: Path) -> Path:
    """A new directory for sockets, for this user only: below `parent`, or below /tmp where that would not do.

    Raises:
        OSError: Both have too long a name or cannot be written to.
    """
    for place in (parent, Path("/tmp")):
        with contextlib.suppress(OSError):
            if len(os.fsencode(place)) <= _LONGEST_PATH:
                return Path(tempfile.mkdtemp(prefix="parl-", dir=place))
    raise OSError(f"{parent} and /tmp are too long or cannot be written to")


def sweep_directories(parent: Path) -> list[Path]:
    """Remove directories of nodes that were killed with everybody who could have cleared up; returns which.

    Such a one is ours alone, and has a node's socket at which nobody listens any more.
    """
    swept = []
    for place in {parent, Path("/tmp")}:
        for directory in place.glob("parl-*"):
            with contextlib.suppress(OSError):
                found = directory.lstat()
                is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
                if is_ours and _is_abandoned(directory / "node.sock"):
                    shutil.rmtree(directory)
                    swept.append(directory)
    return swept


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return stat.S_ISSOCK(path.lstat().st_mode) and probe.connect_ex(str(path)) == errno.ECONNREFUSED


def peer_uid(connection: socket.socket) -> int:
    """The user whose process is at the other end."""
    return _peer_credentials(connection)[1]


def peer_pid(connection: socket.socket) -> int:
    """The process that connected, or at the connecting end the one that began to listen; 0 if it is not seen here."""
    return _peer_credentials(connection)[0]


def _peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid

"""Unix stream sockets for both ends, and the layout of messages of frames in their byte stream.

    offset  size       field
    0       4          number of frames, n (1 or more)
    4       8 * n      length of each frame in bytes
    4+8n    ...        the frames, one after the other

All numbers are little-endian and unsigned. Small messages are read together, many with one system call; a message
that does not fit into the read-ahead buffer is read straight into memory of its own, one block a frame. Where there
are no unix sockets `portable.sockets` takes their place.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from parl_remote._portable.sockets import (
    DONT_WAIT,
    NO_SIGNAL,
    LoopbackListener,
    LoopbackSocket,
    connect_loopback,
    is_abandoned,
    is_listener_file,
)
from parl_remote._system.facilities import is_portable
from parl_remote._system.interrupts import interruptible
from parl_remote._system.shortage import is_shortage
from parl_remote._transport import KEPT_OF_CUT, Buffer, CutMessage
from parl_remote.errors import ChannelClosed, LocalProtocolError, RemoteProtocolError

__all__ = [
    "DONT_WAIT",
    "JOIN_BELOW",
    "NOW",
    "NO_SIZE",
    "PACK_ONE",
    "PARTS_AT_ONCE",
    "FrameReader",
    "Listening",
    "Messages",
    "after",
    "connect_to",
    "is_own_user",
    "listen_at",
    "listening_socket",
    "peer_pid",
    "private_directory",
    "send_with_descriptor",
    "size_in_stream",
    "stream",
    "sweep_directories",
    "unread_bytes",
    "widen",
    "would_block",
]


_READ_AHEAD = 2**16  # the size of a pipe: some thousand small calls per system call
_READ_AHEAD_AT_FIRST = 2**12  # many connections carry a few small messages in all: one page, not sixteen
_ONE = struct.Struct("<IQ")
# receives discarded data of all connections; allocated while there is memory
_WASTE = memoryview(bytearray(_READ_AHEAD))
_MAX_FRAMES = 2**20  # a list of a million arrays is data, ten million "frames" are garbage

_unpack_one = _ONE.unpack_from
PACK_ONE = _ONE.pack  # what precedes the one frame of a message: 1, and its length


Messages: TypeAlias = list[list[memoryview]] | deque[list[memoryview]]
NO_SIZE = (0,)
_FIRST = operator.itemgetter(0)


class FrameReader:
    """Parses the bytes of a stream socket into messages.

    Args:
        max_bytes: Largest message that is accepted.
        allocate: Makes writable memory for a frame that is too long for the read-ahead buffer.

    Attributes:
        descriptors: Receives the descriptors that come with messages; None where none may come.
        cuts: Whether a message for which there is no memory is read as a `CutMessage`, rather than refused.
    """

    __slots__ = (
        "_allocate",
        "_buffer",
        "_counts",
        "_end",
        "_frames",
        "_max_bytes",
        "_missing",
        "_start",
        "_view",
        "cuts",
        "descriptors",
    )

    def __init__(self, max_bytes: int, allocate: Callable[[int], Buffer] = bytearray) -> None:
        self._max_bytes = max_bytes
        self._allocate = allocate
        self._buffer = bytearray(_READ_AHEAD_AT_FIRST)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._frames: list[memoryview] = []
        self._missing: list[memoryview] = []
        self._counts: list[int] = []  # the number of bytes that were read and are not noted yet
        self.descriptors: deque[int] | None = None
        self.cuts = False

    def limit(self, max_bytes: int) -> None:
        """Accept messages up to this size from now on."""
        self._max_bytes = max_bytes

    def next(self) -> list[memoryview] | None:
        """Return the next message that was read completely, None if there is none.

        Raises:
            RemoteProtocolError: The bytes read are not a valid message.
        """
        if self._counts:
            self._note()
        start, available = self._start, self._end - self._start
        if available < 12 or self._missing:
            return self._finished() if self._frames else None
        count, length = _unpack_one(self._buffer, start)
        if count == 1:
            body = start + 12
            if body + length <= self._end:
                end = body + length
                frames = [memoryview(self._buffer[body:end])]
                self._start = end
                if end == self._end:
                    self._start = self._end = 0
                return frames
            lengths: tuple[int, ...] = (length,)
        else:
            if not 1 <= count <= _MAX_FRAMES:
                raise RemoteProtocolError(f"a message cannot have {count} frames")
            if available < 4 + 8 * count:
                # At most twice what has arrived: a peer that announces a million frames has to send their lengths.
                self._reserve(min(4 + 8 * count, 2 * max(available, _READ_AHEAD)))
                return None
            lengths = struct.unpack_from(f"<{count}Q", self._buffer, start + 4)
            body = start + 4 + 8 * count
        if sum(lengths) > self._max_bytes:
            raise RemoteProtocolError(f"a message of {sum(lengths)} bytes passes the limit of {self._max_bytes}")
        return self._cut(body, lengths)

    def take_all(self, into: Messages) -> None:
        """Add all messages that were read completely; most often it is a small one, and nothing else was read."""
        if not self._start and not self._frames and not self._counts:
            end = self._end
            if not end:
                return
            count, length = _unpack_one(self._buffer, 0)
            if count == 1 and length + _ONE.size == end:
                message = [memoryview(self._buffer[_ONE.size : end])]
                self._end = 0
                into.append(message)
                return
        while (frames := self.next()) is not None:
            into.append(frames)

    def _cut(self, body: int, lengths: tuple[int, ...]) -> list[memoryview] | None:
        """Take the frames from the buffer as far as they have arrived, and record the missing parts."""
        at, end = body, self._end
        frames, missing = [], []
        for length in lengths:
            here = min(length, end - at)
            if here == length:
                frame = memoryview(self._buffer[at : at + length])
            else:
                try:
                    frame = memoryview(self._allocate(length))
                except MemoryError as error:
                    with contextlib.suppress(MemoryError):  # there is usually enough memory for this
                        if self.cuts:
                            return self._cut_short(body, lengths)
                    raise RemoteProtocolError(f"there is no memory for a frame of {length} bytes") from error
                frame[:here] = self._view[at : at + here]
                missing.append(frame[here:])
            frames.append(frame)
            at += here
        self._start = at
        if at == end:
            self._start = self._end = 0
        if not missing:
            return frames
        self._frames, self._missing = frames, missing
        return None

    def _cut_short(self, body: int, lengths: tuple[int, ...]) -> list[memoryview] | None:
        """Take the beginning of each frame of a message for which there is no memory; what follows is discarded."""
        at, end = body, self._end
        message, missing = CutMessage(lengths), list[memoryview]()
        for length in lengths:
            kept = memoryview(bytearray(min(length, KEPT_OF_CUT)))
            message.append(kept)
            here = min(length, end - at)
            rest = length - max(here, len(kept))
            kept[:here] = self._view[at : at + min(here, len(kept))]
            if here < len(kept):
                missing.append(kept[here:])
            missing += [_WASTE] * (rest // len(_WASTE))
            if rest % len(_WASTE):
                missing.append(_WASTE[: rest % len(_WASTE)])
            at += here
        self._frames, self._missing = message, missing
        self._start = at
        if at == end:
            self._start = self._end = 0
        return self._finished()

    def _finished(self) -> list[memoryview] | None:
        if self._frames and not self._missing:
            frames, self._frames = self._frames, []
            return frames
        return None

    @property
    def inside_message(self) -> bool:
        """Return whether a message has been read in part."""
        return bool(self._missing) or self._end > self._start

    def fill(self, source: socket.socket, flags: int = 0) -> None:
        """Read once from `source`.

        Raises:
            EOFError: The peer has closed the connection.
            BlockingIOError: No data is available, and `flags` or the socket forbid waiting.
            OSError: The connection broke.
        """
        if self._counts:  # of a read that was interrupted
            self._note()
            return
        if self._missing:
            self._fill_missing(source, flags)
            return
        if self._start and len(self._buffer) - self._end < len(self._buffer) // 4:
            self._reserve(0)
        into = self._view[self._end :] if self._end else self._buffer
        if self.descriptors is None:
            self._receive(map(source.recv_into, (into,), NO_SIZE, (flags,)), flags)
        else:
            self._counts.append(_receive_with_descriptor(source, into, flags, self.descriptors))
        self._note()
        if self._end == len(self._buffer) < _READ_AHEAD:
            with contextlib.suppress(MemoryError):  # a larger buffer is only faster
                self._reserve(_READ_AHEAD)  # more arrives at a time than this one holds

    def _fill_missing(self, source: socket.socket, flags: int) -> None:
        missing = self._missing
        if len(missing) == 1:
            self._receive(map(source.recv_into, (missing[0],), NO_SIZE, (flags,)), flags)
        else:
            self._receive(map(_FIRST, map(source.recvmsg_into, (missing[:64],), NO_SIZE, (flags,))), flags)
        self._note()

    def _receive(self, read: Iterator[int], flags: int) -> None:
        """Read once; the number of bytes is kept in the same step, because a handler may run if that waits."""
        if flags & DONT_WAIT:
            self._counts.extend(read)
        else:
            with interruptible:
                self._counts.extend(read)

    def _note(self) -> None:
        """Count the bytes that were read last, and forget their number in the same step."""
        got = self._counts[0]
        if not got:
            self._counts.clear()
            raise EOFError
        missing = self._missing
        if not missing:
            self._end += got
            del self._counts[0]
            return
        done = 0
        while done < len(missing) and got >= len(missing[done]):
            got -= len(missing[done])
            done += 1
        rest = missing[done:]
        if got:
            rest[0] = rest[0][got:]
        self._missing = rest
        del self._counts[0]

    def _reserve(self, needed: int) -> None:
        """Move the unread bytes to the front, into a larger buffer if `needed` bytes would not fit."""
        rest = self._buffer[self._start : self._end]
        count = len(rest)
        buffer, view = self._buffer, self._view
        if needed > len(buffer):
            buffer = bytearray(max(needed, _READ_AHEAD))
            view = memoryview(buffer)
        buffer[:count] = rest
        self._buffer, self._view, self._start, self._end = buffer, view, 0, count


_DESCRIPTOR = struct.Struct("@i")
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # a plain number: operations of flags take longer


def _receive_with_descriptor(source: socket.socket, into: Buffer, flags: int, descriptors: deque[int]) -> int:
    """Read like `recv_into`, and add a descriptor that comes with the bytes; its message is the one they end."""
    got, extra, _, _ = source.recvmsg_into([into], socket.CMSG_SPACE(_DESCRIPTOR.size), flags | _CLOSE_ON_EXEC)
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) == _DESCRIPTOR.size:
            descriptors.append(*_DESCRIPTOR.unpack(data))
    return got


def send_with_descriptor(connection: socket.socket, data: Buffer, descriptor: int) -> None:
    """Write a small message, which less than a page is as a whole, together with a descriptor.

    Raises:
        OSError: It cannot be written at once.
    """
    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))], NOW)


with contextlib.suppress(ImportError):  # Windows has neither
    import fcntl
    import termios


_LONGEST_PATH = 80  # the kernel takes 107 bytes for a socket's path, and names follow
_SOCKET_BUFFER = 2**20  # larger ones save wake-ups on arrays; the kernel caps it at net.core.wmem_max
JOIN_BELOW = 2**14  # copying so little is cheaper than handing the kernel a list
_NO_MEMORY_S = 0.002  # before the next attempt to write
_waited_at = [float("-inf")]  # when the last such wait ended
PARTS_AT_ONCE = 512  # the kernel takes 1024 (IOV_MAX)
NOW = DONT_WAIT | NO_SIGNAL

Listening: TypeAlias = socket.socket | LoopbackListener


def widen(connection: socket.socket) -> None:
    """Enlarge a connection's send buffer for large messages; between hosts the kernel finds a better size."""
    if isinstance(connection, LoopbackSocket) or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)


def stream(*messages: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write for messages: a single one if they are small.

    Raises:
        LocalProtocolError: A message has no frame.
    """
    parts: list[Buffer] = []
    for frames in messages:
        if not frames:
            raise LocalProtocolError("a message needs a frame")
        parts += (struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)), *frames)
    return [b"".join(parts)] if sum(map(len, parts)) < JOIN_BELOW else parts


def would_block(error: OSError) -> bool:
    """Return whether a socket that did not take data will take it later: it is full, or the kernel has no memory.

    A socket can be polled as writable while there is no memory, so that this waits a moment for it, unless it has just
    done so for another socket.
    """
    if isinstance(error, BlockingIOError):
        return True
    if not is_shortage(error):
        return False
    if time.monotonic() > _waited_at[0] + _NO_MEMORY_S:
        time.sleep(_NO_MEMORY_S)
        _waited_at[0] = time.monotonic()
    return True


def size_in_stream(frames: Sequence[Buffer]) -> int:
    """Return the number of bytes that a message has in the stream."""
    return 4 + 8 * len(frames) + sum(map(len, frames))


def after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """Return the rest of `parts` after `sent` bytes."""
    for at, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:] if sent else part, *parts[at + 1 :]]
        sent -= len(part)
    return []


def listen_at(path: str) -> Listening:
    """Return a listener at `path`, for this user only.

    Raises:
        OSError: The path is taken, too long (107 bytes), or cannot be made.
    """
    return LoopbackListener(path) if is_portable() else listening_socket(path)


def listening_socket(path: str) -> socket.socket:
    """Return a unix socket that listens at `path`; see `listen_at`.

    It gets its name when it listens already: one that does not is taken for the rest of a killed process and removed.
    """
    before = f"{path.removesuffix('.sock')}.new"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(before)
        try:
            os.chmod(before, 0o600)
            listening.listen(4096)  # a busy actor does not accept connections, and connecting must not wait for it
            os.link(before, path)
        finally:
            os.unlink(before)
    except BaseException:
        listening.close()
        raise
    return listening


def connect_to(path: str, *, wait: bool) -> socket.socket:
    """Return a connection to the listener at `path`.

    Args:
        path: The path.
        wait: Whether to wait until the listener has authenticated itself, where it has to.

    Raises:
        ChannelClosed: Nothing listens there.
        OSError: This process has no descriptors or no memory left, whatever listens there.
    """
    try:
        if is_portable():
            return connect_loopback(path, wait=wait)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        if is_shortage(error):
            raise
        raise ChannelClosed(f"nothing listens at {path}: {error.strerror or error}") from error
    return connection


def private_directory(parent: Path) -> Path:
    """Return a new private directory for sockets: below `parent`, or below /tmp if that is unsuitable.

    Raises:
        OSError: Both names are too long, or both are not writable.
    """
    if is_portable():
        return Path(tempfile.mkdtemp(prefix="parl-", dir=parent))
    for place in (parent, Path("/tmp")):
        with contextlib.suppress(OSError):
            if len(os.fsencode(place)) <= _LONGEST_PATH:
                return Path(tempfile.mkdtemp(prefix="parl-", dir=place))
    raise OSError(f"{parent} and /tmp are too long or cannot be written to")


def sweep_directories(parent: Path) -> list[Path]:
    """Remove the directories of nodes that were killed before they could clean up; return those removed.

    Such a directory is private to this user and has a node's socket without a listener, or, if an earlier cleanup was
    interrupted, only actors' sockets without listeners.
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
    """Return whether the process at the other end is this user's; on loopback it has proved that already."""
    return isinstance(connection, LoopbackSocket) or _peer_credentials(connection)[1] == os.getuid()


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end (that began to listen, for a connecting end); 0 if it is not seen here."""
    return 0 if isinstance(connection, LoopbackSocket) else _peer_credentials(connection)[0]


def unread_bytes(connection: socket.socket) -> int:
    """Return the number of sent bytes that the peer has not read; 0 where unknown, or if the connection is closed."""
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

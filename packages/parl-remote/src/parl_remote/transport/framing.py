"""How messages of frames lie in a byte stream, and how they are cut out of it again.

    offset  size       field
    0       4          number of frames, n (1 or more)
    4       8 * n      length of each frame in bytes
    4+8n    ...        the frames, one after the other

All numbers are little-endian and unsigned. Small messages are read together, many with one system call; a message
that does not fit into the read-ahead buffer is read straight into memory of its own, one block a frame.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence

from parl_remote.errors import LocalProtocolError, RemoteProtocolError
from parl_remote.transport import Buffer

__all__ = ["FrameReader", "frame_prefix"]

_READ_AHEAD = 2**16  # a pipe's worth: some thousand small calls, one system call
_READ_AHEAD_AT_FIRST = 2**12  # many connections carry a few small messages in all: one page, not sixteen
_COUNT = struct.Struct("<I")
_ONE = struct.Struct("<IQ")
_MAX_FRAMES = 2**20  # a list of a million arrays is data, ten million "frames" are garbage

_unpack_one = _ONE.unpack_from
_pack_one = _ONE.pack


def frame_prefix(frames: Sequence[Buffer]) -> bytes:
    """Return the bytes that go before `frames` in the stream."""
    if len(frames) == 1:
        return _pack_one(1, len(frames[0]))
    if not frames:
        raise LocalProtocolError("a message needs a frame")
    return struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))


class FrameReader:
    """Turns what a stream socket delivers into messages.

    Args:
        max_bytes: Largest message that is accepted.
        allocate: Makes writable memory for a frame that is too long for the read-ahead buffer.
    """

    __slots__ = ("_allocate", "_buffer", "_end", "_frames", "_max_bytes", "_missing", "_start", "_view")

    def __init__(self, max_bytes: int, allocate: Callable[[int], Buffer] = bytearray) -> None:
        self._max_bytes = max_bytes
        self._allocate = allocate
        self._buffer = bytearray(_READ_AHEAD_AT_FIRST)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._frames: list[memoryview] = []
        self._missing: list[memoryview] = []

    def limit(self, max_bytes: int) -> None:
        """Accept messages up to this size from now on."""
        self._max_bytes = max_bytes

    def next(self) -> list[memoryview] | None:
        """Return the next message that was read completely, None if there is none.

        Raises:
            RemoteProtocolError: What was read cannot be a message.
        """
        start, available = self._start, self._end - self._start
        if available < 12 or self._missing:
            return self._finished() if self._frames else None
        count, length = _unpack_one(self._buffer, start)
        if count == 1:
            body = start + 12
            if body + length <= self._end:
                self._start = end = body + length
                if end == self._end:
                    self._start = self._end = 0
                return [memoryview(self._buffer[body:end])]
            lengths: tuple[int, ...] = (length,)
        else:
            if not 1 <= count <= _MAX_FRAMES:
                raise RemoteProtocolError(f"a message of {count} frames cannot be")
            if available < 4 + 8 * count:
                # No more than twice of what has come: whoever announces a million frames has to send their lengths.
                self._make_room(min(4 + 8 * count, 2 * max(available, _READ_AHEAD)))
                return None
            lengths = struct.unpack_from(f"<{count}Q", self._buffer, start + 4)
            body = start + 4 + 8 * count
        if sum(lengths) > self._max_bytes:
            raise RemoteProtocolError(f"a message of {sum(lengths)} bytes passes the limit of {self._max_bytes}")
        return self._cut(body, lengths)

    def _cut(self, body: int, lengths: tuple[int, ...]) -> list[memoryview] | None:
        """Take the frames from the buffer as far as they are there, and note what is missing."""
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

    def _finished(self) -> list[memoryview] | None:
        if self._frames and not self._missing:
            frames, self._frames = self._frames, []
            return frames
        return None

    @property
    def inside_message(self) -> bool:
        """Whether a part of a message is there and the rest is not."""
        return bool(self._missing) or self._end > self._start

    def fill(self, source: socket.socket, flags: int = 0) -> None:
        """Read once from `source`.

        Raises:
            EOFError: The peer has closed the connection.
            BlockingIOError: Nothing is there and `flags` or the socket say not to wait.
            OSError: The connection broke.
        """
        if self._missing:
            self._fill_missing(source, flags)
            return
        if self._start and len(self._buffer) - self._end < len(self._buffer) // 4:
            self._make_room(0)
        got = source.recv_into(self._view[self._end :] if self._end else self._buffer, 0, flags)
        if not got:
            raise EOFError
        self._end += got
        if self._end == len(self._buffer) < _READ_AHEAD:
            self._make_room(_READ_AHEAD)  # there is more than this at a time

    def _fill_missing(self, source: socket.socket, flags: int) -> None:
        missing = self._missing
        if len(missing) == 1:
            got = source.recv_into(missing[0], 0, flags)
        else:
            got = source.recvmsg_into(missing[:64], 0, flags)[0]
        if not got:
            raise EOFError
        done = 0
        while done < len(missing) and got >= len(missing[done]):
            got -= len(missing[done])
            done += 1
        del missing[:done]
        if got:
            missing[0] = missing[0][got:]

    def _make_room(self, needed: int) -> None:
        """Move what is left to the front, in a larger buffer if `needed` bytes would not fit."""
        rest = self._buffer[self._start : self._end]
        if needed > len(self._buffer):
            self._buffer = bytearray(max(needed, _READ_AHEAD))
            self._view = memoryview(self._buffer)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

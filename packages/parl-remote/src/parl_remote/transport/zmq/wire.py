"""How one message becomes zmq's parts and back; no zmq in here.

    first part   | kind u8 | 0 u24 | number of frames u32 | length u64 of each frame |
    INLINE       the frames follow in the same part, each at a multiple of 8 bytes, as arrays want to lie
    PARTS        the frames follow in further parts, each cut into pieces of at most 1 MiB
    OPEN, BYE    begin and end a connection; no frames

Long frames are cut so that one end encrypts while the other decrypts, so that heartbeats pass between the pieces, and
so that zmq can refuse larger parts (`MAX_PART`) from whoever announces them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from parl_remote.errors import RemoteProtocolError
from parl_remote.transport import Buffer

__all__ = ["MAX_PART", "Kind", "pack", "pack_bare", "unpack"]


class Kind(IntEnum):
    """What a message is for."""

    INLINE = 0
    PARTS = 1
    OPEN = 2
    BYE = 3


_HEAD = struct.Struct("<BxxxI")
_ALIGNMENT = 8
_INLINE_BELOW = 2**14  # copying so little costs less than another encrypted part
_CUT = 2**20
_MAX_FRAMES = 2**20  # as in `framing`: a list of a million arrays is data
_PADDING = [bytes(-rest % _ALIGNMENT) for rest in range(_ALIGNMENT)]  # by what is over of a frame's length
MAX_PART = 2 * _CUT


def pack_bare(kind: Kind) -> bytes:
    """The single part of a message without frames."""
    return _HEAD.pack(kind, 0)


def pack(frames: Sequence[Buffer]) -> list[Buffer]:
    """The parts that carry one message; one alone owns its memory, of several the later ones look into the frames."""
    views = [memoryview(frame) for frame in frames]
    sizes = [view.nbytes for view in views]
    inline = sum(sizes) < _INLINE_BELOW
    head = struct.pack(f"<BxxxI{len(sizes)}Q", Kind.INLINE if inline else Kind.PARTS, len(sizes), *sizes)
    if inline:
        if len(views) == 1:
            return [b"".join((head, views[0]))]
        padded = [part for view, size in zip(views, sizes, strict=True) for part in (view, _PADDING[size % _ALIGNMENT])]
        return [b"".join((head, *padded[:-1]))]
    parts: list[Buffer] = [head]
    for view, size in zip(views, sizes, strict=True):
        if size:
            flat = view.cast("B")
            parts.extend(flat[start : start + _CUT] for start in range(0, size, _CUT))
    return parts


def unpack(parts: Sequence[memoryview]) -> tuple[Kind, list[memoryview]]:
    """The kind of a message and its frames, which may look into the parts' memory.

    Raises:
        RemoteProtocolError: The parts are no message.
    """
    head = parts[0]
    if len(head) < _HEAD.size:
        raise RemoteProtocolError(f"a message's first part has {len(head)} bytes, its header alone {_HEAD.size}")
    number, count = _HEAD.unpack_from(head)
    body = _HEAD.size + 8 * count
    if number >= len(_KINDS) or count > _MAX_FRAMES or len(head) < body:
        raise RemoteProtocolError(f"a message of kind {number} with {count} frames in a part of {len(head)} bytes")
    kind = _KINDS[number]
    sizes = struct.unpack_from(f"<{count}Q", head, _HEAD.size)
    if kind is Kind.PARTS:
        return kind, _joined(sizes, parts[1:])
    if count == 1:
        starts = [body]
    else:
        starts = list(itertools.accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=body))
    end = starts[count - 1] + sizes[-1] if count else body
    if len(parts) != 1 or end != len(head):
        raise RemoteProtocolError(
            f"{len(parts)} parts, the first of {len(head)} bytes, for frames of {sizes[:8]} bytes"
        )
    return kind, [head[start : start + size] for start, size in zip(starts, sizes, strict=False)]


_KINDS = tuple(Kind)  # by number


def _joined(sizes: Sequence[int], parts: Sequence[memoryview]) -> list[memoryview]:
    expected = [piece for size in sizes for piece in _pieces(size, len(parts))]
    if expected != [len(part) for part in parts]:
        raise RemoteProtocolError(f"{len(parts)} parts do not hold {len(sizes)} frames of {sizes[:8]} bytes")
    rest = iter(parts)
    return [_whole(size, rest) for size in sizes]


def _pieces(size: int, limit: int) -> Iterator[int]:
    """The lengths of a frame's pieces; a lying size yields no more than one over `limit`."""
    full, last = divmod(size, _CUT)
    yield from itertools.repeat(_CUT, min(full, limit + 1))
    if last:
        yield last


def _whole(size: int, parts: Iterator[memoryview]) -> memoryview:
    if size <= _CUT:
        return next(parts) if size else memoryview(b"")
    whole = memoryview(bytearray(size))
    for start in range(0, size, _CUT):
        piece = next(parts)
        whole[start : start + len(piece)] = piece
    return whole

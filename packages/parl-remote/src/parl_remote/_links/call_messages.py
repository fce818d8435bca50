"""The messages between a caller and an actor: a fixed header, then opaque pickles.

    offset  size  field of the first frame
    0       1     kind (see `Kind`)
    1       1     flags (see `Flag`)
    2       2     index of the method or attribute in the list agreed at CREATE; BY_NAME: the payload has it
    4       4     number of the call, chosen by the caller, repeated in the reply
    8       ...   payload; with Flag.SPLIT it is the second frame instead
    further frames: buffers that belong to the payload

    caller -> actor   CREATE, CALL, GET, SET, NAMES, CANCEL, CLOSE, JOIN, RECEIVED
    worker -> actor   CONFIGURE (JSON), HOLD, RELEASE, CALLER (with a socket, see `transport.sealed`)
    actor -> caller   RESULT, FAILURE, STATE

Calls are the fast path, so a message here is a list of frames and not an object; all other messages are in
`messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from parl_remote._transport import Buffer, CutMessage
from parl_remote.errors import RemoteProtocolError

__all__ = [
    "BY_NAME",
    "CREDIT",
    "CREDIT_EVERY",
    "HEADER_BYTES",
    "WINDOW",
    "ClusterReach",
    "Flag",
    "Kind",
    "credit",
    "credit_of",
    "header_of",
    "pack",
    "payload_of",
    "refusal_of",
    "size_of",
]


class Kind(IntEnum):
    """The kind of a message.

    CREATE: its result is the names of the object's attributes. CLOSE: the caller needs the actor no more; with index 1
    it is the owner, and the actor ends. NAMES: requests the names of the actor's attributes, those of its class that
    are not agreed on included. HOLD, RELEASE: a borrower is expected to connect; none is any more. JOIN: the first
    message of a caller that is not the owner; with index 1 it does not keep the actor alive. RECEIVED: the handles in
    the answer of that number have arrived; with index 1 the answer is no longer needed. STATE: the object's saved
    state, for the owner. CALLER: the connection of a caller on another host. REFUSED: the last message to a caller for
    which the actor, or a relay, has no descriptor or memory left; its payload is the reason. RECORD: the worker
    requests the times of calls (see `actor.reports`).
    """

    CREATE = 1
    CALL = 2
    GET = 3
    SET = 4
    CANCEL = 5
    CLOSE = 6
    CONFIGURE = 7
    NAMES = 8
    HOLD = 9
    RELEASE = 10
    JOIN = 11
    RECEIVED = 12
    CALLER = 13
    RECORD = 14
    RESULT = 17
    FAILURE = 18
    STATE = 20
    REFUSED = 21


class Flag(IntFlag):
    """Flags that define how the payload is read.

    EMPTY: there is none: no arguments, or the result None. KEYWORDS: it is `(args, kwargs)` and not `args`. SPLIT: it
    is a frame of its own. NAMES: a reply's payload is `(value, attribute names)`, because they changed. STAYS: the
    result stays in the actor: an attribute that is a method, or, for `__enter__`, `__iter__`, `+=` and the like, the
    object itself. CANCELLED: of a failure; the call was dropped before it started. TICKETS: frames are in shared memory
    (see `large_frames`). SHARES: of CREATE and JOIN; the caller accepts answers with tickets. HANDLES: of a result; it
    contains handles of actors, which are held until RECEIVED.
    """

    NONE = 0
    EMPTY = 1
    KEYWORDS = 2
    HANDLES = 2
    SPLIT = 4
    NAMES = 8
    STAYS = 16
    CANCELLED = 32
    TICKETS = 64
    SHARES = 128


HEADER_BYTES: Final = 8
BY_NAME: Final = 0xFFFF
_SPLIT_FROM = 2**14  # below it, joining header and payload is cheaper than one more frame
_SPLIT = int(Flag.SPLIT)
_EMPTY = int(Flag.EMPTY)
_HEADER = struct.Struct("<BBHI")
_pack_header = _HEADER.pack
_unpack_header = _HEADER.unpack_from


def pack(kind: int, flags: int, index: int, call_id: int, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a message's frames; `payload` is the result of `serialize.dumps`, or empty."""
    if not payload:
        return [_pack_header(kind, flags | _EMPTY, index, call_id)]
    data = payload[0]
    if len(data) < _SPLIT_FROM:
        return [_pack_header(kind, flags, index, call_id) + data, *payload[1:]]
    return [_pack_header(kind, flags | _SPLIT, index, call_id), *payload]


def refusal_of(reason: str) -> list[Buffer]:
    """Return the message to a caller whose connection is refused, or ended, for lack of descriptors or memory."""
    return pack(Kind.REFUSED, 0, 0, 0, [f"it refused the connection: {reason}".encode()])


def header_of(frame: Buffer) -> tuple[int, int, int, int]:
    """Return kind, flags, index and number of the call.

    Raises:
        RemoteProtocolError: The frame is too short.
    """
    try:
        return _unpack_header(frame)
    except struct.error:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is too short for a call") from None


def payload_of(flags: int, frames: Sequence[memoryview]) -> tuple[Buffer, Sequence[memoryview]]:
    """Return pickle and buffers, for `serialize.loads`.

    Raises:
        RemoteProtocolError: A frame that the header announces is missing.
    """
    if not flags & _SPLIT:
        return frames[0][HEADER_BYTES:], frames[1:]
    if len(frames) < 2:
        raise RemoteProtocolError("a message lacks its payload")
    return frames[1], frames[2:]


class ClusterReach(NamedTuple):
    """The way from a node's actors to their cluster; serialized as JSON.

    Attributes:
        address: The displayed address: "host:port" of the master, or "local".
        socket_dir: The node's directory of unix sockets.
        master_is_here: Whether the node's socket leads to the master, too.
        key_file: The cluster's key; empty for a private cluster, which has none.
    """

    address: str
    socket_dir: str
    master_is_here: bool
    key_file: str


# -- credits of a relayed connection, between the worker's relay and either end; see `program.relayed_channel` --------

WINDOW = 2**25  # bytes; covers a round trip of 30 ms at a gigabyte a second, and is small beside a worker's actors
CREDIT_EVERY = WINDOW // 4
CREDIT = 0  # first byte of the message; no `Kind` has it
_CREDIT = struct.Struct("<BxxxxxxxQ")
_FRAME_COST = 64  # bytes that a frame takes beside its content, so that empty messages count as well


def credit(taken: int) -> bytes:
    """Return the message that credits the bytes forwarded since the last one."""
    return _CREDIT.pack(CREDIT, taken)


def credit_of(frames: Sequence[memoryview]) -> int:
    """Return the number of bytes that a credit message grants.

    Raises:
        RemoteProtocolError: The message is not a credit.
    """
    if len(frames) != 1 or len(frames[0]) != _CREDIT.size:
        raise RemoteProtocolError("a message that begins like a credit is not one")
    taken: int = _CREDIT.unpack(frames[0])[1]
    return taken


def size_of(frames: Sequence[Buffer]) -> int:
    """Return the number of bytes that a message takes from the window."""
    if type(frames) is CutMessage:
        return sum(frames.lengths) + _FRAME_COST * len(frames)
    if len(frames) == 1:
        return len(frames[0]) + _FRAME_COST
    return sum(map(len, frames)) + _FRAME_COST * len(frames)

"""Frames, which limit the effect of damage in a segment, and the header, which is the first frame of a segment.

    E5 4B | length, u16 | CRC-32 of length and payload, u32 | payload          (little-endian numbers)

A reader skips a damaged frame and continues at the next good one. Bad bytes at the very end, with no good frame after
them, count as not yet written while the writer may still have the file open. Later, only the beginning of a frame
counts as not yet written, since a copy of the file may have been made while it was written.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parl_evokit._records import BYTES, FIXED32, VARINT, read_fields, varint
from parl_evokit.errors import RecordError

__all__ = ["SYNC", "Frames", "Header", "Scan", "cut_off", "find_frames", "frame", "is_header", "scan"]


FEW = 64  # frames of one length, below which each checksum is computed alone
MANY = 2**16  # bytes from which on frames are looked for together
SUFFIX = ".evl"  # suffix of a segment's file
SYNC = b"\xe5\x4b"
HEAD = struct.Struct("<2sHI")
LENGTH = struct.Struct("<H")
LARGEST_PAYLOAD = 2**16 - 1


def frame(payload: bytes) -> bytes:
    """Return the frame of a payload of up to 65535 bytes.

    Raises:
        RecordError: The payload is longer.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise RecordError(f"a frame holds up to {LARGEST_PAYLOAD} bytes, not {len(payload)}")
    length = LENGTH.pack(len(payload))
    return HEAD.pack(SYNC, len(payload), zlib.crc32(payload, zlib.crc32(length))) + payload


@dataclass
class Frames:
    """The good frames of a stretch of a segment.

    Attributes:
        places: Index of the first byte of each frame.
        ends: Index after the last byte of each frame.
        damage: (start, end) of the parts that were skipped.
        end: Start of the next search: after the last good frame.
    """

    places: list[int]
    ends: list[int]
    damage: list[tuple[int, int]]
    end: int


def find_frames(data: bytes, start: int = 0) -> Frames:
    """Find all good frames from `start` on; places count from the beginning of `data`."""
    places: list[int] = []
    ends: list[int] = []
    damage: list[tuple[int, int]] = []
    if len(data) - start >= MANY:
        places, ends = _regular_frames(data, start)
    end = place = ends[-1] if ends else start
    unpack, crc32, size, head, seeds = HEAD.unpack_from, zlib.crc32, len(data), HEAD.size, _SEEDS
    while place + head <= size:
        sync, length, checksum = unpack(data, place)
        after = place + head + length
        if sync == SYNC and after <= size:
            seed = seeds.get(length)
            if seed is None:
                seed = seeds[length] = crc32(LENGTH.pack(length))
            if crc32(data[place + head : after], seed) == checksum:
                if place > end:
                    damage.append((end, place))
                places.append(place)
                ends.append(after)
                end = place = after
                continue
        place = data.find(SYNC, place + 1)
        if place < 0:
            break
    return Frames(places, ends, damage, end)


def cut_off(data: bytes) -> int:
    """Return the start of a frame that may be truncated by the end of the data; else the length of the data."""
    place = data.find(SYNC[:1])
    while place >= 0:
        head = data[place : place + HEAD.size]
        if SYNC.startswith(head[: len(SYNC)]) and (
            len(head) < HEAD.size or place + HEAD.size + HEAD.unpack(head)[1] > len(data)
        ):
            return place
        place = data.find(SYNC[:1], place + 1)
    return len(data)


_SEEDS: dict[int, int] = {}  # checksums of lengths: pure numbers, few of which occur


def _regular_frames(data: bytes, start: int) -> tuple[list[int], list[int]]:
    """Return positions and ends of good frames from `start` on, up to the first bytes that are not a frame.

    Checksums of all frames of one length are computed together, column by column.
    """
    content = np.frombuffer(data, np.uint8)
    at = np.flatnonzero((content[start:-1] == SYNC[0]) & (content[start + 1 :] == SYNC[1])) + start
    at = at[at + HEAD.size <= len(data)]
    if not len(at) or at[0] != start:
        return [], []
    lengths = content[at + 2].astype(np.int64) | content[at + 3].astype(np.int64) << 8
    after = at + HEAD.size + lengths
    following = np.searchsorted(at, after)
    following[(following == len(at)) | (after > len(data))] = len(at) - 1
    rows = _chain(at[following] == after, following)
    if after[rows[-1]] > len(data):
        rows = rows[:-1]
    at, lengths, after = at[rows], lengths[rows], after[rows]
    good = np.zeros(len(rows), np.bool_)
    for length in np.flatnonzero(np.bincount(lengths, minlength=1)).tolist():
        same = np.flatnonzero(lengths == length)
        if len(same) >= FEW:
            good[same] = _checksums(content, at[same], length)
            continue
        for row in same.tolist():
            place = int(at[row])
            payload = data[place + HEAD.size : place + HEAD.size + length]
            good[row] = zlib.crc32(payload, zlib.crc32(LENGTH.pack(length))) == HEAD.unpack_from(data, place)[2]
    stop = len(good) if good.all() else int(good.argmin())
    return at[:stop].tolist(), after[:stop].tolist()


def _chain(goes_on: NDArray[np.bool_], following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the chain that starts at row 0, and goes from a row to its following one while it goes on.

    Nearly always the following row is the next one, which costs no loop here.
    """
    others = np.flatnonzero(~goes_on | (following != np.arange(1, len(following) + 1))).tolist()  # the last is there
    runs: list[NDArray[np.int64]] = []
    row = 0
    for other in others:
        if other < row:  # skipped: within the payload of an earlier frame
            continue
        runs.append(np.arange(row, other + 1))
        if not goes_on[other]:
            break
        row = int(following[other])
    return np.concatenate(runs)


def _checksums(content: NDArray[np.uint8], at: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Return a mask of the frames of one length with a valid checksum."""
    state = np.full(len(at), zlib.crc32(LENGTH.pack(length)) ^ 0xFFFFFFFF, np.uint32)
    first = at + HEAD.size
    for column in range(length):
        state = _TABLE[(state ^ content[first + column]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    found = np.zeros(len(at), np.uint32)
    for byte in range(4):
        found |= content[at + 4 + byte].astype(np.uint32) << np.uint32(8 * byte)
    holds: NDArray[np.bool_] = (state ^ np.uint32(0xFFFFFFFF)) == found
    return holds


def _table() -> NDArray[np.uint32]:
    """Return the remainders of CRC-32 for each byte."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & np.uint32(1), states >> np.uint32(1) ^ np.uint32(0xEDB88320), states >> np.uint32(1))
    return states


_TABLE = _table()


@dataclass
class Scan:
    """The content of a stretch of a segment.

    Attributes:
        payloads: Payloads of the good frames, in order.
        places: Index of the first byte of each frame.
        damage: (start, end) of the parts that were skipped.
        end: Start of the next scan: after the last good frame.
    """

    payloads: list[bytes]
    places: list[int]
    damage: list[tuple[int, int]]
    end: int


def scan(data: bytes, start: int = 0) -> Scan:
    """Read all frames from `start` on.

    Args:
        data: Bytes of a segment, or a part of them; all places count from their beginning.
        start: 0, or the `end` of an earlier scan.
    """
    found = find_frames(data, start)
    payloads = [data[place + HEAD.size : end] for place, end in zip(found.places, found.ends, strict=True)]
    return Scan(payloads, found.places, found.damage, found.end)


FORMAT = 1
FORMAT_TAG, SEGMENT_TAG, FINGERPRINT_TAG = 1 << 3 | VARINT, 2 << 3 | BYTES, 3 << 3 | FIXED32
HOST_TAG, PID_TAG, TIME_TAG = 4 << 3 | BYTES, 5 << 3 | VARINT, 6 << 3 | VARINT


@dataclass(frozen=True)
class Header:
    """The description of a segment.

    Attributes:
        segment: Random name of the segment, 32 hexadecimal digits.
        fingerprint: Fingerprint of the samples whose records contain none.
        host: Name of the host that wrote it.
        pid: Process that wrote it.
        time_us: Time at which it was begun, in microseconds since 1970 (UTC).
    """

    segment: str
    fingerprint: int
    host: str = ""
    pid: int = 0
    time_us: int = 0

    def encode(self) -> bytes:
        """Return the header as a message; its first byte distinguishes it from a record."""
        segment, host = self.segment.encode(), self.host.encode()
        return b"".join(
            (
                bytes((FORMAT_TAG, FORMAT)),
                bytes((SEGMENT_TAG,)) + varint(len(segment)) + segment,
                bytes((FINGERPRINT_TAG,)) + self.fingerprint.to_bytes(4, "little"),
                bytes((HOST_TAG,)) + varint(len(host)) + host,
                bytes((PID_TAG,)) + varint(self.pid),
                bytes((TIME_TAG,)) + varint(self.time_us),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "Header":
        """Return the header that `encode` wrote.

        Raises:
            RecordError: The bytes are not a header of format 1.
        """
        fields = {number: value for number, _, value in read_fields(data)}
        segment, fingerprint, host = fields.get(2), fields.get(3), fields.get(4, b"")
        if fields.get(1) != FORMAT or not isinstance(segment, bytes) or not isinstance(fingerprint, bytes):
            raise RecordError(f"this is not the header of a log segment of format {FORMAT}")
        return cls(
            segment.decode(errors="replace"),
            int.from_bytes(fingerprint, "little"),
            host.decode(errors="replace") if isinstance(host, bytes) else "",
            _integer(fields.get(5)),
            _integer(fields.get(6)),
        )


def is_header(payload: bytes) -> bool:
    """Return whether the payload of a frame is a header; records begin with another field."""
    return len(payload) > 0 and payload[0] == FORMAT_TAG


def _integer(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0

"""Frames, which keep damage in a segment where it is, and the header that is a segment's first frame.

    E5 4B | length, u16 | CRC-32 of length and payload, u32 | payload          (numbers with the low byte first)

A frame that does not hold is skipped up to the next one that does. What is bad at the very end, with no good frame
after it, counts as not yet written: its writer may still be at it.
"""

import struct
import zlib
from dataclasses import dataclass

from parl_evokit._records import BYTES, FIXED32, VARINT, read_fields, varint
from parl_evokit.errors import LogError, RecordError

__all__ = ["SYNC", "Header", "Scan", "frame", "is_header", "scan"]


SUFFIX = ".evl"  # of a segment's file
SYNC = b"\xe5\x4b"
HEAD = struct.Struct("<2sHI")
LENGTH = struct.Struct("<H")
LARGEST_PAYLOAD = 2**16 - 1


def frame(payload: bytes) -> bytes:
    """Return the frame of a payload of up to 65535 bytes.

    Raises:
        LogError: It is longer.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise LogError(f"a frame holds up to {LARGEST_PAYLOAD} bytes, not {len(payload)}")
    length = LENGTH.pack(len(payload))
    return HEAD.pack(SYNC, len(payload), zlib.crc32(payload, zlib.crc32(length))) + payload


@dataclass
class Scan:
    """The content of a stretch of a segment.

    Attributes:
        payloads: Of the good frames, in order.
        places: Where each of them begins.
        damage: (start, end) of the stretches that were skipped.
        end: Where the next scan goes on: after the last good frame.
    """

    payloads: list[bytes]
    places: list[int]
    damage: list[tuple[int, int]]
    end: int


def scan(data: bytes, start: int = 0) -> Scan:
    """Read all frames from `start` on.

    Args:
        data: A segment's bytes, or a stretch of them; all places count from its beginning.
        start: Where to begin: 0, or the `end` of an earlier scan.
    """
    payloads: list[bytes] = []
    places: list[int] = []
    damage: list[tuple[int, int]] = []
    end = place = start
    unpack, crc32, size = HEAD.unpack_from, zlib.crc32, len(data)
    while place + HEAD.size <= size:
        sync, length, checksum = unpack(data, place)
        after = place + HEAD.size + length
        if sync == SYNC and after <= size:
            payload = data[place + HEAD.size : after]
            if crc32(payload, crc32(data[place + 2 : place + 4])) == checksum:
                if place > end:
                    damage.append((end, place))
                payloads.append(payload)
                places.append(place)
                end = place = after
                continue
        place = data.find(SYNC, place + 1)
        if place < 0:
            break
    return Scan(payloads, places, damage, end)


FORMAT = 1
FORMAT_TAG, SEGMENT_TAG, FINGERPRINT_TAG = 1 << 3 | VARINT, 2 << 3 | BYTES, 3 << 3 | FIXED32
HOST_TAG, PID_TAG, TIME_TAG = 4 << 3 | BYTES, 5 << 3 | VARINT, 6 << 3 | VARINT


@dataclass(frozen=True)
class Header:
    """The description of a segment.

    Attributes:
        segment: Its random name, 32 hexadecimal digits.
        fingerprint: Of the samples in it that do not carry one of their own.
        host: Where it was written.
        pid: By which process.
        time_us: When it was begun, in microseconds since 1970 (UTC).
    """

    segment: str
    fingerprint: int
    host: str = ""
    pid: int = 0
    time_us: int = 0

    def encode(self) -> bytes:
        """Return the header as a message; its first byte tells it from a record."""
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
        """Read what `encode` wrote.

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
    """Return whether a frame's payload is a header; records begin with another field."""
    return len(payload) > 0 and payload[0] == FORMAT_TAG


def _integer(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0

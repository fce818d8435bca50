"""Frames: how records lie in a segment so that damage stays where it is.

    E5 4B | length, u16 | CRC-32 of length and payload, u32 | payload          (numbers with the low byte first)

A frame that does not hold is skipped up to the next one that does. What is bad at the very end, with no good frame
after it, counts as not yet written: its writer may still be at it.
"""

import struct
import zlib
from dataclasses import dataclass

from parl_evokit.errors import LogError

__all__ = ["SYNC", "Scan", "frame", "scan"]

SYNC = b"\xe5\x4b"
HEAD = struct.Struct("<2sHI")
LENGTH = struct.Struct("<H")
LARGEST_PAYLOAD = 2**16 - 1


def frame(payload: bytes) -> bytes:
    """The frame of a payload of up to 65535 bytes.

    Raises:
        LogError: It is longer.
    """
    if len(payload) > LARGEST_PAYLOAD:
        raise LogError(f"a frame holds up to {LARGEST_PAYLOAD} bytes, not {len(payload)}")
    length = LENGTH.pack(len(payload))
    return HEAD.pack(SYNC, len(payload), zlib.crc32(payload, zlib.crc32(length))) + payload


@dataclass
class Scan:
    """What a stretch of a segment holds.

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

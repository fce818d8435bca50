"""Protobuf's wire form: varints, fixed 32 bits and length-delimited fields, for the few messages of `evokit.proto`.

A field is a tag, (number << 3 | kind) as a varint, and its value. Readers skip numbers that they do not know.
"""

from collections.abc import Iterator

from parl_evokit.errors import RecordError

__all__ = ["BYTES", "FIXED32", "VARINT", "read_fields", "read_varint", "varint"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
ONE_BYTE = [bytes((number,)) for number in range(0x80)]
MORE_FOLLOWS = (0, 0, 0x80, 0x8080, 0x808080)  # the mark on all bytes but the last, by their number


def varint(number: int) -> bytes:
    """A number from 0 to 2**64 - 1 in groups of seven bits, lowest first; negative ones as their 64-bit complement."""
    if 0 <= number < 0x80:
        return ONE_BYTE[number]
    if 0 <= number < 2**28:
        size = (number.bit_length() + 6) // 7
        groups = number & 0x7F | (number & 0x3F80) << 1 | (number & 0x1FC000) << 2 | (number & 0xFE00000) << 3
        return (groups | MORE_FOLLOWS[size]).to_bytes(size, "little")
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number at `start`, and where the next thing begins.

    Raises:
        RecordError: The bytes end within the number, or it is longer than ten bytes.
    """
    number = shift = 0
    for place in range(start, min(start + LONGEST_VARINT, len(data))):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), place + 1
        shift += 7
    raise RecordError(f"byte {start} of {len(data)} begins a number that does not end")


def read_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """All fields as (number, kind, value): an integer, or bytes for length-delimited and fixed ones.

    Raises:
        RecordError: The bytes are not a message.
    """
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = read_varint(data, place)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, place = read_varint(data, place)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise RecordError(f"byte {place} of {len(data)} has field kind {kind}, which messages do not have")
        if place + length > len(data):
            raise RecordError(f"a field of {length} bytes begins at byte {place}, but there are only {len(data)}")
        yield number, kind, data[place : place + length]
        place += length

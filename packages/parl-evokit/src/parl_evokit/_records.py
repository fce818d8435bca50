"""The encoded form of one sample: the record that is logged when it is served, and the one with its reward.

`SamplingInfo` is the message of the PARL 1.x manual, `Record` one entry of a log; `evokit.proto` has both. They are
encoded by hand, because an online service writes one per request. This module also has the wire format of records and
of segment headers, which is that of protobuf: a field is a tag, (number << 3 | kind) as a varint, followed by its
value. Readers skip unknown field numbers.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np

from parl_evokit.errors import RecordError, _shown
from parl_evokit.noise._keys import CONTROL_KEY, HALF_BITS, HALF_MASK, KEY_BITS, check_key, join_key

__all__ = [
    "BYTES",
    "FIXED32",
    "VARINT",
    "Record",
    "SamplingInfo",
    "decision",
    "encode_sample",
    "is_decision",
    "read_fields",
    "read_varint",
    "sampling_infos",
    "varint",
]


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
ONE = b"\x01"
ONE_BYTE = [bytes((number,)) for number in range(0x80)]
MORE_FOLLOWS = (0, 0, 0x80, 0x8080, 0x808080)  # the mark on all bytes but the last, by their number


def varint(number: int) -> bytes:
    """Return a number below 2**64 in groups of seven bits, lowest first; a negative one as its 64-bit complement."""
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
    """Return the number at `start`, and the index of the byte after it.

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
    raise RecordError(f"the number at byte {start} of {len(data)} does not end")


def read_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield all fields as (number, kind, value): an integer, or bytes for length-delimited and fixed ones.

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
            raise RecordError(f"byte {place} of {len(data)} has the invalid field kind {kind}")
        if place + length > len(data):
            raise RecordError(f"a field of {length} bytes begins at byte {place}, but there are only {len(data)}")
        yield number, kind, data[place : place + length]
        place += length


KEY_TAG = 1 << 3 | VARINT
KEY, MODEL, FINGERPRINT = varint(KEY_TAG), varint(2 << 3 | VARINT), varint(3 << 3 | FIXED32)
IDENTITY = varint(4 << 3 | FIXED64)
INFO, REWARD, TIME, COUNT, TOKEN, REFUSED = (
    varint(tag)
    for tag in (1 << 3 | BYTES, 2 << 3 | FIXED32, 3 << 3 | VARINT, 4 << 3 | VARINT, 5 << 3 | VARINT, 6 << 3 | BYTES)
)
CONTEXT, ACTION, PROPENSITY = varint(7 << 3 | BYTES), varint(8 << 3 | VARINT), varint(9 << 3 | FIXED32)
FLOAT = struct.Struct("<f")
SMALLEST_FLOAT = 2.0**-149  # above 0, in 32 bits
UINT32 = struct.Struct("<I")
UINT64 = struct.Struct("<Q")
TWO_HALVES = struct.Struct("12B")


class SamplingInfo:
    """The noise of a sample, which must be logged beside its reward.

    Attributes:
        key: The two 31-bit halves of the key; may be assigned. Empty means no noise.
        model_iter_id: Number of updates of the perturbed model, 0 to 2**31 - 1.
        fingerprint: Checksum of noise and model, 0 to 2**32 - 1; 0 if it is unknown (records of PARL 1.x have none).
        identity: Number of a sample without noise, because all of these have the same key: 2 to 2**62 - 1; 0 for none.
    """

    # `drawn_key` is the key as one integer until its halves are read: a list, which may be changed, so that it
    # counts from then on. `origin` is the model's number and fingerprint, one tuple for all samples of a draw.
    __slots__ = ("_halves", "drawn_key", "identity", "origin")

    def __init__(
        self, key: Sequence[int] = (), model_iter_id: int = 0, fingerprint: int = 0, identity: int = 0
    ) -> None:
        self.key = list(key)
        self.origin = (model_iter_id, fingerprint)
        self.identity = identity

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts, *self.origin, self.identity)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Restore the attributes from older pickles, which were written without `__reduce__`."""
        self.origin, self.identity = (0, 0), 0
        for name, value in state[1].items():
            setattr(self, name, value)

    @property
    def key(self) -> list[int]:
        if self.drawn_key is not None:
            self.key = self._parts
        return self._halves

    @key.setter
    def key(self, halves: list[int]) -> None:
        self._halves = halves
        self.drawn_key: int | None = None

    @property
    def _parts(self) -> list[int]:
        """Return the halves of the key as in `key`, which callers must not change."""
        drawn = self.drawn_key
        return self._halves if drawn is None else [drawn >> HALF_BITS, drawn & HALF_MASK]

    @property
    def model_iter_id(self) -> int:
        return self.origin[0]

    @model_iter_id.setter
    def model_iter_id(self, number: int) -> None:
        self.origin = (number, self.origin[1])

    @property
    def fingerprint(self) -> int:
        return self.origin[1]

    @fingerprint.setter
    def fingerprint(self, mark: int) -> None:
        self.origin = (self.origin[0], mark)

    @property
    def noise_key(self) -> int:
        """Key of the sample as one integer, 0 if `key` is empty.

        Raises:
            InvalidKey: `key` is neither empty nor two integers of 31 bits.
        """
        if (drawn := self.drawn_key) is not None:
            return drawn
        return join_key(self._halves) if self._halves else CONTROL_KEY

    def fill(self, noise_key: int, model_iter_id: int, fingerprint: int) -> None:
        """Replace all attributes by those of another sample."""
        self.drawn_key = check_key(noise_key)
        self.origin = (model_iter_id, fingerprint)
        self.identity = 0

    def SerializeToString(self) -> bytes:  # noqa: N802  the name in the PARL 1.x manual
        """Return the message as bytes; an unknown fingerprint (0) is left out.

        Raises:
            RecordError: A number does not fit its field.
        """
        return _info_bytes(self, self.fingerprint)

    def ParseFromString(self, data: bytes) -> int:  # noqa: N802  the name in the PARL 1.x manual
        """Replace all attributes by those of an encoded message.

        Returns:
            The number of bytes, all of which are read.

        Raises:
            RecordError: The bytes are not a message; this object is unchanged.
        """
        key: list[int] = []
        model_iter_id = fingerprint = identity = 0
        for number, kind, value in read_fields(data):
            if number == 1 and isinstance(value, int):
                key.append(value)
            elif number == 1 and kind == BYTES and isinstance(value, bytes):  # the packed form of repeated numbers
                key += _packed(value)
            elif number == 2 and isinstance(value, int):
                model_iter_id = value
            elif number == 3 and kind == FIXED32 and isinstance(value, bytes):
                fingerprint = UINT32.unpack(value)[0]
            elif number == 4 and kind == FIXED64 and isinstance(value, bytes):
                identity = UINT64.unpack(value)[0]
        if any(half >= 2**31 for half in key) or model_iter_id >= 2**31:
            raise RecordError(f"key {key} or model_iter_id {model_iter_id} is outside of 0 to 2**31 - 1")
        if identity >= 2**KEY_BITS:
            raise RecordError(f"identity {identity} is outside of 0 to 2**62 - 1")
        self.identity = identity
        self.key, self.model_iter_id, self.fingerprint = key, model_iter_id, fingerprint
        return len(data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SamplingInfo):
            return NotImplemented
        return (self._parts, self.origin, self.identity) == (other._parts, other.origin, other.identity)

    __hash__ = None  # type: ignore[assignment]  # its fields can change

    def __repr__(self) -> str:
        key, identity = f"key={_shown(self._parts)}", f", identity={_shown(self.identity)}" if self.identity else ""
        number = self.fingerprint
        fingerprint = f"{number:#010x}" if isinstance(number, int) and 0 <= number < 2**32 else _shown(number)
        return f"SamplingInfo({key}, model_iter_id={_shown(self.model_iter_id)}, fingerprint={fingerprint}{identity})"


def sampling_infos(noise_keys: Sequence[int], origin: tuple[int, int]) -> list[SamplingInfo]:
    """Return records of many samples of one model, from valid keys `[n]` and the model's number and fingerprint."""
    infos = list(map(SamplingInfo.__new__, repeat(SamplingInfo, len(noise_keys))))
    for info, key in zip(infos, noise_keys, strict=True):
        info.drawn_key = key
        info.origin = origin
        info.identity = 0
    return infos


@dataclass
class Record:
    """One entry of a log: a sample, its reward if known, or counts of refused tokens.

    Attributes:
        info: The noise of the sample.
        reward: A float32 number, or None while it is unknown.
        time_us: Time in microseconds since 1970 (UTC); 0 if unknown.
        count: Number of rewards of which `reward` is the mean; 1 or more.
        token: True if the reward came with a valid token.
        refused: Numbers of refused tokens, by reason (`tokens.Refusal`); a record with any of these has no sample.
        context: The input on which the action was chosen: float32 numbers, little-endian.
        action: Index of the chosen action, 0 or more; None if unknown.
        propensity: Probability with which the action was chosen, above 0 to 1.
    """

    info: SamplingInfo = field(default_factory=SamplingInfo)
    reward: float | None = None
    time_us: int = 0
    count: int = 1
    token: bool = False
    refused: dict[int, int] = field(default_factory=dict)
    context: bytes = b""
    action: int | None = None
    propensity: float = 1.0

    def encode(self) -> bytes:
        """Return the record as a message.

        Raises:
            RecordError: A number does not fit its field.
        """
        if self.refused:
            tallies = (b"\x08" + varint(reason) + b"\x10" + varint(n) for reason, n in self.refused.items())
            return b"".join(REFUSED + varint(len(tally)) + tally for tally in tallies)
        out = encode_sample(self.info, self.info.fingerprint, self.reward, self.time_us, self.token)
        if self.count != 1:
            if not 0 < self.count < 2**32:
                raise RecordError(f"count must be from 1 to 2**32 - 1, not {self.count}")
            out += COUNT + varint(self.count)
        if self.action is not None:
            out += decision(self.context, self.action, self.propensity)
        return out

    @classmethod
    def decode(cls, data: bytes) -> "Record":
        """Return the record that `encode` of this or a later version wrote; unknown fields are skipped.

        Raises:
            RecordError: The bytes are not a record.
        """
        record = cls()
        for number, kind, value in read_fields(data):
            if number == 1 and kind == BYTES and isinstance(value, bytes):
                record.info.ParseFromString(value)
            elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
                record.reward = FLOAT.unpack(value)[0]
            elif number == 3 and isinstance(value, int):
                record.time_us = value - 2**64 if value >= 2**63 else value
            elif number == 4 and isinstance(value, int):
                record.count = value & 0xFFFFFFFF
            elif number == 5 and isinstance(value, int):
                record.token = value != 0
            elif number == 7 and kind == BYTES and isinstance(value, bytes):
                record.context = value
            elif number == 8 and isinstance(value, int):
                record.action = value
            elif number == 9 and kind == FIXED32 and isinstance(value, bytes):
                record.propensity = FLOAT.unpack(value)[0]
            elif number == 6 and kind == BYTES and isinstance(value, bytes):
                tally = {name: n for name, _, n in read_fields(value) if isinstance(n, int)}
                record.refused[tally.get(1, 0)] = record.refused.get(tally.get(1, 0), 0) + tally.get(2, 0)
        if record.count < 1:
            raise RecordError("a record's count must be 1 or more, not 0")
        return record


def encode_sample(
    info: SamplingInfo, fingerprint: int, reward: float | None, time_us: int = 0, token: bool = False
) -> bytes:
    """Return `Record(info, reward, time_us, token=token).encode()` with this fingerprint instead of the info's.

    Raises:
        RecordError: A number does not fit its field.
    """
    message = _info_bytes(info, fingerprint)
    out = INFO + varint(len(message)) + message
    if reward is not None:
        try:
            out += REWARD + FLOAT.pack(reward)
        except OverflowError as error:
            raise RecordError(f"a reward must be a float32 number, for which {reward} is too large") from error
    if time_us:
        out += TIME + varint(time_us)
    return out + TOKEN + ONE if token else out


def decision(context: bytes, action: int, propensity: float) -> bytes:
    """Return the fields of a record that describe a decision.

    Raises:
        RecordError: The action is below 0, the propensity is not above 0 to 1, or the context is not finite numbers; in
            float32, as a log holds them.
    """
    if not is_decision(context, action, propensity):
        raise RecordError(
            f"an action must be 0 to 2**31 - 1, its propensity above 0 to 1, and its context finite float32 numbers; "
            f"not {_shown(action)}, {propensity} and {context[:40]!r}"
        )
    return CONTEXT + varint(len(context)) + context + ACTION + varint(action) + PROPENSITY + FLOAT.pack(propensity)


def is_decision(context: bytes, action: int, propensity: float) -> bool:
    """Return whether `off_policy` can evaluate this decision: a finite context, an action, and its probability."""
    if not 0 <= action < 2**31 or not SMALLEST_FLOAT <= propensity <= 1.0 or len(context) % 4:
        return False
    return bool(np.isfinite(np.frombuffer(context, "<f4")).all())


def _info_bytes(info: SamplingInfo, fingerprint: int) -> bytes:
    try:
        message = _key_bytes(info._parts) + _origin_bytes(info.model_iter_id, fingerprint)
        return message + _identity_bytes(info.identity) if info.identity else message
    except (AttributeError, TypeError, struct.error) as error:
        if not isinstance(info, SamplingInfo):
            raise RecordError(f"a sample must be a SamplingInfo, not of type {type(info).__name__}") from error
        raise RecordError(
            f"key, model_iter_id, fingerprint and identity of a sample must be integers, not {_shown(info.key)}, "
            f"{_shown(info.model_iter_id)}, {_shown(fingerprint)} and {_shown(info.identity)}"
        ) from error


def _key_bytes(key: Sequence[int]) -> bytes:
    """Return the key's numbers, each after its tag."""
    if len(key) == 2:
        a, b = key
        if 2**28 <= a < 2**31 and 2**28 <= b < 2**31:  # three keys in four: both numbers take five bytes
            return TWO_HALVES.pack(
                KEY_TAG, a & 127 | 128, a >> 7 & 127 | 128, a >> 14 & 127 | 128, a >> 21 & 127 | 128, a >> 28,
                KEY_TAG, b & 127 | 128, b >> 7 & 127 | 128, b >> 14 & 127 | 128, b >> 21 & 127 | 128, b >> 28,
            )  # fmt: skip
    for half in key:
        if not 0 <= half < 2**31:
            raise RecordError(f"a key consists of integers from 0 to 2**31 - 1, not {_shown(half)}")
    return b"".join([KEY + varint(half) for half in key])


@lru_cache(maxsize=64, typed=True)  # a service repeats a few of them
def _origin_bytes(model_iter_id: int, fingerprint: int) -> bytes:
    """Return the bytes that identify the perturbed model."""
    if not 0 <= model_iter_id < 2**31:
        raise RecordError(f"model_iter_id must be from 0 to 2**31 - 1, not {_shown(model_iter_id)}")
    if not fingerprint:
        return MODEL + varint(model_iter_id)
    if not 0 <= fingerprint < 2**32:
        raise RecordError(f"a fingerprint must be from 0 to 2**32 - 1, not {_shown(fingerprint)}")
    return MODEL + varint(model_iter_id) + FINGERPRINT + UINT32.pack(fingerprint)


def _identity_bytes(identity: int) -> bytes:
    if not 0 <= identity < 2**KEY_BITS:
        raise RecordError(f"an identity must be from 2 to 2**62 - 1, not {_shown(identity)}")
    return IDENTITY + UINT64.pack(identity)


def _packed(data: bytes) -> list[int]:
    numbers: list[int] = []
    place = 0
    while place < len(data):
        number, place = read_varint(data, place)
        numbers.append(number)
    return numbers

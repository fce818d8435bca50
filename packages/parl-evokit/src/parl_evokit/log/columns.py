"""Records to columns, a whole segment at a time.

Nearly all records have one layout: key, model, perhaps fingerprint; then perhaps a reward. These are decoded with
arrays, one field of all records after the other; whatever is laid out otherwise goes through `Record.decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parl_evokit.records import Record
from parl_evokit.samples import Samples

__all__ = ["Decoded", "decode"]

INFO, KEY, MODEL, FINGERPRINT, REWARD = 0x0A, 0x08, 0x10, 0x1D, 0x15  # tags of evokit.proto
LONGEST = 5  # bytes of a number below 2**31
PADDING = bytes(48)  # so that no look ahead leaves the data


@dataclass(frozen=True)
class Decoded:
    """Records that have a reward, and records of samples that were served (their rewards mean nothing)."""

    rewarded: Samples
    served: Samples


def decode(payloads: Sequence[bytes], fingerprint: int) -> Decoded:
    """Decode records.

    Args:
        payloads: Encoded records.
        fingerprint: Of those that do not carry one.

    Raises:
        RecordError: A payload is not a record.
    """
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    data = np.frombuffer(b"".join((*payloads, PADDING)), np.uint8)
    starts = np.cumsum(lengths) - lengths
    ends = starts + lengths

    usual = (lengths > 1) & (data[starts] == INFO)
    info_ends = starts + 2 + data[starts + 1]
    numbers: list[NDArray[np.int64]] = []
    place = starts + 2
    for tag in (KEY, KEY, MODEL):
        usual &= data[place] == tag
        number, place, whole = _numbers(data, np.where(usual, place + 1, starts))
        usual &= whole
        numbers.append(number)
    place = np.where(usual, place, starts)
    printed = usual & (data[place] == FINGERPRINT) & (place + 5 == info_ends)
    prints = np.where(printed, _fixed32(data, place + 1), 0)
    usual &= printed | (place == info_ends)
    rewarded = usual & (data[np.where(usual, info_ends, starts)] == REWARD) & (info_ends + 5 == ends)
    usual &= rewarded | (info_ends == ends)
    rewards = _fixed32(data, np.where(rewarded, info_ends + 1, starts)).astype(np.uint32).view(np.float32)

    columns = Samples(
        np.where(usual, numbers[0] << 31 | numbers[1], 0).astype(np.uint64),
        np.where(usual, numbers[2], 0),
        np.where(prints == 0, fingerprint, prints).astype(np.uint32),
        rewards,
        np.ones(len(payloads), np.uint32),
    )
    rare = [Record.decode(payloads[row]) for row in np.flatnonzero(~usual).tolist()]
    with_reward = _of([record for record in rare if record.reward is not None], fingerprint)
    without = _of([record for record in rare if record.reward is None], fingerprint)
    return Decoded(
        Samples.concatenated([columns.where(rewarded), with_reward]),
        Samples.concatenated([columns.where(usual & ~rewarded), without]),
    )


def _numbers(
    data: NDArray[np.uint8], place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The varints at these places, where the next field begins, and whether it was one below 2**31."""
    number = np.zeros(len(place), np.int64)
    length = np.zeros(len(place), np.int64)
    going = np.ones(len(place), np.bool_)
    for group in range(LONGEST):
        byte = data[place + group]
        number |= np.where(going, (byte & 0x7F).astype(np.int64) << (7 * group), 0)
        length += going
        going &= byte > 0x7F
    return number, place + length, ~going & (number < 2**31)


def _fixed32(data: NDArray[np.uint8], place: NDArray[np.int64]) -> NDArray[np.int64]:
    wide = [data[place + i].astype(np.int64) << (8 * i) for i in range(4)]
    return wide[0] | wide[1] | wide[2] | wide[3]


def _of(records: list[Record], fingerprint: int) -> Samples:
    for record in records:
        record.info.fingerprint = record.info.fingerprint or fingerprint
    samples = Samples.of([r.info for r in records], [0.0 if r.reward is None else r.reward for r in records])
    counts = np.array([record.count for record in records], np.uint32)
    return Samples(samples.keys, samples.models, samples.fingerprints, samples.rewards, counts)

"""Many samples as columns: what updates and logs work on, where a list of objects would be slow and large.

Records are decoded a whole segment at a time. Nearly all have one layout: key, model, perhaps fingerprint; then perhaps
a reward. These are decoded with arrays, one field of all records after the other; whatever is laid out otherwise goes
through `Record.decode`. Before an update they are sorted: which count, in which group, and why the others do not.

    samples ──► set aside: no key, foreign, orphan, too old, not finite
            ──► control:   no noise, their rewards only
            ──► groups:    by the model they perturbed, newest first; one reward a key

The outcome does not depend on the order in which the samples came.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import fsum
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parl_evokit._records import Record, SamplingInfo
from parl_evokit._report import SetAside
from parl_evokit.errors import InvalidKey, InvalidReward, RecordError
from parl_evokit.noise._keys import CONTROL_KEY, HALF_BITS, HALF_MASK, split_key

__all__ = ["NO_KEY", "Decoded", "Group", "Intake", "Samples", "decode", "noise_keys", "sort_samples"]


NO_KEY = CONTROL_KEY + 1  # the reserved key stands for what is none
INFO, KEY, MODEL, FINGERPRINT, REWARD = 0x0A, 0x08, 0x10, 0x1D, 0x15  # tags of evokit.proto
LONGEST = 5  # bytes of a number below 2**31
PADDING = bytes(48)  # so that no look ahead leaves the data
_Number = TypeVar("_Number", np.int64, np.uint32)


@dataclass(frozen=True, eq=False)
class Samples:
    """`n` samples with a reward each; several rewards of one sample are several rows.

    Attributes:
        keys: Noise keys; `NO_KEY` where the record's key was none.
        models: model_iter_id of the model that was perturbed.
        fingerprints: Of noise and model; 0 where not known.
        rewards: As logs hold them, in float32.
        counts: How many rewards each row's is the mean of.
    """

    keys: NDArray[np.uint64]
    models: NDArray[np.int64]
    fingerprints: NDArray[np.uint32]
    rewards: NDArray[np.float32]
    counts: NDArray[np.uint32]

    @classmethod
    def of(cls, infos: Sequence[SamplingInfo], rewards: Sequence[float] | NDArray[np.floating]) -> "Samples":
        """Return the columns of these records and rewards.

        Raises:
            InvalidReward: They differ in number, or a reward is no number.
            RecordError: A record is no `SamplingInfo`, or has a number that its wire form cannot hold.
        """
        n = len(infos)
        if not hasattr(rewards, "__len__"):
            raise InvalidReward(f"rewards are a sequence of numbers, not a {type(rewards).__name__}")
        if n != len(rewards):
            raise InvalidReward(f"{n} samples came with {len(rewards)} rewards: give one reward for each")
        try:
            numbers = np.asarray(rewards, np.float64)
        except OverflowError:
            numbers = np.array([_as_float(reward) for reward in rewards])
        except (TypeError, ValueError) as error:
            raise InvalidReward(f"a reward is a number: {error}") from error
        if numbers.shape != (n,):
            raise InvalidReward(f"rewards are one number a sample, an array ({n},), not one of shape {numbers.shape}")
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and will be set aside
            values = numbers.astype(np.float32)
        try:
            models = _column([info.model_iter_id for info in infos], np.int64)
            fingerprints = _column([info.fingerprint for info in infos], np.uint32)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise _wrong_info(infos) from error
        return cls(noise_keys(infos), models, fingerprints, values, np.ones(n, np.uint32))

    @classmethod
    def concatenated(cls, parts: Sequence["Samples"]) -> "Samples":
        """Return all rows of all parts."""
        if not parts:
            return cls.of([], [])
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.models for part in parts]),
            np.concatenate([part.fingerprints for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Samples":
        """Return some of the rows."""
        return Samples(
            self.keys[rows], self.models[rows], self.fingerprints[rows], self.rewards[rows], self.counts[rows]
        )

    def sorted_runs(self) -> tuple["Samples", NDArray[np.intp]]:
        """Return the rows by model, fingerprint and key, and where each sample's rows begin."""
        if not len(self):
            return self, np.empty(0, np.intp)
        alike = _all_equal(self.models) and _all_equal(self.fingerprints)
        by_key = (self.keys,) if alike else (self.keys, self.fingerprints, self.models)
        ordered = self.where(np.lexsort(by_key))
        begins = np.ones(len(self), np.bool_)
        changes = np.not_equal(ordered.keys[1:], ordered.keys[:-1], out=begins[1:])
        if not alike:
            changes |= ordered.models[1:] != ordered.models[:-1]
            changes |= ordered.fingerprints[1:] != ordered.fingerprints[:-1]
        return ordered, np.flatnonzero(begins)

    def joined(self) -> "Samples":
        """Return one row a sample, by model, fingerprint and key; its reward is the mean of its rewards."""
        ordered, starts = self.sorted_runs()
        if len(starts) == len(self):
            return ordered
        stops = np.append(starts[1:], len(self))
        one = ordered.where(starts)
        rewards, counts = one.rewards.copy(), one.counts.copy()
        for place in np.flatnonzero(stops - starts > 1).tolist():
            several = slice(starts[place], stops[place])
            counts[place] = ordered.counts[several].sum()
            rewards[place] = _mean(ordered.rewards[several].tolist(), ordered.counts[several].tolist())
        return Samples(one.keys, one.models, one.fingerprints, rewards, counts)

    def infos(self) -> list[SamplingInfo]:
        """Return the rows' records."""
        columns = (self.keys.tolist(), self.models.tolist(), self.fingerprints.tolist())
        return [
            SamplingInfo([0, 1] if key == NO_KEY else split_key(key), model, fingerprint)
            for key, model, fingerprint in zip(*columns, strict=True)
        ]


def _as_float(reward: float) -> float:
    """Return a number as the nearest float, which is infinite for integers beyond all floats."""
    try:
        return float(reward)
    except OverflowError:
        return float("inf") if reward > 0 else -float("inf")
    except (TypeError, ValueError) as error:
        raise InvalidReward(f"a reward is a number: {error}") from error


def noise_keys(infos: Sequence[SamplingInfo]) -> NDArray[np.uint64]:
    """Return the records' keys as integers `[n]`; `NO_KEY` where a record's is none."""
    keys_of = [info.key for info in infos]
    try:
        flat = array("Q", list(chain.from_iterable(keys_of)))  # numpy's own conversion would cut off fractions
        halves = np.frombuffer(flat, np.uint64)
    except (OverflowError, TypeError, ValueError):  # not all are integers of 64 bits, or there are none
        halves = np.empty(0, np.uint64)
    if not halves.size or set(map(len, keys_of)) != {2} or int(halves.max()) > HALF_MASK:
        return np.array([_key(info) for info in infos], np.uint64)
    keys: NDArray[np.uint64] = halves[::2] << np.uint64(HALF_BITS) | halves[1::2]
    return keys


def _column(numbers: list[int], kind: type[_Number]) -> NDArray[_Number]:
    if numbers and numbers.count(numbers[0]) == len(numbers):  # the usual case, and several times as fast
        return np.full(len(numbers), index(numbers[0]), kind)
    return np.array(list(map(index, numbers)), kind)  # numpy's own conversion would cut off fractions


def _all_equal(column: NDArray[Any]) -> bool:
    return bool((column == column[0]).all())


def _key(info: SamplingInfo) -> int:
    try:
        return index(info.noise_key)
    except (InvalidKey, TypeError):  # a float is no key either
        return NO_KEY


def _wrong_info(infos: Sequence[object]) -> RecordError:
    for place, info in enumerate(infos):
        if not isinstance(info, SamplingInfo):
            return RecordError(f"sample {place} is no SamplingInfo but of type {type(info).__name__}")
        try:
            info.SerializeToString()
        except (RecordError, TypeError) as error:
            return RecordError(f"sample {place}, {info!r}, is no record: {error}")
    return RecordError("a sample is no record")


def _mean(rewards: list[float], counts: list[int]) -> float:
    """Return the mean, which does not depend on the order: the sum is rounded once."""
    try:
        return fsum(reward * count for reward, count in zip(rewards, counts, strict=True)) / sum(counts)
    except (ValueError, OverflowError):  # opposite infinities: not finite, so that the update sets it aside
        return float("nan")


@dataclass(frozen=True)
class Group:
    """The samples of one model.

    Attributes:
        age: Updates since that model, 0 or more.
        keys: Ascending, without repetition, `[n]`.
        rewards: `[n]`.
    """

    age: int
    keys: NDArray[np.uint64]
    rewards: NDArray[np.float64]


@dataclass
class Intake:
    """All samples of an update, sorted.

    Attributes:
        groups: Usable samples, the youngest group first.
        controls: Rewards without noise, sorted, by the age of their model.
        repeated: Rewards beyond the first of a sample.
        set_aside: How many others there were, by reason.
    """

    groups: list[Group] = field(default_factory=list)
    controls: dict[int, list[float]] = field(default_factory=dict)
    repeated: int = 0
    set_aside: SetAside = field(default_factory=SetAside)

    @property
    def control(self) -> list[float]:
        """All rewards without noise, sorted."""
        return sorted(reward for rewards in self.controls.values() for reward in rewards)

    @property
    def used(self) -> int:
        """The number of usable samples."""
        return sum(len(group.keys) for group in self.groups)

    @property
    def pairs(self) -> int:
        """Mirrored pairs of which both halves are there."""
        return sum(int(np.count_nonzero(group.keys[:-1] ^ np.uint64(1) == group.keys[1:])) for group in self.groups)


def sort_samples(samples: Samples, *, model_iter_id: int, fingerprint: int, max_age: int) -> Intake:
    """Sort samples for an update.

    Args:
        samples: In any order.
        model_iter_id: Of the model that is to be updated.
        fingerprint: Of that model; a sample without one (0) is not checked.
        max_age: Samples of models more than this many updates older are set aside.
    """
    if (usual := _usual(samples, model_iter_id, fingerprint)) is not None:
        return Intake([usual])
    ages = model_iter_id - samples.models
    left = np.ones(len(samples), np.bool_)

    def take(rows: NDArray[np.bool_]) -> int:
        """Return how many of the samples that are left these are, and take them out."""
        if not np.count_nonzero(rows):
            return 0
        found = int(np.count_nonzero(left & rows))
        left[rows] = False
        return found

    aside = SetAside(
        bad_key=take(samples.keys == NO_KEY),
        foreign=take((samples.fingerprints != fingerprint) & (samples.fingerprints != 0)),
        orphan=take(ages < 0),
        too_old=take(ages > max_age),
        not_finite=take(~np.isfinite(samples.rewards)),
    )
    control = left & (samples.keys == CONTROL_KEY)
    controls: dict[int, list[float]] = {}
    if take(control):
        controls = {
            age: sorted(samples.rewards[control & (ages == age)].tolist()) for age in np.unique(ages[control]).tolist()
        }
    # A sample may have come with its fingerprint and without: it is the same sample.
    usable = Samples(samples.keys, samples.models, np.zeros_like(samples.fingerprints), samples.rewards, samples.counts)
    if aside.total or controls:
        usable = usable.where(left)
    one = usable.joined()
    return Intake(_groups(one, model_iter_id), controls, len(usable) - len(one), aside)


def _usual(samples: Samples, model_iter_id: int, fingerprint: int) -> Group | None:
    """Return the group of samples that all count once, for the present model; None where they need a closer look."""
    if not len(samples) or np.count_nonzero(samples.models != model_iter_id):
        return None
    if np.count_nonzero(samples.fingerprints != fingerprint) or not np.isfinite(samples.rewards).all():
        return None
    order = samples.keys.argsort()
    keys = samples.keys[order]
    if keys[0] <= NO_KEY or np.count_nonzero(keys[1:] == keys[:-1]):  # control traffic, no key, or repeated
        return None
    return Group(0, keys, samples.rewards[order].astype(np.float64))


def _groups(samples: Samples, model_iter_id: int) -> list[Group]:
    """Return samples, sorted by model and key, by model; the youngest first."""
    if not len(samples):
        return []
    rewards = samples.rewards.astype(np.float64)
    changes = np.flatnonzero(samples.models[1:] != samples.models[:-1]) + 1
    bounds = [0, *changes.tolist(), len(samples)]
    return [
        Group(model_iter_id - int(samples.models[start]), samples.keys[start:stop], rewards[start:stop])
        for start, stop in zip(bounds[-2::-1], bounds[:0:-1], strict=True)
    ]


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
    """Return the varints at these places, where the next field begins, and whether it was one below 2**31."""
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

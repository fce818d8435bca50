"""Many samples as columns, for updates and logs; a list of objects would be slow and large.

Records are decoded by whole segments. Nearly all have one layout: key, model, perhaps fingerprint; then perhaps a
reward, a time, a token and a decision, which are not needed here. These are decoded with arrays, field by field
for all records; `Record.decode` decodes other layouts. Before an update, samples are sorted into groups that count and
samples that are set aside, with the reason.

    samples ──► set aside: no key, foreign, orphan, too old, not finite
            ──► arms:      no noise, the present or the trusted model, their rewards only
            ──► groups:    by the model they perturbed, newest first; one reward per key

The result does not depend on the order of the samples.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import fsum
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import array_of
from parl_evokit._records import Record, SamplingInfo
from parl_evokit._report import SetAsideCounts
from parl_evokit.errors import InvalidKey, InvalidReward, RecordError
from parl_evokit.noise._keys import CONTROL_KEY, KEY_BITS, SIGN_BIT, Arm, arms_of, split_key

__all__ = [
    "IDENTIFIED",
    "NO_KEY",
    "DecodedRecords",
    "Group",
    "Samples",
    "SortedSamples",
    "as_float",
    "decode",
    "decode_spans",
    "distinct",
    "float_numbers",
    "fresh_intake",
    "noise_keys",
    "reward_numbers",
    "sort_samples",
]


NUMBERS = "biufO"  # kinds of arrays: integers, floats, and objects that convert themselves
NO_KEY = CONTROL_KEY + 1  # the reserved key represents invalid keys
IDENTIFIED = np.uint64(1 << 63)  # beyond all keys: marks the identity of a sample without noise
INFO, KEY, MODEL, FINGERPRINT, IDENTITY = 0x0A, 0x08, 0x10, 0x1D, 0x21  # tags of evokit.proto
REWARD, TIME, TOKEN = 0x15, 0x18, 0x28
CONTEXT, ACTION, PROPENSITY = 0x3A, 0x40, 0x4D
LONGEST, LONGEST_TIME = 5, 8  # bytes of a number below 2**31; of microseconds until the year 4253
PADDING = bytes(64)  # so that look-ahead stays within the data
INFINITE_IN_FLOAT32 = 2.0**128 - 2.0**103  # numbers from here on round to infinity
ZERO_IN_FLOAT32 = 2.0**-150  # up to here they are rounded to 0


@dataclass(frozen=True, eq=False)
class Samples:
    """`n` samples with a reward each; several rewards of one sample are several rows.

    Attributes:
        keys: Noise keys; `NO_KEY` for an invalid key; for samples without noise 0, or `IDENTIFIED` and an identity.
        models: model_iter_id of the perturbed model.
        fingerprints: Checksum of noise and model; 0 if unknown.
        rewards: Rewards, in float32 from logs and in float64 from callers.
        counts: Number of rewards of which a row has the mean.
        times: Time in microseconds since 1970 (UTC); 0 if unknown.
        tokens: True if the reward came with a token.
    """

    keys: NDArray[np.uint64]
    models: NDArray[np.int64]
    fingerprints: NDArray[np.uint32]
    rewards: NDArray[np.floating]
    counts: NDArray[np.uint32]
    times: NDArray[np.int64]
    tokens: NDArray[np.bool_]

    @classmethod
    def of(cls, infos: Sequence[SamplingInfo], rewards: Sequence[float] | NDArray[np.floating]) -> "Samples":
        """Return the columns of these records and rewards.

        Raises:
            InvalidReward: Records and rewards differ in number, or a reward is not a number.
            RecordError: A record is not a `SamplingInfo`, or has a number that a record cannot hold.
        """
        n = len(infos)
        numbers = reward_numbers(rewards, n)
        try:
            origins = [info.origin for info in infos]
            alike = n > 0 and origins.count(origins[0]) == n
            different = origins[:1] if alike else origins
            models = np.array(array("q", [model for model, _ in different])).repeat(n if alike else 1)
            fingerprints = np.array(array("I", [mark for _, mark in different])).repeat(n if alike else 1)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise _wrong_info(infos) from error
        keys = noise_keys(infos)
        if np.count_nonzero(keys) < n:
            for row in np.flatnonzero(keys == CONTROL_KEY).tolist():
                if infos[row].identity:
                    keys[row] = IDENTIFIED | np.uint64(infos[row].identity)
        return cls.plain(keys, models, fingerprints, numbers)

    @classmethod
    def plain(
        cls,
        keys: NDArray[np.uint64],
        models: NDArray[np.int64],
        fingerprints: NDArray[np.uint32],
        rewards: NDArray[np.floating] | None = None,
        times: NDArray[np.int64] | None = None,
    ) -> "Samples":
        """Return columns with one reward each, without tokens."""
        n = len(keys)
        return cls(
            keys,
            models,
            fingerprints,
            np.zeros(n, np.float32) if rewards is None else rewards,
            np.ones(n, np.uint32),
            np.zeros(n, np.int64) if times is None else times,
            np.zeros(n, np.bool_),
        )

    @classmethod
    def concatenated(cls, parts: Sequence["Samples"]) -> "Samples":
        """Return all rows of all parts."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.of([], [])
        if len(parts) == 1:
            return parts[0]
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__)
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Samples":
        """Return some of the rows."""
        return Samples(*(column[rows] for column in vars(self).values()))

    def sorted_runs(self) -> tuple["Samples", NDArray[np.intp]]:
        """Return the rows sorted by model, fingerprint and key, and the index of the first row of each sample."""
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
        """Return one row per sample, sorted by model, fingerprint and key.

        Its reward is the mean of its rewards, or the earliest reward with a token.
        """
        ordered, starts = self.sorted_runs()
        if len(starts) == len(self):
            return ordered
        sizes = np.diff(starts, append=len(self))
        one = ordered.where(starts)
        rewards, counts, tokens = one.rewards.copy(), one.counts.copy(), one.tokens.copy()
        several = sizes > 1
        rows = np.flatnonzero(np.repeat(several, sizes))
        places = np.repeat(np.flatnonzero(several), sizes[several])
        signed = ordered.tokens[rows]
        if signed.any():
            valid, place = rows[signed], places[signed]
            by_time = np.lexsort((ordered.rewards[valid], ordered.times[valid], place))
            first = by_time[np.append(True, np.diff(place[by_time]) > 0)]
            rewards[place[first]], counts[place[first]], tokens[place[first]] = ordered.rewards[valid[first]], 1, True
            left = ~tokens[places]
            rows, places = rows[left], places[left]
        if len(rows):
            begins = np.flatnonzero(np.append(True, np.diff(places) > 0))
            several_of = places[begins]
            rewards[several_of] = _means(ordered.rewards[rows], ordered.counts[rows], begins)
            counts[several_of] = np.add.reduceat(ordered.counts[rows], begins)
        return replace(one, rewards=rewards, counts=counts, tokens=tokens)

    def infos(self) -> list[SamplingInfo]:
        """Return the rows' records."""
        columns = (self.keys.tolist(), self.models.tolist(), self.fingerprints.tolist())
        mark = int(IDENTIFIED)
        return [
            SamplingInfo([0, 0], model, fingerprint, key - mark)
            if key >= mark
            else SamplingInfo([0, 1] if key == NO_KEY else split_key(key), model, fingerprint)
            for key, model, fingerprint in zip(*columns, strict=True)
        ]

    @property
    def without_noise(self) -> NDArray[np.bool_]:
        """Mask of the rows that are control traffic."""
        rows: NDArray[np.bool_] = (self.keys == CONTROL_KEY) | (self.keys >= IDENTIFIED)
        return rows


def reward_numbers(rewards: Sequence[float] | NDArray[np.floating], n: int) -> NDArray[np.float64]:
    """Return the rewards of `n` samples as a new array.

    Raises:
        InvalidReward: They differ in number, or a reward is not a number.
    """
    return _checked(rewards, n)[0]


def float_numbers(rewards: Any) -> NDArray[np.float64]:
    """Return rewards as a new array, not finite where they are masked or beyond float64.

    Raises:
        InvalidReward: They are not a sequence of numbers.
    """
    try:
        found = np.asarray(array_of(rewards))
        if found.dtype == np.float64 and found.ndim and not isinstance(rewards, np.ma.MaskedArray):  # most often
            return np.array(found)
        if not found.ndim:
            raise InvalidReward(f"rewards must be a sequence of numbers, not a {type(rewards).__name__}")
        if found.dtype.kind not in NUMBERS:  # numpy would make numbers of texts, dates and halves of complex ones
            raise TypeError(f"these are of type {found.dtype}, such as {found.ravel()[:1].tolist()}")
        if found.dtype == object and (texts := [x for x in found.ravel().tolist() if isinstance(x, str | bytes)]):
            raise TypeError(f"not {texts[0]!r}")
        with np.errstate(over="ignore"):  # beyond float64 becomes infinite, as beyond float32 below
            numbers = found.astype(np.float64)
    except InvalidReward:
        raise
    except OverflowError:
        numbers = np.array([as_float(reward) for reward in rewards])
    except (TypeError, ValueError) as error:
        raise InvalidReward(f"a reward must be a number: {error}") from error
    if isinstance(rewards, np.ma.MaskedArray):  # masked entries are not rewards, and are set aside as well
        numbers = np.where(np.ma.getmaskarray(rewards), np.nan, numbers)
    return numbers


def _checked(rewards: Sequence[float] | NDArray[np.floating], n: int) -> tuple[NDArray[np.float64], bool]:
    """Return the result of `reward_numbers`, and True if all are finite."""
    numbers = float_numbers(rewards)
    if numbers.shape[:1] != (n,):
        raise InvalidReward(f"{n} samples came with {len(rewards)} rewards: pass one reward for each")
    if numbers.shape != (n,):
        raise InvalidReward(f"rewards must be one number per sample, an array ({n},), not one of shape {numbers.shape}")
    # Numbers that are infinite in float32 (as in a log) are set aside, and those that underflow are 0, so that squares
    # are finite.
    if not n:
        return numbers, True
    sizes = np.abs(numbers)
    finite: bool = sizes.item(sizes.argmax()) < INFINITE_IN_FLOAT32  # NaN counts as the largest
    if not finite or sizes.item(sizes.argmin()) <= ZERO_IN_FLOAT32:
        np.multiply(numbers, np.inf, out=numbers, where=sizes >= INFINITE_IN_FLOAT32)
        np.multiply(numbers, 0.0, out=numbers, where=sizes <= ZERO_IN_FLOAT32)
    return numbers, finite


def as_float(reward: Any) -> float:
    """Return a number as the nearest float, which is infinite for integers beyond all floats.

    Raises:
        InvalidReward: `reward` is not a number.
    """
    try:
        if isinstance(reward, str | bytes):
            raise TypeError(f"not {reward!r}")
        return float(reward)
    except OverflowError:
        return float("inf") if reward > 0 else -float("inf")
    except (TypeError, ValueError) as error:
        raise InvalidReward(f"a reward must be a number: {error}") from error


def noise_keys(infos: Sequence[SamplingInfo]) -> NDArray[np.uint64]:
    """Return the keys of records as integers `[n]`; `NO_KEY` for an invalid key."""
    try:
        return _as_keys([info.drawn_key for info in infos])  # None raises TypeError
    except TypeError:  # some are not as they were drawn
        return np.array([_key(info) for info in infos], np.uint64)


def _as_keys(drawn: list[Any]) -> NDArray[np.uint64]:
    return np.array(array("Q", drawn), np.uint64)  # numpy alone takes twice as long


def distinct(column: NDArray[np.int64]) -> list[int]:
    """Return the distinct numbers, ascending; without numpy's `unique` if all are equal."""
    if not len(column):
        return []
    return [int(column[0])] if _all_equal(column) else np.unique(column).tolist()


def _all_equal(column: NDArray[Any]) -> bool:
    return bool((column == column[0]).all())


def _key(info: SamplingInfo) -> int:
    try:
        return index(info.noise_key)
    except (InvalidKey, TypeError):  # floats are not keys either
        return NO_KEY


def _wrong_info(infos: Sequence[object]) -> RecordError:
    for place, info in enumerate(infos):
        if not isinstance(info, SamplingInfo):
            return RecordError(f"sample {place} is not a SamplingInfo but of type {type(info).__name__}")
        try:
            info.SerializeToString()
        except (RecordError, TypeError) as error:
            return RecordError(f"sample {place}, {info!r}, is not a record: {error}")
    return RecordError("a sample is not a record")


def _means(rewards: NDArray[np.floating], counts: NDArray[np.uint32], begins: NDArray[np.intp]) -> list[float]:
    """Return the mean of each run, which does not depend on the order: the sum is rounded once."""
    weighted = (rewards.astype(np.float64) * counts).tolist()
    totals = np.add.reduceat(counts.astype(np.uint64), begins).tolist()
    bounds = begins.tolist()
    means = []
    for start, stop, total in zip(bounds, [*bounds[1:], len(weighted)], totals, strict=True):
        try:
            means.append(fsum(weighted[start:stop]) / total)
        except (ValueError, OverflowError):  # opposite infinities: not finite, so that the update sets it aside
            means.append(float("nan"))
    return means


@dataclass(frozen=True)
class Group:
    """The samples of one model.

    Attributes:
        age: Number of updates since that model, 0 or more.
        keys: Unique keys, ascending, `[n]`.
        rewards: Reward of each key, `[n]`.
    """

    age: int
    keys: NDArray[np.uint64]
    rewards: NDArray[np.float64]


@dataclass
class SortedSamples:
    """The samples of an update, sorted.

    Attributes:
        groups: Usable samples, the newest model first.
        controls: Rewards of samples without noise, sorted, by the age of their model; not of the trusted one.
        holdout: Rewards of samples without noise of the trusted model, sorted.
        arms: Rewards of both arms of the guard, the present model and the trusted one, by the age of the present model.
        repeated: Number of rewards beyond the first of a sample.
        set_aside: Numbers of samples that do not count, by reason.
        stale_rule: The algorithm's rule for samples of older models.
        effective: Equivalent number of samples of equal weight; None if the algorithm does not report it.
    """

    groups: list[Group] = field(default_factory=list)
    controls: dict[int, list[float]] = field(default_factory=dict)
    holdout: list[float] = field(default_factory=list)
    arms: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)
    repeated: int = 0
    set_aside: SetAsideCounts = field(default_factory=SetAsideCounts)
    stale_rule: str = ""
    effective: float | None = None

    @property
    def control(self) -> list[float]:
        """Rewards of all samples without noise except those of the trusted model, sorted."""
        if not self.controls:
            return []
        return sorted(chain.from_iterable(self.controls.values()))

    @property
    def used(self) -> int:
        """Number of usable samples."""
        return sum([len(group.keys) for group in self.groups])

    @property
    def pairs(self) -> int:
        """Number of mirrored pairs of which both halves have a reward."""
        return sum(int(np.count_nonzero(group.keys[:-1] ^ SIGN_BIT == group.keys[1:])) for group in self.groups)


def sort_samples(samples: Samples, *, model_iter_id: int, fingerprint: int, max_age: int) -> SortedSamples:
    """Sort samples for an update.

    Args:
        samples: In any order.
        model_iter_id: Number of the model to update.
        fingerprint: Fingerprint of that model; a sample without one (0) is not checked.
        max_age: Maximum age, in updates, of the models whose samples count.
    """
    if (usual := _usual(samples, model_iter_id, fingerprint)) is not None:
        return SortedSamples([usual])
    ages = model_iter_id - samples.models
    left = np.ones(len(samples), np.bool_)

    def take(rows: NDArray[np.bool_]) -> int:
        """Remove these from the remaining samples, and return their number."""
        if not np.count_nonzero(rows):
            return 0
        found = int(np.count_nonzero(left & rows))
        left[rows] = False
        return found

    aside = SetAsideCounts(
        bad_key=take(samples.keys == NO_KEY),
        foreign=take((samples.fingerprints != fingerprint) & (samples.fingerprints != 0)),
        orphan=take((ages < 0) | (samples.models < 0)),
        too_old=take(ages > max_age),
        not_finite=take(~np.isfinite(samples.rewards)),
    )
    repeated = 0
    control = left & samples.without_noise
    controls: dict[int, list[float]] = {}
    holdout: list[float] = []
    compared: dict[int, tuple[list[float], list[float]]] = {}
    if take(control):
        rows = samples.where(control)
        identified = rows.keys >= IDENTIFIED
        one_each = rows.where(identified).joined()
        repeated = int(np.count_nonzero(identified)) - len(one_each)
        arms = arms_of(one_each.keys ^ IDENTIFIED)
        present, kept = arms == Arm.PRESENT, arms == Arm.TRUSTED
        compared = {
            model_iter_id - number: (one_each.rewards[present & own].tolist(), one_each.rewards[kept & own].tolist())
            for number in distinct(one_each.models)
            for own in [one_each.models == number]
        }
        holdout = sorted(one_each.rewards[kept].tolist())
        one_each = one_each.where(~kept)
        rows = Samples.concatenated([rows.where(~identified), one_each])
        controls = {
            model_iter_id - number: sorted(rows.rewards[rows.models == number].tolist())
            for number in distinct(rows.models)[::-1]
        }
    # Records of a sample with and without a fingerprint belong to the same sample.
    usable = replace(samples, fingerprints=np.zeros_like(samples.fingerprints))
    if aside.total or np.count_nonzero(control):
        usable = usable.where(left)
    one = usable.joined()
    return SortedSamples(
        _groups(one, model_iter_id), controls, holdout, compared, repeated + len(usable) - len(one), aside
    )


def fresh_intake(
    infos: Sequence[SamplingInfo],
    rewards: Sequence[float] | NDArray[np.floating],
    origin: tuple[int, int],
    keys_of: Callable[[Sequence[int | None]], NDArray[np.uint64] | None] = lambda _: None,
) -> SortedSamples | None:
    """Return the result of `sort_samples` for records that all count once, of the present model, without columns.

    Args:
        infos: In any order.
        rewards: One per record.
        origin: Number and fingerprint of that model.
        keys_of: Function that returns its array of these keys in ascending order, or None.

    Returns:
        None if a record needs the slow path.

    Raises:
        InvalidReward: See `reward_numbers`.
    """
    numbers, finite = _checked(rewards, len(infos))
    try:
        if [info.origin for info in infos].count(origin) < len(infos):
            return None
        drawn = [info.drawn_key for info in infos]
        known = keys_of(drawn)
        if finite and known is not None and len(known):
            return SortedSamples([Group(0, known, numbers)])
        keys = _as_keys(drawn)
    except (AttributeError, TypeError, ValueError, OverflowError):  # no records as they were drawn
        return None
    group = _one_group(keys, numbers)
    return None if group is None else SortedSamples([group])


def _usual(samples: Samples, model_iter_id: int, fingerprint: int) -> Group | None:
    """Return the group of samples if all count once, for the present model; None if they need the slow path."""
    if np.count_nonzero(samples.models != model_iter_id) or np.count_nonzero(samples.fingerprints != fingerprint):
        return None
    return _one_group(samples.keys, samples.rewards.astype(np.float64, copy=False))


def _one_group(keys: NDArray[np.uint64], rewards: NDArray[np.float64]) -> Group | None:
    """Return the group of samples of the present model; None if it is empty or needs the slow path."""
    if not len(keys) or np.count_nonzero(np.isfinite(rewards)) < len(rewards):
        return None
    if np.count_nonzero(keys[1:] <= keys[:-1]):  # not in the order of `ask`
        order = keys.argsort()
        keys, rewards = keys[order], rewards[order]
        if np.count_nonzero(keys[1:] == keys[:-1]):  # repeated
            return None
    if keys[0] <= NO_KEY or keys[-1] >= IDENTIFIED:  # control traffic, or no key
        return None
    return Group(0, keys, rewards)


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
class DecodedRecords:
    """Records with a reward, records of served samples, and numbers of refused tokens.

    Attributes:
        rewarded: Samples with a reward.
        served: Samples without a reward; their column of rewards has no meaning.
        refused: Numbers of rejected tokens, by the number of the reason.
        earliest_us: The earliest time in a record; 0 without times.
        latest_us: The latest time; 0 without times.
        unreadable: Indices of the payloads that are not records.
    """

    rewarded: Samples
    served: Samples
    refused: Mapping[int, int] = field(default_factory=dict)
    earliest_us: int = 0
    latest_us: int = 0
    unreadable: tuple[int, ...] = ()


def decode(payloads: Sequence[bytes], fingerprint: int) -> DecodedRecords:
    """Decode records.

    Args:
        payloads: Encoded records.
        fingerprint: Fingerprint of records without one.

    Raises:
        RecordError: A payload is not a record.
    """
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    starts = np.cumsum(lengths) - lengths
    found = decode_spans(b"".join(payloads), starts, starts + lengths, np.full(len(payloads), fingerprint, np.uint32))
    for number in found.unreadable:
        Record.decode(payloads[number])  # it raises the specific error
    return found


def decode_spans(
    content: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], fingerprints: NDArray[np.uint32]
) -> DecodedRecords:
    """Decode records that lie within one piece of memory.

    Args:
        content: Memory with all records, and possibly other bytes between them.
        starts: Index of the first byte of each record, `[n]`.
        ends: Index after the last byte of each record, `[n]`.
        fingerprints: Fingerprints of records without one, `[n]`.
    """
    data = np.frombuffer(content + PADDING, np.uint8)
    usual = (ends - starts > 1) & (data[starts] == INFO)
    info_ends = starts + 2 + data[starts + 1]
    numbers: list[NDArray[np.int64]] = []
    place = starts + 2
    for tag in (KEY, KEY, MODEL):
        usual &= data[place] == tag
        number, place, whole = _numbers(data, np.where(usual, place + 1, starts), LONGEST)
        usual &= whole & (number < 2**31)
        numbers.append(number)
    place = np.where(usual, place, starts)
    keys = np.where(usual, numbers[0] << 31 | numbers[1], 0).astype(np.uint64)
    models = np.where(usual, numbers[2], 0)
    del numbers

    def optional(tag: int, size: int, limit: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the usual rows whose next field is this one with the given size, and continue after it."""
        rows = np.flatnonzero(usual & (place < limit) & (data[place] == tag))
        place[rows] += 1 + size
        return rows

    prints = fingerprints.copy()
    printed = optional(FINGERPRINT, 4, info_ends)
    own = _fixed(data, place[printed] - 4, 4).astype(np.uint32)
    prints[printed] = np.where(own == 0, prints[printed], own)
    identified = optional(IDENTITY, 8, info_ends)
    usual[identified[keys[identified] != CONTROL_KEY]] = False
    identities = _fixed(data, place[identified] - 8, 8)
    usual[identified[identities >> np.uint64(KEY_BITS) != 0]] = False
    keys[identified] |= np.where(identities == 0, np.uint64(0), IDENTIFIED | identities)
    usual &= place == info_ends
    rewards = np.zeros(len(starts), np.float32)
    with_reward = optional(REWARD, 4, ends)
    rewards[with_reward] = _fixed(data, place[with_reward] - 4, 4).astype(np.uint32).view(np.float32)
    rewarded = np.zeros(len(starts), np.bool_)
    rewarded[with_reward] = True
    times = np.zeros(len(starts), np.int64)
    timed = optional(TIME, 0, ends)
    times[timed], place[timed], whole = _numbers(data, place[timed], LONGEST_TIME)
    usual[timed[~whole]] = False
    tokens = np.zeros(len(starts), np.bool_)
    trusted = optional(TOKEN, 1, ends)
    tokens[trusted] = data[place[trusted] - 1] == 1
    usual[trusted[~tokens[trusted]]] = False
    decided = optional(CONTEXT, 0, ends)
    size, place[decided], whole = _numbers(data, place[decided], LONGEST)
    place[decided] += size
    usual[decided[~whole]] = False
    usual &= place <= ends
    place = np.where(usual, place, starts)  # a damaged size may have moved it beyond the data
    acted = optional(ACTION, 0, ends)
    _, place[acted], whole = _numbers(data, place[acted], LONGEST)
    usual[acted[~whole]] = False
    optional(PROPENSITY, 4, ends)
    usual &= place == ends

    columns = Samples(keys, models, prints, rewards, np.ones(len(starts), np.uint32), times, tokens)
    records: list[tuple[int, Record]] = []
    unreadable: list[int] = []
    for row in np.flatnonzero(~usual).tolist():
        try:
            records.append((int(fingerprints[row]), Record.decode(content[starts[row] : ends[row]])))
        except RecordError:
            unreadable.append(row)
    refused: Counter[int] = Counter()
    for _, record in records:
        refused.update(record.refused)
    samples = [(mark, record) for mark, record in records if not record.refused]
    with_one = _of([(mark, record) for mark, record in samples if record.reward is not None])
    without = _of([(mark, record) for mark, record in samples if record.reward is None])
    known = times[usual & (times > 0)]
    moments = [record.time_us for _, record in samples if record.time_us > 0]
    moments += [int(known.min()), int(known.max())] if len(known) else []
    all_rewarded = bool(usual.all()) and bool(rewarded.all())
    return DecodedRecords(
        columns if all_rewarded else Samples.concatenated([columns.where(usual & rewarded), with_one]),
        Samples.concatenated([columns.where(usual & ~rewarded), without]),
        refused,
        min(moments, default=0),
        max(moments, default=0),
        tuple(unreadable),
    )


def _numbers(
    data: NDArray[np.uint8], place: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the varints at these places, where the next field begins, and whether each has at most `longest` bytes."""
    number = np.zeros(len(place), np.int64)
    length = np.zeros(len(place), np.int64)
    going = np.ones(len(place), np.bool_)
    for group in range(longest):
        byte = data[place + group]
        number |= np.where(going, (byte & 0x7F).astype(np.int64) << (7 * group), 0)
        length += going
        going &= byte > 0x7F
    return number, place + length, ~going


def _fixed(data: NDArray[np.uint8], place: NDArray[np.int64], size: int) -> NDArray[np.uint64]:
    number = np.zeros(len(place), np.uint64)
    for i in range(size):
        number |= data[place + i].astype(np.uint64) << np.uint64(8 * i)
    return number


def _of(records: list[tuple[int, Record]]) -> Samples:
    for mark, record in records:
        record.info.fingerprint = record.info.fingerprint or mark
    infos = [record.info for _, record in records]
    samples = Samples.of(infos, [0.0 if r.reward is None else r.reward for _, r in records])
    return replace(
        samples,
        rewards=samples.rewards.astype(np.float32),
        counts=np.array([record.count for _, record in records], np.uint32),
        times=np.array([record.time_us for _, record in records], np.int64),
        tokens=np.array([record.token for _, record in records], np.bool_),
    )

"""Many samples as columns: what updates and logs work on, where a list of objects would be slow and large."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import InvalidKey, InvalidReward, RecordError
from parl_evokit.noise import CONTROL_KEY, split_key
from parl_evokit.noise.keys import HALF_BITS, HALF_MASK
from parl_evokit.records import SamplingInfo

__all__ = ["NO_KEY", "Samples", "noise_keys"]

NO_KEY = CONTROL_KEY + 1  # the reserved key stands for what is none
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
        """The columns of these records and rewards.

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
        except (TypeError, ValueError, OverflowError) as error:
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
        """All rows of all parts."""
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
        """Some of the rows."""
        return Samples(
            self.keys[rows], self.models[rows], self.fingerprints[rows], self.rewards[rows], self.counts[rows]
        )

    def sorted_runs(self) -> tuple["Samples", NDArray[np.intp]]:
        """The rows by model, fingerprint and key, and where each sample's rows begin."""
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
        """One row a sample, by model, fingerprint and key; its reward is the mean of its rewards."""
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
        """The rows' records."""
        columns = (self.keys.tolist(), self.models.tolist(), self.fingerprints.tolist())
        return [
            SamplingInfo([0, 1] if key == NO_KEY else split_key(key), model, fingerprint)
            for key, model, fingerprint in zip(*columns, strict=True)
        ]


def noise_keys(infos: Sequence[SamplingInfo]) -> NDArray[np.uint64]:
    """The records' keys as integers `[n]`; `NO_KEY` where a record's is none."""
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
    """Does not depend on the order: the sum is rounded once."""
    try:
        return fsum(reward * count for reward, count in zip(rewards, counts, strict=True)) / sum(counts)
    except (ValueError, OverflowError):  # opposite infinities: not finite, so that the update sets it aside
        return float("nan")

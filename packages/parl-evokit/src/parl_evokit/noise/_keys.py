"""Keys: the few bytes from which the noise of a sample is computed, and identities of samples without noise.

A key has 62 bits. Its lowest bit is the sign: keys 2p and 2p + 1 are a mirrored pair, the same noise with opposite
signs. On the wire a key is two non-negative 32-bit integers, the upper and the lower 31 bits. Key 0 means "no noise"
(control traffic); key 1, its twin, is reserved.

Samples without noise have identities instead, of 62 bits as well. The upper two bits name the served model, so that
the arm of a sample does not depend on the shares of traffic, which may have changed since.

`RandomKeys` is for products: hosts, processes and restarts do not repeat a key. `CounterKeys` is for repeatable tests
and experiments.
"""

import itertools
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import EvolutionError, InvalidKey, _shown

__all__ = [
    "CONTROL_KEY",
    "Arm",
    "CounterKeys",
    "KeySource",
    "RandomKeys",
    "arms_of",
    "check_key",
    "check_keys",
    "identity_in",
    "identity_of_no_arm",
    "join_key",
    "split_key",
]

CONTROL_KEY = 0
"""Key of a sample without noise."""
KEY_BITS = 62
HALF_BITS = 31
HALF_MASK = 2**HALF_BITS - 1
SURPLUS_BITS = np.array(64 - KEY_BITS + 1, np.uint64)  # of 64 random bits, without those of a pair
SIGN_BIT = np.array(1, np.uint64)
KEYS = 2**KEY_BITS
ARM_BIT = 60  # bit of an identity from which on it is the number of the arm


class Arm(IntEnum):
    """The arm of a sample without noise in the comparison of the guard.

    Attributes:
        NEITHER: Neither arm: an operator's probe.
        PRESENT: The present model was served, as a part of the traffic.
        TRUSTED: The trusted model was served.
    """

    NEITHER = 0
    PRESENT = 1
    TRUSTED = 2


def identity_in(arm: Arm, drawn: int) -> int:
    """Return the identity of a sample of this arm; `drawn` is a key that no other sample has."""
    return arm << ARM_BIT | drawn & (1 << ARM_BIT) - 1


def identity_of_no_arm(draw: Callable[[int], int]) -> int:
    """Return a random identity of a sample in neither arm.

    Args:
        draw: Function that returns a random number with a number of bits.
    """
    while (identity := draw(ARM_BIT)) < 2:
        pass
    return identity


def arms_of(identities: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers of the arms of samples without noise, `[n]`."""
    return identities >> np.uint64(ARM_BIT)


def check_key(key: int) -> int:
    """Return `key` if it is a valid key of a sample.

    Raises:
        InvalidKey: The key is negative, longer than 62 bits, or the reserved 1.
    """
    if not 0 <= key < KEYS or key == CONTROL_KEY + 1:
        raise InvalidKey(f"a key must be 0 (no noise) or from 2 to 2**62 - 1, not {key}")
    return key


def check_keys(keys: Sequence[int] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys as an array if all are valid.

    Raises:
        InvalidKey: See `check_key`.
    """
    numbers = np.asarray(keys, np.uint64)
    if numbers.size and not CONTROL_KEY + 1 < numbers.item(numbers.argmin()) <= numbers.item(numbers.argmax()) < KEYS:
        for number in numbers.ravel().tolist():
            check_key(number)
    return numbers


def split_key(key: int) -> tuple[int, int]:
    """Return the key as two integers of 31 bits, upper half first."""
    check_key(key)
    return key >> HALF_BITS, key & HALF_MASK


def join_key(halves: Sequence[int]) -> int:
    """Return the key of two halves from `split_key`.

    Raises:
        InvalidKey: There are not two halves, one is negative or longer than 31 bits, or the key is reserved.
    """
    try:
        high, low = halves
        if 0 <= high <= HALF_MASK and 0 <= low <= HALF_MASK:
            return check_key(high << HALF_BITS | low)
    except InvalidKey:  # a ValueError, too
        raise
    except (TypeError, ValueError):  # not two, or not integers
        pass
    raise InvalidKey(f"a key must be two integers from 0 to 2**31 - 1, not {_shown(halves)}")


class KeySource(Protocol):
    """A source of keys for new samples; safe to share among threads without a lock."""

    def draw(self) -> int:
        """Return a key that was not drawn before; with mirrored sampling, two draws return the halves of a pair."""

    def draw_many(self, n: int) -> NDArray[np.uint64]:
        """Return the keys of `n` calls of `draw`, `[n]`.

        Raises:
            ValueError: `n` is below 0.
        """

    def start_pair(self) -> None:
        """Drop a waiting half, so that the next draw starts a new pair, as after an update of the model."""


def _require_count(n: int) -> None:
    if n < 0:
        raise ValueError(f"the number of samples must be 0 or more, not {n}")


class RandomKeys:
    """Random keys of the operating system (`secrets`), with 61 bits per pair.

    Args:
        mirrored: True to draw keys in mirrored pairs.
    """

    def __init__(self, mirrored: bool = True) -> None:
        self._mirrored = mirrored
        # At most a few entries, (process, key); appending and popping are atomic, so threads need no lock.
        self._waiting: deque[tuple[int, int]] = deque()

    def draw(self) -> int:
        """Return a key that was not drawn before."""
        if (waiting := self._waiting_half()) is not None:
            return waiting
        pair = 0
        while pair == 0:
            pair = secrets.randbits(KEY_BITS - 1)
        if self._mirrored:
            self._waiting.append((os.getpid(), 2 * pair + 1))
        return 2 * pair

    def draw_many(self, n: int) -> NDArray[np.uint64]:
        """Return `n` new keys, `[n]`, drawn by one call of the system and ascending, as updates sort them."""
        _require_count(n)
        waiting = self._waiting_half() if n > 0 else None
        wanted = max(0, n - (waiting is not None))
        halves = 2 if self._mirrored else 1
        numbers = np.frombuffer(os.urandom(8 * -(-wanted // halves)), np.uint64) >> SURPLUS_BITS
        numbers.sort()
        while len(numbers) and not numbers[0]:
            numbers[0] = secrets.randbits(KEY_BITS - 1)
            numbers.sort()
        keys = np.empty(halves * len(numbers), np.uint64)
        even = np.left_shift(numbers, SIGN_BIT, keys[::halves])
        if self._mirrored:
            np.bitwise_or(even, SIGN_BIT, keys[1::2])
            if wanted % 2:
                self._waiting.append((os.getpid(), int(keys[-1])))
                keys = keys[:-1]
        return keys if waiting is None else np.concatenate((np.array([waiting], np.uint64), keys))

    def _waiting_half(self) -> int | None:
        """Remove and return the second half of a pair whose first half was drawn before, or None."""
        while self._waiting:
            try:
                owner, key = self._waiting.pop()
            except IndexError:  # another thread was faster
                return None
            if owner == os.getpid():  # after a fork the parent has the same half; it must not be used twice
                return key
        return None

    def start_pair(self) -> None:
        """Drop a waiting half, so that the next draw starts a new pair."""
        self._waiting.clear()

    def __reduce__(self) -> tuple[type["RandomKeys"], tuple[bool]]:
        return RandomKeys, (self._mirrored,)


class CounterKeys:
    """Keys (worker, count), the same in each run that draws in the same order.

    Args:
        worker: The upper 31 bits, 0 to 2**31 - 1. Processes that sample for one model need different ones; a pickled
            copy continues with the same keys as the original.
        mirrored: True to draw keys in mirrored pairs.
        first: The first count; 0 and 1 are the control key and its twin.

    Raises:
        InvalidKey: `worker` does not fit 31 bits.
    """

    def __init__(self, worker: int = 0, mirrored: bool = True, first: int = 2) -> None:
        if not 0 <= worker <= HALF_MASK:
            raise InvalidKey(f"a worker's number must be from 0 to 2**31 - 1, not {worker}")
        self._worker = worker
        self._mirrored = mirrored
        self._counts = itertools.count(max(first, 2))  # next() on it is atomic

    def draw(self) -> int:
        """Return a key that was not drawn before."""
        count = next(self._counts)
        low = count if self._mirrored else 2 * count
        self._require_free_counts(low)
        return self._worker << HALF_BITS | low

    def _require_free_counts(self, low: int) -> None:
        if low > HALF_MASK:
            raise EvolutionError(f"worker {self._worker} has used all its keys: assign another number")

    def draw_many(self, n: int) -> NDArray[np.uint64]:
        """Return the keys of `n` calls of `draw`, `[n]`."""
        _require_count(n)
        counts = list(itertools.islice(self._counts, n))  # taken in one go, which is atomic too
        step = 1 if self._mirrored else 2
        if not counts:
            return np.empty(0, np.uint64)
        self._require_free_counts(step * counts[-1])
        if counts[-1] - counts[0] == n - 1:  # no other thread has drawn
            first = (self._worker << HALF_BITS) + step * counts[0]
            return np.arange(first, first + step * n, step, dtype=np.uint64)
        return np.array([self._worker << HALF_BITS | step * count for count in counts], np.uint64)

    def start_pair(self) -> None:
        """Drop a waiting half, so that the next draw starts a new pair."""
        if self._mirrored:
            self._counts = itertools.count(self.next_count + self.next_count % 2)

    @property
    def next_count(self) -> int:
        """The count of the next key; a resumed search continues with it."""
        return int(repr(self._counts).removeprefix("count(").removesuffix(")"))  # looks without taking it

    def continue_from(self, count: int) -> None:
        """Continue with the key of this count."""
        self._counts = itertools.count(max(count, 2))

    def __reduce__(self) -> tuple[type["CounterKeys"], tuple[int, bool, int]]:
        return CounterKeys, (self._worker, self._mirrored, self.next_count)

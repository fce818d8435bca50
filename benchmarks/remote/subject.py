"""The class that every peer runs, and the data of its calls; needs only numpy."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

SMALL_ARRAYS = {f"k{i}": np.zeros(64, np.float32) for i in range(8)}
SMALL = {"obs": [0.03, -0.02, 0.04, 0.01], "reward": 1.0, "done": False, "info": {"steps": 17}}
STEPS = 50  # steps of a trajectory
_PAGE = 4096


class Subject:
    """The object in the actor."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.uint8)
        self._arrays: list[np.ndarray] = []
        self._weights: dict[str, np.ndarray] = {}
        self._trajectory: dict[str, np.ndarray] | None = None

    def pid(self) -> int:
        return os.getpid()

    def nothing(self) -> None:
        pass

    def echo(self, value: Any) -> Any:
        return value

    def take(self, array: np.ndarray) -> int:
        """Return the sum of one byte a page."""
        return touch(array)

    def prepare(self, size: int) -> None:
        """Make the array that `give` returns, so that only its transfer is measured."""
        self._array = np.full(size, 1, np.uint8)

    def give(self) -> np.ndarray:
        return self._array

    def set_weights(self, weights: dict[str, np.ndarray]) -> int:
        """Keep the weights and read one byte per page of each, because an actor would read them to act."""
        self._weights = weights
        return sum(map(touch, weights.values()))

    def take_many(self, arrays: list[np.ndarray]) -> int:
        """Return the sum of one byte a page of all arrays."""
        return sum(map(touch, arrays))

    def prepare_many(self, count: int, size: int) -> None:
        """Make the arrays that `give_many` returns."""
        self._arrays = [np.full(size, 1, np.uint8) for _ in range(count)]

    def give_many(self) -> list[np.ndarray]:
        return self._arrays

    def ignore(self, value: Any) -> None:
        """Receive a value and discard it."""

    def rollout(self) -> dict[str, np.ndarray]:
        if self._trajectory is None:  # made here, because the memory of an idle actor is measured as well
            self._trajectory = trajectory()
        return self._trajectory

    def spin(self, marker: str, seconds: float) -> None:
        """Compute for a while; `marker` is a file that appears when it has begun."""
        Path(marker).touch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def run(self, n: int) -> None:
        """Count like the example of the PARL 1.x manual, which counts to 1e8."""
        ans = 0
        for i in range(n):
            ans += i


def touch(array: np.ndarray) -> int:
    """Return the sum of one byte per page, which forces lazily mapped memory to be loaded."""
    return int(array.reshape(-1).view(np.uint8)[::_PAGE].sum())


def trajectory() -> dict[str, np.ndarray]:
    """Return the message of an environment actor to a learner: 54 arrays, 28 KB per sample.

    Each of 50 steps has the stacked frames `[4, 84, 84]` that its environment returned as an array of its own; actions,
    rewards, ends and logits are one array each.
    """
    return {
        **{f"obs_{step}": np.full((4, 84, 84), step + 1, np.uint8) for step in range(STEPS)},
        "action": np.zeros(STEPS, np.int64),
        "reward": np.zeros(STEPS, np.float32),
        "done": np.zeros(STEPS, np.bool_),
        "logits": np.zeros((STEPS, 6), np.float32),
    }


def weights() -> dict[str, np.ndarray]:
    """Return 10 MB of float32 parameters: ten layers of 500x500."""
    return {f"layer{i}": np.full((500, 500), i, np.float32) for i in range(10)}

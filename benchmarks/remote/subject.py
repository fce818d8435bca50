"""What every peer runs: one class, and the data that goes to its objects and comes back. Needs numpy alone."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

SMALL = {"obs": [0.03, -0.02, 0.04, 0.01], "reward": 1.0, "done": False, "info": {"steps": 17}}
STEPS = 50  # of one trajectory
_PAGE = 4096


class Subject:
    """The object in the actor."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.uint8)
        self._weights: dict[str, np.ndarray] = {}
        self._trajectory = trajectory()

    def pid(self) -> int:
        return os.getpid()

    def nothing(self) -> None:
        pass

    def echo(self, value: Any) -> Any:
        return value

    def take(self, array: np.ndarray) -> int:
        """Read one byte a page, so that memory that is mapped lazily is really there."""
        return touch(array)

    def prepare(self, size: int) -> None:
        """Make the array that `give` gives, so that only its way is measured."""
        self._array = np.full(size, 1, np.uint8)

    def give(self) -> np.ndarray:
        return self._array

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        self._weights = weights

    def rollout(self) -> dict[str, np.ndarray]:
        return self._trajectory

    def spin(self, marker: str, seconds: float) -> None:
        """Compute for a while; `marker` is a file that appears when it has begun."""
        Path(marker).touch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def run(self, n: int) -> None:
        """The documents' count to 1e8."""
        ans = 0
        for i in range(n):
            ans += i


def touch(array: np.ndarray) -> int:
    return int(array[::_PAGE].sum())


def trajectory() -> dict[str, np.ndarray]:
    """What an environment actor sends to a learner: 50 steps of 84x84 frames with what belongs to them, 7.1 KB each."""
    return {
        "obs": np.full((STEPS, 84, 84), 7, np.uint8),
        "action": np.zeros(STEPS, np.int64),
        "reward": np.zeros(STEPS, np.float32),
        "done": np.zeros(STEPS, np.bool_),
        "logits": np.zeros((STEPS, 6), np.float32),
    }


def weights() -> dict[str, np.ndarray]:
    """10 MB of float32 parameters: ten layers of 500x500."""
    return {f"layer{i}": np.full((500, 500), i, np.float32) for i in range(10)}

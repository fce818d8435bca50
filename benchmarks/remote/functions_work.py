"""What the peers of `functions.py` run: functions of items, importable in their workers."""

import time
from typing import Any

import numpy as np

PAGE = 4096


def nothing(_: Any) -> None:
    """Return at once."""


def millisecond(_: Any) -> int:
    """Take a millisecond of wall-clock time, not of the processor, so that the machine's other load matters less."""
    time.sleep(0.001)
    return 1


def take(array: np.ndarray) -> int:
    """Read a byte of each page."""
    return int(array[::PAGE].sum())


def echo(array: np.ndarray) -> np.ndarray:
    """Send an array back."""
    return array


def arrays(count: int) -> Any:
    """Yield arrays of 1 MB, eight different ones again and again."""
    some = [np.full(1_000_000, number, np.uint8) for number in range(8)]
    for number in range(count):
        yield some[number % len(some)]

"""The functions that the peers of `functions.py` run, importable in their workers."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

import numpy as np

PAGE = 4096


def nothing(_: Any) -> None:
    """Return at once."""


def millisecond(_: Any) -> int:
    """Take a millisecond of wall-clock time without computing, so that the machine's other load matters less."""
    time.sleep(0.001)
    return 1


def take(array: np.ndarray) -> int:
    """Read a byte of each page."""
    return int(array[::PAGE].sum())


def echo(array: np.ndarray) -> np.ndarray:
    """Send an array back."""
    return array


def arrays(count: int) -> Any:
    """Yield distinct arrays of 1 MB, because pickle writes an array that occurs twice in a message only once."""
    for number in range(count):
        yield np.full(1_000_000, number % 256, np.uint8)


class ExecutorPeer:
    """A peer that is a `concurrent.futures.Executor`, with the best of several chunk sizes; `start` is the peer's own.

    Args:
        inner: Function that maps a number of items within a worker, for the nested map.
    """

    sizes = (1, 32, 500, 2500)
    executor: Executor

    def __init__(self, inner: Callable[[int], int]) -> None:
        self._inner = inner

    def map(self, function: Any, items: Any, size: int) -> Iterable[Any]:
        return self.executor.map(function, items, chunksize=size)

    def first(self, function: Any) -> None:
        self.executor.submit(function, 1).result()

    def nested(self, outer: int, count: int) -> None:
        assert sum(self.executor.map(self._inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        self.executor.shutdown()

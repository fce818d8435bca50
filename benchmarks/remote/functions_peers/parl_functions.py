"""Ours: `parl.map`, which chooses chunk sizes itself and takes items as results are requested, and `parl.Executor`."""

from collections.abc import Iterable
from typing import Any

import functions_work as work

import parl


def inner(count: int) -> int:
    return len(list(parl.map(work.nothing, range(count))))


class _Parl:
    sizes = (None,)

    def start(self, workers: int) -> None:
        self._workers = workers
        self._executor = parl.Executor(workers)

    def map(self, function: Any, items: Any, size: int | None) -> Iterable[Any]:
        return parl.map(function, items, chunksize=size, max_workers=self._workers)

    def first(self, function: Any) -> None:
        self._executor.submit(function, 1).result()

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._executor.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        parl.disconnect()


PEER = _Parl()

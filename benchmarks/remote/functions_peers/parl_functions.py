"""Ours: `parl.Executor`, which chooses chunk sizes itself."""

from typing import Any

import functions_work as work

import parl


def inner(count: int) -> int:
    return len(list(parl.map(work.nothing, range(count))))


class _Parl:
    sizes = (None,)

    def start(self, workers: int) -> None:
        self._executor = parl.Executor(workers)

    def run(self, function: Any, items: Any, size: int | None) -> None:
        for _ in self._executor.map(function, items, chunksize=size):
            pass

    def first(self, function: Any) -> None:
        self._executor.submit(function, 1).result()

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._executor.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        parl.disconnect()


PEER = _Parl()

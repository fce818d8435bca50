"""mpire's `WorkerPool` with workers kept alive, with the best of several chunk sizes."""

from collections.abc import Iterable
from typing import Any

import functions_work as work
from mpire import WorkerPool


def inner(count: int) -> int:
    with WorkerPool(2) as pool:
        return len(pool.map(work.nothing, range(count), chunk_size=50))


class _Mpire:
    sizes = (1, 32, 500, 2500)

    def start(self, workers: int) -> None:
        self._pool = WorkerPool(workers, keep_alive=True, daemon=False)

    def map(self, function: Any, items: Any, size: int) -> Iterable[Any]:
        results: Iterable[Any] = self._pool.imap(function, [(item,) for item in items], chunk_size=size)
        return results

    def first(self, function: Any) -> None:
        self._pool.apply(function, (1,))

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._pool.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        self._pool.terminate()


PEER = _Mpire()

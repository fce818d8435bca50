"""mpire's `WorkerPool` with workers kept alive, with the best of several chunk sizes."""

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

    def run(self, function: Any, items: Any, size: int) -> None:
        some = [(item,) for item in items]
        for _ in self._pool.imap(function, some, chunk_size=size):
            pass

    def first(self, function: Any) -> None:
        self._pool.apply(function, (1,))

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._pool.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        self._pool.terminate()


PEER = _Mpire()

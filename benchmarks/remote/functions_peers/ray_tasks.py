"""Ray: a task per chunk of items, because its documentation advises against small tasks; the best of several sizes."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import functions_work as work
import ray

_AHEAD = 16


@ray.remote
def chunk(function: Any, items: list[Any]) -> list[Any]:
    return [function(item) for item in items]


@ray.remote(num_cpus=1)
def inner(count: int) -> int:
    return sum(map(len, ray.get([chunk.remote(work.nothing, list(range(50))) for _ in range(count // 50)])))


class _Ray:
    sizes = (1, 32, 500, 2500)

    def start(self, workers: int) -> None:
        ray.init(num_cpus=workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    def map(self, function: Any, items: Any, size: int) -> Iterable[Any]:
        rest, flying = iter(items), []
        while some := list(islice(rest, size)):
            flying.append(chunk.remote(function, some))
            if len(flying) >= max(_AHEAD, 5000 // size):
                yield from ray.get(flying.pop(0))
        for one in flying:
            yield from ray.get(one)

    def first(self, function: Any) -> None:
        ray.get(chunk.remote(function, [1]))

    def nested(self, outer: int, count: int) -> None:
        assert sum(ray.get([inner.remote(count) for _ in range(outer)])) == outer * count

    def stop(self) -> None:
        ray.shutdown()


PEER = _Ray()

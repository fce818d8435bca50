"""loky's reusable executor, with the best of several chunk sizes."""

import functions_work as work
from loky import get_reusable_executor


def inner(count: int) -> int:
    return len(list(get_reusable_executor(2).map(work.nothing, range(count), chunksize=50)))


class _Loky(work.ExecutorPeer):
    def start(self, workers: int) -> None:
        self.executor = get_reusable_executor(workers)


PEER = _Loky(inner)

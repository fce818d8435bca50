"""`concurrent.futures.ProcessPoolExecutor`, with the best of several chunk sizes."""

from concurrent.futures import ProcessPoolExecutor

import functions_work as work


def inner(count: int) -> int:
    with ProcessPoolExecutor(2) as executor:
        return len(list(executor.map(work.nothing, range(count), chunksize=50)))


class _Pool(work.ExecutorPeer):
    def start(self, workers: int) -> None:
        self.executor = ProcessPoolExecutor(workers)


PEER = _Pool(inner)

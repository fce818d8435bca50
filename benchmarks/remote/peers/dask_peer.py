"""Dask's actors as in its documentation: a local cluster with one process and thread per actor."""

from collections.abc import Sequence
from typing import Any

from distributed import Client, LocalCluster
from peer import NotOffered
from subject import Subject


class _Actor:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._future: Any = client.submit(Subject, actor=True, pure=False)
        self.proxy: Any = self._future.result()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args).result()

    def submit(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def collect(self, ticket: Any) -> Any:
        return ticket.result()

    def drop(self) -> None:
        del self.proxy, self._future


class _Dask:
    imports = "from distributed import Client"
    lost = (Exception,)
    has_slots = False

    def __init__(self) -> None:
        self._client: Any = None

    def start(self, slots: int) -> None:
        cluster = LocalCluster(n_workers=slots, threads_per_worker=1, dashboard_address=None, silence_logs=50)
        self._client = Client(cluster)

    def create(self, *, wait: bool = True) -> _Actor:  # noqa: ARG002
        return _Actor(self._client)

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        proxies = [actor.proxy for actor in actors]
        n = len(proxies)
        for future in [proxies[i % n].nothing() for i in range(calls)]:
            future.result()

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        for future in [getattr(actor.proxy, method)(value) for actor in actors]:
            future.result()

    def broadcast_stored(self, *_: object) -> None:
        raise NotOffered("its actors' methods take no references to stored values")

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()


PEER = _Dask()

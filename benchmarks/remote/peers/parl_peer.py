"""This repository."""

from collections.abc import Sequence
from typing import Any

from subject import Subject

import parl


@parl.remote_class
class Waiting(Subject):
    pass


@parl.remote_class(wait=False)
class Pipelined(Subject):
    pass


class _Actor:
    def __init__(self, wait: bool) -> None:
        self.proxy: Any = Waiting() if wait else Pipelined()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def submit(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def collect(self, ticket: Any) -> Any:
        return ticket.result()

    def drop(self) -> None:
        del self.proxy


class _Parl:
    imports = "from parl_remote import connect, remote_class"
    has_slots = True

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        from parl_remote import ActorLost

        return (ActorLost,)

    def start(self, slots: int) -> None:
        parl.connect(cpu_num=slots)

    def create(self, *, wait: bool = True) -> _Actor:
        return _Actor(wait)

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        proxies = [actor.proxy for actor in actors]
        n = len(proxies)
        for future in [proxies[i % n].nothing() for i in range(calls)]:
            future.result()

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        for future in [getattr(actor.proxy, method)(value) for actor in actors]:
            future.result()

    def broadcast_stored(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        self.broadcast(actors, method, parl.put(value))

    def stop(self) -> None:
        parl.disconnect()


PEER = _Parl()

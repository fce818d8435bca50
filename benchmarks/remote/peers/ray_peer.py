"""Ray as in its documentation, with one CPU per actor."""

from collections.abc import Sequence
from typing import Any

import ray
from subject import Subject

_Remote = ray.remote(num_cpus=1)(Subject)


class _Actor:
    def __init__(self) -> None:
        self.handle: Any = _Remote.remote()

    def call(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self.handle, method).remote(*args))

    def submit(self, method: str, *args: Any) -> Any:
        return getattr(self.handle, method).remote(*args)

    def collect(self, ticket: Any) -> Any:
        return ray.get(ticket)

    def drop(self) -> None:
        del self.handle


class _Ray:
    imports = "import ray"
    lost = (ray.exceptions.RayActorError,)
    has_slots = True

    def start(self, slots: int) -> None:
        ray.init(num_cpus=slots, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    def create(self, *, wait: bool = True) -> _Actor:  # noqa: ARG002
        return _Actor()

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        handles = [actor.handle for actor in actors]
        n = len(handles)
        ray.get([handles[i % n].nothing.remote() for i in range(calls)])

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        ray.get([getattr(actor.handle, method).remote(value) for actor in actors])

    def broadcast_stored(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        stored = ray.put(value)
        ray.get([getattr(actor.handle, method).remote(stored) for actor in actors])

    def stop(self) -> None:
        ray.shutdown()


PEER = _Ray()

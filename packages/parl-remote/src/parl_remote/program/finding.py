"""A client's questions by name: where is that actor, and: end it.

find --FindActor--> master --> where it is --WatchActor--> its worker --> what it is, once it has been made
"""

from __future__ import annotations

import time
from collections.abc import Callable

from parl_remote.errors import ActorLost, NoSuchActor, RemoteError
from parl_remote.messages import Message
from parl_remote.messages.naming import ActorFound, ActorWatched, FindActor, WatchActor
from parl_remote.messages.overview import KillActor
from parl_remote.named_actors import FoundActor, read_description
from parl_remote.program.borrowing import granted_at
from parl_remote.program.handles import ActorPlace
from parl_remote.program.master_client import MasterClient
from parl_remote.program.worker_clients import WorkerClients

__all__ = ["find", "kill"]


def find(master: MasterClient, workers: WorkerClients, name: str, timeout_s: float | None) -> FoundActor:
    """The actor that has a name; see `named_actors.get_actor`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found = _ask(master, lambda number: FindActor(number, actor_name=name), timeout_s)
    assert isinstance(found, ActorFound)  # the master answers with that or with Failed
    place = ActorPlace(found.lease_id, found.node_id, found.node_addresses, found.socket_dir, found.host_id, True)
    left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
    watched = workers.ask(granted_at(place), lambda number: WatchActor(number, place.lease_id, described=True), left_s)
    assert isinstance(watched, ActorWatched)
    if watched.cause is not None:
        raise ActorLost(watched.cause, class_name=f"the actor {name!r}")
    return FoundActor(place, *read_description(watched.description))


def kill(master: MasterClient, name: str, reason: str, timeout_s: float) -> None:
    """End the actor that has a name; see `named_actors.kill`."""
    _ask(master, lambda number: KillActor(number, name, reason), timeout_s)


def _ask(master: MasterClient, make: Callable[[int], Message], timeout_s: float | None) -> Message:
    try:
        return master.ask(make, timeout_s)
    except RemoteError as error:
        if type(error) is RemoteError:  # what the master has said, not what became of the connection
            raise NoSuchActor(str(error)) from None
        raise

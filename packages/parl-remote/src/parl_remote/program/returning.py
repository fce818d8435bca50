"""A client's references to actors that are made again when they are lost: its own ones, and those of others.

    own        lost --> lease (replaces the old one) --> CREATE with the same arguments and the last state
    borrowed   lost --> FindActor(old lease) --> the master answers once there is a new one, or none will be

`restarts` has what happens to calls meanwhile.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from parl_remote.errors import ActorLost, RemoteError
from parl_remote.options import ActorOptions
from parl_remote.program.actor_record import ActorRecord
from parl_remote.program.actor_ref import ActorRef, AttributeNames
from parl_remote.program.borrowing import GonePath
from parl_remote.program.connection import Connection
from parl_remote.program.handles import ActorPlace
from parl_remote.program.pending_calls import kind_of_reference
from parl_remote.program.recipe import Made, Recipe
from parl_remote.program.restarts import Comeback, NotAgain
from parl_remote.shipping.class_spec import ClassSpec

if TYPE_CHECKING:
    from parl_remote.program.client import Client

__all__ = ["borrowed_reference", "own_reference"]

_FIND_S = 60.0  # an owner that makes an actor again may itself wait for room
_STATE_S = 5.0  # what the actor saved last is read within milliseconds, unless a thread that reads is stopped
_NEWS_S = 0.02  # the master hears of a death by another way than the holder of a handle, milliseconds apart


def own_reference(client: Client, recipe: Recipe, made: Made) -> ActorRef:
    """The reference to an actor that this client has made, and makes again."""

    def again(lost: ActorRecord, restarts: int) -> Made:
        client._check_open()
        if recipe.saves and lost.connection is not None:
            lost.connection.is_read_out.wait(_STATE_S)
        return _returnable(client.making.make(recipe, lost.lease_id, restarts))

    def give_up(record: ActorRecord) -> None:
        client._master.release(record.lease_id)  # others may wait for it

    comeback = Comeback(
        _returnable(made),
        limit=recipe.options.max_restarts,
        again=again,
        on_made=lambda made: note(made),
        part=lambda made: client._let_go(made.record, made.record.channel),
        give_up=give_up,
    )
    ref, note = _reference(client, comeback, recipe.spec, recipe.names, made.place, recipe.options)
    if made.record.cause is not None:  # it ended before anybody could make it again
        comeback.lost(made.record, made.record.cause)
    return ref


def borrowed_reference(
    client: Client,
    record: ActorRecord,
    path: Connection | None,
    spec: ClassSpec,
    names: AttributeNames,
    place: ActorPlace,
) -> ActorRef:
    """The reference to an actor that somebody else makes again.

    Args:
        client: Whose.
        record: The actor.
        path: The way to it; None if it was gone when its handle arrived.
        spec: Its class.
        names: Its attributes.
        place: Where it was.
    """

    def again(lost: ActorRecord, restarts: int) -> Made:  # noqa: ARG001  # its owner counts
        found = _successor(client, lost)
        record = ActorRecord(found.lease_id, found.node_id, spec.name, is_borrowed=True)
        record.on_names = names.set
        client._borrowing.records[found.lease_id] = record
        client._borrowing.records.pop(lost.lease_id, None)
        connection = client._borrowing.reach(found, record)
        if connection is None:
            client._borrowing.records.pop(found.lease_id, None)
            raise ActorLost(record.cause, class_name=spec.name) if record.cause is not None else NotAgain
        return _returnable(Made(record, connection, found))

    comeback = Comeback(
        _returnable(Made(record, path or GonePath(record), place)),
        limit=None,
        again=again,
        on_made=lambda made: note(made),
        part=lambda made: client._let_go(made.record, made.record.channel),
        give_up=lambda _: None,
    )
    ref, note = _reference(client, comeback, spec, names, place, None)
    if record.cause is not None:
        comeback.lost(record, record.cause)
    return ref


def _successor(client: Client, lost: ActorRecord) -> ActorPlace:
    """Where the actor is that took the place of one that was lost; waits until there is one."""
    from parl_remote.messages.naming import ActorFound, FindActor

    until = time.monotonic() + _FIND_S
    while True:
        client._check_open()
        try:
            left_s = max(0.0, until - time.monotonic())
            found = client._master.ask(lambda number: FindActor(number, lease_id=lost.lease_id), left_s)
        except RemoteError:
            raise NotAgain from None
        assert isinstance(found, ActorFound)  # the master answers with that or with Failed
        if found.lease_id != lost.lease_id:
            return ActorPlace(
                found.lease_id, found.node_id, found.node_addresses, found.socket_dir, found.host_id, may_return=True
            )
        if time.monotonic() > until:
            raise NotAgain
        time.sleep(_NEWS_S)


def _returnable(made: Made) -> Made:
    if isinstance(made.path, Connection):
        made.path.gives_back = True
    return made


def _reference(
    client: Client,
    comeback: Comeback,
    spec: ClassSpec,
    names: AttributeNames,
    place: ActorPlace,
    options: ActorOptions | None,
) -> tuple[ActorRef, Callable[[Made], None]]:
    """The reference, and what is told of every new actor."""

    def let_go() -> None:
        if os.getpid() == client._pid:
            client._loop.call_soon(part)

    def part() -> None:
        made = comeback.let_go()
        if made is not None:
            client._let_go(made.record, made.record.channel)

    def destroy() -> None:
        made = comeback.end()
        if made is not None:
            client._destroy(made.record)

    def note(made: Made) -> None:
        known = where()
        if known is not None:
            before = known.place
            assert isinstance(before, ActorPlace)
            known.place = made.place._replace(may_return=True, limit=before.limit, waits=before.waits)
            client._refs[made.record.lease_id] = known

    ref = kind_of_reference(options, place)(
        spec, comeback, let_go=let_go, destroy=destroy, attributes=names, place=place._replace(may_return=True)
    )
    where = weakref.ref(ref)
    client._refs[place.lease_id] = ref
    return ref, note

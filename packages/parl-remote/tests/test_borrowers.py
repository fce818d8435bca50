"""The worker's part that keeps an actor alive for processes that are connecting to it: its messages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from parl_remote._links.call_messages import Kind
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import ActorDied, Hello, Message, Role, StopActor
from parl_remote._messages.parts import ActorReached, ActorWatched, DescribeActor, UnwatchActor, WatchActor
from parl_remote._messages.wire import decode
from parl_remote._transport.unix import UnixChannel
from parl_remote._worker.borrowers import Borrowers
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, RemoteError, RemoteProtocolError

LEASE = "lease-1"
KILLED = DeathCause(DeathKind.SIGNAL, signal=9)


class Client:
    """A client's link, with what it was told."""

    def __init__(self, name: str) -> None:
        self.told: list[Message] = []
        hello = Hello(Role.CLIENT, Role.WORKER, name, 1, 1, "host", 1)
        self.link = Link(hello, 1, lambda frames: self.told.append(decode(frames[0])), lambda: None)


class Actor:
    """An actor's end of its worker's connection; it reads only when it is told to."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel, self._inside = UnixChannel(ours), UnixChannel(theirs)
        self.cause: DeathCause | None = None

    def read(self) -> list[int]:
        """The kinds of all messages that have come."""
        try:
            return [frames[0][0] for frames in self._inside.receive_ready()]
        except ChannelClosed:
            return []

    def close(self) -> None:
        self.channel.close()
        self._inside.close()


@pytest.fixture
def actor() -> Iterator[Actor]:
    one = Actor()
    yield one
    one.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    one = Loop()
    yield one
    one.close()


@pytest.fixture
def part(actor: Actor, loop: Loop) -> Borrowers:
    """The part of a worker with one actor, which belongs to the client "owner"."""
    return Borrowers(
        lambda lease_id: ("a1.sock", actor.channel) if lease_id == LEASE and actor.cause is None else None,
        lambda lease_id: actor.cause if lease_id == LEASE else None,
        lambda lease_id, client_id: (lease_id, client_id) == (LEASE, "owner"),
        loop,
    )


def turn_until(loop: Loop, happened: Callable[[], object]) -> None:
    for _ in range(200):
        if happened():
            return
        loop.run_once(0.01)
    raise AssertionError("it did not happen")


def test_an_actor_is_held_before_a_borrower_learns_where_it_is(part: Borrowers, actor: Actor) -> None:
    client = Client("one")
    part.received(client.link, WatchActor(7, LEASE), [])
    assert client.told == [ActorWatched(7, "a1.sock")]
    assert actor.read() == [Kind.HOLD]
    part.received(client.link, ActorReached(LEASE), [])
    assert actor.read() == [Kind.RELEASE]


def test_it_is_released_when_the_last_one_has_come_or_is_gone(part: Borrowers, actor: Actor) -> None:
    one, two = Client("one"), Client("two")
    for client in (one, two):
        part.received(client.link, WatchActor(1, LEASE), [])
    assert actor.read() == [Kind.HOLD]
    part.received(one.link, ActorReached(LEASE), [])
    assert actor.read() == []
    part.closed(two.link)
    assert actor.read() == [Kind.RELEASE]


def test_a_caller_through_the_relay_counts_as_arrived(part: Borrowers, actor: Actor) -> None:
    client = Client("far away")
    part.received(client.link, WatchActor(1, LEASE), [])
    assert actor.read() == [Kind.HOLD]
    part.attached("far away", LEASE)
    assert actor.read() == [Kind.RELEASE]


def test_a_busy_actor_gets_two_messages_however_many_come(part: Borrowers, actor: Actor, loop: Loop) -> None:
    for number in range(3000):
        client = Client(f"client-{number}")
        part.received(client.link, WatchActor(number, LEASE), [])
        part.received(client.link, ActorReached(LEASE), [])
        part.received(client.link, UnwatchActor(LEASE), [])
        assert client.told == [ActorWatched(number, "a1.sock")]
    assert actor.read() == [Kind.HOLD]
    assert len(loop._timers) == 1  # one look for all of them
    read: list[int] = []

    def has_read() -> bool:
        read.extend(actor.read())
        return bool(read)

    turn_until(loop, has_read)
    assert read == [Kind.RELEASE]


def test_watchers_get_the_end_and_later_ones_too(part: Borrowers, actor: Actor) -> None:
    one, two, late = Client("one"), Client("two"), Client("late")
    for client in (one, two):
        part.received(client.link, WatchActor(1, LEASE), [])
    part.received(two.link, UnwatchActor(LEASE), [])
    actor.cause = KILLED
    part.actor_ended(LEASE, KILLED)
    assert one.told[1:] == [ActorDied(LEASE, KILLED)]
    assert two.told[1:] == []
    part.received(late.link, WatchActor(2, LEASE), [])
    assert late.told == [ActorWatched(2, cause=KILLED)]


def test_an_unknown_actor_is_reported_as_ended(part: Borrowers) -> None:
    client = Client("one")
    part.received(client.link, WatchActor(3, "lease-unknown"), [])
    (answer,) = client.told
    assert isinstance(answer, ActorWatched)
    assert answer.cause is not None
    assert "ended long ago" in answer.cause.detail


def test_a_request_for_a_description_waits_until_there_is_one(part: Borrowers) -> None:
    seeker, owner = Client("seeker"), Client("owner")
    part.received(seeker.link, WatchActor(1, LEASE, described=True), [])
    assert seeker.told == []
    part.received(owner.link, DescribeActor(LEASE, "a class"), [])
    assert seeker.told == [ActorWatched(1, "a1.sock", "a class")]
    part.received(seeker.link, WatchActor(2, LEASE, described=True), [])
    assert seeker.told[1:] == [ActorWatched(2, "a1.sock", "a class")]


def test_a_request_for_a_description_fails_at_the_actors_end(part: Borrowers, actor: Actor) -> None:
    seeker, gone = Client("seeker"), Client("gone")
    for client in (seeker, gone):
        part.received(client.link, WatchActor(1, LEASE, described=True), [])
    part.closed(gone.link)
    actor.cause = KILLED
    part.actor_ended(LEASE, KILLED)
    assert seeker.told == [ActorWatched(1, cause=KILLED)]
    assert gone.told == []


def test_a_request_that_is_given_up_does_not_hold_the_actor(part: Borrowers, actor: Actor) -> None:
    seeker, owner = Client("seeker"), Client("owner")
    for number in (1, 2):
        part.received(seeker.link, WatchActor(number, LEASE, described=True), [])
    part.received(seeker.link, UnwatchActor(LEASE, 1), [])
    part.received(owner.link, DescribeActor(LEASE, "a class"), [])
    assert seeker.told == [ActorWatched(2, "a1.sock", "a class")]
    assert actor.read() == [Kind.HOLD]
    part.received(seeker.link, UnwatchActor(LEASE, 2), [])  # the answer came too late
    assert actor.read() == [Kind.RELEASE]


def test_a_request_that_is_given_up_leaves_the_client_s_others(part: Borrowers, actor: Actor) -> None:
    client = Client("one")
    for number in (1, 2):
        part.received(client.link, WatchActor(number, LEASE), [])
    assert actor.read() == [Kind.HOLD]
    part.received(client.link, UnwatchActor(LEASE, 1), [])
    assert actor.read() == []
    part.received(client.link, UnwatchActor(LEASE, 2), [])
    assert actor.read() == [Kind.RELEASE]


def test_only_the_owner_describes_an_actor(part: Borrowers) -> None:
    with pytest.raises(RemoteError, match="which it has not made"):
        part.received(Client("another").link, DescribeActor(LEASE, "something else"), [])


def test_other_messages_are_the_peer_s_fault(part: Borrowers) -> None:
    with pytest.raises(RemoteProtocolError, match="do not send StopActor"):
        part.received(Client("one").link, StopActor(LEASE), [])

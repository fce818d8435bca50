"""Sealed TCP: changed, repeated, missing or swapped records are noticed, and unauthenticated peers are refused."""

from __future__ import annotations

import os
import select
import socket
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from faults.another_actor import AnotherActor
from parl_remote._config import Limits
from parl_remote._data import serialize
from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import Kind
from parl_remote._links.loop import Loop
from parl_remote._program.connection import Connection
from parl_remote._program.known_actors import ActorRecord, Borrowing, DeferredDisconnects, OwnActors
from parl_remote._program.outbox import Outbox
from parl_remote._transport import Event, Opened, Received, sealed
from parl_remote._transport.sealed import Handover, Opener, SealedChannel, SealedListener, Sealer, can_seal
from parl_remote.errors import (
    ChannelClosed,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    RemoteProtocolError,
    ResultTimeout,
)

pytest.importorskip("cryptography")

KEY = bytes(range(32))
DEADLINE_S = 60.0
LIMITS = Limits()


def opened(opener: Opener, record: bytes) -> bytes:
    return opener.open(record[:4], record[4:])


def test_records_open_in_their_order() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    for number in range(5):
        assert opened(opener, sealer.seal(b"%d" % number)) == b"%d" % number


def test_two_records_of_the_same_bytes_differ_and_hide_them() -> None:
    sealer = Sealer(KEY)
    first, second = sealer.seal(b"the same bytes"), sealer.seal(b"the same bytes")
    assert first != second
    assert b"same" not in first + second


@pytest.mark.parametrize("at", [4, 10, -1])
def test_a_record_of_which_a_bit_is_changed_does_not_open(at: int) -> None:
    record = bytearray(Sealer(KEY).seal(b"some plain bytes"))
    record[at] ^= 1
    with pytest.raises(RemoteProtocolError, match="changed on its way"):
        opened(Opener(KEY), bytes(record))


def test_the_length_of_a_record_is_authenticated() -> None:
    record = Sealer(KEY).seal(b"some plain bytes")
    with pytest.raises(RemoteProtocolError):
        Opener(KEY).open(b"\0\0\0\0", record[4:])


def test_repeated_left_out_and_swapped_records_do_not_open() -> None:
    sealer = Sealer(KEY)
    first, second = sealer.seal(b"first"), sealer.seal(b"second")
    repeated = Opener(KEY)
    assert opened(repeated, first) == b"first"
    for opener, record in ((repeated, first), (Opener(KEY), second)):
        with pytest.raises(RemoteProtocolError):
            opened(opener, record)


def test_both_directions_and_all_connections_have_keys_of_their_own() -> None:
    listener = SealedListener("127.0.0.1", limits=LIMITS)
    keys = {listener.new_ticket() for _ in range(100)}
    assert len({ticket for ticket, _ in keys}) == len({key for _, key in keys}) == 100
    channel, peer = connected(listener)
    channel.send([b"a message"])
    assert messages(listener, peer) == [[b"a message"]]
    given = listener.hand_over(peer)
    assert given is not None
    assert given[1].send_key != given[1].receive_key
    given[0].close()
    channel.close()
    listener.close()


def test_the_key_changes_after_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_RECORDS_A_KEY", 3)
    sealer, opener = Sealer(KEY), Opener(KEY)
    used = set()
    for number in range(10):
        assert opened(opener, sealer.seal(b"%d" % number)) == b"%d" % number
        used.add(sealer.key)
    assert len(used) == 4
    assert opener.key == sealer.key


def test_another_process_goes_on_where_one_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_RECORDS_A_KEY", 3)
    sealer, opener = Sealer(KEY), Opener(KEY)
    for _ in range(7):
        opened(opener, sealer.seal(b"here"))
    state = Handover.decode(Handover(sealer.key, sealer.number, opener.key, opener.number).encode())
    later, there = Sealer(state.send_key, state.sent), Opener(state.receive_key, state.received)
    for _ in range(5):
        assert opened(there, sealer.seal(b"to there")) == b"to there"
        assert opened(opener, later.seal(b"from there")) == b"from there"


@pytest.mark.parametrize("data", [b"", bytes(79), bytes(81)])
def test_something_else_than_a_handover_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a handover has"):
        Handover.decode(data)


@pytest.fixture
def listener() -> Iterator[SealedListener]:
    one = SealedListener("127.0.0.1", limits=LIMITS)
    yield one
    one.close()


def poll(listener: SealedListener, patience_s: float = 0.05) -> list[Event]:
    select.select([listener.fileno()], [], [], patience_s)
    return listener.poll()


def connected(listener: SealedListener) -> tuple[SealedChannel, int]:
    ticket, key = listener.new_ticket()
    channel = SealedChannel.open("127.0.0.1", listener.port, ticket, key, limits=LIMITS, timeout_s=DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for event in poll(listener):
            if isinstance(event, Opened):
                return channel, event.peer
    raise AssertionError("no connection came")


def messages(listener: SealedListener, peer: int) -> list[list[bytes]]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = [event for event in poll(listener) if isinstance(event, Received) and event.peer == peer]
        if found:
            return [[bytes(frame) for frame in event.frames] for event in found]
    raise AssertionError("no message came")


def unauthenticated(listener: SealedListener, sent: bytes) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", listener.port))
    peer.sendall(sent)
    return peer


def is_accepted(listener: SealedListener, peer: socket.socket) -> bool:
    """Return whether a connection was opened, before its end was seen."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if any(isinstance(event, Opened) for event in poll(listener)):
            return True
        if select.select([peer], [], [], 0)[0]:
            assert peer.recv(1) == b""
            return False
    raise AssertionError("nothing happened")


def test_a_peer_without_a_ticket_is_refused(listener: SealedListener) -> None:
    with unauthenticated(listener, os.urandom(16)) as peer:
        assert not is_accepted(listener, peer)


def test_a_ticket_opens_one_connection(listener: SealedListener) -> None:
    ticket, _ = listener.new_ticket()
    with unauthenticated(listener, ticket) as first, unauthenticated(listener, ticket) as second:
        assert is_accepted(listener, first)
        assert not is_accepted(listener, second)


def test_a_ticket_is_valid_for_a_short_time() -> None:
    listener = SealedListener("127.0.0.1", limits=Limits(connect_timeout_s=0.0))
    ticket, _ = listener.new_ticket()
    with unauthenticated(listener, ticket) as late:
        assert not is_accepted(listener, late)
    listener.close()


def test_a_ticket_without_its_key_says_nothing_that_is_heard(listener: SealedListener) -> None:
    ticket, _ = listener.new_ticket()
    with unauthenticated(listener, ticket + Sealer(os.urandom(32)).seal(b"hello")) as other:
        assert is_accepted(listener, other)  # its connection
        seen: list[Event] = []
        while not select.select([other], [], [], 0)[0]:
            seen += poll(listener)
        assert not [event for event in seen if isinstance(event, Received)]


def test_silent_peers_do_not_keep_others_out(listener: SealedListener) -> None:
    silent = [unauthenticated(listener, b"") for _ in range(sealed._MOST_WAITING + 20)]
    channel, peer = connected(listener)
    channel.send([b"hello"])
    assert messages(listener, peer) == [[b"hello"]]
    assert len(listener._waiting) <= sealed._MOST_WAITING
    for other in silent:
        other.close()
    channel.close()


def test_a_record_that_is_changed_on_the_line_ends_the_channel(listener: SealedListener) -> None:
    ours, line = socket.socketpair()
    channel = SealedChannel(ours, Handover(bytes(32), 0, KEY, 0))
    record = bytearray(Sealer(KEY).seal(b"\1\0\0\0" + (5).to_bytes(8, "little") + b"hello"))
    record[-1] ^= 1
    line.sendall(record)
    with pytest.raises(RemoteProtocolError, match="changed on its way"):
        channel.receive(DEADLINE_S)
    line.close()
    channel.close()


def test_a_record_that_is_too_long_is_refused_before_it_is_read() -> None:
    ours, line = socket.socketpair()
    channel = SealedChannel(ours, Handover(bytes(32), 0, KEY, 0))
    line.sendall((2**31).to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError, match="cannot have"):
        channel.receive(DEADLINE_S)
    line.close()
    channel.close()


def test_a_message_that_cannot_be_sent_at_once_leaves_the_channel_as_it_was(listener: SealedListener) -> None:
    channel, peer = connected(listener)

    def send_until_it_would_wait() -> None:
        while True:
            channel.send([bytes(10_000)], 0.0)

    with pytest.raises(ResultTimeout):
        send_until_it_would_wait()
    count = 0
    deadline = time.monotonic() + DEADLINE_S
    channel_sent = channel._sealer.number
    while count < channel_sent and time.monotonic() < deadline:
        count += sum(isinstance(event, Received) for event in poll(listener))
    channel.send([b"the last one"])
    assert messages(listener, peer)[-1] == [b"the last one"]
    channel.close()


def test_a_message_without_memory_for_all_of_it_leaves_the_listener_as_it_was(
    listener: SealedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, peer = connected(listener)
    seal, sealed_ones = Sealer.seal, []

    def no_memory_for_the_third(sealer: Sealer, plain: bytes) -> bytes:
        sealed_ones.append(seal(sealer, plain))
        if len(sealed_ones) == 3:
            raise MemoryError
        return sealed_ones[-1]

    monkeypatch.setattr(Sealer, "seal", no_memory_for_the_third)
    with pytest.raises(MemoryError):
        listener.send(peer, [bytes(100_000) for _ in range(20)])
    listener.send(peer, [b"the next one"])
    assert [bytes(frame) for frame in channel.receive(DEADLINE_S)] == [b"the next one"]
    channel.close()


def test_a_channel_without_a_listener_raises() -> None:
    listener = SealedListener("127.0.0.1", limits=LIMITS)
    port = listener.port
    listener.close()
    with pytest.raises(ClusterUnreachable):
        SealedChannel.open("127.0.0.1", port, bytes(16), KEY, limits=LIMITS, timeout_s=DEADLINE_S)


def test_a_connection_that_was_handed_over_goes_on_elsewhere(listener: SealedListener) -> None:
    channel, peer = connected(listener)
    channel.send([b"to the node"])
    assert messages(listener, peer) == [[b"to the node"]]
    listener.send(peer, [b"from the node"])
    given = listener.hand_over(peer)
    assert given is not None
    elsewhere = SealedChannel(given[0], given[1])
    assert bytes(channel.receive(DEADLINE_S)[0]) == b"from the node"
    channel.send([b"to the actor"])
    assert bytes(elsewhere.receive(DEADLINE_S)[0]) == b"to the actor"
    elsewhere.send([b"from the actor", bytes(10**6)])
    assert [len(frame) for frame in channel.receive(DEADLINE_S)] == [14, 10**6]
    elsewhere.close()
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)
    assert can_seal()
    channel.close()


def test_what_has_arrived_is_received_after_the_channel_was_closed(listener: SealedListener) -> None:
    channel, peer = connected(listener)
    listener.send(peer, [b"last words"])
    select.select([channel.fileno()], [], [], DEADLINE_S)
    channel.close()
    assert bytes(channel.receive(DEADLINE_S)[0]) == b"last words"
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)


@pytest.mark.parametrize("is_borrowed", [False, True])
def test_an_answer_that_comes_after_the_news_of_its_actors_end_is_read(
    listener: SealedListener, is_borrowed: bool
) -> None:
    channel, peer = connected(listener)
    loop = Loop()
    disconnects = DeferredDisconnects(loop, lambda: True)
    nothing: Any = None
    own, borrowed = OwnActors(disconnects), Borrowing(disconnects, nothing, nothing, own_lease="", timeout_s=0)
    record = ActorRecord("lease", "worker", "Cell", is_borrowed=is_borrowed)
    record.channel = channel
    (borrowed if is_borrowed else own).records["lease"] = record
    (borrowed if is_borrowed else own).lost("lease", DeathCause(DeathKind.CONSTRUCTOR))
    listener.send(peer, [b"last words"])
    assert bytes(channel.receive(DEADLINE_S)[0]) == b"last words"
    disconnects.close()
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)
    loop.close()


# -- calls ---------------------------------------------------------------------------------------------------------


class Line:
    """An outbox with a sealed connection whose other end is a bare socket."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.loop = Loop()
        self.connection = Connection(
            SealedChannel(ours, Handover(KEY, 0, bytes(32), 0)),
            background=lambda: self.loop,
            lost=lambda _: AssertionError("the call was to be given back"),
            on_names=lambda _: None,
        )
        self.outbox = Outbox(self.connection)

    def submit(self, array: np.ndarray) -> RemoteFuture[Any]:
        return self.outbox.submit(Call(int(Kind.CALL), 0, 0, serialize.dumps((array,)), "take"))

    def take_all(self) -> None:
        """Read, and throw away, until the connection has sent everything."""
        into = bytearray(2**20)
        while self.connection.is_full():
            self.end.recv_into(into)
            self.connection.write()

    def close(self) -> None:
        self.end.close()
        self.connection.channel.close()
        self.loop.close()


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.close()


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_a_large_call_takes_the_memory_of_one_copy_and_only_until_it_is_sent(line: Line) -> None:
    array = np.ones(30_000_000, np.uint8)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    line.submit(array)
    assert line.connection.is_full()
    line.take_all()
    after, peak = tracemalloc.get_traced_memory()
    assert peak - before < 1.3 * len(array)
    assert after - before < 0.1 * len(array)


@pytest.mark.usefixtures("traced")
def test_a_large_call_that_waits_for_another_one_is_copied_once(line: Line) -> None:
    arrays = [np.ones(30_000_000, np.uint8) for _ in range(2)]
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for array in arrays:
        line.submit(array)
    while line.outbox.unsent or line.connection.is_full():
        line.take_all()
    assert tracemalloc.get_traced_memory()[1] - before < 2.3 * len(arrays[0])


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_call_of_which_a_part_was_sent_is_given_back_as_it_was_made(line: Line, has_begun: bool) -> None:
    array = np.ones(5_000_000, np.uint8)
    future = line.submit(array)
    array[:] = 2
    if has_begun:
        line.end.recv(2**20)
        line.connection.write()
    line.connection.lose()
    another = AnotherActor()
    line.outbox.lost()
    line.outbox.made(another)
    (call,) = another.calls
    (given_back,) = serialize.loads(call.payload[0], call.payload[1:])
    assert given_back.sum() == len(array)
    assert call.frozen() is call
    assert not future._settled

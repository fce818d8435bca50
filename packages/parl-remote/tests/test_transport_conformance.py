"""Tests that every transport must pass: in memory, unix sockets, zmq with CURVE, sealed TCP."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from parl_remote._config import Limits
from parl_remote._security import ClusterKey
from parl_remote._system.facilities import is_portable
from parl_remote._transport import KEPT_OF_CUT, Buffer, Channel, Closed, CutMessage, Event, Listener, Opened, Received
from parl_remote._transport.memory import MemoryListener
from parl_remote._transport.sealed import SealedChannel, SealedListener
from parl_remote._transport.unix import UnixChannel, UnixListener
from parl_remote._transport.unix.listener import _memory_for
from parl_remote._transport.zmq import ZmqChannel, ZmqListener
from parl_remote.errors import ChannelClosed, ResultTimeout

DEADLINE_S = 60.0


@dataclass
class Wire:
    """A listener, a way to connect to it, and what it has seen."""

    listener: Listener
    dial: Callable[[], Channel]
    channels: list[Channel] = field(default_factory=list)
    seen: list[Event] = field(default_factory=list)

    def connect(self) -> tuple[Channel, int]:
        """A channel and its number at the listener."""
        known = {event.peer for event in self.seen}
        channels: list[Channel] = []
        thread = threading.Thread(target=lambda: channels.append(self.dial()))  # CURVE needs the listener meanwhile
        thread.start()
        opened = self.until(lambda: [e for e in self.seen if isinstance(e, Opened) and e.peer not in known])
        thread.join(DEADLINE_S)
        self.channels.append(channels[0])
        return channels[0], opened[0].peer

    def poll(self, patience_s: float = 0.05) -> None:
        """Take in what is there, waiting as an event loop does."""
        if not self.listener.pending():
            poller = select.poll()
            poller.register(self.listener.fileno(), select.POLLIN)
            poller.poll(patience_s * 1000)
        self.seen.extend(self.listener.poll())

    def until(self, found: Callable[[], list[Event]]) -> list[Event]:
        """Poll until something is found."""
        deadline = time.monotonic() + DEADLINE_S
        while not (events := found()):
            assert time.monotonic() < deadline, f"it did not happen; seen: {self.seen[-5:]}"
            self.poll()
        return events

    def received(self, peer: int, count: int) -> list[list[bytes]]:
        """The first messages of a peer, waiting for `count` of them."""

        def messages() -> list[Event]:
            got: list[Event] = [e for e in self.seen if isinstance(e, Received) and e.peer == peer]
            return got if len(got) >= count else []

        return [[bytes(frame) for frame in e.frames] for e in self.until(messages) if isinstance(e, Received)]

    def closed(self, peer: int) -> Closed:
        """Wait for a peer's end."""
        event = self.until(lambda: [e for e in self.seen if isinstance(e, Closed) and e.peer == peer])[0]
        assert isinstance(event, Closed)
        return event


def in_memory(_: Path) -> Wire:
    listener = MemoryListener()
    return Wire(listener, listener.connect)


def over_unix_sockets(directory: Path) -> Wire:
    path = str(directory / "s")
    return Wire(UnixListener(path), lambda: UnixChannel.connect(path))


def over_zmq(_: Path) -> Wire:
    key = ClusterKey.generate()
    listener = ZmqListener("127.0.0.1", 0, key)
    return Wire(listener, lambda: ZmqChannel.connect(listener.address, key))


def over_sealed_tcp(_: Path) -> Wire:
    pytest.importorskip("cryptography")
    listener = SealedListener("127.0.0.1", limits=Limits())

    def dial() -> SealedChannel:
        ticket, key = listener.new_ticket()
        return SealedChannel.open("127.0.0.1", listener.port, ticket, key, limits=Limits(), timeout_s=DEADLINE_S)

    return Wire(listener, dial)


_WIRES = {"memory": in_memory, "unix": over_unix_sockets, "zmq": over_zmq, "sealed": over_sealed_tcp}


@pytest.fixture(params=list(_WIRES))
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    one = _WIRES[request.param](tmp_path)
    yield one
    for channel in one.channels:
        channel.close()
    one.listener.close()


def send_each(channel: Channel, messages: Sequence[Sequence[Buffer]]) -> None:
    for frames in messages:
        channel.send(frames)


def in_background(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_a_message_arrives_with_its_frames_as_they_were_cut(wire: Wire) -> None:
    channel, peer = wire.connect()
    channel.send([b"one", b"", bytearray(b"two"), memoryview(b"three")])
    assert wire.received(peer, 1) == [[b"one", b"", b"two", b"three"]]


def test_of_a_message_without_memory_the_beginnings_arrive(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(wire.listener, MemoryListener):
        pytest.skip("copies nothing")

    def memory_for(size: int) -> bytearray:
        if size > 1_000_000:
            raise MemoryError
        return bytearray(size)

    monkeypatch.setattr("parl_remote._transport.unix.listener._memory_for", memory_for)
    monkeypatch.setattr("parl_remote._transport.zmq.sockets.bytearray", memory_for, raising=False)
    channel, peer = wire.connect()
    frames = [b"a" * 100, b"b" * 3_000_000, b"", b"c"]
    sending = in_background(lambda: send_each(channel, [frames, [b"next"]]))
    assert wire.received(peer, 2) == [[frame[:KEPT_OF_CUT] for frame in frames], [b"next"]]
    cut = next(event.frames for event in wire.seen if isinstance(event, Received))
    assert isinstance(cut, CutMessage)
    assert list(cut.lengths) == [len(frame) for frame in frames]
    assert "no memory for a frame of 3000000 bytes" in str(cut.shortage)
    sending.join(DEADLINE_S)


def test_an_answer_arrives_at_the_peer_that_asked(wire: Wire) -> None:
    first, first_peer = wire.connect()
    second, second_peer = wire.connect()
    wire.listener.send(second_peer, [b"for the second"])
    wire.listener.send(first_peer, [b"for the first"])
    assert [bytes(frame) for frame in first.receive(DEADLINE_S)] == [b"for the first"]
    assert [bytes(frame) for frame in second.receive(DEADLINE_S)] == [b"for the second"]


def test_messages_of_one_peer_keep_their_order(wire: Wire) -> None:
    channel, peer = wire.connect()
    sent = [[str(number).encode()] for number in range(2000)]
    thread = in_background(lambda: send_each(channel, sent))
    assert wire.received(peer, len(sent)) == sent
    thread.join(DEADLINE_S)


def test_answers_keep_their_order(wire: Wire) -> None:
    channel, peer = wire.connect()
    for number in range(2000):
        wire.listener.send(peer, [str(number).encode()])
    got: list[int] = []
    thread = in_background(lambda: got.extend(int(bytes(channel.receive(DEADLINE_S)[0])) for _ in range(2000)))
    while thread.is_alive():
        wire.poll()
    assert got == list(range(2000))


@pytest.mark.parametrize("size", [1, 2**14 - 1, 2**14, 2**20 - 1, 2**20, 2**20 + 1, 5 * 2**20 + 7])
def test_long_frames_arrive_whole_both_ways(wire: Wire, size: int) -> None:
    channel, peer = wire.connect()
    data = np.random.default_rng(size).bytes(size)
    frames: Sequence[Buffer] = [b"head", data, b"", data[: size // 2]]
    thread = in_background(lambda: channel.send(frames))
    assert wire.received(peer, 1) == [[bytes(frame) for frame in frames]]
    thread.join(DEADLINE_S)
    wire.listener.send(peer, frames)
    got: list[list[memoryview]] = []
    thread = in_background(lambda: got.append(channel.receive(DEADLINE_S)))
    while thread.is_alive():
        wire.poll()
    assert [bytes(frame) for frame in got[0]] == [bytes(frame) for frame in frames]


def test_many_frames_make_one_message(wire: Wire) -> None:
    channel, peer = wire.connect()
    frames = [bytes([number % 256]) * (number % 7) for number in range(3000)]
    channel.send(frames)
    assert wire.received(peer, 1) == [frames]


def test_an_array_is_sent_without_being_turned_into_bytes_first(wire: Wire) -> None:
    channel, peer = wire.connect()
    array = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    thread = in_background(lambda: channel.send([b"array", array.data.cast("B")]))
    assert wire.received(peer, 1)[0][1] == array.tobytes()
    thread.join(DEADLINE_S)


def test_the_sender_may_reuse_its_memory_once_send_returned(wire: Wire, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["wire"] == "memory":
        pytest.skip("within one process nothing is copied; master and worker never reuse what they sent")
    channel, peer = wire.connect()
    data = bytearray(b"a" * 3_000_000)

    def send_then_overwrite() -> None:
        channel.send([data])
        data[:] = b"b" * len(data)

    thread = in_background(send_then_overwrite)
    assert wire.received(peer, 1) == [[b"a" * 3_000_000]]
    thread.join(DEADLINE_S)


@pytest.mark.parametrize("is_copied_by_caller", [False, True])
def test_what_post_has_kept_arrives_as_it_was_when_it_was_frozen(
    wire: Wire, request: pytest.FixtureRequest, is_copied_by_caller: bool
) -> None:
    kind = request.node.callspec.params["wire"]
    if kind == "memory":
        pytest.skip("it keeps nothing")
    channel, peer = wire.connect()
    data = bytearray(os.urandom(1_000 if kind == "zmq" else 5_000_000))  # zmq takes a number of messages of any size
    filler = bytes(len(data) // 16)
    sent: list[list[bytes]] = []
    is_kept = False
    while not is_kept:
        data[0] = len(sent) % 256
        frames: list[Buffer] = [b"head", b"", data, filler, b"tail"]
        is_kept = not channel.post(frames)
        sent.append([bytes(frame) for frame in frames])
    channel.freeze([b"head", b"", bytes(data), filler, b"tail"] if is_copied_by_caller else None)
    data[:] = bytes(len(data))
    assert not channel.post([b"the next one"])
    while not channel.flush():
        wire.poll()
    assert wire.received(peer, len(sent) + 1) == [*sent, [b"the next one"]]


def test_what_post_has_kept_whole_can_be_withdrawn(wire: Wire, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["wire"]
    if kind == "memory":
        pytest.skip("it keeps nothing")
    channel, peer = wire.connect()
    data = bytes(1_000 if kind == "zmq" else 5_000_000)
    count = 1
    while channel.post([data]):
        count += 1
    if kind != "zmq":  # it keeps the whole message
        assert not channel.withdraw([data]), "a part of it is on its way"
    unwanted: list[Buffer] = [b"unwanted", b"", bytearray(100)]
    assert not channel.post(unwanted)
    assert channel.withdraw(unwanted)
    assert not channel.post([b"the next one"])
    while not channel.flush():
        wire.poll()
    assert wire.received(peer, count + 1) == [*[[data]] * count, [b"the next one"]]
    assert not channel.withdraw([b"the next one"])


def test_receive_gives_up_after_its_timeout_and_works_again(wire: Wire) -> None:
    channel, peer = wire.connect()
    with pytest.raises(ResultTimeout, match=r"within 0\.01 s"):
        channel.receive(0.01)
    with pytest.raises(ResultTimeout):
        channel.receive(0)
    wire.listener.send(peer, [b"late"])
    assert bytes(channel.receive(DEADLINE_S)[0]) == b"late"


def test_a_waiting_receive_wakes_up_when_a_message_comes(wire: Wire) -> None:
    channel, peer = wire.connect()
    got: list[bytes] = []
    thread = in_background(lambda: got.append(bytes(channel.receive(DEADLINE_S)[0])))
    wire.listener.send(peer, [b"now"])
    thread.join(DEADLINE_S)
    assert got == [b"now"]


def test_threads_may_send_while_another_receives(wire: Wire) -> None:
    channel, peer = wire.connect()
    count, senders = 300, 4
    answers: list[bytes] = []

    def send_all(name: int) -> None:
        for number in range(count):
            channel.send([f"{name} {number}".encode()])

    reader = in_background(
        lambda: answers.extend(bytes(channel.receive(DEADLINE_S)[0]) for _ in range(count * senders))
    )
    threads = [in_background(functools.partial(send_all, name)) for name in range(senders)]
    answered = 0
    deadline = time.monotonic() + DEADLINE_S
    while answered < count * senders:
        assert time.monotonic() < deadline
        before = len(wire.seen)
        wire.poll()
        for event in wire.seen[before:]:
            assert isinstance(event, Received)
            wire.listener.send(peer, event.frames)
            answered += 1
    for thread in (*threads, reader):
        thread.join(DEADLINE_S)
    for name in range(senders):
        own = [answer for answer in answers if answer.startswith(f"{name} ".encode())]
        assert own == [f"{name} {number}".encode() for number in range(count)]


def test_two_peers_that_both_send_first_do_not_wait_for_each_other(wire: Wire) -> None:
    channel, peer = wire.connect()
    big = bytes(4 * 2**20)
    for _ in range(4):
        wire.listener.send(peer, [big])
    thread = in_background(lambda: send_each(channel, [[big]] * 4))
    assert len(wire.received(peer, 4)) == 4
    thread.join(DEADLINE_S)
    got: list[int] = []
    thread = in_background(lambda: got.extend(channel.receive(DEADLINE_S)[0].nbytes for _ in range(4)))
    while thread.is_alive():
        wire.poll()
    assert got == [len(big)] * 4


def test_what_was_sent_before_closing_arrives_and_then_the_end(wire: Wire) -> None:
    channel, peer = wire.connect()
    for number in range(50):
        channel.send([str(number).encode()])
    channel.close()
    wire.closed(peer)
    assert wire.received(peer, 50) == [[str(number).encode()] for number in range(50)]
    assert isinstance(wire.seen[-1], Closed)


def test_what_the_listener_sent_before_dropping_arrives_and_then_the_end(wire: Wire) -> None:
    channel, peer = wire.connect()
    wire.listener.send(peer, [b"last words"])
    wire.listener.drop(peer)
    assert bytes(channel.receive(DEADLINE_S)[0]) == b"last words"
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)


def test_what_the_listener_sent_before_it_closed_arrives_and_then_the_end(wire: Wire) -> None:
    channel, peer = wire.connect()
    for number in range(20):
        wire.listener.send(peer, [str(number).encode()])
    wire.listener.close()
    assert [int(bytes(channel.receive(DEADLINE_S)[0])) for _ in range(20)] == list(range(20))
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)


def test_dropping_a_peer_is_final_and_silent(wire: Wire) -> None:
    channel, peer = wire.connect()
    wire.listener.drop(peer)
    wire.listener.drop(peer)
    with contextlib.suppress(ChannelClosed):
        channel.send([b"too late"])
    other, _ = wire.connect()
    other.send([b"marker"])
    wire.until(lambda: [e for e in wire.seen if isinstance(e, Received)])
    assert not [e for e in wire.seen if e.peer == peer and not isinstance(e, Opened)]


def test_closing_the_listener_ends_a_waiting_receive(wire: Wire) -> None:
    channel, _ = wire.connect()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(ChannelClosed):
            channel.receive(DEADLINE_S)
        ended.set()

    thread = in_background(wait)
    wire.listener.close()
    thread.join(DEADLINE_S)
    assert ended.is_set()


def test_closing_a_channel_ends_its_own_waiting_receive(wire: Wire) -> None:
    channel, _ = wire.connect()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(ChannelClosed):
            channel.receive(DEADLINE_S)
        ended.set()

    thread = in_background(wait)
    channel.close()
    thread.join(DEADLINE_S)
    assert ended.is_set()


@pytest.mark.skipif(is_portable(), reason="a wait of the facilities of every system does not see the close")
def test_a_signal_handler_may_close_the_channel_that_its_thread_receives_from(wire: Wire) -> None:
    channel, _ = wire.connect()
    before = signal.signal(signal.SIGUSR1, lambda *_: channel.close())
    received = threading.Event()

    def interrupt() -> None:
        received.wait(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(ChannelClosed):
            channel.receive(DEADLINE_S)
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_closed_channel_refuses_to_send_and_to_receive(wire: Wire) -> None:
    channel, _ = wire.connect()
    channel.close()
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.send([b"x"])
    with pytest.raises(ChannelClosed):
        channel.receive(0)


def test_sending_to_a_peer_that_is_gone_says_so(wire: Wire) -> None:
    channel, peer = wire.connect()
    channel.close()
    wire.closed(peer)
    with pytest.raises(ChannelClosed, match=str(peer)):
        wire.listener.send(peer, [b"x"])
    wire.listener.drop(peer)


def test_a_channel_in_a_loop_is_readable_when_a_message_waits(wire: Wire) -> None:
    channel, peer = wire.connect()
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    for number in range(3):
        wire.listener.send(peer, [str(number).encode()])
    got: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(got) < 3:
        assert time.monotonic() < deadline
        if not channel.pending():
            poller.poll(50)
        wire.poll(0)
        with contextlib.suppress(ResultTimeout):
            while True:
                got.append(int(bytes(channel.receive(0)[0])))
    assert got == [0, 1, 2]


def test_peers_get_numbers_that_are_never_used_again(wire: Wire) -> None:
    numbers = []
    for _ in range(5):
        channel, peer = wire.connect()
        numbers.append(peer)
        channel.close()
        wire.closed(peer)
    assert len(set(numbers)) == 5


_HAS_HUGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE") and Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()


@pytest.mark.skipif(not _HAS_HUGE_PAGES, reason="this system has no huge pages")
def test_listeners_ask_for_huge_pages_for_large_frames() -> None:
    frame = np.frombuffer(_memory_for(2**24), np.uint8)
    inside = frame.ctypes.data + frame.nbytes // 2
    flags: list[list[str]] = []
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            begin, end = (int(number, 16) for number in first.split("-"))
            is_it = begin <= inside < end
        elif is_it and first == "VmFlags:":
            flags.append(rest.split())
    assert len(flags) == 1
    assert "hg" in flags[0]
    assert "sh" not in flags[0]  # shared memory comes in small pages

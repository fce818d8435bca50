"""Calls and answers that cannot leave at once and that there is no memory to copy: see `Channel.freeze`."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from faults.another_actor import AnotherActor
from faults.narrow import Narrow
from parl_remote._actor import process
from parl_remote._actor.process import Outbox as Answers
from parl_remote._data import serialize
from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import HEADER_BYTES, Flag, Kind, header_of, pack
from parl_remote._links.loop import Loop
from parl_remote._program.connection import Connection
from parl_remote._program.outbox import Outbox
from parl_remote._system.shortage import is_shortage
from parl_remote._transport import copied
from parl_remote._transport.sealed import Handover, SealedChannel, Sealer, can_seal
from parl_remote._transport.unix import UnixChannel, UnixPeers, sockets
from parl_remote.errors import ChannelClosed, SerializationError

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
DEADLINE_S = 60.0
SIZE = 5_000_000


class Line:
    """An outbox of calls whose connection leads through a narrow socket to an actor's end, which a thread reads."""

    def __init__(self, is_sealed: bool) -> None:
        ours, theirs = socket.socketpair()
        self.narrow = cast("Any", Narrow(ours))
        channel: UnixChannel
        if is_sealed:
            channel = SealedChannel(self.narrow, Handover(KEY, 0, OTHER_KEY, 0))
            self.end: UnixChannel = SealedChannel(theirs, Handover(OTHER_KEY, 0, KEY, 0))
        else:
            channel, self.end = UnixChannel(self.narrow), UnixChannel(theirs)
        self.loop = Loop()
        self.connection = Connection(
            channel,
            background=lambda: self.loop,
            lost=lambda _: AssertionError("the call did not reach the actor"),
            on_names=lambda _: None,
        )
        self.outbox = Outbox(self.connection)
        self.arrays: list[np.ndarray] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(ChannelClosed):
            while (frames := self.end.receive(DEADLINE_S))[0][0] == Kind.CALL:
                (array,) = serialize.loads(frames[0][HEADER_BYTES:], frames[1:])
                self.arrays.append(array)

    def submit(self, array: np.ndarray) -> RemoteFuture[Any]:
        return self.outbox.submit(Call(int(Kind.CALL), 0, 0, serialize.dumps((array,)), "take"))

    def received(self) -> list[np.ndarray]:
        """Return the arrays that the actor received, once everything sent has arrived."""
        while self.connection.is_full():
            self.connection.write()
        self.connection.channel.send([b"the end"])
        self._reader.join(DEADLINE_S)
        return self.arrays

    def close(self) -> None:
        self.connection.channel.close()
        self._reader.join(DEADLINE_S)
        self.end.close()
        self.loop.close()


@pytest.fixture(params=["plain", "sealed"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    if request.param == "sealed" and not can_seal():
        pytest.skip("needs cryptography")
    one = Line(is_sealed=request.param == "sealed")
    yield one
    one.close()


def short_of_memory(monkeypatch: pytest.MonkeyPatch, times: int, then: Callable[[], object] = bool) -> None:
    """Have no memory for copies of calls so many times; `then` is called the last time."""
    freeze, left = Call.frozen, [times]

    def frozen(call: Call) -> Call:
        if left[0] > 0 and freeze(call) is not call:
            left[0] -= 1
            if not left[0]:
                then()
            raise MemoryError("no memory for a copy")
        return freeze(call)

    monkeypatch.setattr(Call, "frozen", frozen)


def ones() -> np.ndarray:
    return np.ones(SIZE, np.uint8)


def test_a_call_of_which_nothing_has_left_fails_and_the_next_one_is_sent(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.narrow.takes = 0
    short_of_memory(monkeypatch, 1)
    with pytest.raises(MemoryError, match="no memory for a copy"):
        line.submit(ones())
    assert not line.connection._pending
    line.narrow.takes = 2**62
    line.submit(ones() * 2)
    (array,) = line.received()
    assert array.sum() == 2 * SIZE


def test_a_call_that_would_follow_another_one_fails(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.narrow.takes = 100_000
    line.submit(ones())
    assert line.connection.is_full()
    short_of_memory(monkeypatch, 1)
    with pytest.raises(MemoryError):
        line.submit(ones() * 2)
    line.submit(ones() * 3)
    line.narrow.takes = 2**62
    assert [array.sum() for array in line.received()] == [SIZE, 3 * SIZE]


def test_a_call_of_which_a_part_has_left_is_waited_for(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.narrow.takes = 400_000
    short_of_memory(monkeypatch, 2**62)
    monkeypatch.setattr(line.connection, "look", lambda: setattr(line.narrow, "takes", 2**62))
    array = ones()
    line.submit(array)
    assert not line.connection.is_full(), "nothing here refers to the array any more"
    array[:] = 0
    (arrived,) = line.received()
    assert arrived.sum() == SIZE


def test_a_call_that_is_waited_for_is_copied_once_there_is_memory(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.narrow.takes = 400_000
    short_of_memory(monkeypatch, 3)
    array = ones()
    line.submit(array)
    assert line.connection.is_full()
    array[:] = 0
    line.narrow.takes = 2**62
    (arrived,) = line.received()
    assert arrived.sum() == SIZE


@pytest.mark.parametrize("is_short_until_the_end", [True, False])
def test_a_call_that_is_waited_for_when_the_actor_is_lost_goes_to_the_next_one_or_fails(
    line: Line, monkeypatch: pytest.MonkeyPatch, is_short_until_the_end: bool
) -> None:
    line.narrow.takes = 400_000
    short_of_memory(monkeypatch, 3 + is_short_until_the_end)
    rounds: Iterator[Callable[[], object]] = iter([bool, line.connection.lose])
    monkeypatch.setattr(line.connection, "look", lambda: next(rounds)())
    if is_short_until_the_end:
        with pytest.raises(MemoryError):
            line.submit(ones())
        return
    future = line.submit(ones())
    another = AnotherActor()
    line.outbox.made(another)
    (call,) = another.calls
    (array,) = serialize.loads(call.payload[0], call.payload[1:])
    assert array.sum() == SIZE
    assert not future._settled


def test_ctrl_c_while_a_call_is_waited_for_ends_the_connection(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    line.narrow.takes = 400_000
    short_of_memory(monkeypatch, 2**62)
    monkeypatch.setattr(line.connection, "look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        line.submit(ones())
    assert line.connection.channel.fileno() < 0, "the rest may change, so that the actor must not get it"


@pytest.mark.parametrize("is_short_of_small_ones", [False, True])
@pytest.mark.parametrize("line", ["sealed"], indirect=True)
def test_without_memory_for_a_record_a_call_leaves_in_small_ones_or_later(
    line: Line, monkeypatch: pytest.MonkeyPatch, is_short_of_small_ones: bool
) -> None:
    sealed, short = Sealer._first, [True]

    def first(sealer: Sealer, parts: Any, most: int) -> Any:
        made = sealed(sealer, parts, most)
        if short[0] and (most > 2**12 or is_short_of_small_ones):
            raise MemoryError
        return made

    monkeypatch.setattr(Sealer, "_first", first)
    line.submit(ones())
    while line.connection.is_full() and not is_short_of_small_ones:
        line.connection.write()
    short[0] = False
    assert [array.sum() for array in line.received()] == [SIZE]


# -- what arrives --------------------------------------------------------------------------------------------------


def no_large_memory(size: int) -> bytearray:
    if size >= SIZE:
        raise MemoryError
    return bytearray(size)


@pytest.mark.parametrize("line", ["plain", "sealed"], indirect=True)
@pytest.mark.parametrize("flags", [0, int(Flag.HANDLES)])
def test_of_an_answer_without_memory_the_call_fails_and_the_next_one_is_read(
    line: Line, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    monkeypatch.setattr(line.connection.channel._reader, "_allocate", no_large_memory)  # type: ignore[attr-defined]
    futures = [line.submit(np.zeros(1)) for _ in range(3)]
    line.received()
    for number, future in enumerate(futures):
        size = SIZE if number == 1 else 8
        data, *buffers = serialize.dumps(np.ones(size, np.uint8))
        answer = pack(Kind.RESULT, flags if number == 1 else 0, 0, future._call_id, [data, *buffers])
        sender = threading.Thread(target=line.end.send, args=(answer,))
        sender.start()
        if number == 1:
            with pytest.raises(SerializationError, match=f"no memory for a frame of {SIZE} bytes") as caught:
                future.result(DEADLINE_S)
            assert is_shortage(caught.value)
        else:
            assert future.result(DEADLINE_S).sum() == 8
        sender.join()
    assert not line.connection._pending
    if flags:
        kind, _, unwanted, number = header_of(line.end.receive(DEADLINE_S)[0])
        assert (kind, unwanted, number) == (Kind.RECEIVED, 1, futures[1]._call_id), "the actor need not hold them"


def test_a_dropped_answer_without_descriptors_fails_no_other_call(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    line.received()
    monkeypatch.setattr(line.connection, "_from_shared_memory", short)
    line.connection.take_message([memoryview(frame) for frame in pack(Kind.RESULT, Flag.HANDLES, 0, 7)])
    kind, _, unwanted, number = header_of(line.end.receive(DEADLINE_S)[0])
    assert (kind, unwanted, number) == (Kind.RECEIVED, 1, 7)


# -- a kernel without memory ---------------------------------------------------------------------------------------


def test_calls_leave_later_while_the_kernel_has_no_memory(line: Line) -> None:
    line.narrow.shortages = 3
    array = ones()
    line.submit(array)
    array[:] = 0
    line.submit(ones() * 2)
    assert [arrived.sum() for arrived in line.received()] == [SIZE, 2 * SIZE]
    assert not line.narrow.shortages


def test_a_message_that_is_waited_for_is_sent_when_the_kernel_has_memory(line: Line) -> None:
    line.narrow.shortages = 3
    line.connection.channel.send(pack(Kind.CALL, 0, 0, 1, serialize.dumps((ones(),))))
    assert [arrived.sum() for arrived in line.received()] == [SIZE]


def test_a_listener_s_messages_stay_whole_while_the_kernel_has_no_memory() -> None:
    ours, theirs = socket.socketpair()
    narrow, end, peers = Narrow(ours), UnixChannel(theirs), UnixPeers()
    peer = peers.add(cast("Any", narrow))
    narrow.shortages = 2
    for text in (b"first", b"second"):
        peers.send(peer, [text])
    while peers.backlog(peer):
        peers.poll()
    assert [bytes(end.receive(DEADLINE_S)[0]) for _ in range(2)] == [b"first", b"second"]
    peers.close()
    end.close()


def test_sockets_do_not_wait_one_after_the_other_for_the_kernel_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(sockets, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append))
    monkeypatch.setattr(sockets, "_waited_at", [-1.0])
    for _ in range(3):
        assert sockets.would_block(OSError(errno.ENOBUFS, "No buffer space available"))
    assert len(waits) == 1


# -- answers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers() -> Iterator[tuple[Answers, UnixChannel, UnixChannel]]:
    ours, theirs = map(UnixChannel, socket.socketpair())
    yield Answers(ours, lambda: None), ours, theirs
    ours.close()
    theirs.close()


def test_an_answer_that_is_half_written_is_waited_for(
    answers: tuple[Answers, UnixChannel, UnixChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, ours, theirs = answers
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(theirs.receive(DEADLINE_S)), daemon=True)

    def freeze() -> None:
        if reader.ident is None:  # from now on the caller reads
            reader.start()
        raise MemoryError

    monkeypatch.setattr(ours, "freeze", freeze)
    array = ones()
    outbox.add([b"head", array.data], leaves_now=True)
    outbox.flush()
    outbox.wait()
    array[:] = 0
    reader.join(DEADLINE_S)
    assert np.frombuffer(got[0][1], np.uint8).sum() == SIZE


def test_answers_behind_it_wait_if_there_is_no_memory_for_them(
    answers: tuple[Answers, UnixChannel, UnixChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, _, theirs = answers
    first, second, third = ones(), ones() * 2, ones() * 3
    outbox.add([b"head", first.data])
    outbox.flush()
    assert outbox.is_full
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(theirs.receive(DEADLINE_S) for _ in range(3)), daemon=True)

    def short(frame: Any) -> Any:
        if len(frame) < SIZE:
            return copied(frame)
        if reader.ident is None:
            reader.start()
        raise MemoryError

    monkeypatch.setattr(process, "copied", short)
    monkeypatch.setattr(outbox._channel, "freeze", lambda: short(first.data))
    outbox.add([b"head", second.data])
    outbox.add([b"head", third.data], leaves_now=True)
    outbox.flush()
    outbox.wait()
    for array in (first, second, third):
        array[:] = 0
    reader.join(DEADLINE_S)
    assert [np.frombuffer(frames[1], np.uint8).sum() for frames in got] == [SIZE, 2 * SIZE, 3 * SIZE]


def test_an_answer_that_there_is_no_memory_to_send_leaves_behind_another_one_later(
    answers: tuple[Answers, UnixChannel, UnixChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, ours, theirs = answers
    outbox.add([b"head", ones().data])
    outbox.flush()
    assert outbox.is_full
    post, fails = ours.post, [True]

    def short(*messages: Any) -> bool:
        if fails:
            fails.clear()
            raise MemoryError
        return post(*messages)

    monkeypatch.setattr(ours, "post", short)
    outbox.add([b"second"])
    assert [bytes(theirs.receive(DEADLINE_S)[0]) for _ in range(2)] == [b"head", b"second"]
    assert not fails
    outbox.wait()

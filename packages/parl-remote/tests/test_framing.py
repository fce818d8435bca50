"""Messages are cut out of a byte stream, whatever pieces it arrives in."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_remote._transport import KEPT_OF_CUT, CutMessage
from parl_remote._transport.unix import sockets
from parl_remote._transport.unix.sockets import FrameReader, stream
from parl_remote.errors import LocalProtocolError, RemoteProtocolError

MESSAGES = st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), max_size=12)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def bytes_of(message: list[bytes]) -> bytes:
    return b"".join(stream(message))


def read_all(reader: FrameReader, source: socket.socket) -> list[list[bytes]]:
    got: list[list[bytes]] = []
    while True:
        while (frames := reader.next()) is not None:
            got.append([bytes(frame) for frame in frames])
        try:
            reader.fill(source)
        except EOFError:
            return got


@settings(max_examples=examples(60), deadline=None)
@given(messages=MESSAGES, cuts=st.lists(st.integers(1, 400), max_size=30))
def test_messages_arrive_whole_however_the_stream_is_cut(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(map(bytes_of, messages))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader, got = FrameReader(2**20), []
        for size in [*cuts, len(stream)]:
            piece, stream = stream[:size], stream[size:]
            if piece:
                theirs.sendall(piece)
                reader.fill(ours, socket.MSG_DONTWAIT)
            while (frames := reader.next()) is not None:
                got.append([bytes(frame) for frame in frames])
        theirs.close()
        got += read_all(reader, ours)
    assert got == messages


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 1, 63, 64, 65, 300, 5_000, 70_000, 200_000]), min_size=1), max_size=6),
    cuts=st.lists(st.integers(1, 100_000), max_size=30),
)
def test_of_messages_without_memory_the_beginnings_arrive_and_the_others_whole(
    sizes: list[list[int]], cuts: list[int]
) -> None:
    def allocate(size: int) -> bytearray:
        if size >= 70_000:
            raise MemoryError
        return bytearray(size)

    messages = [[bytes([number % 251]) * size for size in some] for number, some in enumerate(sizes)]
    stream = memoryview(b"".join(map(bytes_of, messages)))
    reader, got = FrameReader(2**24, allocate), []
    reader.cuts = True
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for size in [*cuts, *[100_000] * (len(stream) // 100_000 + 1)]:
            piece, stream = stream[:size], stream[size:]
            theirs.sendall(piece)
            with contextlib.suppress(BlockingIOError):
                while True:
                    while (frames := reader.next()) is not None:
                        got.append((type(frames) is CutMessage, [bytes(frame) for frame in frames]))
                    reader.fill(ours, socket.MSG_DONTWAIT)
    assert len(got) == len(messages)
    for (is_cut, arrived), message in zip(got, messages, strict=True):
        assert not is_cut or max(map(len, message)) >= 70_000
        assert arrived == [frame[:KEPT_OF_CUT] if is_cut else frame for frame in message]


@pytest.mark.parametrize("most", [0, KEPT_OF_CUT])
def test_of_a_message_without_memory_the_beginning_takes_next_to_none(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def allocate(size: int) -> bytearray:
        if size > most:
            raise MemoryError
        return bytearray(size)

    ours, theirs = pair
    reader, got = FrameReader(2**20, allocate), deque[list[memoryview]]()
    reader.cuts = True
    theirs.sendall(bytes_of([b"former"]) + bytes_of([bytes(100_000)]) + bytes_of([b"next"]))
    theirs.close()
    monkeypatch.setattr(sockets, "bytearray", allocate, raising=False)
    reader.fill(ours)
    if not most:
        with pytest.raises(RemoteProtocolError, match="no memory for a frame of 100000 bytes"):
            reader.take_all(got)
        return
    with contextlib.suppress(EOFError):
        while True:
            reader.take_all(got)
            reader.fill(ours)
    assert [bytes(frame) for (frame,) in got] == [b"former", bytes(KEPT_OF_CUT), b"next"]


def test_a_message_without_memory_is_refused_where_it_must_not_be_cut(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    def no_memory(_: int) -> bytearray:
        raise MemoryError

    ours, theirs = pair
    reader = FrameReader(2**20, no_memory)
    theirs.sendall(bytes_of([bytes(100_000)]))
    reader.fill(ours)
    with pytest.raises(RemoteProtocolError, match="no memory for a frame of 100000 bytes"):
        reader.next()


@pytest.mark.parametrize("size", [4_083, 4_084, 4_085, 65_523, 65_524, 65_525, 1_000_000])
def test_messages_about_as_large_as_the_buffers_arrive(size: int, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message = [bytes(size), b"tail"]
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * size)
    theirs.setblocking(False)
    rest, reader = memoryview(bytes_of(message) * 3), FrameReader(2**24)
    got: list[list[int]] = []
    while rest or len(got) < 3:
        if rest:
            rest = rest[theirs.send(rest[:100_000]) :]
        reader.fill(ours)
        while (frames := reader.next()) is not None:
            got.append([len(frame) for frame in frames])
    assert got == [[size, 4]] * 3


def test_frames_can_be_written_to_and_do_not_change_with_later_messages(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    reader = FrameReader(2**20)
    theirs.sendall(bytes_of([b"first"]) + bytes_of([b"other"]))
    reader.fill(ours)
    first = reader.next()
    assert first is not None
    first[0][0:1] = b"F"
    assert [bytes(frame) for frame in reader.next() or []] == [b"other"]
    assert bytes(first[0]) == b"First"


def test_more_frames_than_the_buffer_holds_arrive(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message = [bytes([i % 251]) for i in range(20_000)]
    theirs.setblocking(False)
    rest, reader = memoryview(bytes_of(message)), FrameReader(2**20)
    frames = None
    while frames is None:
        if rest:
            rest = rest[theirs.send(rest[:50_000]) :]
        reader.fill(ours)
        frames = reader.next()
    assert [bytes(frame) for frame in frames] == message


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (bytes(12), "0 frames"),
        (b"\xff" * 12, "a message cannot have"),
        (b"\x01\0\0\0" + b"\xff" * 8, "passes the limit"),
    ],
)
def test_what_cannot_be_a_message_is_refused(
    garbage: bytes, reason: str, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    reader = FrameReader(2**20)
    theirs.sendall(garbage)
    reader.fill(ours)
    with pytest.raises(RemoteProtocolError, match=reason):
        reader.next()


def test_a_message_without_frames_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        stream([])

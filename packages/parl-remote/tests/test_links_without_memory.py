"""Control messages for which an end of a link has no memory: the request fails with the cause, and the link goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from parl_remote._config import Limits
from parl_remote._links.call_messages import CREDIT_EVERY, credit, size_of
from parl_remote._links.handshake import Link, PeerAcceptor
from parl_remote._links.loop import Loop
from parl_remote._links.requests import arrived_messages
from parl_remote._messages import Failed, Hello, Message, Refused, Role, Welcome
from parl_remote._messages.parts import FetchObject, ObjectContent, Part, ReleaseObject, StoreParts
from parl_remote._messages.wire import all_kinds, decode, encode, request_number
from parl_remote._program.object_transfer import NodeObjects
from parl_remote._program.relayed_channel import RelayedChannel
from parl_remote._transport import KEPT_OF_CUT, CutMessage
from parl_remote._transport.unix import UnixChannel, UnixListener
from parl_remote.errors import ChannelClosed

DEADLINE_S = 60.0
SIZE = 3_000_000
CAUSE = f"there is no memory for a frame of {SIZE} bytes"
STORE = encode(StoreParts(7, (Part("a" * 64, SIZE, 0, SIZE),)))


class Node:
    """A worker's end of links of this host; it has no memory for large frames."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = UnixListener(path)
        self.loop = Loop()
        self.got: list[list[bytes]] = []
        self.ends: list[str] = []
        self.reception = PeerAcceptor(self.loop, node_id="n", cluster_id="c", host_id="h", limits=Limits())
        self.reception.serve(Role.WORKER, self)
        self.reception.listen(self.listener)

    def opened(self, link: Link) -> None:
        pass

    def received(self, link: Link, frames: list[memoryview]) -> None:
        decode(frames[0])
        self.got.append([bytes(frame) for frame in frames])

    def closed(self, link: Link, reason: str) -> None:
        self.ends.append(reason)

    def client(self) -> UnixChannel:
        channel = UnixChannel.connect(self.path)
        channel.send([encode(Hello(Role.CLIENT, Role.WORKER, "client", 1, 1, "h", 42, {}, "program"))])
        assert isinstance(self.answer(channel), Welcome)
        return channel

    def answer(self, channel: UnixChannel) -> Message:
        while not (frames := channel.receive_ready()):
            self.loop.run_once(DEADLINE_S)
        return decode(frames[0][0])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    def memory_for(size: int) -> bytearray:
        if size >= SIZE:
            raise MemoryError
        return bytearray(size)

    monkeypatch.setattr("parl_remote._transport.unix.listener._memory_for", memory_for)
    made = Node(str(tmp_path / "node.sock"))
    yield made
    made.listener.close()
    made.loop.close()


def in_pieces(channel: UnixChannel, frames: list[bytes], node: Node) -> None:
    """Send a message that does not fit into the socket at once."""
    if not channel.post(frames):
        while not channel.flush():
            node.loop.run_once(DEADLINE_S)


def test_a_request_that_a_node_has_no_memory_for_fails_and_the_link_goes_on(node: Node) -> None:
    channel = node.client()
    in_pieces(channel, [STORE, bytes(SIZE)], node)
    assert node.answer(channel) == Failed(7, CAUSE)
    in_pieces(channel, [STORE, b"small"], node)
    while not node.got:
        node.loop.run_once(DEADLINE_S)
    assert node.got == [[STORE, b"small"]]
    assert not node.ends
    channel.close()


def test_a_message_without_memory_that_cannot_be_answered_ends_the_link_with_the_cause(node: Node) -> None:
    channel = node.client()
    in_pieces(channel, [b'{"is":"StartActor"' + bytes(SIZE - 18)], node)
    refused = node.answer(channel)
    assert isinstance(refused, Refused)
    assert refused.reason == CAUSE
    assert node.ends == [CAUSE]
    channel.close()


def test_requests_begin_with_their_numbers() -> None:
    kinds: dict[str, Any] = dict(all_kinds())
    for kind in kinds.values():
        names = [field.name for field in fields(kind)]
        assert "request_id" not in names or names[0] == "request_id"
    assert request_number(memoryview(STORE)[:KEPT_OF_CUT]) == 7
    assert request_number(encode(ReleaseObject("x"))) is None
    assert request_number(b'{"is":"X","request_id":12') is None, "more digits may follow"


def cut(message: Message, *lengths: int) -> CutMessage:
    frames = [encode(message), *map(bytes, lengths)]
    return CutMessage([len(one) for one in frames], [memoryview(one)[:KEPT_OF_CUT] for one in frames])


def test_an_answer_that_a_program_has_no_memory_for_is_a_failed_request() -> None:
    channel = Mock()
    channel.receive.side_effect = [cut(ObjectContent(3), SIZE), ChannelClosed("it has gone")]
    assert arrived_messages(channel) == [Failed(3, CAUSE), None]
    channel.receive.side_effect = [cut(ReleaseObject("x"), SIZE)]
    assert arrived_messages(channel) == [None]


def test_a_value_that_a_program_has_no_memory_for_leaves_its_link_to_the_node() -> None:
    link = Mock()
    objects = NodeObjects(lambda: link, Mock())
    link.receive.side_effect = [cut(ObjectContent(1), SIZE)]
    with pytest.raises(MemoryError, match=CAUSE):
        objects.fetch("an id", None)
    content = [memoryview(encode(ObjectContent(2))), memoryview(b"the value")]
    link.receive.side_effect = [content]
    assert objects.fetch("an id", None) == b"the value"
    assert [decode(call.args[0][0]) for call in link.send.mock_calls] == [FetchObject(n, "an id") for n in (1, 2)]
    link.close.assert_not_called()


def test_an_answer_without_memory_still_gives_credit_to_its_actor() -> None:
    link = Mock()
    answer = CutMessage([CREDIT_EVERY], [memoryview(b"\x11")])
    link.receive.side_effect = [answer]
    assert RelayedChannel(link).receive() is answer
    link.send.assert_called_once_with([credit(size_of(answer))])
    assert size_of(answer) > CREDIT_EVERY

"""A shortage while a relay moves something of a pair ends that pair with the cause, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from parl_remote._links.call_messages import CREDIT_EVERY, refusal_of
from parl_remote._links.handshake import fail_request
from parl_remote._links.loop import Loop
from parl_remote._messages import Failed, StatusRequest
from parl_remote._messages.wire import encode
from parl_remote._transport import Closed, CutMessage, Received
from parl_remote._transport.unix import UnixListener, UnixPeers
from parl_remote._transport.unix.sockets import FrameReader
from parl_remote._worker.relay import Relay

SHORT = MemoryError("no memory is left")
REFUSAL = refusal_of("no memory is left")
CALL = [memoryview(b"\x01 a call")]


class Actor:
    """An actor with two callers, whose links are mocks."""

    def __init__(self, path: Path) -> None:
        self.loop, self.path = Loop(), str(path / "actor.sock")
        self.listener = UnixListener(self.path)
        self.relay = Relay(self.loop)
        self.link, self.other = Mock(), Mock()
        for link in (self.link, self.other):
            self.relay.attach(link, self.path)
        self.listener.poll()

    def answers(self, *content: bytes) -> None:
        """Answer both callers, in order, and let the relay work."""
        for peer in (1, 2):
            self.listener.send(peer, list(content))
        self.loop.run_once(1.0)

    def hears_the_end_of(self, peer: int) -> bool:
        return any(type(event) is Closed and event.peer == peer for event in self.listener.poll())

    def check(self) -> None:
        """The first caller's pair has ended and both ends know; the other one works."""
        self.link.drop.assert_called_once_with()
        assert not self.relay.carries(self.link)
        assert self.hears_the_end_of(1)
        self.other.drop.assert_not_called()
        self.relay.forward(self.other, CALL)
        assert self.listener.poll() == [Received(2, CALL)]


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Actor]:
    made = Actor(tmp_path)
    yield made
    made.relay.close()
    made.listener.close()
    made.loop.close()


def test_a_call_without_memory_ends_its_connection_with_the_cause(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(UnixPeers, "send", Mock(side_effect=SHORT))
        actor.relay.forward(actor.link, CALL)
    actor.link.send.assert_called_once_with(REFUSAL)
    actor.check()


def test_an_answer_without_memory_ends_its_connection_with_the_cause(actor: Actor) -> None:
    actor.link.send.side_effect = [SHORT, True]
    actor.answers(b"\x11 an answer")
    assert [call.args[0] for call in actor.link.send.mock_calls][1:] == [REFUSAL]
    assert actor.other.send.call_count == 1, "the answers that were read together go on"
    actor.check()


def test_a_credit_without_memory_ends_its_connection_with_the_cause(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor.link.send.side_effect = [SHORT, True]
    with monkeypatch.context() as patch:
        patch.setattr(UnixPeers, "send", Mock())
        actor.relay.forward(actor.link, [memoryview(b"\x01" * CREDIT_EVERY)])
    assert [call.args[0] for call in actor.link.send.mock_calls][1:] == [REFUSAL]
    actor.check()


def test_reading_an_answer_without_memory_ends_its_connection_with_the_cause(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FrameReader, "next", Mock(side_effect=[SHORT, [memoryview(b"\x11")], None]))
        actor.answers(b"\x11 an answer")
    actor.link.send.assert_called_once_with(REFUSAL)
    actor.check()


def test_a_message_that_was_read_without_memory_ends_its_connection_with_the_cause(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = CutMessage([10**9], [memoryview(b"\x11")])
    refusal = refusal_of("there is no memory for a frame of 1000000000 bytes")
    with monkeypatch.context() as patch:
        patch.setattr(FrameReader, "next", Mock(side_effect=[message, None, [memoryview(b"\x11")], None]))
        actor.answers(b"\x11 an answer")
    actor.link.send.assert_called_once_with(refusal)
    actor.check()
    actor.relay.forward(actor.other, message)
    assert actor.other.send.mock_calls[-1].args == (refusal,)


def test_a_refusal_without_memory_still_ends_the_connection(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    actor.link.send.side_effect = SHORT
    with monkeypatch.context() as patch:
        patch.setattr(UnixPeers, "send", Mock(side_effect=SHORT))
        actor.relay.forward(actor.link, CALL)
    actor.check()


def test_a_connection_without_memory_is_refused(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    third = Mock()
    with monkeypatch.context() as patch:
        patch.setattr(UnixPeers, "connect", Mock(side_effect=SHORT))
        actor.relay.attach(third, actor.path)
    third.send.assert_called_once_with(REFUSAL)
    third.drop.assert_called_once_with()
    assert not actor.relay.carries(third)


@pytest.mark.parametrize("frame", [b"\x01\xff", b"", b"[1]", b"7", b'{"request_id": "x"}'])
def test_what_is_no_request_gets_no_answer(frame: bytes) -> None:
    link = Mock()
    fail_request(link, memoryview(frame), "no memory is left")
    link.tell.assert_not_called()


def test_a_request_is_answered_if_there_is_memory_for_that() -> None:
    link = Mock()
    link.tell.side_effect = SHORT
    fail_request(link, memoryview(encode(StatusRequest(3))), "no memory is left")
    link.tell.assert_called_once_with(Failed(3, "no memory is left"))

"""Requests find their answers, and messages the part that takes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from parl_remote._links.handshake import Link, Parts
from parl_remote._links.requests import Requests
from parl_remote._messages import Done, Failed, Hello, Message, Role, StatusRequest, StopActor
from parl_remote._messages.wire import decode
from parl_remote.errors import ClusterUnreachable, RemoteError, RemoteProtocolError, ResultTimeout


class Peer:
    """Keeps what it is sent, and answers when told to."""

    def __init__(self) -> None:
        self.asked: list[StatusRequest] = []
        self.came = threading.Event()

    def send(self, message: Message) -> None:
        assert isinstance(message, StatusRequest)
        self.asked.append(message)
        self.came.set()


def test_an_answer_reaches_only_its_caller() -> None:
    requests, peer = Requests(), Peer()

    def answer() -> None:
        peer.came.wait(60)
        assert not requests.answered(Done(10_000))
        assert requests.answered(Done(peer.asked[0].request_id))

    thread = threading.Thread(target=answer)
    thread.start()
    got = requests.ask("master", StatusRequest, peer.send, 10)
    thread.join(60.0)
    assert got == Done(peer.asked[0].request_id)
    assert not requests.answered(got), "it has been answered"


def test_a_request_that_failed_raises_what_the_peer_said() -> None:
    requests = Requests()
    with pytest.raises(RemoteError, match="no such actor"):
        requests.ask("master", StatusRequest, lambda m: _reply(requests, m), 10)


def _reply(requests: Requests, message: Message) -> None:
    assert isinstance(message, StatusRequest)
    requests.answered(Failed(message.request_id, "no such actor"))


def test_a_late_answer_is_discarded() -> None:
    requests, peer = Requests(), Peer()
    with pytest.raises(ResultTimeout, match=r"master did not answer StatusRequest within 0\.01 s"):
        requests.ask("master", StatusRequest, peer.send, 0.01)
    assert not requests.answered(Done(peer.asked[0].request_id))


def test_a_request_to_a_lost_peer_fails() -> None:
    requests = Requests()
    with pytest.raises(ClusterUnreachable, match="gone"):
        requests.ask("a", StatusRequest, lambda _: requests.lost("a", ClusterUnreachable("a is gone")), 10)
    requests.lost("a", ClusterUnreachable("no request waits"))


class Stopper:
    """A part that refuses, stumbles or answers."""

    def __init__(self) -> None:
        self.gone: list[Link] = []
        self.over = False

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:
        match message:
            case StopActor(reason="forbidden"):
                raise RemoteProtocolError("you may not")
            case StopActor():
                raise RemoteError("it runs on")
            case StatusRequest(request_id=number) if len(frames) > 1:
                link.tell(Done(number))
            case _:
                raise OSError(28, "No space left on device")

    def closed(self, link: Link) -> None:
        self.gone.append(link)

    def close(self) -> None:
        self.over = True


def _link(sent: list[Message]) -> Link:
    hello = Hello(Role.CLIENT, Role.WORKER, "me", 1, 1, "host", 1)
    return Link(hello, 1, lambda frames: sent.append(decode(bytes(frames[0]))), lambda: None)


def test_a_part_is_made_when_its_first_message_comes() -> None:
    made: list[Stopper] = []

    def make() -> Stopper:
        made.append(Stopper())
        return made[-1]

    parts, sent = Parts(), list[Message]()
    link = _link(sent)
    parts.add(("StatusRequest", "StopActor"), make)
    assert not parts.take(link, Done(1), [memoryview(b"")])
    parts.closed(link)
    assert not made
    assert parts.take(link, StatusRequest(7), [memoryview(b""), memoryview(b"more")])
    assert parts.take(link, StatusRequest(8), [memoryview(b"")])
    assert sent == [Done(7), Failed(8, "[Errno 28] No space left on device")]
    assert parts.take(link, StopActor("x"), [memoryview(b"")]), "without a request_id there is no one to answer"
    with pytest.raises(RemoteProtocolError):
        parts.take(link, StopActor("x", "forbidden"), [memoryview(b"")])
    parts.closed(link)
    parts.close()
    assert [(part.gone, part.over) for part in made] == [([link], True)]


def test_two_parts_cannot_take_the_same_message() -> None:
    parts = Parts()
    parts.add(("StopActor",), Stopper)
    with pytest.raises(ValueError, match="two parts handle StopActor"):
        parts.add(("StopActor",), Stopper)

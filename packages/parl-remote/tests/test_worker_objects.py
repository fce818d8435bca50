"""The worker's part in `put`: what peers may make it do, and what not."""

import os
from pathlib import Path
from typing import Any

import pytest

from parl_remote._data import object_memory
from parl_remote._data.object_memory import FrameKind, MemoryPool, read, read_image
from parl_remote._links.loop import Loop
from parl_remote._messages import Done, Message
from parl_remote._messages.parts import FetchObject, HoldObject, ObjectContent, ReleaseObject, StoreObject
from parl_remote._messages.wire import decode
from parl_remote._worker.objects import WorkerObjects
from parl_remote.errors import RemoteError, RemoteProtocolError

ID = "object-0123456789abcdef"


class Peer:
    """A link as the part sees it, and what it was told."""

    def __init__(self) -> None:
        self.told: list[list[bytes]] = []

    def send(self, frames: list[Any]) -> bool:
        self.told.append([bytes(frame) for frame in frames])
        return True

    def tell(self, message: Message) -> bool:
        from parl_remote._messages.wire import encode

        return self.send([encode(message)])

    def last(self) -> Message:
        return decode(self.told[-1][0])


@pytest.fixture
def part(tmp_path: Path) -> WorkerObjects:
    return WorkerObjects(Loop(), tmp_path)


@pytest.fixture
def image() -> bytes:
    memory = MemoryPool(lambda _: None).store([b"pickle", b"x" * 1000], [FrameKind.READ_ONLY] * 2)
    return bytes(read_image(memory.place()))


def store(part: WorkerObjects, peer: Any, image: bytes, object_id: str = ID) -> None:
    part.received(peer, StoreObject(1, object_id), [memoryview(b"{}"), memoryview(image)])


def notes(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_stored_value_is_noted_and_can_be_read(
    part: WorkerObjects, image: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer: Any = Peer()
    store(part, peer, image)
    assert peer.last() == Done(1)
    monkeypatch.setattr(object_memory._PerThread, "directory", None)  # so that it is so again for other tests
    object_memory.set_directory(str(tmp_path))
    place = object_memory.find_sent(ID)
    assert place is not None
    assert [bytes(frame) for frame in read(place)[0]] == [b"pickle", b"x" * 1000]
    part.received(peer, FetchObject(2, ID), [memoryview(b"{}")])
    assert peer.last() == ObjectContent(2)
    assert peer.told[-1][1] == image


def test_a_value_is_freed_with_its_last_reference(part: WorkerObjects, image: bytes, tmp_path: Path) -> None:
    first, second = Peer(), Peer()
    store(part, first, image)
    store(part, second, image)
    part.received(first, ReleaseObject(ID), [memoryview(b"{}")])  # type: ignore[arg-type]
    assert notes(tmp_path) == [f"{ID}.at"]
    part.closed(second)  # type: ignore[arg-type]
    assert notes(tmp_path) == []
    with pytest.raises(RemoteError, match="not on this node any more"):
        part.received(first, FetchObject(3, ID), [memoryview(b"{}")])  # type: ignore[arg-type]


@pytest.mark.parametrize("object_id", ["", "..", "../../etc/passwd", "a/b", "a\0b", "x" * 101, "objekt-ä"])
def test_invalid_ids_are_refused(part: WorkerObjects, image: bytes, tmp_path: Path, object_id: str) -> None:
    for send in (
        lambda: store(part, Peer(), image, object_id),
        lambda: part.received(Peer(), FetchObject(1, object_id), [memoryview(b"{}")]),  # type: ignore[arg-type]
        lambda: part.received(Peer(), ReleaseObject(object_id), [memoryview(b"{}")]),  # type: ignore[arg-type]
    ):
        with pytest.raises(RemoteProtocolError, match="not an id"):
            send()
    assert notes(tmp_path) == []


GARBAGE = [
    b"\xff" * 7,
    b"\xff" * 5000,
    (2**40).to_bytes(8, "little") * 10,
    b"\x01" + bytes(7) + b"\xff" * 8 + bytes(99),  # one frame, longer than everything
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_no_value_ends_nothing(part: WorkerObjects, image: bytes, garbage: bytes) -> None:
    peer = Peer()
    store(part, peer, garbage)
    with pytest.raises(RemoteError, match="do not hold a stored value"):
        part.received(peer, FetchObject(2, ID), [memoryview(b"{}")])  # type: ignore[arg-type]
    store(part, peer, image, ID + "2")
    part.received(peer, FetchObject(3, ID + "2"), [memoryview(b"{}")])  # type: ignore[arg-type]
    assert peer.told[-1][1] == image


@pytest.mark.parametrize(
    "place",
    [(), (1, 2, 3), (1, 2, 3, 4, 5, 6), (-1, -1, -1, -1, -1), (os.getpid(), 0, 0, 0, 0), (2**70, 2**70, 1, 1, 1)],
)
def test_places_where_nothing_is_are_refused(part: WorkerObjects, place: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError):
        part.received(Peer(), HoldObject(1, ID, place), [memoryview(b"{}")])  # type: ignore[arg-type]


def test_only_values_can_be_held_and_no_other_files(part: WorkerObjects, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w+b") as secret:
        secret.write(bytes(4096))
        secret.flush()
        found = os.fstat(secret.fileno())
        place = (os.getpid(), secret.fileno(), found.st_ino, found.st_size, 0)
        with pytest.raises(RemoteError, match="is gone"):
            part.received(Peer(), HoldObject(1, ID, place), [memoryview(b"{}")])  # type: ignore[arg-type]


@pytest.mark.parametrize("frames", [1, 3])
def test_a_value_comes_in_one_frame(part: WorkerObjects, frames: int, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="one frame"):
        part.received(Peer(), StoreObject(1, ID), [memoryview(b"{}")] * frames)  # type: ignore[arg-type]
    assert notes(tmp_path) == []


def test_everything_goes_with_the_node(part: WorkerObjects, image: bytes, tmp_path: Path) -> None:
    store(part, Peer(), image)
    store(part, Peer(), image, ID + "2")
    part.close()
    assert notes(tmp_path) == []

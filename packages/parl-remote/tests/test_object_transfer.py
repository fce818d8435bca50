"""Values of `put` that a worker on another host holds for this process: each as long as a reference is there."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from parl_remote import ObjectLost
from parl_remote._data.object_memory import ValueAddress
from parl_remote._messages import Done, Message
from parl_remote._messages.parts import HoldObject, ReleaseObject, StoreObject
from parl_remote._messages.wire import decode, encode
from parl_remote._object_ref import ObjectRef
from parl_remote._program.object_transfer import NodeObjects
from parl_remote.errors import ResultTimeout

PLACE = ValueAddress(1, 2, 3, 4, 5)


class Worker:
    """A link to a worker that takes everything, and writes it down."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self._answers: list[list[memoryview]] = []

    def send(self, frames: Any, timeout_s: float | None = None) -> None:
        message = decode(memoryview(frames[0]))
        self.taken.append(message)
        if not isinstance(message, ReleaseObject):
            number = message.request_id  # type: ignore[attr-defined]
            self._answers.append([memoryview(encode(Done(number)))])

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        if not self._answers:
            raise ResultTimeout("nothing")
        return self._answers.pop(0)

    def close(self) -> None:
        pass

    @property
    def kinds(self) -> list[type[Message]]:
        return list(map(type, self.taken))


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def later() -> list[Callable[[], None]]:
    """The functions that the loop is still to call."""
    return []


@pytest.fixture
def objects(worker: Worker, later: list[Callable[[], None]]) -> NodeObjects:
    return NodeObjects(lambda: worker, later.append)  # type: ignore[arg-type, return-value]


def run(later: list[Callable[[], None]]) -> None:
    gc.collect()
    while later:
        later.pop(0)()


def test_a_value_is_released_with_its_last_reference(
    worker: Worker, objects: NodeObjects, later: list[Callable[[], None]]
) -> None:
    ref: Any = ObjectRef("value", 1)
    objects.hold(ref, PLACE)
    del ref
    run(later)
    assert worker.kinds == [HoldObject, ReleaseObject]


def returned(objects: NodeObjects) -> Any:
    """Return a reference that comes back before the release of the one that held the value."""
    ref: Any = ObjectRef("value", 1)
    objects.hold(ref, PLACE)
    del ref
    gc.collect()
    return ObjectRef("value", 1)


def test_a_reference_that_comes_back_before_the_release_keeps_the_value(
    worker: Worker, objects: NodeObjects, later: list[Callable[[], None]]
) -> None:
    back = returned(objects)
    objects.hold(back, PLACE)
    run(later)
    assert ReleaseObject not in worker.kinds
    del back
    run(later)
    assert worker.kinds[-1] is ReleaseObject


def test_a_call_with_a_value_that_is_being_released_keeps_it(
    worker: Worker, objects: NodeObjects, later: list[Callable[[], None]]
) -> None:
    back = returned(objects)
    assert not objects.lacks([back])  # its call leaves at once
    run(later)
    assert ReleaseObject not in worker.kinds


def test_a_value_that_cannot_be_read_is_not_taken_for_brought(objects: NodeObjects) -> None:
    lost: Any = ObjectRef("value", 1)
    for _ in range(2):
        with pytest.raises(ObjectLost):
            objects.deliver([lost])
    assert objects.lacks([lost])


def test_a_value_is_brought_once(worker: Worker, objects: NodeObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectRef, "image", lambda _: memoryview(b"image"))
    ref: Any = ObjectRef("value", 1)
    for _ in range(2):
        objects.deliver([ref])
    assert worker.kinds == [StoreObject]
    assert not objects.lacks([ref])

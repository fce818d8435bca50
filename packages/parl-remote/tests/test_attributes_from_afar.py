"""Reading and writing attributes of remote objects."""

from __future__ import annotations

import asyncio
import threading
from multiprocessing.connection import Client, Listener
from typing import Any

import pytest

import parl_remote
from parl_remote import SerializationError


@parl_remote.remote_class
class Thing:
    size = 10

    def __init__(self) -> None:
        self.colour = "red"
        self._secret = 1

    @property
    def loud(self) -> str:
        return self.colour.upper()

    @loud.setter
    def loud(self, colour: str) -> None:
        self.colour = colour.lower()

    def paint(self) -> None:
        self.paint_count = getattr(self, "paint_count", 0) + 1

    def forget(self) -> None:
        del self.colour

    def shadow(self) -> None:
        self.paint = "a string now"  # type: ignore[method-assign,assignment]  # on purpose

    def boom(self) -> None:
        self.added = 1
        raise ValueError("boom")


@parl_remote.remote_class
class Slotted:
    __slots__ = ("filled", "later")

    def __init__(self) -> None:
        self.filled = 1

    def fill(self) -> None:
        self.later = 2


@parl_remote.remote_class
class Dynamic:
    def __init__(self) -> None:
        self.real = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_up"):
            return len(name)
        if name == "method_of_another":
            return self.real_method
        raise AttributeError(name)

    def real_method(self, value: int) -> int:
        return value + self.real


def test_an_attribute_is_read_and_written_in_the_actor(anywhere: str) -> None:
    thing = Thing()
    assert thing.colour == "red"
    thing.colour = "green"
    assert thing.colour == "green"
    assert thing._secret == 1


def test_constants_and_properties_are_read_in_the_actor(anywhere: str) -> None:
    thing = Thing()
    assert thing.size == 10
    assert thing.loud == "RED"
    thing.loud = "BLUE"
    assert thing.colour == "blue"


def test_a_new_attribute_can_be_set_from_outside(anywhere: str) -> None:
    thing: Any = Thing()
    thing.extra = [1, 2]
    assert thing.extra == [1, 2]


def test_hasattr_tells_the_truth_before_and_after_the_actor_changes(anywhere: str) -> None:
    thing = Thing()
    assert hasattr(thing, "colour")
    assert not hasattr(thing, "paint_count")
    thing.paint()
    assert hasattr(thing, "paint_count")
    thing.forget()
    assert not hasattr(thing, "colour")


def test_an_attribute_that_a_thread_of_the_object_sets_later_is_found(anywhere: str) -> None:
    learner: Any = Learner()
    with Listener() as listener:
        learner.begin(listener.address)
        with listener.accept() as thread:
            assert not hasattr(learner, "result")
            thread.send("go on")
            assert thread.recv() == "set"
    assert learner.result == 42
    assert "noted" in dir(learner)
    with pytest.raises(AttributeError, match="did you mean noted"):
        _ = learner.note


def test_an_attribute_that_a_cancelled_coroutine_sets_is_found(anywhere: str) -> None:
    waiter: Any = Waiter()
    with Listener() as listener:
        waiting = waiter.wait(listener.address)
        with listener.accept() as coroutine:
            assert coroutine.recv() == "waits"
            assert waiting.cancel()
            assert coroutine.recv() == "set"
    assert waiter.end == "cancelled"


def test_attributes_that_the_class_gets_between_two_actors_are_found_in_the_second(anywhere: str) -> None:
    first: Any = Growing()
    Growing.grown = 5  # type: ignore[attr-defined]
    Growing.added_method = lambda self, by: (self.grown, by)  # type: ignore[attr-defined]
    try:
        second: Any = Growing()
        assert second.grown == 5
        assert second.added_method(2) == (5, 2)
        assert second.size() == 1
        assert first.size() == 1
    finally:
        del Growing.grown, Growing.added_method  # type: ignore[attr-defined]


def test_an_attribute_set_before_an_exception_is_known_afterwards(anywhere: str) -> None:
    thing = Thing()
    with pytest.raises(ValueError, match="boom"):
        thing.boom()
    thing.paint()
    assert hasattr(thing, "added")


def test_an_attribute_shadows_the_method_of_its_name(anywhere: str) -> None:
    thing = Thing()
    thing.paint()
    thing.shadow()
    assert thing.paint == "a string now"  # type: ignore[comparison-overlap]


def test_an_unknown_name_is_refused_here_with_near_names(anywhere: str) -> None:
    with pytest.raises(AttributeError, match="'Thing' actor has no attribute 'color'; did you mean colour"):
        _ = Thing().color  # type: ignore[attr-defined]  # on purpose


def test_attributes_in_slots_are_known(anywhere: str) -> None:
    slotted = Slotted()
    assert slotted.filled == 1
    assert not hasattr(slotted, "later")
    slotted.fill()
    assert slotted.later == 2


def test_a_class_that_makes_attributes_up_is_asked(anywhere: str) -> None:
    dynamic = Dynamic()
    assert dynamic.made_up == 7
    assert dynamic.method_of_another(4) == 5
    assert not hasattr(dynamic, "nothing_of_the_kind")


def test_a_value_that_cannot_be_pickled_is_refused_by_name(anywhere: str) -> None:
    thing: Any = Thing()
    with pytest.raises(SerializationError, match="argument 'colour'"):
        thing.colour = threading.Lock()
    assert thing.colour == "red"


@parl_remote.remote_class
class Learner:
    """Its thread sets attributes between two calls, when the test tells it so."""

    def begin(self, address: Any) -> None:
        threading.Thread(target=self._learn, args=(Client(address),), daemon=True).start()

    def _learn(self, test: Any) -> None:
        test.recv()
        self.result = 42
        self.noted = True
        test.send("set")


@parl_remote.remote_class(wait=False)
class Waiter:
    async def wait(self, address: Any) -> None:
        test = Client(address)
        try:
            test.send("waits")
            await asyncio.Event().wait()
        finally:
            self.end = "cancelled"
            test.send("set")


@parl_remote.remote_class
class Growing:
    def size(self) -> int:
        return 1


@parl_remote.remote_class
class Guarded:
    def __init__(self) -> None:
        self.deleted: list[str] = []

    def __delattr__(self, name: str) -> None:
        self.deleted.append(name)


@parl_remote.remote_class
class AlwaysEqual:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def equals(self, value: int) -> bool:
        return self.value == value


@parl_remote.remote_class
class Holder:
    def same(self, handle: Any) -> Any:
        return handle


def test_names_of_the_proxy_itself_are_reserved(anywhere: str) -> None:
    thing: Any = Thing()
    with pytest.raises(AttributeError, match="reserved"):
        thing._parl_ref = 1


def test_an_attribute_is_deleted(anywhere: str) -> None:
    thing: Any = Thing()
    del thing.colour
    assert not hasattr(thing, "colour")
    with pytest.raises(AttributeError, match="colour"):
        del thing.colour
    with pytest.raises(AttributeError):
        del thing.loud  # a property without a deleter
    with pytest.raises(AttributeError, match="reserved"):
        del thing._parl_ref
    thing.colour = "green"
    assert thing.loud == "GREEN"


def test_the_class_decides_what_deleting_does(anywhere: str) -> None:
    guarded: Any = Guarded()
    del guarded.anything
    assert guarded.deleted == ["anything"]


def test_handles_are_equal_if_they_are_of_one_actor(anywhere: str) -> None:
    first: Any = AlwaysEqual(1)
    second: Any = AlwaysEqual(1)
    again = Holder().same(first)  # type: ignore[attr-defined]
    assert again == first
    assert hash(again) == hash(first)
    assert first != second  # the class's own `__eq__` is not asked
    assert {first: "first", second: "second"}[again] == "first"
    assert first.equals(second.value)


def test_dir_lists_methods_and_attributes(anywhere: str) -> None:
    assert {"paint", "loud", "size", "colour"} <= set(dir(Thing()))

"""`ItemReader`: how many items of a map are read at a time, and which are expected to be late."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from parl_remote._item_reader import ItemReader


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def items(self, *seconds: float) -> Iterator[int]:
        """Yield numbers, each after some seconds."""
        for number, wait_s in enumerate(seconds):
            self.now += wait_s
            yield number


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("parl_remote._item_reader.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def sizes(reader: ItemReader, most: float = 1000) -> list[int]:
    found = []
    while not reader.is_exhausted:
        into: list[int] = []
        assert reader.take(into, most) is None
        found.append(len(into))
    return found


def test_items_that_come_fast_are_read_in_longer_steps(clock: Clock) -> None:
    assert sizes(ItemReader(clock.items(*[1e-6] * 36))) == [1] * 17 + [2, 4, 8, 5]


def test_no_more_items_are_read_than_allowed(clock: Clock) -> None:
    assert sizes(ItemReader(clock.items(*[0.0] * 23)), most=3) == [1] * 17 + [2, 3, 1]


def test_slow_items_are_read_one_by_one(clock: Clock) -> None:
    assert sizes(ItemReader(clock.items(*[1e-4] * 3))) == [1, 1, 1, 0]


def test_an_item_is_expected_to_be_late_after_one_that_was(clock: Clock) -> None:
    reader = ItemReader(clock.items(0.0, 1.0, *[0.0] * 4))
    into: list[int] = []
    reader.take(into, 1)
    assert not reader.is_late(clock.now)
    reader.take(into, 1)
    assert reader.is_late(clock.now)
    assert reader.is_late(clock.now + 2.9)
    assert not reader.is_late(clock.now + 3.1)
    assert reader.patience_s == 0.1
    assert sizes(reader) == [1, 1, 1, 1, 0]  # a few that come together, and then none for long
    clock.now += 20.0
    assert not reader.is_late(clock.now)


def test_a_short_pause_makes_no_item_late(clock: Clock) -> None:
    reader = ItemReader(clock.items(0.01))
    reader.take([], 1000)
    assert not reader.is_late(clock.now)


def test_an_error_of_the_iterator_is_returned_with_the_items_before_it() -> None:
    reader = ItemReader(1 // number for number in (1, 1, 0))
    into: list[int] = []
    errors = [reader.take(into, 9) for _ in range(3)]
    assert into == [1, 1]
    assert [type(error) for error in errors] == [type(None), type(None), ZeroDivisionError]
    assert reader.is_exhausted

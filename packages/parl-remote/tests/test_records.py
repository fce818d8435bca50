"""Records behave as frozen dataclasses with slots do, from their first object on."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping

import pytest

from parl_remote._records import Record, record


@record
class Point(Record):
    x: int
    y: float = 0.5
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)


@record
class Empty(Record):
    pass


@record
class Other(Record):
    x: int
    y: float = 0.5
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)


def test_the_first_object_and_later_ones_are_made_alike() -> None:
    for _ in range(2):
        point = Point(1, y=2.0)
        assert (point.x, point.y, point.marks) == (1, 2.0, {})


def test_factories_are_called_for_each_object() -> None:
    assert Point(1).marks is not Point(1).marks
    given = {"a": 1}
    assert Point(1, marks=given).marks is given


@pytest.mark.parametrize("kwargs", [{}, {"x": 1, "z": 2}], ids=["too few", "unknown"])
def test_wrong_arguments_are_refused_by_name(kwargs: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) (missing|got an unexpected)"):
        Point(**kwargs)  # type: ignore[arg-type]


def test_nothing_changes_them() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x
    assert point.x == 1
    assert not hasattr(point, "__dict__")


def test_equal_content_of_one_class_is_equal() -> None:
    assert Point(1, 2.0) == Point(1, 2.0)
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())


def test_what_they_show_is_how_they_are_made() -> None:
    assert repr(Point(1, 2.0, {"a": 1})) == "Point(x=1, y=2.0, marks={'a': 1})"
    assert repr(Empty()) == "Empty()"


def test_they_are_dataclasses_and_travel() -> None:
    point = Point(1, 2.0, {"a": 1})
    assert dataclasses.asdict(point) == {"x": 1, "y": 2.0, "marks": {"a": 1}}
    assert dataclasses.replace(point, x=3) == Point(3, 2.0, {"a": 1})
    assert pickle.loads(pickle.dumps(point)) == point
    assert copy.deepcopy(point) == point

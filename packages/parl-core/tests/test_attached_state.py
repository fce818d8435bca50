"""State of objects on an algorithm besides models and our optimizers is found and restored."""

import random
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from parl_core._attached_state import accessor_of, attributes, decode, encode
from parl_core.errors import CheckpointError


def through_a_file(state: Any) -> Any:
    arrays: dict[str, Any] = {}
    tree = encode(state, "here", arrays, lambda _: None)
    return decode(tree, arrays, lambda array: array)


def test_nested_states_come_back_with_their_kinds() -> None:
    state = {
        "state": {0: {"step": np.float32(3), "moment": np.arange(4.0)}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "limit": float("inf")}],
        "order": OrderedDict(a=1),
    }
    found = through_a_file(state)
    np.testing.assert_array_equal(found["state"][0].pop("moment"), np.arange(4.0))
    assert found == {
        "state": {0: {"step": 3.0}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "limit": float("inf")}],
        "order": {"a": 1},
    }


def test_what_no_file_holds_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"scheduler/steps/1 cannot be saved: it is a function"):
        encode({"steps": [1, lambda: 2]}, "scheduler", {}, lambda _: None)


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (np.random.default_rng(3), lambda g: g.normal()),
        (np.random.Generator(np.random.MT19937(3)), lambda g: g.normal()),
        (np.random.RandomState(3), lambda g: g.normal()),
        (random.Random(3), lambda g: g.gauss(0, 1)),
    ],
    ids=["PCG64", "MT19937", "RandomState", "Random"],
)
def test_generators_go_on_where_they_were(generator: Any, draw: Any) -> None:
    draw(generator)
    accessor = accessor_of(generator)
    assert accessor is not None
    saved = through_a_file(accessor.get())
    expected = [draw(generator) for _ in range(3)]
    accessor.set(saved)
    assert [draw(generator) for _ in range(3)] == expected


def test_attributes_in_collections_have_names() -> None:
    class Owner:
        def __init__(self) -> None:
            self.plain, self.pair, self.by_name = 1, (2, [3]), {"a": 4}

    assert dict(attributes(Owner())) == {"plain": 1, "pair.0": 2, "pair.1.0": 3, "by_name.a": 4}


def test_attributes_in_collections_of_other_classes_have_names_unless_these_have_a_state() -> None:
    class Pair(NamedTuple):
        first: int
        second: int

    class Counts(dict[str, int]):
        def get_state(self) -> dict[str, int]:
            return dict(self)

        set_state = dict.update

    counts = Counts(a=7)
    owner = SimpleNamespace(pair=Pair(1, 2), ordered=OrderedDict(a=3), usual=defaultdict(int, a=4), counts=counts)
    assert dict(attributes(owner)) == {
        "pair.0": 1,
        "pair.1": 2,
        "ordered.a": 3,
        "usual.a": 4,
        "counts": counts,
    }


def test_mappings_that_may_read_a_file_are_one_value_each(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", mean=np.zeros(3))
    with np.load(tmp_path / "data.npz") as data:
        owner = SimpleNamespace(data=data, shown=MappingProxyType({"a": 1}))
    assert dict(attributes(owner)) == {"data": data, "shown.a": 1}


def test_attributes_that_come_meanwhile_are_left_out() -> None:
    owner = SimpleNamespace(found={"first": 1})
    seen = []
    for name, value in attributes(owner):
        owner.later = owner.found["later"] = 2
        seen.append((name, value))
    assert seen == [("found.first", 1)]

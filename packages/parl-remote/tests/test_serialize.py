"""Objects to bytes and back."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from parl_remote._data import serialize
from parl_remote._data.class_spec import dumps_class
from parl_remote._data.ownership import importable_elsewhere
from parl_remote.errors import SerializationError


def round_trip(value: object) -> Any:
    frames = serialize.dumps(value)
    return serialize.loads(frames[0], frames[1:])


@pytest.mark.parametrize("value", [None, 1, "text", b"bytes", [1, {"a": (2.5, None)}], {1, 2}, 3 + 4j])
def test_plain_data_comes_back_equal(value: object) -> None:
    assert round_trip(value) == value


def test_large_arrays_stay_outside_of_the_pickle_and_are_not_copied() -> None:
    array = np.arange(100_000)
    frames = serialize.dumps({"array": array})
    assert len(frames) == 2
    assert len(frames[0]) < 500
    assert np.shares_memory(np.frombuffer(frames[1], array.dtype), array)


def test_small_arrays_travel_inside_the_pickle() -> None:
    assert len(serialize.dumps([np.arange(10)] * 5)) == 1


def test_an_array_in_fortran_s_order_and_a_strided_one_come_back_equal() -> None:
    fortran, strided = np.asfortranarray(np.random.rand(200, 300)), np.arange(100_000)[::3]
    got = round_trip([fortran, strided])
    np.testing.assert_array_equal(got[0], fortran)
    np.testing.assert_array_equal(got[1], strided)


@pytest.mark.parametrize("code", "?bhilqBHILQefdFD")
def test_arrays_without_axes_and_with_a_single_number_keep_their_value(code: str) -> None:
    values = [np.array(1, code), np.array(100 if code != "?" else 0, code), np.ones((1, 1), code), np.ones(0, code)]
    for value, got in zip(values, round_trip([np.arange(3), *values])[1:], strict=True):
        assert (got.dtype, got.shape, got.flags.writeable) == (value.dtype, value.shape, True)
        np.testing.assert_array_equal(got, value)


def test_a_nameless_function_with_what_it_holds_comes_back() -> None:
    offset = 5
    assert round_trip(lambda x: x + offset)(1) == 6


def test_the_argument_that_cannot_be_sent_is_named_by_position_too() -> None:
    with pytest.raises(SerializationError, match=r"argument 2 \(a lock\) of A.f\(\)") as refused:
        serialize.dumps_arguments((1, threading.Lock()), {}, "A.f", list)
    assert refused.value.what == "argument 2 (a lock) of A.f"


class Large:
    def __reduce__(self) -> Any:
        raise MemoryError


def test_an_error_that_says_nothing_is_named_alone() -> None:
    with pytest.raises(SerializationError, match=r"cannot be sent to the actor: MemoryError\. Send plain data"):
        serialize.dumps_arguments((Large(),), {}, "A.f", list)


def test_a_keyword_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(SerializationError, match="argument 'gate'"):
        serialize.dumps_arguments((1,), {"gate": threading.Lock()}, "A.f", lambda: ["first"])


def test_a_class_of_an_importable_module_travels_by_name() -> None:
    assert importable_elsewhere(json)
    assert len(dumps_class(json.JSONDecoder)) < 100


def test_a_class_that_no_other_process_can_import_travels_itself() -> None:
    class Local:
        def answer(self) -> int:
            return 42

    assert serialize.loads(dumps_class(Local))().answer() == 42


def test_a_module_that_another_file_would_be_found_for_is_not_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    (tmp_path / "twin.py").write_text("x = 1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "twin.py").write_text("x = 2")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    spec = importlib.util.spec_from_file_location("twin", tmp_path / "twin.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "twin", module)
    assert not importable_elsewhere(module)


def test_a_class_with_a_global_that_cannot_be_pickled_is_refused_by_name() -> None:
    lock = threading.Lock()

    class Holder:
        def work(self) -> bool:
            return lock.locked()

    with pytest.raises(SerializationError, match=r"class .*Holder cannot be sent to an actor"):
        dumps_class(Holder)


def test_a_class_takes_large_arrays_of_its_module_along() -> None:
    table = np.arange(2000.0)

    class Lookup:
        own = table[:-1]

        def total(self) -> float:
            return float(table.sum() + self.own.sum())

    lookup = serialize.loads(dumps_class(Lookup))()
    assert lookup.total() == 2 * table.sum() - table[-1]
    assert lookup.own.flags.writeable


def test_a_class_with_a_cached_property_travels() -> None:
    class Shelf:
        @functools.cached_property
        def books(self) -> list[str]:
            """Counted once."""
            return ["one"]

    got = serialize.loads(dumps_class(Shelf))
    shelf = got()
    assert shelf.books is shelf.books
    assert got.books.__doc__ == "Counted once."


@pytest.mark.parametrize("slots", [("value",), "value", ["value", "__weakref__"], {"value": "what it is worth"}])
def test_a_class_with_slots_has_them_elsewhere_too_so_that_its_objects_come_home(slots: Any) -> None:
    class Coin:
        value: int
        __slots__ = slots

    coin = Coin()
    coin.value = 5
    program = (
        "import sys; from parl_remote._data import serialize; coin = serialize.loads(sys.stdin.buffer.read()); "
        "assert not hasattr(coin, '__dict__'); sys.stdout.buffer.write(serialize.dumps(coin)[0])"
    )
    sent = bytes(serialize.dumps(coin)[0])
    back = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, timeout=240, check=True)
    home = serialize.loads(back.stdout)
    assert type(home) is Coin
    assert home.value == 5


class Receiver:
    """Another process, which keeps the first object that it was sent and evaluates expressions about it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, pickle: bytes, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([pickle.hex(), expression]).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=240)


RECEIVER = """
import json, sys
from parl_remote._data import serialize
first = None
for line in sys.stdin:
    sent, expression = json.loads(line)
    got = serialize.loads(bytes.fromhex(sent))
    first = got if first is None else first
    print(json.dumps(eval(expression)), flush=True)
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


rate: Any = SimpleNamespace(value=1)


def _changes(cls: Any) -> Iterator[None]:
    """Change a class in every way that its pickle shows."""
    cls.number = 2
    yield
    cls.added = 3
    yield
    cls.table["key"] = 4
    yield
    cls.array[0] = 5
    yield
    cls.method = lambda self: "patched"
    yield
    cls.total = staticmethod(lambda rate=rate: rate.value)
    yield
    rate.value = 7
    yield
    cls.number = 1
    yield


def test_a_class_that_was_changed_arrives_as_it_is_now(receiver: Receiver) -> None:
    class Changing:
        number, added = 1, 0
        table: ClassVar = {"key": 1}
        array = np.zeros(10)

        def method(self) -> str:
            return "as defined"

        @staticmethod
        def total() -> int:
            return int(rate.value)

    what = "[got.number, got.added, got.table['key'], got.array[0], got().method(), got.total(), got is first]"
    expected = [1, 0, 1, 0.0, "as defined", 1, True]
    assert receiver(dumps_class(Changing), what) == expected
    changes = _changes(Changing)
    for position, value in [(0, 2), (1, 3), (2, 4), (3, 5.0), (4, "patched"), (5, 1), (5, 7), (0, 1)]:
        next(changes)
        expected[position] = value
        assert receiver(dumps_class(Changing), what) == expected


def test_a_class_with_a_function_by_type_arrives_as_it_is_now(receiver: Receiver) -> None:
    class Shown:
        @functools.singledispatch
        @staticmethod
        def show(value: object) -> str:
            return "object"

        number = 1

    Shown.show(1)  # which fills the cache of the function
    assert receiver(dumps_class(Shown), "got.number") == 1
    Shown.number = 2
    assert receiver(dumps_class(Shown), "got.number") == 2


def test_an_unchanged_class_leaves_the_changes_of_its_receiver(receiver: Receiver) -> None:
    @dataclasses.dataclass
    class Counting:
        value: int = 0
        made = 0

    assert receiver(dumps_class(Counting), "setattr(got, 'made', 5)") is None
    assert receiver(bytes(serialize.dumps(Counting(3))[0]), "[got.value, got.made, type(got) is first]") == [3, 5, True]
    assert dumps_class(Counting) == dumps_class(Counting)


def test_an_older_class_does_not_overwrite_a_newer_one(receiver: Receiver) -> None:
    class Late:
        number = 1

    older = dumps_class(Late)
    Late.number = 2
    assert receiver(dumps_class(Late), "got.number") == 2
    assert receiver(older, "got.number") == 2


def test_a_class_that_comes_home_is_not_overwritten(receiver: Receiver) -> None:
    class Home:
        number = 1

    receiver(dumps_class(Home), "setattr(got, 'number', 5)")
    returned = receiver(dumps_class(Home), "serialize.dumps(got)[0].hex()")
    Home.number = 2
    assert serialize.loads(bytes.fromhex(returned)) is Home
    assert Home.number == 2

"""Features of ordinary classes beside plain methods work through a handle as without one."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote


@parl_remote.remote_class
class Amount:
    def __init__(self, value: int) -> None:
        self.value = value

    @functools.cached_property
    def digits(self) -> list[int]:
        return [int(digit) for digit in str(self.value)]

    def _plus(self, a: int, b: int) -> int:
        return self.value + a + b

    plus_ten = functools.partialmethod(_plus, 10)

    def __radd__(self, other: int) -> int:
        return other + self.value

    def __iadd__(self, other: int) -> Any:
        self.value += other
        return self

    def __pow__(self, other: int) -> int:
        return int(self.value**other)

    def __neg__(self) -> int:
        return -self.value

    def __or__(self, other: object) -> Any:
        return NotImplemented

    def __index__(self) -> int:
        return self.value

    def __float__(self) -> float:
        return self.value / 10

    def __trunc__(self) -> int:
        return 1

    def __floor__(self) -> int:
        return 2

    def __ceil__(self) -> int:
        return 3

    def __bytes__(self) -> bytes:
        return b"amount"

    def __fspath__(self) -> str:
        return f"{self.value}.txt"

    def __format__(self, how: str) -> str:
        return f"{self.value:{how or 'd'}} EUR"


@parl_remote.remote_class
class Bare:
    def one(self) -> int:
        return 1


def test_a_cached_property_is_read_and_not_taken_for_a_method(anywhere: str) -> None:
    assert Amount(42).digits == [4, 2]
    assert hasattr(Amount(42), "digits")


def test_a_partial_method_is_called(anywhere: str) -> None:
    assert Amount(1).plus_ten(100) == 111


def test_operators_of_all_kinds_are_the_object_s_own(anywhere: str) -> None:
    amount = Amount(3)
    assert (1 + amount, amount**2, -amount) == (4, 9, -3)
    with pytest.raises(TypeError, match="unsupported operand"):
        amount | 1


def test_conversions_are_the_object_s_own_and_not_made_of_others(anywhere: str) -> None:
    amount: Any = Amount(4)
    assert (math.trunc(amount), math.floor(amount), math.ceil(amount)) == (1, 2, 3)
    assert bytes(amount) == b"amount"
    assert os.fspath(amount) == "4.txt"


def test_a_class_says_how_its_objects_are_formatted(anywhere: str) -> None:
    assert f"{Amount(7):>4}" == "   7 EUR"
    assert f"{Amount(7)}" == "7 EUR"
    assert "Bare" in f"{Bare()}", "a handle of a class that says nothing is shown as ever"


def test_an_operator_that_changes_the_object_leaves_the_handle_what_it_was(anywhere: str) -> None:
    amount = kept = Amount(3)
    amount += 4
    assert amount is kept
    assert kept.value == 7


@parl_remote.remote_class
class Feed:
    """An asynchronous context manager, and an iterator of itself."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.ended: list[str] = []

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: object) -> bool:
        self.ended.append("" if kind is None else f"{kind.__name__}: {error}")
        return kind is ValueError

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> int:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.left


@parl_remote.remote_class(wait=False)
class Numbers:
    async def __aenter__(self) -> str:
        return "entered"

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(3):
            yield number


class Unsendable(Exception):
    def __init__(self) -> None:
        super().__init__("with a lock")
        self.lock = threading.Lock()


def test_async_with_and_async_for_are_the_object_s_own(anywhere: str) -> None:
    feed, numbers = Feed(3), Numbers()

    async def use() -> None:
        async with feed as entered:
            assert entered is feed
            assert [number async for number in feed] == [2, 1, 0]
        assert [number async for number in feed] == []
        async with feed:
            raise ValueError("taken by the object")
        with pytest.raises(Unsendable):
            async with feed:
                raise Unsendable
        async with numbers as entered:
            assert entered == "entered"
            assert [number async for number in numbers] == [0, 1, 2]
            async for number in numbers:
                assert number == 0
                break

    asyncio.run(use())
    assert feed.ended == ["", "ValueError: taken by the object", "RemoteError: Unsendable: with a lock"]


def test_a_class_without_constructor_takes_no_arguments(anywhere: str) -> None:
    assert Bare().one() == 1
    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(1)  # type: ignore[call-arg]  # the point
    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(size=1)  # type: ignore[call-arg]


def test_two_looks_at_a_method_are_equal_so_that_a_callback_can_be_found_again(anywhere: str) -> None:
    bare, other = Bare(), Bare()
    assert bare.one == bare.one
    assert hash(bare.one) == hash(bare.one)
    assert bare.one != other.one


_CACHED = """
import functools
import parl_remote

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@parl_remote.remote_class
class Actor:
    @functools.lru_cache(maxsize=7)
    def double(self, value):
        return 2 * value

    def kept(self):
        return type(self).double.cache_parameters()

    def fibonacci(self, n):
        return fibonacci(n)

if __name__ == "__main__":
    parl_remote.connect(cpu_num=1)
    actor = Actor()
    print(actor.double(4), actor.kept()["maxsize"], actor.fibonacci(80))
"""


def test_what_a_program_caches_is_cached_in_actors_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_CACHED)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout == "8 7 23416728348467685\n", ran.stderr


_DISPATCHING = """
import functools
import parl_remote

@functools.singledispatch
def total(value):
    return f"no {type(value).__name__}"

@total.register
def _(value: int):
    return value

@total.register(list)
def of_list(value):
    return sum(map(total, value))

@parl_remote.remote_class
class Actor:
    def total(self, value):
        return total(value)

    @functools.singledispatchmethod
    def kind(self, value):
        return "other"

    @kind.register
    def _(self, value: int):
        return "int"

if __name__ == "__main__":
    parl_remote.connect(cpu_num=1)
    actor = Actor()
    print(actor.total([1, [2, 3]]), actor.total("text"), actor.kind(1), actor.kind("1"))
    print(list(parl_remote.map(total, [[4, [5]], 6.0])))
"""


def test_functions_of_programs_that_depend_on_their_arguments_types_do_so_in_actors(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_DISPATCHING)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout == "6 no str int other\n[9, 'no float']\n", ran.stderr


class Ordinary:
    """Known by its name before anybody makes it remote."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def where(self) -> tuple[int, int]:
        return self.value, os.getpid()

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number


Slow: Any = parl_remote.remote_class(Ordinary)
Quick: Any = parl_remote.remote_class(wait=False)(Ordinary)


def test_a_class_that_exists_stays_local_and_gets_remote_ones_beside_it(anywhere: str) -> None:
    assert Ordinary(1).where() == (1, os.getpid())
    assert "options" not in vars(Ordinary)
    assert "__new__" not in vars(Ordinary)
    slow = Slow(2)
    quick = Quick(3)
    if anywhere == "process":
        assert slow.where()[1] != os.getpid()
    assert (slow.where()[0], quick.where().result()[0]) == (2, 3)
    assert isinstance(slow, Ordinary)
    assert isinstance(Ordinary(), Slow)
    assert Slow.twice(4) == 8
    assert Slow.options(n_cpu=0)(5).where()[0] == 5
    assert parl_remote.with_options(Quick, n_cpu=0.5)(6).where().result()[0] == 6
    assert pickle.loads(pickle.dumps(Slow))(7).where()[0] == 7


def test_a_subclass_of_a_remote_class_beside_it_is_one_of_the_class() -> None:
    class Child(Slow):  # type: ignore[misc]
        pass

    assert Child.__bases__ == (Ordinary,)
    assert Child(8).where() == (8, os.getpid())


def _class_of_a_function() -> Any:
    class Inner(Ordinary):
        def __init__(self, value: int = 0) -> None:
            super(Inner, self).__init__(value)  # noqa: UP008  # as PARL 1.x's programs write it

    return Inner


def test_a_class_of_a_function_is_the_remote_class_whatever_variable_has_it(anywhere: str) -> None:
    Inner, other = _class_of_a_function(), _class_of_a_function()
    assert parl_remote.remote_class(Inner) is Inner
    assert parl_remote.remote_class(other) is other
    if anywhere == "process":
        assert Inner(1).where()[1] != os.getpid()
        assert other(2).where()[1] != os.getpid()
    assert (Inner(1).where()[0], other(2).where()[0]) == (1, 2)


def test_a_class_of_a_function_stays_local_beside_a_remote_subclass(anywhere: str) -> None:
    inner = _class_of_a_function()
    remote: Any = parl_remote.remote_class(type("Inner", (inner,), {}))
    assert inner(1).where() == (1, os.getpid())
    assert remote(2).where()[0] == 2
    assert isinstance(remote(3), inner)


def test_a_decorated_class_keeps_its_options_beside_a_second_remote_class(anywhere: str) -> None:
    slow = parl_remote.remote_class(_class_of_a_function())
    quick: Any = parl_remote.remote_class(wait=False)(slow)
    assert slow(1).where()[0] == 1
    assert quick(2).where().result()[0] == 2


def test_a_decorator_that_uses_remote_class_is_one_on_a_definition(anywhere: str) -> None:
    def ours(cls: Any) -> Any:
        return parl_remote.remote_class(wait=False)(cls)

    @ours
    class Decorated(Ordinary):
        pass

    made: Any = Decorated
    assert isinstance(made, type)
    assert made(1).where().result()[0] == 1


class Picky:
    """An object whose `__getattr__` raises for what it lacks whatever its container raises."""

    __slots__ = ("_given", "late", "never")

    def __init__(self) -> None:
        self._given = {"colour": "red"}

    def __getattr__(self, name: str) -> Any:
        return self._given[name]

    def set_late(self) -> int:
        self.late = 3
        return self.late


@pytest.mark.parametrize("max_concurrency", [1, 2])
def test_the_library_asks_no_getattr_of_a_class_what_its_objects_have(anywhere: str, max_concurrency: int) -> None:
    picky: Any = parl_remote.remote_class(max_concurrency=max_concurrency)(Picky)()
    assert picky.set_late() == 3
    assert picky.late == 3
    assert picky.colour == "red"


class Starter:
    """An object whose methods add an attribute and return what is sent in a way of its own."""

    def rows(self) -> Any:
        self.started = True
        return (number for number in range(3))

    def later(self, other: Any) -> Any:
        self.asked = True
        return parl_remote.submit(other.digits_of, 42)

    def reference(self) -> Any:
        self.kept = parl_remote.put([1, 2])
        return {"kept": self.kept}

    def digits_of(self, number: int) -> list[int]:
        return [int(digit) for digit in str(number)]


@pytest.mark.parametrize("max_concurrency", [1, 2])
def test_a_method_that_adds_an_attribute_may_return_whatever_others_may(anywhere: str, max_concurrency: int) -> None:
    starter, other = (parl_remote.remote_class(max_concurrency=max_concurrency)(Starter)() for _ in range(2))
    assert list(starter.rows()) == [0, 1, 2]
    assert starter.started
    assert starter.later(other) == [4, 2]
    assert starter.asked
    assert starter.reference()["kept"].get() == [1, 2]
    assert starter.kept.get() == [1, 2]

"""Calls of methods: what goes there and what comes back."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import parl_remote
from parl_remote import RemoteAttributeError, SerializationError, submit, with_options


@parl_remote.remote_class
class Counter:
    """Counts."""

    step = 1

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int, times: int = 1) -> int:
        """Add to the value."""
        self.value += amount * times
        return self.value

    def nothing(self) -> None:
        pass

    def echo(self, value: Any) -> Any:
        return value

    def process(self) -> int:
        return os.getpid()

    def overwrite(self, array: npt.NDArray[np.float64]) -> float:
        array[:] = 0
        return float(array.sum())

    def unpicklable(self) -> Any:
        return threading.Lock()

    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def itself(self) -> Any:
        return self

    def __len__(self) -> int:
        return self.value

    def __call__(self, word: str) -> str:
        return word * self.value

    def __getitem__(self, key: int) -> int:
        return self.value + key


class Plain:
    """Defined here and nowhere importable."""

    def __init__(self, number: int) -> None:
        self.number = number


@parl_remote.remote_class(wait=False)
class Counting:
    """Returns an array of its own that it goes on to change."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.int64)

    def up(self) -> Any:
        self.array += 1
        return self.array


@parl_remote.remote_class(wait=False)
class CountingAsync:
    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.int64)

    async def up(self) -> Any:
        self.array += 1
        return self.array


def test_a_call_returns_what_the_method_returns(anywhere: str) -> None:
    counter = Counter(5)
    assert counter.add(2) == 7
    assert counter.add(amount=1, times=3) == 10


def test_a_call_without_arguments_and_without_result_works(anywhere: str) -> None:
    Counter().nothing()


def test_static_and_class_methods_are_called_in_the_actor(anywhere: str) -> None:
    counter = Counter()
    assert counter.double(4) == 8
    assert counter.name() == "Counter"


def test_special_methods_are_called_in_the_actor(anywhere: str) -> None:
    counter = Counter(3)
    assert len(counter) == 3
    assert counter("ab") == "ababab"
    assert counter[10] == 13


def test_an_actor_has_a_process_of_its_own(shared_cluster: None) -> None:
    first, second = Counter(), Counter()
    assert len({first.process(), second.process(), os.getpid()}) == 3


def test_an_argument_is_copied_so_that_the_actor_cannot_change_ours(anywhere: str) -> None:
    ours = np.ones(10_000)
    assert Counter().overwrite(ours) == 0.0
    assert ours.sum() == 10_000


@pytest.mark.parametrize("size", [0, 1, 1_000, 8_192, 100_000, 3_000_000])
def test_arrays_of_any_size_come_back_equal_and_writable(shared_cluster: None, size: int) -> None:
    sent = np.arange(size, dtype=np.float64)
    got = Counter().echo({"array": sent, "again": [sent, sent[::-1]]})
    np.testing.assert_array_equal(got["array"], sent)
    np.testing.assert_array_equal(got["again"][1], sent[::-1])
    got["array"][:] = 1


def test_many_arrays_in_one_call_come_back_equal(shared_cluster: None) -> None:
    sent = [np.full(2_000, i) for i in range(3_000)]
    got = Counter().echo(sent)
    assert all((a == b).all() for a, b in zip(sent, got, strict=True))


@pytest.mark.parametrize("size", [10, 2_000, 10_000, 100_000])
@pytest.mark.parametrize("kind", [Counting, CountingAsync])
def test_a_result_arrives_as_it_was_when_it_was_returned(anywhere: str, kind: Any, size: int) -> None:
    counting = kind(size)
    arrays = [future.result() for future in [counting.up() for _ in range(200)]]
    assert [(array[0], array[-1]) for array in arrays] == [(number, number) for number in range(1, 201)]


def test_an_object_of_a_class_that_no_other_process_can_import_crosses(shared_cluster: None) -> None:
    got = Counter().echo(Plain(7))
    assert isinstance(got, Plain)
    assert got.number == 7


def test_a_function_without_a_name_crosses(shared_cluster: None) -> None:
    assert Counter().echo(lambda x: x + 1)(1) == 2


def test_an_argument_that_cannot_be_pickled_is_named_and_the_actor_goes_on(anywhere: str) -> None:
    counter = Counter()
    with pytest.raises(SerializationError, match=r"argument 'times' \(a lock\) of Counter.add\(\)"):
        counter.add(1, threading.Lock())  # type: ignore[arg-type]  # on purpose
    assert counter.add(1) == 1


def test_an_argument_of_the_constructor_that_cannot_be_pickled_is_named(anywhere: str) -> None:
    with pytest.raises(SerializationError, match="argument 'start'"):
        Counter(threading.Lock())  # type: ignore[arg-type]  # on purpose


def test_a_result_that_cannot_be_pickled_is_reported_and_the_actor_goes_on(anywhere: str) -> None:
    counter = Counter()
    with pytest.raises(SerializationError, match=r"what Counter.unpicklable\(\) returned"):
        counter.unpicklable()
    assert counter.add(1) == 1


def test_a_method_that_does_not_exist_is_refused_with_near_names(anywhere: str) -> None:
    with pytest.raises(AttributeError, match="did you mean add"):
        Counter().ad(1)  # type: ignore[attr-defined]  # on purpose


def test_too_many_arguments_are_reported_as_for_a_local_object(anywhere: str) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Counter().add(1, 2, 3)  # type: ignore[call-arg]  # on purpose


def test_threads_that_call_one_actor_each_get_their_own_answers(shared_cluster: None) -> None:
    counter = Counter()
    wrong: list[tuple[int, int]] = []

    def call(thread: int) -> None:
        answers = [counter.echo((thread, i)) for i in range(300)]
        wrong.extend(answer for i, answer in enumerate(answers) if answer != (thread, i))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_failing_call_of_one_thread_does_not_hold_up_another(shared_cluster: None) -> None:
    counter = Counter()
    answers: list[int] = []

    def fail() -> None:
        for _ in range(50):
            with pytest.raises(SerializationError):
                counter.add(threading.Lock())  # type: ignore[arg-type]  # on purpose

    def count() -> None:
        answers.extend(counter.add(1) for _ in range(50))

    threads = [threading.Thread(target=fail), threading.Thread(target=count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == list(range(1, 51))


def test_the_class_stays_what_it_was() -> None:
    assert Counter.__doc__ == "Counts."
    assert Counter.__name__ == "Counter"
    assert pickle.loads(pickle.dumps(Counter)) is Counter
    assert list(inspect.signature(Counter).parameters) == ["start"]
    assert Counter.step == 1


def test_a_remote_object_passes_for_an_object_of_its_class(anywhere: str) -> None:
    counter = Counter()
    assert isinstance(counter, Counter)
    assert counter.__class__ is Counter
    assert not isinstance(counter, Plain)
    assert re.fullmatch(r"<remote Counter( [0-9a-f]{8})?>", repr(counter))
    assert counter.add.__doc__ == "Add to the value."
    assert list(inspect.signature(counter.add).parameters) == ["amount", "times"]


def test_keyword_arguments_may_have_any_name(anywhere: str) -> None:
    @parl_remote.remote_class
    class Taker:
        def take(this, **names: int) -> dict[str, int]:  # noqa: N805  # on purpose
            return names

    names = {"self": 1, "name": 2, "args": 3, "method": 4}
    assert Taker().take(**names) == names
    assert submit(Taker().take, **names).result() == names


def test_arguments_of_the_constructor_may_have_any_name(anywhere: str) -> None:
    @parl_remote.remote_class
    class Taker:
        def __init__(self, cls: int, cls_: int, options: int, wait: int, n_cpu: int) -> None:
            self.taken = cls, cls_, options, wait, n_cpu

    assert Taker(1, cls_=2, options=3, wait=4, n_cpu=5).taken == (1, 2, 3, 4, 5)
    assert list(inspect.signature(Taker).parameters) == ["cls", "cls_", "options", "wait", "n_cpu"]


def test_an_undecorated_subclass_is_an_ordinary_class() -> None:
    class Child(Counter):
        pass

    child = Child(4)
    assert type(child) is Child
    assert child.add(1) == 5


def test_a_decorated_subclass_of_a_remote_class_is_made_in_an_actor(shared_cluster: None) -> None:
    @parl_remote.remote_class
    class Child(Counter):
        def where(self) -> int:
            return os.getpid()

    child = Child(4)
    assert child.where() != os.getpid()
    assert child.add(1) == 5
    assert isinstance(child, Counter)


def test_a_class_with_its_own_new_and_super_in_both_spellings_is_made_in_the_actor(anywhere: str) -> None:
    class Base:
        def __new__(cls, *args: Any) -> Any:
            made: Any = super().__new__(cls)
            made.args = args
            return made

        def __init__(self, number: int) -> None:
            self.number = number

    @parl_remote.remote_class
    class Derived(Base):
        def __init__(self, number: int) -> None:
            super(Derived, self).__init__(number + 1)  # noqa: UP008 - the long spelling is what is tested

        def seen(self) -> tuple[int, Any]:
            return self.number, self.args  # type: ignore[attr-defined]  # set in __new__

    assert Derived(1).seen() == (2, (1,))


def test_an_attribute_error_of_the_remote_kind_is_an_attribute_error() -> None:
    assert issubclass(RemoteAttributeError, AttributeError)


def test_actors_draw_different_random_numbers(shared_cluster: None) -> None:
    @parl_remote.remote_class
    class Dice:
        def throw(self) -> tuple[float, float]:
            import random

            return float(np.random.random()), random.random()

    (a, b), (c, d) = Dice().throw(), Dice().throw()
    assert a != c
    assert b != d


def test_other_options_for_some_objects_leave_the_class_as_it_was(shared_cluster: None) -> None:
    quick = with_options(Counter, wait=False)
    future: Any = quick(1).add(1)
    assert future.result(60) == 2
    assert Counter(1).add(1) == 2


class Tally:
    """Counts in a global of this module, so that a method with copied globals would give itself away."""

    made = 0

    def note(self) -> int:
        global _noted
        _noted += 1
        return _noted


_noted = 0


def test_a_class_that_comes_back_from_an_actor_is_not_overwritten(anywhere: str) -> None:
    before = Tally.__dict__["note"]
    got = Counter().echo(Tally())
    assert type(got) is Tally
    assert Tally.__dict__["note"] is before
    got.note()
    assert _noted > 0


def test_an_actor_that_returns_itself_returns_a_copy_of_the_object(anywhere: str) -> None:
    copy = Counter(8).itself()
    assert type(copy) is Counter
    assert copy.value == 8
    assert copy.add(1) == 9

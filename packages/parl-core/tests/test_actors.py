"""The actors of this process, with and without threads, do what the protocol promises of every fill."""

import itertools
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from parl_core.actors import InProcessActors, ThreadActors, open_actors, wait_any
from parl_core.errors import HyperparameterError, ParlError


class Counter:
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError(f"start is {start}")
        self.total = start

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def fail(self) -> None:
        raise KeyError("no such thing")


def test_a_call_answers_with_what_the_method_returned() -> None:
    with InProcessActors() as actors:
        assert actors.create(Counter, 3).call("add", 4) == 7


def test_submitted_calls_run_in_order_and_their_futures_are_done() -> None:
    with InProcessActors() as actors:
        counter = actors.create(Counter, start=0)
        futures = [counter.submit("add", amount) for amount in (1, 2, 3)]
        assert all(future.done() for future in futures)
        assert [future.result(timeout=240) for future in futures] == [1, 3, 6]


def test_a_methods_exception_is_raised_by_result_and_the_actor_lives_on() -> None:
    with InProcessActors() as actors:
        counter = actors.create(Counter, 1)
        failed = counter.submit("fail")
        with pytest.raises(KeyError, match="no such thing"):
            failed.result()
        with pytest.raises(KeyError, match="no such thing"):
            counter.call("fail")
        assert counter.call("add", 1) == 2


def test_a_constructors_exception_is_raised_by_create() -> None:
    with InProcessActors() as actors, pytest.raises(ValueError, match="start is -1"):
        actors.create(Counter, -1)


def test_a_call_after_close_is_refused() -> None:
    with InProcessActors() as actors:
        closed = actors.create(Counter, 0)
        left_open = actors.create(Counter, 0)
        closed.close()
        closed.close()
        with pytest.raises(ParlError, match=r"'add'.*closed"):
            closed.call("add", 1)
    with pytest.raises(ParlError, match="closed"):
        left_open.submit("add", 1)


def test_an_unknown_method_is_an_attribute_error() -> None:
    with InProcessActors() as actors, pytest.raises(AttributeError, match="subtract"):
        actors.create(Counter, 0).call("subtract", 1)


def test_open_actors_finds_the_in_process_fill_by_name() -> None:
    with open_actors("in-process") as actors:
        assert isinstance(actors, InProcessActors)


def test_an_unknown_actor_system_is_refused_with_the_known_names() -> None:
    with pytest.raises(ImportError, match=r"'telepathy'.*in-process"):
        open_actors("telepathy")


def test_a_killed_actor_refuses_calls() -> None:
    with InProcessActors() as actors:
        counter = actors.create(Counter, 0)
        counter.kill()
        with pytest.raises(ParlError, match="closed"):
            counter.call("add", 1)


def test_what_was_put_arrives_as_the_value() -> None:
    with InProcessActors() as actors:
        assert actors.create(Counter, 0).call("add", actors.put(5)) == 5


def test_waiting_for_any_gives_the_calls_that_are_done() -> None:
    with InProcessActors() as actors:
        counter = actors.create(Counter, 0)
        futures = [counter.submit("add", 1), counter.submit("fail")]
        assert wait_any(futures) == futures


def test_answers_that_arrive_while_it_looks_are_not_returned_without_earlier_ones() -> None:
    looks = itertools.count()

    class Call:
        def done(self) -> bool:
            return next(looks) > 0  # all answers arrive together, after the first look

    futures: list[Any] = [Call(), Call(), Call()]
    done = wait_any(futures)
    assert done == futures[: len(done)] == futures[:2]


class Gate:
    """Waits in `enter` until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def enter(self) -> threading.Thread:
        self.entered.set()
        assert self.opened.wait(60)
        return threading.current_thread()


def test_calls_of_a_thread_run_in_order_in_the_thread_that_made_the_actor() -> None:
    with open_actors("threads", threads=2) as actors:
        assert actors.slots == 2
        counter = actors.create(Counter, start=1)
        assert [future.result(60) for future in [counter.submit("add", n) for n in (1, 2, 3)]] == [2, 4, 7]
        with pytest.raises(KeyError, match="no such thing"):
            counter.call("fail")
        gate = Gate()
        gate.opened.set()
        assert actors.put(gate) is gate
        assert actors.create(Holder, gate).call("enter").name == "actor Holder"
        with pytest.raises(ValueError, match="start is -1"):
            actors.create(Counter, -1)


class Leaver:
    def leave(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_a_thread_is_raised_at_the_caller_and_ends_no_actor(error: BaseException) -> None:
    with ThreadActors(1) as actors:
        leaver = actors.create(Leaver)
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                leaver.submit("leave", error).result(60)
            assert caught.value is error


def test_a_thread_that_is_closed_within_a_call_begins_no_other_one() -> None:
    actors = ThreadActors(1)
    gates = [Gate()]
    holder = actors.create(Holder, gates[0])
    first, second = holder.submit("enter"), holder.submit("enter")
    assert gates[0].entered.wait(60)
    holder.kill()
    with pytest.raises(ParlError, match="closed"):
        holder.call("enter")
    gates[0].opened.set()
    assert first.result(60) is not threading.current_thread()
    with pytest.raises(CancelledError):
        second.result(60)
    actors.close()
    actors.close()


class Holder:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def enter(self) -> threading.Thread:
        return self.gate.enter()


def test_waiting_for_any_thread_does_not_wait_for_all() -> None:
    with ThreadActors(2) as actors:
        gate = Gate()
        held = actors.create(Holder, gate).submit("enter")
        quick = actors.create(Counter, 0).submit("add", 5)
        assert wait_any([held, quick], 60) == [quick]
        gate.opened.set()
        assert wait_any([held], 60) == [held]


def test_no_threads_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="threads"):
        ThreadActors(0)

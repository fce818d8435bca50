"""Faults at exact points of a program: the same call is hit in every run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

import parl_remote
from parl_remote import ActorLost, submit
from parl_remote.testing import Faults, Process

PATIENCE_S = 60.0


@parl_remote.remote_class
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def process(self) -> int:
        return os.getpid()

    def write(self, path: str, line: str) -> None:
        with open(path, "a") as file:
            file.write(line + "\n")


@parl_remote.remote_class
class Other:
    def hello(self) -> str:
        return "hello"


@pytest.fixture
def faults(share_cluster: Callable[[int], None]) -> Iterator[Faults]:
    share_cluster(4)
    with Faults() as one:
        yield one


def train(actors: int, calls: int) -> list[int | None]:
    """A program that knows nothing of faults; what each call gave, None if its actor was lost."""
    results: list[int | None] = []
    counters = [Counter() for _ in range(actors)]
    for _ in range(calls):
        for counter in counters:
            try:
                results.append(counter.add(1))
            except ActorLost:
                results.append(None)
    return results


def test_an_actor_that_a_program_makes_later_dies_after_its_third_call(faults: Faults) -> None:
    faults.actor("Counter", 2).kill(after_calls=3)
    assert train(2, 5) == [1, 1, 2, 2, 3, 3, 4, None, 5, None]
    assert faults.struck == ["Counter 2: kill after call 3"]


def test_it_happens_at_the_same_point_every_time(connect: Callable[..., None]) -> None:
    connect()
    runs = []
    for _ in range(5):
        with Faults() as faults:
            faults.actor("Counter").kill(after_calls=2)
            runs.append(train(1, 4))
    assert runs == [[1, 2, None, None]] * 5


def test_pipelined_calls_behind_the_point_are_lost_and_those_before_it_are_not(faults: Faults) -> None:
    faults.actor("Counter").kill(after_calls=10)
    counter = Counter()
    futures = [submit(counter.add, 1) for _ in range(10)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 11))
    with pytest.raises(ActorLost, match="SIGKILL"):
        submit(counter.add, 1).result(PATIENCE_S)


def test_a_call_that_is_hit_on_its_way_is_lost_and_never_carried_out(faults: Faults, tmp_path: object) -> None:
    path = f"{tmp_path}/lines"
    counter = Counter()
    faults.actor(counter).kill(during_call=3)
    counter.write(path, "one")
    counter.write(path, "two")
    with pytest.raises(ActorLost, match="SIGKILL"):
        counter.write(path, "three")
    with open(path) as file:
        assert file.read() == "one\ntwo\n"


def test_faults_before_the_first_call_and_at_once(faults: Faults) -> None:
    faults.actor("Counter").kill(after_calls=0)
    with pytest.raises(ActorLost):
        Counter().add(1)
    second = Counter()
    faults.actor(second).kill()
    with pytest.raises(ActorLost):
        second.add(1)
    assert faults.struck == ["Counter 1: kill before call 1", "Counter 2: kill"]


def test_a_paused_actor_answers_when_it_is_resumed(faults: Faults) -> None:
    counter = Counter()
    actor = faults.actor(counter)
    actor.pause(after_calls=1)
    assert counter.add(1) == 1
    waiting = submit(counter.add, 1)
    with pytest.raises(parl_remote.ResultTimeout):
        waiting.result(0.2)
    actor.resume()
    assert waiting.result(PATIENCE_S) == 2


def test_a_slow_actor_takes_its_time_and_others_do_not(faults: Faults) -> None:
    slow, quick = Counter(), Counter()
    faults.actor(slow).slow(1.0)
    began = time.monotonic()
    waiting = submit(slow.add, 1)
    assert quick.add(1) == 1
    assert not waiting.done() or time.monotonic() - began >= 1.0
    assert waiting.result(PATIENCE_S) == 1
    assert time.monotonic() - began >= 0.9
    faults.actor(slow).slow(10 * PATIENCE_S)
    faults.actor(slow).slow(0)
    assert submit(slow.add, 1).result(PATIENCE_S) == 2


def test_anything_can_be_done_at_a_point(faults: Faults) -> None:
    noted: list[int] = []
    counter = Counter()
    actor = faults.actor(counter)
    actor.do(lambda: noted.append(actor.calls), after_calls=2, name="note")
    actor.do(lambda: noted.append(actor.calls), during_call=4, name="note")
    assert [counter.add(1) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert noted == [2, 4]
    assert faults.struck == ["Counter 1: note after call 2", "Counter 1: note during call 4"]


def test_attributes_do_not_count_as_calls(faults: Faults) -> None:
    counter = Counter()
    actor = faults.actor(counter)
    actor.kill(after_calls=2)
    assert [counter.add(1), counter.value, counter.value] == [1, 1, 1]
    assert actor.calls == 1
    assert counter.add(1) == 2
    with pytest.raises(ActorLost):
        _ = counter.value


def test_classes_are_counted_apart(faults: Faults) -> None:
    faults.actor("Other", 1).kill(after_calls=0)
    assert Counter().add(1) == 1
    with pytest.raises(ActorLost):
        Other().hello()
    assert Other().hello() == "hello"


def test_an_actor_that_was_made_before_can_be_hit_by_its_handle(connect: Callable[..., None]) -> None:
    connect()
    counter = Counter()
    assert counter.add(1) == 1
    with Faults() as faults:
        assert faults.actor(counter).process.pid == counter.process()
        faults.actor(counter).kill(after_calls=2)  # the first was that of process()
        assert counter.add(1) == 2
        with pytest.raises(ActorLost):
            counter.add(1)


def test_without_faults_nothing_is_watched(connect: Callable[..., None]) -> None:
    connect()
    with Faults() as faults:
        faults.actor("Counter", 2).pause(after_calls=0)
        first, second = Counter(), Counter()
        late = submit(second.add, 1)
        process = faults.actor(second).process
        assert process.pid != os.getpid()
    assert late.result(PATIENCE_S) == 1  # the end of the faults let it go on
    assert not process.paused
    assert first.add(1) == 1
    assert Counter().add(1) == 1
    assert faults.actor("Counter", 3).calls == 0


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        (lambda faults, _: faults.actor(3), TypeError, "neither a remote object nor the name"),
        (lambda faults, _: faults.actor("Counter", 0), ValueError, "counted from 1"),
        (lambda faults, one: faults.actor(one).kill(after_calls=1, during_call=2), ValueError, "not both"),
        (lambda faults, one: faults.actor(one).kill(during_call=1), ValueError, "sent 1 calls already"),
        (lambda faults, one: faults.actor(one).kill(after_calls=0), ValueError, "0 has passed"),
        (lambda faults, one: faults.actor(one).slow(-1), ValueError, "from 0 to below 3600"),
        (lambda faults, _: faults.actor("Nobody").process, ProcessLookupError, "is not made yet"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    faults: Faults, plan: Callable[[Faults, object], object], error: type[Exception], said: str
) -> None:
    counter = Counter()
    counter.add(1)
    with pytest.raises(error, match=said):
        plan(faults, counter)
    assert counter.add(1) == 2


def test_faults_end_with_their_block_whatever_happens(connect: Callable[..., None]) -> None:
    connect()
    pids = []

    def fail_within() -> None:
        with Faults() as faults:
            counter = Counter()
            faults.actor(counter).pause()
            pids.append(faults.actor(counter).process.pid)
            raise KeyError("a failing test")

    with pytest.raises(KeyError):
        fail_within()
    assert Counter().add(1) == 1
    assert not still_stopped(pids[0])


def still_stopped(pid: int) -> bool:
    """The actor went with its only handle, or is about to."""
    try:
        return Process(pid).paused
    except ProcessLookupError:
        return False

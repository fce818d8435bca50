"""A pool goes on with the workers that are there while others are spawned in the place of lost ones."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from parl_core.errors import LostActor
from parl_core.training._fragment_source import Arrival, Call, EnvironmentWorkers
from parl_core.worker_pool import Answer, Work, WorkerPool

DEADLINE_S = 60.0


class Fake:
    """An actor whose answers are what it is told."""

    def __init__(self, lives: Mapping[int, int]) -> None:
        self.lives = dict(lives)
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Future[Any]] = []
        self.killed, self.ended = threading.Event(), threading.Event()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        self.asked.append((method, *args))
        self.answers.append(Future())
        if method == "close":
            self.answers[-1].set_result(None)
        return self.answers[-1]

    def call(self, method: str, *args: Any) -> Any:
        return self.submit(method, *args).result()

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.ended.set()


class Spawner:
    """Makes actors; from the third on only when it is allowed to, and as the next of `outcomes` says."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.made: list[Fake] = []
        self.allowed = threading.Semaphore(0)
        self._outcomes = list(outcomes)

    def spawn(self, actor: int, lives: Mapping[int, int]) -> Fake:
        if len(self.made) >= 2:
            assert self.allowed.acquire(timeout=DEADLINE_S)
            if self._outcomes and (outcome := self._outcomes.pop(0)) is not None:
                raise outcome
        self.made.append(Fake(lives))
        return self.made[-1]


def until(arrive: Callable[[], list[Arrival]], enough: Callable[[], bool]) -> list[Arrival]:
    found: list[Arrival] = []
    for _ in range(1000):
        found += arrive()
        if enough():
            return found
    raise AssertionError(f"it did not happen; there came {found}")


def test_answers_of_others_come_while_an_actor_is_made() -> None:
    spawner = Spawner()
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 3) as workers:
        workers.submit(Call(0, "run"))
        spawner.made[0].answers[0].set_exception(LostActor("gone"))
        (lost,) = workers.arrivals()
        assert (lost.call.group, lost.failed, workers.lost_count) == (0, True, 1)
        workers.submit(Call(0, "run", ("again",)))
        for number in range(3):
            workers.submit(Call(1, "run"))
            spawner.made[1].answers[number].set_result(number)
            assert [arrival.answer for arrival in workers.arrivals(DEADLINE_S)] == [number]
        assert len(spawner.made) == 2
        spawner.allowed.release()
        until(lambda: workers.arrivals(0.1), lambda: len(spawner.made) == 3 and bool(spawner.made[2].asked))
        assert spawner.made[2].asked == [("run", "again")]
        assert spawner.made[2].lives == {0: 1}
        spawner.made[2].answers[0].set_result("there")
        assert [arrival.answer for arrival in workers.arrivals(DEADLINE_S)] == ["there"]
    assert spawner.made[0].killed.is_set()
    assert spawner.made[2].ended.is_set()


def test_the_wait_ends_when_the_actor_is_there() -> None:
    spawner = Spawner()
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 3) as workers:
        workers.submit(Call(0, "run"))
        spawner.made[0].answers[0].set_exception(LostActor("gone"))
        workers.arrivals()
        workers.submit(Call(0, "run"))
        done = threading.Thread(target=_answer_the_third, args=(spawner,))
        done.start()
        assert [arrival.answer for arrival in workers.arrivals()] == ["third"]
        done.join(DEADLINE_S)


def _answer_the_third(spawner: Spawner) -> None:
    spawner.allowed.release()
    asked = threading.Event()
    while not (len(spawner.made) == 3 and spawner.made[2].answers):
        asked.wait(0.005)
    spawner.made[2].answers[0].set_result("third")


def test_an_actor_that_is_lost_while_it_is_made_counts_and_too_many_end_the_run() -> None:
    spawner = Spawner(LostActor("first try"), LostActor("second try"))
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 2) as workers:
        workers.submit(Call(0, "run"))
        spawner.made[0].answers[0].set_exception(LostActor("gone"))
        workers.arrivals()
        workers.submit(Call(0, "run"))
        spawner.allowed.release(2)
        with pytest.raises(LostActor, match="second try") as raised:
            until(lambda: workers.arrivals(0.1), lambda: False)
        assert any("failed 3 times in a row" in note for note in raised.value.__notes__)
        assert workers.lost_count == 3


def test_what_keeps_an_actor_from_being_made_is_raised() -> None:
    spawner = Spawner(ValueError("no such environment"))
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 2) as workers:
        workers.submit(Call(0, "run"))
        spawner.made[0].answers[0].set_exception(LostActor("gone"))
        workers.arrivals()
        workers.submit(Call(0, "run"))
        spawner.allowed.release()
        with pytest.raises(ValueError, match="no such environment") as raised:
            workers.arrivals(DEADLINE_S)
        assert any("in the place of worker 0, which was lost: gone" in note for note in raised.value.__notes__)


def test_what_was_waited_for_is_closed_once() -> None:
    spawner = Spawner(ValueError("no such environment"))
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 2) as workers:
        workers.submit(Call(0, "run"))
        spawner.made[0].answers[0].set_exception(LostActor("gone"))
        workers.arrivals()
        workers.submit(Call(0, "run"))
        spawner.allowed.release()
        with pytest.raises(ValueError, match="no such environment"):
            workers.arrivals(DEADLINE_S)
        mine = os.pipe()  # which gets the numbers that are free now
    for number in mine:
        os.fstat(number)
        os.close(number)


def test_closing_does_not_wait_for_an_actor_in_the_making_which_is_ended_when_it_comes() -> None:
    spawner = Spawner()
    workers = EnvironmentWorkers(spawner.spawn, [[0], [1]], None, 3)
    workers.submit(Call(0, "run"))
    spawner.made[0].answers[0].set_exception(LostActor("gone"))
    workers.arrivals()
    workers.close()
    assert len(spawner.made) == 2
    spawner.allowed.release()
    for _ in range(1000):
        if len(spawner.made) == 3:
            break
        threading.Event().wait(0.01)
    assert spawner.made[2].killed.wait(DEADLINE_S)


def test_a_time_limit_is_not_for_actors_in_the_making() -> None:
    spawner = Spawner()
    with EnvironmentWorkers(spawner.spawn, [[0], [1]], 0.05, 3) as workers:
        workers.submit(Call(0, "run"))
        hanging = workers.arrivals(DEADLINE_S)
        assert hanging[0].failed
        assert "timeout_s=0.05" in str(hanging[0].answer)
        workers.submit(Call(0, "run"))
        assert workers.arrivals(0.2) == []
        assert workers.lost_count == 1
        spawner.allowed.release()
        until(lambda: workers.arrivals(0.01), lambda: len(spawner.made) == 3 and bool(spawner.made[2].asked))


class Notes:
    """A policy that goes on whatever happens, and notes it."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, str]] = []
        self.failures: list[tuple[int, str]] = []

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:
        self.losses.append((slot, "idle" if work is None else work.method))

    def not_spawned(self, slot: int, error: Exception) -> None:
        self.failures.append((slot, str(error)))


def test_a_pool_goes_on_with_fewer_workers_until_there_is_a_slot_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_core.worker_pool.SPAWN_AGAIN_S", 0.01)
    made: list[Fake] = []
    refusals = [ValueError("no room"), ValueError("still none"), None]

    def spawn(slot: int) -> Fake:
        if slot == 1 and refusals and (refusal := refusals.pop(0)) is not None:
            raise refusal
        made.append(Fake({slot: 0}))
        return made[-1]

    notes = Notes()
    with WorkerPool(spawn, 2, notes) as pool:
        pool.start()
        assert pool.ready() == [0]
        assert pool.gather(DEADLINE_S, or_spawned=True) == []
        for _ in range(1000):
            if pool.ready() == [0, 1]:
                break
            pool.gather(DEADLINE_S, or_spawned=True)
        assert pool.ready() == [0, 1]
        assert notes.failures == [(1, "no room"), (1, "still none")]
        pool.submit(Work(1, "run"))
        made[1].answers[0].set_result("done")
        assert pool.gather(DEADLINE_S) == [Answer(Work(1, "run"), "done", False)]


def test_all_that_a_lost_worker_owed_has_failed_and_one_that_is_replaced_is_no_loss() -> None:
    made: list[Fake] = []

    def spawn(slot: int) -> Fake:
        made.append(Fake({slot: 0}))
        return made[-1]

    notes = Notes()
    with WorkerPool(spawn, 1, notes) as pool:
        pool.start()
        pool.submit(Work(0, "first", tag=1))
        pool.submit(Work(0, "second", tag=2))
        made[0].answers[0].set_exception(LostActor("gone"))
        answers = pool.gather(DEADLINE_S)
        assert [(answer.work.tag, answer.failed, str(answer.value)) for answer in answers] == [
            (1, True, "gone"),
            (2, True, "gone"),
        ]
        assert notes.losses == [(0, "first")]
        assert pool.restarts == [1]
        pool.submit(Work(0, "third"))
        pool.gather(DEADLINE_S, or_spawned=True)
        assert pool.ready() == [0]
        pool.replace(0)
        assert made[1].killed.is_set()
        pool.gather(DEADLINE_S, or_spawned=True)
        assert (pool.ready(), pool.is_busy, len(notes.losses), pool.restarts) == ([0], False, 1, [1])
        pool.submit(Work(0, "fourth"))
    assert made[2].killed.is_set()  # it was at work

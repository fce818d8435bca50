"""A crew goes on with the actors that are there while others are made in the place of lost ones."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from parl_core.errors import LostActor
from parl_core.training.crew import Arrival, Call, Crew

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


class Agency:
    """Makes actors; from the third on only when it is allowed to, and as the next of `outcomes` says."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.made: list[Fake] = []
        self.allowed = threading.Semaphore(0)
        self._outcomes = list(outcomes)

    def hire(self, actor: int, lives: Mapping[int, int]) -> Fake:
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
    agency = Agency()
    with Crew(agency.hire, [[0], [1]], None, 3) as crew:
        crew.submit(Call(0, "run"))
        agency.made[0].answers[0].set_exception(LostActor("gone"))
        (lost,) = crew.arrivals()
        assert (lost.call.group, lost.failed, crew.lost) == (0, True, 1)
        crew.submit(Call(0, "run", ("again",)))
        for number in range(3):
            crew.submit(Call(1, "run"))
            agency.made[1].answers[number].set_result(number)
            assert [arrival.answer for arrival in crew.arrivals(DEADLINE_S)] == [number]
        assert len(agency.made) == 2
        agency.allowed.release()
        until(lambda: crew.arrivals(0.1), lambda: len(agency.made) == 3 and bool(agency.made[2].asked))
        assert agency.made[2].asked == [("run", "again")]
        assert agency.made[2].lives == {0: 1}
        agency.made[2].answers[0].set_result("there")
        assert [arrival.answer for arrival in crew.arrivals(DEADLINE_S)] == ["there"]
    assert agency.made[0].killed.is_set()
    assert agency.made[2].ended.is_set()


def test_the_wait_ends_when_the_actor_is_there() -> None:
    agency = Agency()
    with Crew(agency.hire, [[0], [1]], None, 3) as crew:
        crew.submit(Call(0, "run"))
        agency.made[0].answers[0].set_exception(LostActor("gone"))
        crew.arrivals()
        crew.submit(Call(0, "run"))
        done = threading.Thread(target=_answer_the_third, args=(agency,))
        done.start()
        assert [arrival.answer for arrival in crew.arrivals()] == ["third"]
        done.join(DEADLINE_S)


def _answer_the_third(agency: Agency) -> None:
    agency.allowed.release()
    asked = threading.Event()
    while not (len(agency.made) == 3 and agency.made[2].answers):
        asked.wait(0.005)
    agency.made[2].answers[0].set_result("third")


def test_an_actor_that_is_lost_while_it_is_made_counts_and_too_many_end_the_run() -> None:
    agency = Agency(LostActor("first try"), LostActor("second try"))
    with Crew(agency.hire, [[0], [1]], None, 2) as crew:
        crew.submit(Call(0, "run"))
        agency.made[0].answers[0].set_exception(LostActor("gone"))
        crew.arrivals()
        crew.submit(Call(0, "run"))
        agency.allowed.release(2)
        with pytest.raises(LostActor, match="second try") as raised:
            until(lambda: crew.arrivals(0.1), lambda: False)
        assert any("failed 3 times in a row" in note for note in raised.value.__notes__)
        assert crew.lost == 3


def test_what_keeps_an_actor_from_being_made_is_raised() -> None:
    agency = Agency(ValueError("no such environment"))
    with Crew(agency.hire, [[0], [1]], None, 2) as crew:
        crew.submit(Call(0, "run"))
        agency.made[0].answers[0].set_exception(LostActor("gone"))
        crew.arrivals()
        crew.submit(Call(0, "run"))
        agency.allowed.release()
        with pytest.raises(ValueError, match="no such environment") as raised:
            crew.arrivals(DEADLINE_S)
        assert any("in the place of actor 0, which was lost: gone" in note for note in raised.value.__notes__)


def test_what_was_waited_for_is_closed_once() -> None:
    agency = Agency(ValueError("no such environment"))
    with Crew(agency.hire, [[0], [1]], None, 2) as crew:
        crew.submit(Call(0, "run"))
        agency.made[0].answers[0].set_exception(LostActor("gone"))
        crew.arrivals()
        crew.submit(Call(0, "run"))
        agency.allowed.release()
        with pytest.raises(ValueError, match="no such environment"):
            crew.arrivals(DEADLINE_S)
        mine = os.pipe()  # which gets the numbers that are free now
    for number in mine:
        os.fstat(number)
        os.close(number)


def test_closing_does_not_wait_for_an_actor_in_the_making_which_is_ended_when_it_comes() -> None:
    agency = Agency()
    crew = Crew(agency.hire, [[0], [1]], None, 3)
    crew.submit(Call(0, "run"))
    agency.made[0].answers[0].set_exception(LostActor("gone"))
    crew.arrivals()
    crew.close()
    assert len(agency.made) == 2
    agency.allowed.release()
    for _ in range(1000):
        if len(agency.made) == 3:
            break
        threading.Event().wait(0.01)
    assert agency.made[2].killed.wait(DEADLINE_S)


def test_a_time_limit_is_not_for_actors_in_the_making() -> None:
    agency = Agency()
    with Crew(agency.hire, [[0], [1]], 0.05, 3) as crew:
        crew.submit(Call(0, "run"))
        hanging = crew.arrivals(DEADLINE_S)
        assert hanging[0].failed
        assert "timeout_s=0.05" in str(hanging[0].answer)
        crew.submit(Call(0, "run"))
        assert crew.arrivals(0.2) == []
        assert crew.lost == 1
        agency.allowed.release()
        until(lambda: crew.arrivals(0.01), lambda: len(agency.made) == 3 and bool(agency.made[2].asked))

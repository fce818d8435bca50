"""A blocking call passes few functions of Python at both ends: each costs a quarter of a microsecond on every call."""

from __future__ import annotations

import statistics
import sys
from itertools import pairwise
from typing import Any

import pytest

import parl_remote

CALLS = 50
MOST_OF_CALLER = 36
MOST_OF_ACTOR = 29  # the actor's are 27


class FunctionCounter:
    """Counts the functions of Python that this thread enters."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event == "call":
            self.entered.append(frame.f_code.co_qualname)


@parl_remote.remote_class(n_cpu=0)
class Counted:
    def begin(self) -> None:
        self.counter = FunctionCounter()
        sys.setprofile(self.counter)

    def end(self) -> list[str]:
        sys.setprofile(None)
        return self.counter.entered

    def call(self) -> None:
        pass


def per_call(entered: list[str], once: str) -> float:
    """Return the median number of functions from one call to the next; a wait that polls in vain has some more.

    Args:
        entered: All functions in order.
        once: The one that each call enters once.
    """
    places = [place for place, name in enumerate(entered) if name == once]
    assert len(places) == CALLS
    return statistics.median(after - before for before, after in pairwise(places))


@pytest.fixture
def actor(shared_cluster: None) -> Counted:
    actor = Counted()
    actor.call()
    return actor


def test_a_blocking_call_passes_few_functions_of_the_caller(actor: Counted) -> None:
    counter = FunctionCounter()
    sys.setprofile(counter)
    try:
        for _ in range(CALLS):
            actor.call()
    finally:
        sys.setprofile(None)
    entered = counter.entered
    assert per_call(entered, entered[0]) <= MOST_OF_CALLER, entered[-3 * MOST_OF_CALLER :]


def test_a_blocking_call_passes_few_functions_of_the_actor(actor: Counted) -> None:
    actor.begin()
    for _ in range(CALLS):
        actor.call()
    entered = actor.end()
    assert per_call(entered, "Counted.call") <= MOST_OF_ACTOR, entered[-3 * MOST_OF_ACTOR :]

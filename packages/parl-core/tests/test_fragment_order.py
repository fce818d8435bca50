"""The fragments that are requested and learned from, counted by hand."""

from typing import Any

import numpy as np

from parl_core.training._fragment_source import ArrivalOrder, RoundOrder
from parl_core.training.fragment import FragmentSteps, Task


def fragment(task: Task, version: int = 0) -> FragmentSteps:
    nothing: Any = np.zeros(0)
    return FragmentSteps(task, version, nothing, nothing, nothing, nothing, nothing, {}, None, nothing, None)


def tasks(fragments: list[FragmentSteps] | None) -> list[Task]:
    assert fragments is not None
    return [each.task for each in fragments]


def test_the_first_arrival_is_learned_from_first() -> None:
    order = ArrivalOrder([[0], [1]], per_batch=2, max_lag=1)
    assert order.due(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    order.arrived(fragment(Task(1, 0)))
    assert order.take(0) is None
    order.arrived(fragment(Task(1, 1)))
    order.arrived(fragment(Task(0, 0)))
    assert tasks(order.take(0)) == [(1, 0), (1, 1)]


def test_no_more_is_under_way_or_waits_than_the_lag_allows() -> None:
    order = ArrivalOrder([[0], [1], [2]], per_batch=2, max_lag=1)
    assert len(order.due(0)) == 4
    assert order.due(0) == []
    order.arrived(fragment(Task(0, 0)))
    assert order.due(0) == []  # three are under way and one waits
    order.arrived(fragment(Task(1, 0)))
    order.take(0)
    assert order.due(1) == [(1, 1), (0, 2)]


def test_an_actor_has_one_call_to_go_on_with_and_not_more() -> None:
    assert ArrivalOrder([[0], [1]], per_batch=2, max_lag=9).due(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_an_actor_takes_turns_with_its_groups() -> None:
    order = ArrivalOrder([[0, 2], [1, 3]], per_batch=4, max_lag=0)
    assert order.due(0) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_what_is_older_than_the_lag_allows_is_dropped_and_counted() -> None:
    order = ArrivalOrder([[0], [1]], per_batch=1, max_lag=1)
    order.due(0)
    order.arrived(fragment(Task(0, 0), version=0))
    order.arrived(fragment(Task(1, 0), version=1))
    assert tasks(order.take(2)) == [(1, 0)]
    assert order.dropped == 1


def test_rounds_keep_their_order_whatever_arrives_first() -> None:
    order = RoundOrder(groups=3, per_batch=2, max_lag=1)
    assert order.due(0) == [(0, 0), (1, 0), (2, 0), (0, 1)]
    for task in (Task(0, 1), Task(2, 0), Task(1, 0)):
        order.arrived(fragment(task))
        assert order.take(0) is None
    order.arrived(fragment(Task(0, 0)))
    assert tasks(order.take(0)) == [(0, 0), (1, 0)]
    assert tasks(order.take(1)) == [(2, 0), (0, 1)]


def test_in_rounds_the_lag_is_the_same_for_every_batch() -> None:
    order = RoundOrder(groups=2, per_batch=2, max_lag=2)
    asked = [len(order.due(version)) for version in range(4)]
    assert asked == [6, 2, 2, 2]  # batches 0 to 2 at once, then one batch an update
    assert order.due(3) == []


def test_without_lag_a_round_is_asked_for_when_the_one_before_was_learned_from() -> None:
    order = RoundOrder(groups=2, per_batch=2, max_lag=0)
    assert order.due(0) == [(0, 0), (1, 0)]
    assert order.due(0) == []
    assert order.due(1) == [(0, 1), (1, 1)]

"""The schedule of evaluations: shares, stragglers, lost workers. No worker and no clock: times are numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_evokit.parallel._schedule import MOST_DEATHS, Schedule


def begun(count: int, *, share: float = 1.0, grace_s: float = 1.0) -> Schedule:
    schedule = Schedule()
    schedule.begin(range(count), share=share, grace_s=grace_s)
    return schedule


def test_batches_are_half_of_a_fair_share_of_the_rest_so_that_workers_end_together() -> None:
    sizes: list[int] = []
    schedule, now = begun(64), 0.0
    while batch := schedule.next_batch(len(sizes) % 2, 2, now):
        sizes.append(len(batch))
        assert schedule.settle((len(sizes) - 1) % 2, batch, now) == batch
    assert sizes[:3] == [16, 12, 9]
    assert sizes[-1] == 1
    assert sum(sizes) == 64
    assert schedule.complete(now)


def test_what_a_dead_worker_had_not_returned_is_handed_out_next() -> None:
    schedule = begun(8)
    assert schedule.next_batch(0, 1, 0.0) == [0, 1, 2, 3]
    assert schedule.settle(0, [0], 0.1) == [0]
    assert schedule.lost(0) is None
    assert schedule.next_batch(1, 1, 0.2)[:3] == [1, 2, 3]
    assert not schedule.complete(0.2)


def test_a_sample_during_which_three_workers_ended_is_named() -> None:
    schedule = begun(2)
    for worker in range(MOST_DEATHS):
        assert schedule.next_batch(worker, 1, 0.0) == [0]
        assert schedule.lost(worker) == (0 if worker == MOST_DEATHS - 1 else None)


def test_a_sample_is_not_to_blame_for_hosts_that_go() -> None:
    schedule = begun(2)
    for worker in range(2 * MOST_DEATHS):
        assert schedule.next_batch(worker, 1, 0.0) == [0]
        assert schedule.lost(worker, from_outside=True) is None


def test_a_round_goes_on_without_a_straggler_but_only_after_its_grace() -> None:
    schedule = begun(10, share=0.9)
    held = schedule.next_batch(0, 10, 0.0)
    assert held == [0]
    while batch := schedule.next_batch(1, 2, 0.0):
        schedule.settle(1, batch, 0.1)
    assert not schedule.complete(0.5)
    assert schedule.wait_s(0.5) == pytest.approx(0.5)
    assert schedule.complete(1.0)
    assert schedule.wait_s(1.0) is None


def test_less_than_the_share_waits_as_long_as_it_takes() -> None:
    schedule = begun(4, share=0.9)
    assert schedule.next_batch(0, 4, 0.0) == [0]
    while batch := schedule.next_batch(1, 2, 0.0):
        schedule.settle(1, batch, 0.1)
    assert not schedule.complete(1e6)


def test_a_straggler_keeps_the_sample_that_holds_it_up_and_the_idle_take_the_rest_from_its_end() -> None:
    schedule = begun(8, share=0.8)
    assert schedule.next_batch(0, 1, 0.0) == [0, 1, 2, 3]
    schedule.settle(0, [0], 0.1)
    while batch := schedule.next_batch(1, 1, 0.2):
        schedule.settle(1, batch, 0.3)
    assert schedule.next_batch(1, 2, 0.9) == []
    assert schedule.next_batch(1, 2, 1.2) == [3, 2]
    assert not schedule.complete(1.2)
    assert schedule.settle(1, [3, 2], 1.3) == [3, 2]
    assert schedule.complete(1.3)


def test_a_late_sample_counts_once_whichever_worker_returns_it() -> None:
    schedule = begun(4, share=0.5)
    assert schedule.next_batch(0, 1, 0.0) == [0, 1]
    while batch := schedule.next_batch(1, 1, 0.0):
        schedule.settle(1, batch, 0.1)
    assert schedule.next_batch(1, 2, 2.0) == [1]
    assert schedule.complete(4.0)
    schedule.begin(range(4, 6), share=1.0, grace_s=1.0)
    assert schedule.settle(1, [1], 5.0) == [1]
    assert schedule.settle(0, [0, 1], 5.1) == [0]


def test_workers_that_hold_only_late_samples_are_named_when_no_other_begins() -> None:
    schedule = begun(1, share=1.0)
    schedule.next_batch(0, 1, 0.0)
    schedule.abandon()
    schedule.begin([1], share=1.0, grace_s=1.0)
    assert schedule.overdue(0.5) == []
    assert schedule.overdue(1.5) == [0]


@settings(max_examples=examples(150), deadline=None)
@given(
    count=st.integers(1, 40),
    workers=st.integers(1, 5),
    share=st.floats(0.1, 1.0),
    events=st.lists(st.tuples(st.sampled_from(["some", "all", "die", "wait"]), st.integers(0, 4)), max_size=60),
)
def test_whatever_workers_do_each_sample_comes_back_once_and_rounds_end(
    count: int, workers: int, share: float, events: list[tuple[str, int]]
) -> None:
    schedule, fresh, now, first = Schedule(), [], 0.0, 0
    batches: dict[int, list[int]] = {}
    names = list(range(workers))
    for _ in range(3):
        schedule.begin(range(first, first + count), share=share, grace_s=1.0)
        first += count
        script = list(events)
        for _ in range(40 * count + 200):
            for worker in names:
                if not schedule.busy(worker) and (batch := schedule.next_batch(worker, workers, now)):
                    batches[worker] = batch
            if schedule.complete(now):
                break
            action, which = script.pop() if script else ("all", 0)
            busy = [worker for worker in names if schedule.busy(worker)]
            worker = busy[which % len(busy)]
            now += 0.1
            if action == "wait":
                now += 10.0
            elif action == "die":
                schedule.lost(worker)
                names[names.index(worker)] = worker + 1000
            else:
                cut = 1 if action == "some" else len(batches[worker])
                done, batches[worker] = batches[worker][:cut], batches[worker][cut:]
                fresh += schedule.settle(worker, done, now)
        else:
            raise AssertionError("the round does not end")
        schedule.abandon()
    assert len(fresh) == len(set(fresh))
    assert len(fresh) >= 3 * share * count - 1e-6

"""The page on which an actor keeps count of its calls, and its worker's look at it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import _current
from parl_remote._actor.reports import CallMeter, CallStats, SharedCallMeter, read_stats


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "a1.stats"


def read(page: Path) -> CallStats:
    stats = read_stats(page)
    assert stats is not None
    return stats


def begin(meter: CallMeter, method: str) -> float:
    began = meter.began()
    meter.runs(method)
    return began


def test_calls_errors_and_time_are_seen_by_another_reader(page: Path) -> None:
    began = time.perf_counter()
    meter = CallMeter()
    meter.publish(page)
    meter.ended(begin(meter, "add"))
    meter.failed(begin(meter, "divide"), ZeroDivisionError("division by zero\nsecond line"))
    stats = read(page)
    assert (stats.calls, stats.errors, stats.in_flight, stats.running) == (2, 1, 0, "")
    assert stats.last_error == "ZeroDivisionError: division by zero"
    assert 0 < stats.busy_s <= time.perf_counter() - began
    assert 0 <= stats.error_age_s <= time.perf_counter() - began


def test_a_call_that_runs_is_seen_with_its_method_and_for_how_long(page: Path) -> None:
    meter = CallMeter()
    meter.publish(page)
    meter.ended(begin(meter, "fit"))
    began = begin(meter, "predict")
    first, second = read(page), read(page)
    assert (first.running, first.in_flight) == ("predict", 1)
    assert second.running_s > first.running_s > 0
    assert second.busy_s > first.busy_s
    meter.ended(began)
    assert read(page).running == ""


def test_what_was_counted_before_the_page_was_published_is_not_lost(page: Path) -> None:
    meter = CallMeter()
    meter.ended(begin(meter, "reset"))
    began = begin(meter, "step")
    meter.publish(page)
    assert read(page).calls == 1
    assert read(page).running == "step"
    meter.ended(began)
    assert read(page).calls == 2


def test_calls_that_overlap_are_all_counted(page: Path) -> None:
    meter = CallMeter()
    meter.publish(page)
    first, second = begin(meter, "a"), begin(meter, "b")
    assert (read(page).in_flight, read(page).running) == (2, "b")
    meter.ended(second)
    assert read(page).in_flight == 1
    meter.ended(first)
    assert (read(page).calls, read(page).in_flight) == (2, 0)


def test_long_names_and_errors_of_any_text_are_cut_to_fit(page: Path) -> None:
    meter = CallMeter()
    meter.publish(page)
    began = begin(meter, "m" * 1000)
    assert set(read(page).running) == {"m"}
    meter.failed(began, ValueError("ä" * 5000))
    assert read(page).last_error.startswith("ValueError: äää")
    assert read(page).calls == 1


def test_an_error_whose_text_cannot_be_made_is_still_counted(page: Path) -> None:
    class Sour(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    meter = CallMeter()
    meter.publish(page)
    meter.failed(begin(meter, "f"), Sour())
    assert read(page).last_error.startswith("Sour: ")


def test_there_is_nothing_to_read_where_no_actor_has_a_page(page: Path) -> None:
    assert read_stats(page) is None
    page.write_bytes(b"short")
    assert read_stats(page) is None
    page.write_bytes(bytes(1024))
    assert read_stats(page) is None


def test_the_page_is_private_and_follows_no_link(page: Path, tmp_path: Path) -> None:
    CallMeter().publish(page)
    assert os.stat(page).st_mode & 0o077 == 0
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "a2.stats").symlink_to(target)
    with pytest.raises(OSError):
        CallMeter().publish(tmp_path / "a2.stats")
    assert target.read_text() == "mine"


def test_threads_that_call_at_once_lose_no_count(page: Path) -> None:
    alone = CallMeter()
    alone.publish(page)
    alone.ended(begin(alone, "__init__"))
    meter = SharedCallMeter(alone)
    rounds = 5000

    def work() -> None:
        for _ in range(rounds):
            meter.ended(begin(meter, "step"))
        meter.failed(begin(meter, "step"), ValueError("the last one"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    stats = read(page)
    assert (stats.calls, stats.errors, stats.in_flight) == (4 * (rounds + 1) + 1, 4, 0)


def test_a_constructor_is_no_call_but_takes_time(page: Path) -> None:
    meter = CallMeter()
    meter.publish(page)
    began = begin(meter, "__init__")
    assert (read(page).running, read(page).in_flight) == ("__init__", 1)
    meter.constructed(began)
    assert (read(page).calls, read(page).in_flight) == (0, 0)
    assert read(page).busy_s > 0


def test_calls_that_wait_are_seen(page: Path) -> None:
    meter = CallMeter()
    meter.publish(page)
    meter.waiting(3)
    assert (read(page).waiting, meter.has_waiting) == (3, True)
    assert SharedCallMeter(meter).has_waiting
    meter.waiting(0)
    assert (read(page).waiting, meter.has_waiting) == (0, False)


def test_calls_of_real_actors_are_counted_one_by_one_in_threads_and_on_a_loop(connect: Callable[..., None]) -> None:
    connect(cpu_num=3)
    directory = _current.client()._cluster.directory  # type: ignore[attr-defined]

    @parl_remote.remote_class(wait=False)
    class Serial:
        def step(self) -> None:
            pass

        def fail(self) -> None:
            raise ValueError("on purpose")

    @parl_remote.remote_class(wait=False, max_concurrency=4)
    class Threaded(Serial):  # type: ignore[misc]
        pass

    @parl_remote.remote_class(wait=False)
    class Looped:
        async def step(self) -> None:
            pass

        async def fail(self) -> None:
            raise ValueError("on purpose")

    seen: set[Path] = set()
    for cls in (Serial, Threaded, Looped):
        actor: Any = cls()
        for call in [actor.step() for _ in range(40)]:
            call.get()
        with pytest.raises(ValueError, match="on purpose"):
            actor.fail().get()
        actor.step().get()
        (page,) = {path for path in directory.glob("*.calls") if read(path).calls} - seen
        seen.add(page)
        stats = read(page)
        # A reply may be there before the call is counted as over.
        assert stats.calls in {41, 42}
        assert (stats.errors, stats.last_error) == (1, "ValueError: on purpose")
        assert stats.busy_s > 0

"""The monitor's memory and its way of finding things: pure parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from parl_remote._monitor.api import BadQuery, Listing, RowQuery, query_of
from parl_remote._monitor.store import History, Retention


@dataclass(frozen=True)
class Row:
    name: str
    size: int | None
    kind: str = "a"


ROWS = [Row("beta", 2), Row("alpha", None), Row("Gamma", 3, "b"), Row("delta", 1)]
LISTING: Listing[Row] = Listing(
    texts=lambda row: (row.name, row.kind),
    keys={"name": lambda row: row.name.casefold(), "size": lambda row: row.size},
    exact={"kind": lambda row: row.kind},
    default=("name", False),
)


def names(**query: object) -> list[str]:
    return [row.name for row in LISTING.pick(ROWS, RowQuery(**query)).rows]  # type: ignore[arg-type]


def test_rows_come_in_the_default_order() -> None:
    assert names() == ["alpha", "beta", "delta", "Gamma"]


@pytest.mark.parametrize("descending", [False, True])
def test_unknown_values_come_last_whichever_way_is_up(descending: bool) -> None:
    assert names(sort="size", descending=descending)[-1] == "alpha"


def test_sorting_by_size_is_by_number() -> None:
    assert names(sort="size", descending=True)[:3] == ["Gamma", "beta", "delta"]


def test_all_words_must_occur_in_any_case() -> None:
    assert names(text="GAM b") == ["Gamma"]
    assert names(text="gam z") == []


def test_exact_fields_must_be_equal() -> None:
    assert names(exact={"kind": "b"}) == ["Gamma"]


def test_pages_do_not_overlap_and_cover_everything() -> None:
    pages = [names(page=number, per_page=3) for number in (1, 2)]
    assert pages == [["alpha", "beta", "delta"], ["Gamma"]]


def test_a_page_behind_the_last_is_the_last() -> None:
    page = LISTING.pick(ROWS, RowQuery(page=99, per_page=3))
    assert (page.page, page.pages, page.total, page.all) == (2, 2, 4, 4)


def test_of_nothing_there_is_one_empty_page() -> None:
    page = LISTING.pick([], RowQuery())
    assert (page.rows, page.page, page.pages, page.total) == ([], 1, 1, 0)


def test_a_field_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadQuery, match="cannot sort by 'colour'; there are name, size"):
        LISTING.pick(ROWS, RowQuery(sort="colour"))


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0"},
        {"page": "x"},
        {"page": "-1"},
        {"page": "²"},
        {"per_page": "501"},
        {"order": "up"},
        {"page": "9" * 30},
    ],
)
def test_queries_out_of_their_range_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        query_of(query, ())


def test_a_query_is_read() -> None:
    query = query_of({"q": "x", "sort": "size", "order": "desc", "page": "2", "kind": "b", "other": "c"}, ("kind",))
    assert query == RowQuery("x", "size", True, 2, 50, {"kind": "b"})


def test_history_gives_back_what_was_added() -> None:
    history = History(("cpu", "memory"), Retention(fine=10, coarse=10, every=60))
    history.add(1.0, (0.5, None))
    history.add(3.0, (0.25, 7.0))
    assert history.read(0.0) == {"t": [1.0, 3.0], "cpu": [0.5, 0.25], "memory": [None, 7.0]}
    assert history.read(2.0) == {"t": [3.0], "cpu": [0.25], "memory": [7.0]}


def test_history_forgets_the_oldest_and_keeps_means_of_them() -> None:
    history = History(("x",), Retention(fine=5, coarse=100, every=10.0))
    for second in range(100):
        history.add(float(second), (float(second),))
    fine = history.read(95.0)
    assert fine["t"] == [95.0, 96.0, 97.0, 98.0, 99.0]
    everything = history.read(0.0)
    times = [at for at in everything["t"] if at is not None]
    assert times == sorted(times)
    assert times[-5:] == fine["t"]
    assert len(times) == 5 + 9, "one mean for each ten seconds before"
    for at, value in zip(times, everything["x"], strict=True):
        assert value is not None
        assert math.isclose(at, value, abs_tol=1.0)


def test_long_histories_are_thinned_out_by_averaging() -> None:
    history = History(("x",), Retention(fine=1000, coarse=1, every=1e9))
    for second in range(1000):
        history.add(float(second), (float(second % 2),))
    read = history.read(0.0, most=100)
    assert len(read["t"]) == len(read["x"]) == 100
    assert set(read["x"]) == {0.5}


def test_entries_out_of_order_are_dropped() -> None:
    history = History(("x",), Retention(fine=5, coarse=5, every=60))
    history.add(5.0, (1.0,))
    history.add(4.0, (2.0,))
    history.add(5.0, (3.0,))
    assert history.read(0.0)["x"] == [1.0]


def test_a_full_history_takes_little_memory() -> None:
    history = History(("a", "b", "c", "d", "e"), Retention(fine=360, coarse=180, every=120.0))
    for second in range(2000):
        history.add(2.0 * second, (1.0,) * 5)
    assert len(history.read(0.0, most=10_000)["t"]) <= 360 + 180

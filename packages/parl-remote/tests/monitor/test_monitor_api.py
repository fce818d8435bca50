"""The monitor's JSON API and pages, asked without a browser."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest


def get(monitor: Any, path: str, status: int = 200) -> Any:
    answer = monitor.client().get(path)
    assert answer.status_code == status, answer.get_data(as_text=True)
    return answer.get_json()


def test_the_cluster_at_a_glance(monitor: Any) -> None:
    seen = get(monitor, "/api/v1/cluster")
    assert seen["cluster"]["address"] == "localhost:8037"
    assert (seen["totals"]["nodes"], seen["totals"]["actors"], seen["healthy"]) == (4, 12, True)
    assert seen["waiting"][0]["reason"] == "2 gpus are asked, 1 is free"


def test_events_are_listed_filtered_and_followed(monitor: Any) -> None:
    for kind, node in (("node_joined", 1), ("node_lost", 2), ("actor_restarted", 1)):
        monitor.cluster.happen(kind, f"{kind} on {node}", node)
        monitor.look()
    page = get(monitor, "/api/v1/events")
    assert [row["number"] for row in page["rows"]] == [3, 2, 1]
    assert [row["kind"] for row in get(monitor, "/api/v1/events?kind=node_lost")["rows"]] == ["node_lost"]
    assert [row["number"] for row in get(monitor, "/api/v1/events?after=1&order=asc&sort=at")["rows"]] == [2, 3]
    assert [row["number"] for row in get(monitor, "/api/v1/events?node=node-1")["rows"]] == [3, 1]
    assert "number of an event" in get(monitor, "/api/v1/events?after=-1", 400)["error"]


def test_a_lost_node_is_listed_and_acknowledged_with_the_token(monitor: Any, token: str) -> None:
    at = monitor.cluster.at
    monitor.cluster.lost["node-2"] = (at, "the connection broke")
    monitor.look()
    (row,) = get(monitor, "/api/v1/nodes?state=lost")["rows"]
    assert (row["label"], row["cause"], row["lost_at"]) == ("node-002:8037", "the connection broke", at)
    seen = get(monitor, "/api/v1/cluster")
    assert (seen["totals"]["nodes"], seen["totals"]["nodes_lost"], seen["lost"][0]["node_id"]) == (3, 1, "node-2")
    path = "/api/v1/nodes/node-2/acknowledge"
    assert monitor.client().post(path).status_code == 401
    known = {"Authorization": f"Bearer {token}"}
    assert monitor.client().post(path, headers=known).status_code == 200
    assert monitor.client().post(path, headers=known).status_code == 404
    monitor.look()
    assert get(monitor, "/api/v1/nodes?state=lost")["total"] == 0


def test_before_the_first_news_it_says_that_it_knows_nothing(make_cluster: Any, make_monitor: Any) -> None:
    monitor = make_monitor(make_cluster())
    assert "nothing is known" in get(monitor, "/api/v1/cluster", 503)["error"]
    assert get(monitor, "/healthz", 503)["ok"] is False


def test_actors_are_sorted_filtered_and_paged_by_the_server(make_cluster: Any, make_monitor: Any) -> None:
    monitor = make_monitor(make_cluster(nodes=10, actors=500))
    monitor.look()
    page = get(monitor, "/api/v1/actors?sort=memory&order=desc&per_page=20&page=2&state=busy")
    assert (len(page["rows"]), page["page"], page["all"]) == (20, 2, 500)
    assert page["total"] == page["states"]["busy"] == 250
    sizes = [row["memory"] for row in page["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["state"] for row in page["rows"]} == {"busy"}
    first = get(monitor, "/api/v1/actors?sort=memory&order=desc&per_page=20&state=busy")
    assert first["rows"][-1]["memory"] >= sizes[0]


def test_actors_of_one_node_and_of_one_driver(monitor: Any) -> None:
    there = get(monitor, "/api/v1/actors?node=node-1")
    assert {row["node_id"] for row in there["rows"]} == {"node-1"}
    assert get(monitor, "/api/v1/actors?owner=client-1")["total"] == 12
    assert get(monitor, "/api/v1/actors?owner=nobody")["total"] == 0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sort=colour", "cannot sort by"),
        ("per_page=100000", "per_page is a whole number from 1 to 500"),
        ("page=0", "page is a whole number"),
        ("order=sideways", "order is 'asc' or 'desc'"),
    ],
)
def test_a_query_that_makes_no_sense_is_explained(monitor: Any, query: str, says: str) -> None:
    assert says in get(monitor, f"/api/v1/actors?{query}", 400)["error"]


@pytest.mark.parametrize("window", ["0", "nan", "inf", "-5", "1e99", "abc"])
def test_a_window_out_of_its_range_is_refused(monitor: Any, window: str) -> None:
    assert "window is a number of seconds" in get(monitor, f"/api/v1/cluster/history?window={window}", 400)["error"]


def test_numbers_over_time(monitor: Any) -> None:
    monitor.look(10)
    for path in ("cluster", "nodes/node-1", "actors/lease-1"):
        history = get(monitor, f"/api/v1/{path}/history?window=60")
        assert len(history["t"]) == 11
        assert all(len(column) == 11 for column in history.values())
    assert len(get(monitor, "/api/v1/cluster/history?window=10")["t"]) < 11


def test_nothing_in_json_is_not_a_number(monitor: Any) -> None:
    monitor.look(3)
    text = monitor.client().get("/api/v1/nodes/node-1/history").get_data(as_text=True)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.mark.parametrize(
    "path", ["nodes/none", "nodes/none/history", "actors/none", "actors/none/history", "deaths/none", "nowhere"]
)
def test_what_is_not_there_is_404_with_a_reason(monitor: Any, path: str) -> None:
    assert get(monitor, f"/api/v1/{path}", 404)["error"]


def test_an_actor_that_has_ended_leads_to_its_death(monitor: Any) -> None:
    monitor.cluster.die("lease-5", "memory")
    monitor.look()
    assert "has ended" in get(monitor, "/api/v1/actors/lease-5", 410)["error"]
    death = get(monitor, "/api/v1/deaths/lease-5")
    assert death["kind"] == "memory"
    assert death["memory_curve"][0] == [30.0, 2**30]
    assert death["log_tail"][-1] == "out of memory"
    (row,) = get(monitor, "/api/v1/deaths?kind=memory")["rows"]
    assert "log_tail" not in row, "a list of deaths is short"


def test_a_log_is_read_on_from_where_it_ended(monitor: Any) -> None:
    first = get(monitor, "/api/v1/actors/lease-1/log")
    assert first["pieces"] == [["first line\n", False], ["a warning\n", True]]
    monitor.cluster.log.append(("more\n", False))
    more = get(monitor, f"/api/v1/actors/lease-1/log?position={first['position']}")
    assert more["pieces"] == [["more\n", False]]


@pytest.mark.parametrize("actor", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "none"])
def test_a_log_is_found_by_id_and_never_by_path(monitor: Any, actor: str) -> None:
    answer = monitor.client().get(f"/api/v1/actors/{actor}/log")
    assert answer.status_code in {404, 308}
    assert b"root:" not in answer.data


def test_a_position_is_a_number(monitor: Any) -> None:
    assert "position is the number" in get(monitor, "/api/v1/actors/lease-1/log?position=-1", 400)["error"]


def test_killing_and_dumping_by_the_token(monitor: Any, token: str) -> None:
    client, bearer = monitor.client(), {"Authorization": f"Bearer {token}"}
    stack = client.post("/api/v1/actors/lease-1/stack", headers=bearer)
    assert "in sample_batch" in stack.get_json()["text"]
    killed = client.post("/api/v1/actors/lease-1/kill", headers=bearer, json={"reason": "too  slow\n"})
    assert killed.status_code == 200
    assert monitor.cluster.killed == [("lease-1", "in the monitor: too slow")]
    again = client.post("/api/v1/actors/lease-1/kill", headers=bearer)
    assert (again.status_code, again.get_json()["error"]) == (404, "there is no actor lease-1")


def test_a_map_of_all_nodes_is_small(make_cluster: Any, make_monitor: Any) -> None:
    monitor = make_monitor(make_cluster(nodes=1000, actors=0))
    monitor.look()
    answer = monitor.client().get("/api/v1/nodes/map")
    assert len(answer.get_json()["nodes"]) == 1000
    assert len(answer.data) < 100_000


def test_a_probe_tells_supervisors_the_truth(monitor: Any) -> None:
    assert get(monitor, "/healthz") == {"ok": True, "age_s": 0.0, "reason": ""}
    monitor.cluster.at += 60
    assert get(monitor, "/healthz", 503)["ok"] is False


def test_every_page_is_there_and_names_nothing_that_a_user_has_named(monitor: Any) -> None:
    for path in ("/", "/nodes", "/actors", "/drivers", "/deaths", "/nodes/x", "/actors/x", "/deaths/x", "/login"):
        answer = monitor.client().get(path)
        assert answer.status_code == 200
        text = answer.get_data(as_text=True)
        assert "Sly" not in text
        assert "<script>" not in text, "no inline script"
        assert not re.search(r"\son\w+=", text), "no inline handler"
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text), "nothing from another host"


def test_an_id_in_a_page_is_escaped(monitor: Any) -> None:
    text = monitor.client().get("/actors/%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E").get_data(as_text=True)
    assert "<script>alert" not in text


def test_the_index_names_every_endpoint(monitor: Any) -> None:
    endpoints = " ".join(get(monitor, "/api/v1/")["endpoints"])
    for rule in monitor.app.url_map.iter_rules():
        if rule.endpoint.startswith("api."):
            assert rule.rule.split("/")[3] in endpoints


def test_parls_old_routes_still_answer(monitor: Any) -> None:
    seen = get(monitor, "/cluster")
    assert seen["workers"][0]["hostname"] == "node-000"
    assert {"used_cpus", "vacant_cpus", "load_value", "load_time"} <= seen["workers"][0].keys()
    assert monitor.client().get("/workers").headers["Location"] == "/nodes"
    assert monitor.client().get("/logs?client_id=client-1").headers["Location"] == "/actors?owner=client-1"


@pytest.mark.slow
def test_answers_about_ten_thousand_actors_take_few_operations_for_each(
    make_cluster: Callable[..., Any], make_monitor: Callable[..., Any]
) -> None:
    monitor = make_monitor(make_cluster(nodes=1000, actors=10_000, gpus=0))
    monitor.look(2)
    client = monitor.client()
    paths = ("actors?sort=calls&order=desc&q=worker", "actors?page=200", "nodes?spark=1", "nodes/map", "cluster")
    for path in (*(f"/api/v1/{path}" for path in paths), "/metrics"):
        numbers = itertools.count()
        sys.setprofile(lambda *_, numbers=numbers: next(numbers))  # called at every call and return of a function
        try:
            status = client.get(path).status_code
        finally:
            sys.setprofile(None)
        assert status == 200
        assert next(numbers) < (200 if path == "/metrics" else 50) * 10_000, path

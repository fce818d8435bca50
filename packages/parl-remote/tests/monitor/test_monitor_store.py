"""The monitor's history, and its own health."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from parl_remote._monitor.app import metrics_of
from parl_remote._monitor.server import Collector
from parl_remote._monitor.store import totals_of


def test_totals_add_up_nodes_and_actors(cluster: Any) -> None:
    totals = totals_of(cluster.snapshot())
    assert (totals.nodes, totals.cpus, totals.gpus, totals.drivers) == (4, 64, 8, 2)
    assert sum(totals.states.values()) == totals.actors == 12
    assert totals.memory_total == 4 * 128 * 2**30
    assert totals.cpu_busy is not None
    assert 0 < totals.cpu_busy < 1


def test_totals_of_nothing_are_unknown_and_not_zero(make_cluster: Callable[..., Any]) -> None:
    totals = totals_of(make_cluster(nodes=0, actors=0).snapshot())
    assert (totals.cpu_busy, totals.memory_used, totals.calls_per_s) == (None, None, None)


def test_a_monitor_without_news_says_so(monitor: Any) -> None:
    assert monitor.store.health().ok
    monitor.cluster.at += 30
    health = monitor.store.health()
    assert (health.ok, health.age_s) == (False, 30)
    assert "30 s" in health.reason


def test_the_reason_for_no_news_is_shown(monitor: Any) -> None:
    monitor.store.failed("the master is gone")
    assert monitor.store.health().ok, "the last news are fresh"
    monitor.cluster.at += 10
    assert monitor.store.health().reason == "the master is gone"


def test_deaths_are_kept_when_the_master_no_longer_has_them(monitor: Any) -> None:
    monitor.cluster.die("lease-3", "signal")
    monitor.look()
    monitor.cluster.deaths.clear()
    monitor.look()
    assert [death.actor_id for death in monitor.store.deaths()] == ["lease-3"]
    assert monitor.store.death_counts() == {("Evaluator", "signal"): 1}


def test_a_death_is_counted_once_however_often_it_is_reported(monitor: Any) -> None:
    monitor.cluster.die("lease-3", "signal")
    monitor.look(5)
    assert sum(monitor.store.death_counts().values()) == 1


def test_counts_of_calls_never_go_back_when_actors_end(monitor: Any) -> None:
    monitor.look(10)
    before = monitor.store.calls()
    monitor.cluster.die("lease-1", "signal")
    monitor.look()
    after = monitor.store.calls()
    assert all(after[name][0] >= calls for name, (calls, _) in before.items())


def test_numbers_of_an_actor_that_ended_can_be_seen_for_a_while(monitor: Any) -> None:
    monitor.look(5)
    monitor.cluster.die("lease-1", "signal")
    monitor.look()
    assert len(monitor.store.actor_history("lease-1", 3600.0)["t"]) == 6
    monitor.look(1, every_s=700.0)
    monitor.look(1)
    assert monitor.store.actor_history("lease-1", 3600.0) is None


def test_a_collector_gives_the_store_what_it_gets_and_why_it_gets_nothing(monitor: Any) -> None:
    collector = Collector(monitor.cluster, monitor.store, interval_s=2.0)
    assert collector.collect() >= 2.0
    monitor.cluster.master_answers = False
    monitor.cluster.at += 60
    assert collector.collect() == 2.0
    assert monitor.store.health().reason == "the master at localhost:8037 does not answer"


def test_a_collector_survives_whatever_a_snapshot_raises(monitor: Any) -> None:
    class Broken:
        def snapshot(self) -> None:
            raise ZeroDivisionError("oh")

    Collector(Broken(), monitor.store, 2.0).collect()  # type: ignore[arg-type]
    monitor.cluster.at += 60
    assert monitor.store.health().reason == "ZeroDivisionError: oh"


def test_a_collector_asks_less_often_where_asking_takes_long(monitor: Any) -> None:
    times = iter([0.0, 0.4])
    collector = Collector(monitor.cluster, monitor.store, 2.0, clock=lambda: next(times))
    assert collector.collect() == 8.0


def test_a_collector_runs_until_it_is_stopped(monitor: Any) -> None:
    asked = threading.Event()

    class Watched:
        def snapshot(self) -> Any:
            asked.set()
            return monitor.cluster.snapshot()

    collector = Collector(Watched(), monitor.store, 0.01)  # type: ignore[arg-type]
    collector.start()
    assert asked.wait(60)
    collector.stop(10)
    assert not collector._thread.is_alive()


def test_metrics_can_be_read_by_prometheus_own_parser(monitor: Any) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    monitor.cluster.die("lease-3", "signal")
    monitor.look(3)
    families = {family.name: family for family in text_string_to_metric_families(metrics_of(monitor.store).decode())}
    assert families["parl_monitor_up"].samples[0].value == 1
    assert families["parl_nodes"].samples[0].value == 4
    assert families["parl_actor_calls"].type == "counter"
    (death,) = families["parl_actor_deaths"].samples
    assert (death.labels, death.value) == ({"class": "Evaluator", "cause": "signal"}, 1)
    memory = {one.labels["host_id"]: one.value for one in families["parl_host_memory_bytes"].samples}
    assert memory["host-0"] == 128 * 2**30
    assert "<b>Sly</b>" in {one.labels["class"] for one in families["parl_actor_memory_bytes"].samples}
    for name in families:
        assert name.startswith("parl_")


def samples(monitor: Any, name: str) -> list[tuple[dict[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(metrics_of(monitor.store).decode())
    return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]


def test_the_memory_of_a_host_with_several_nodes_counts_once(
    make_cluster: Callable[..., Any], make_monitor: Any
) -> None:
    monitor = make_monitor(make_cluster(nodes=6, nodes_a_host=3))
    monitor.look()
    totals = monitor.store.view().totals
    assert (totals.nodes, totals.hosts, totals.memory_total) == (6, 2, 2 * 128 * 2**30)
    assert sum(value for _, value in samples(monitor, "parl_host_memory_bytes")) == 2 * 128 * 2**30
    assert len(samples(monitor, "parl_node_cpus")) == 6


def test_a_lost_node_is_in_the_metrics_with_time_and_cause_and_in_no_sum(monitor: Any) -> None:
    monitor.look()
    whole = monitor.store.view().totals
    monitor.cluster.lost["node-2"] = (monitor.cluster.at, "no sign of life")
    monitor.look()
    totals = monitor.store.view().totals
    assert (totals.nodes, totals.nodes_lost, totals.cpus) == (whole.nodes - 1, 1, whole.cpus - 16)
    ((labels, at),) = samples(monitor, "parl_node_lost_timestamp_seconds")
    assert (labels["node"], labels["address"], labels["cause"]) == ("node-002", "10.0.0.2:8037", "no sign of life")
    assert at == monitor.cluster.lost["node-2"][0]
    assert "node-2" not in {labels["node_id"] for labels, _ in samples(monitor, "parl_node_cpus")}


def test_events_are_counted_by_kind_from_the_start(monitor: Any) -> None:
    monitor.cluster.happen("node_lost", "node-000 is lost")
    monitor.look(2)
    counts = {labels["kind"]: value for labels, value in samples(monitor, "parl_events_total")}
    assert counts["node_lost"] == 1
    assert counts["out_of_memory"] == 0, "a rate needs a zero to start from"


def test_metrics_without_a_cluster_say_only_that(make_cluster: Callable[..., Any], make_monitor: Any) -> None:
    text = metrics_of(make_monitor(make_cluster()).store).decode()
    assert "parl_monitor_up 0.0" in text
    assert "parl_nodes" not in text


def test_classes_beyond_a_number_are_counted_together(monitor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._monitor.store._CLASSES_KEPT", 0)
    monitor.look()
    monitor.cluster.die("lease-3", "signal")
    monitor.look()
    assert monitor.store.death_counts() == {("(others)", "signal"): 1}
    assert "(others)" in monitor.store.calls()

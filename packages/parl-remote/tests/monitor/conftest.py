"""A cluster that only exists on paper, of any size, for the monitor to look at."""

from __future__ import annotations

import functools
import math
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("flask", reason="the monitor's extra is not installed: pip install 'parl-remote[monitor]'")
pytest.importorskip("waitress", reason="the monitor's extra is not installed: pip install 'parl-remote[monitor]'")
pytest.importorskip("prometheus_client", reason="the monitor's extra is not installed")

from flask import Flask
from flask.testing import FlaskClient

from parl_remote._monitor.app import create_app
from parl_remote._monitor.model import (
    ActorInfo,
    ClusterInfo,
    DeathInfo,
    DriverInfo,
    EventInfo,
    GpuInfo,
    LogChunk,
    NodeInfo,
    Snapshot,
    Unknown,
    Unreachable,
    WaitingInfo,
)
from parl_remote._monitor.store import Store

TOKEN = "the-token-of-the-tests"
GIB = 2**30
CLASSES = ("RolloutWorker", "Learner", "ReplayBuffer", "Evaluator", "<b>Sly</b>")


@dataclass
class FakeCluster:
    """A `Source` without a cluster; time passes when it is told to."""

    nodes: int = 4
    nodes_a_host: int = 1
    actors: int = 12
    gpus: int = 2
    at: float = 1_700_000_000.0
    master_answers: bool = True
    killed: list[tuple[str, str]] = field(default_factory=list)
    log: list[tuple[str, bool]] = field(default_factory=lambda: [("first line\n", False), ("a warning\n", True)])
    deaths: list[DeathInfo] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    events: list[EventInfo] = field(default_factory=list)
    lost: dict[str, tuple[float, str]] = field(default_factory=dict)
    round: int = 0
    told: int = 0

    def snapshot(self) -> Snapshot:
        if not self.master_answers:
            raise Unreachable("the master at localhost:8037 does not answer")
        self.round += 1
        return Snapshot(
            at=self.at,
            cluster=ClusterInfo("cluster-1", "localhost:8037", 3723.0, waiting=3 if self.nodes else 0, version="2.0"),
            nodes=tuple(self._node(i) for i in range(self.nodes)),
            actors=tuple(self.actor(i) for i in range(self.actors) if f"lease-{i}" not in self.gone),
            drivers=(
                DriverInfo("client-1", "train.py", 4711, "node-000", self.actors, 3, self.at - 3600),
                DriverInfo("client-2", "notebook.py", 815, "node-001", 0, 0, self.at - 60),
            ),
            waiting=tuple(
                WaitingInfo("Learner", "client-1", "train.py", "2 gpus, 4 cpus", "2 gpus are asked, 1 is free", 75.0)
                for _ in range(3 if self.nodes else 0)
            ),
            deaths=tuple(self.deaths),
            events=tuple(self._new_events()),
            event_counts=Counter(event.kind for event in self.events),
        )

    def happen(self, kind: str, text: str, node: int = 0) -> None:
        number = len(self.events) + 1
        self.events.append(EventInfo(number, self.at, kind, text, f"node-{node}", f"node-{node:03}:8037"))

    def _new_events(self) -> list[EventInfo]:
        new, self.told = self.events[self.told :], len(self.events)
        return new

    def _node(self, number: int) -> NodeInfo:
        wave = 0.5 + 0.45 * math.sin(self.round / 9 + number)
        devices = tuple(
            GpuInfo(str(i), "NVIDIA H200", min(1.0, wave * 1.1), int(wave * 120 * GIB), 141 * GIB)
            for i in range(self.gpus)
        )
        return NodeInfo(
            node_id=f"node-{number}",
            name=f"node-{number:03}",
            address=f"10.0.{number // 250}.{number % 250}:8037",
            state="lost"
            if f"node-{number}" in self.lost
            else "silent"
            if number == 7
            else "draining"
            if number == 3
            else "alive",
            cpus=16,
            cpus_used=min(16.0, float(number * 5 % 17)),
            gpus=self.gpus,
            gpus_used=min(self.gpus, number % 3),
            cpu_busy=None if number == 9 else wave,
            load=wave * 16,
            memory_total=128 * GIB,
            memory_used=int((0.3 + 0.4 * wave) * 128 * GIB),
            actors=self.actors // max(1, self.nodes),
            silent_s=12.0 if number == 7 else 0.4,
            devices=devices,
            labels=("zone=a",),
            host_id=f"host-{number // self.nodes_a_host}",
            label=f"node-{number:03}:8037",
            lost_at=self.lost.get(f"node-{number}", (None, ""))[0],
            cause=self.lost.get(f"node-{number}", (None, ""))[1],
        )

    def actor(self, number: int) -> ActorInfo:
        dice = random.Random(number)
        state = ("busy", "idle", "busy", "starting")[number % 4]
        node = number % max(1, self.nodes)
        wave = 1 + 0.5 * math.sin(self.round / 5 + number)
        return ActorInfo(
            actor_id=f"lease-{number}",
            class_name=CLASSES[number % len(CLASSES)],
            name="buffer" if number == 2 else "",
            state=state,
            node_id=f"node-{node}",
            node_name=f"node-{node:03}",
            owner_id="client-1",
            owner_name="train.py",
            pid=1000 + number,
            started_at=self.at - 60 * (number + 1),
            resources="1 cpu",
            calls=None if state == "starting" else self.round * (number + 1),
            calls_per_s=None if state == "starting" else dice.uniform(0, 800) * wave,
            busy=0.5 * wave,
            queued=number % 3,
            running="sample_batch" if state == "busy" else "",
            running_s=0.2 if state == "busy" else None,
            errors=1 if number % 5 == 0 else 0,
            last_error="ValueError: action must be between -1 and 1, it is 1.0000001" if number % 5 == 0 else "",
            cpu=0.6 * wave,
            memory=int(dice.uniform(0.1, 3) * GIB * (1 + 0.1 * wave)),
            memory_limit=8 * GIB if number == 1 else None,
        )

    def read_log(self, actor_id: str, position: int | None, most_bytes: int) -> LogChunk:
        if actor_id in self.gone or not actor_id.startswith("lease-"):
            raise Unknown(f"there is no log of actor {actor_id}")
        start = position or 0
        return LogChunk(tuple(self.log[start:]), len(self.log), start)

    def dump_stack(self, actor_id: str) -> str:
        if actor_id in self.gone:
            raise Unknown(f"there is no actor {actor_id}")
        return 'Current thread 0x01 (most recent call first):\n  File "train.py", line 3 in sample_batch\n'

    def acknowledge(self, node_id: str) -> None:
        if self.lost.pop(node_id, None) is None:
            raise Unknown(f"the node {node_id} is not lost")

    def kill(self, actor_id: str, reason: str) -> None:
        if actor_id in self.gone:
            raise Unknown(f"there is no actor {actor_id}")
        self.killed.append((actor_id, reason))
        self.die(actor_id)

    def die(self, actor_id: str, kind: str = "killed_by_user") -> DeathInfo:
        """An actor ends."""
        actor = self.actor(int(actor_id.removeprefix("lease-")))
        self.gone.add(actor_id)
        grown = [(30.0 - i, int(GIB * (1 + 0.2 * i))) for i in range(31)]
        texts = {
            "memory": "it passed its memory limit: it used 7.0 GiB, its limit is 6.0 GiB",
            "signal": "its process was killed by a signal (SIGSEGV)",
            "killed_by_user": "it was destroyed by its owner: in the monitor",
        }
        death = DeathInfo(
            actor_id=actor_id,
            class_name=actor.class_name,
            name=actor.name,
            node_name=actor.node_name,
            node_id=actor.node_id,
            owner_name=actor.owner_name,
            at=self.at,
            kind=kind,
            expected=kind == "killed_by_user",
            text=texts.get(kind, kind),
            signal="SIGSEGV" if kind == "signal" else "",
            last_call="sample_batch",
            log_tail=("step 1", "\x1b[31mstep 2 <i>in red</i>\x1b[0m", "out of memory"),
            memory_curve=tuple(grown) if kind == "memory" else (),
            memory_limit=6 * GIB if kind == "memory" else None,
        )
        self.deaths.insert(0, death)
        return death


class Monitor:
    """A store and an application over a fake cluster."""

    def __init__(self, cluster: FakeCluster, host: str = "127.0.0.1", port: int = 8137) -> None:
        self.cluster = cluster
        self.time = 0.0
        self.visitor_uid: int | None = os.geteuid()
        self.store = Store(lambda: cluster.at, interval_s=2.0)
        self.app: Flask = create_app(
            self.store,
            cluster,
            token=TOKEN,
            host=host,
            port=port,
            clock=lambda: self.time,
            uid_of=lambda _: self.visitor_uid,
        )
        self.app.testing = True

    def look(self, times: int = 1, every_s: float = 2.0) -> None:
        """Let time pass and take snapshots."""
        for _ in range(times):
            self.cluster.at += every_s
            self.store.add(self.cluster.snapshot())

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def signed_in(self) -> tuple[FlaskClient, dict[str, str]]:
        """A browser that has logged in, and the headers its pages send with changes."""
        client = self.client()
        assert client.post("/login", data={"token": TOKEN}).status_code == 302
        return client, {"X-CSRF-Token": client.get("/api/v1/session").get_json()["csrf"]}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def monitor(cluster: FakeCluster) -> Monitor:
    monitor = Monitor(cluster)
    monitor.look()
    return monitor


@pytest.fixture
def make_monitor() -> Callable[..., Monitor]:
    return Monitor


@pytest.fixture
def make_cluster() -> Callable[..., FakeCluster]:
    return FakeCluster


@pytest.fixture
def token() -> str:
    return TOKEN


@pytest.fixture
def serve() -> Iterator[Callable[[Monitor], str]]:
    """Serves a monitor as the real one is served; gives its address."""
    from waitress import wasyncore
    from waitress.server import create_server

    servers = []

    def start(monitor: Monitor) -> str:
        server: Any = create_server(monitor.app, host="127.0.0.1", port=0, threads=8, asyncore_use_poll=True)
        thread = threading.Thread(target=server.run, name="monitor-under-test", daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.effective_port}"

    yield start
    for server, thread in servers:
        server.task_dispatcher.shutdown()
        # Its loop ends once there is nothing to wait for, and must be told so in its own thread.
        server.trigger.pull_trigger(functools.partial(wasyncore.close_all, server._map, ignore_all=True))
        thread.join(60.0)
        assert not thread.is_alive()

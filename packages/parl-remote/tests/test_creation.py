"""A client's record of the actors that it has made."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from parl_remote._config import Limits
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseGranted
from parl_remote._program import creation
from parl_remote._program.known_actors import ActorRecord
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ClusterUnreachable, DeathCause, DeathKind


def test_of_actors_with_names_that_have_ended_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_NAMES_KEPT", 3)
    unused: Any = SimpleNamespace()
    maker = creation.ActorFactory(
        unused,
        unused,
        unused,
        unused,
        connect=unused,
        variables=unused,
        limits=unused,
        lease_timeout_s=None,
    )
    alive = ActorRecord("alive", "node", "Cell")
    maker._remember("alive", alive)
    for number in range(20):
        record = ActorRecord(f"lease {number}", "node", "Cell")
        record.end(DeathCause(DeathKind.STOPPED))
        maker._remember(f"name {number}", record)
        assert maker._named[f"name {number}"] is record
    assert len(maker._named) <= 3
    assert maker._named["alive"] is alive


def test_calls_that_fail_together_wait_once_for_a_cause_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    record = ActorRecord("lease", "node", "Cell")
    waits: list[ActorRecord] = []
    monkeypatch.setattr(record, "await_end", lambda: waits.append(record))
    texts = {str(record.error("step")) for _ in range(80)}
    assert len(waits) == 1
    assert len(texts) == 1
    assert "without a reported cause" in texts.pop()


def test_a_worker_that_does_not_lead_to_its_actor_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor is then made elsewhere, as with a worker that takes no connection at all."""
    unused: Any = SimpleNamespace()
    loop = Loop()
    workers = WorkerClients(
        loop,
        unused,
        unused,
        limits=Limits(connect_timeout_s=0.01),
        same_host_shortcut=False,
        on_died=unused,
        on_worker_gone=unused,
    )
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(workers, "_link_to", lambda _: SimpleNamespace(channel=unused))
    monkeypatch.setattr(workers, "_connect_sealed", lambda _: UnixChannel(ours))
    granted = LeaseGranted(1, "lease", "worker", ("host:1",), "/run/worker", "host")
    with pytest.raises(ClusterUnreachable, match="did not connect its actor"):
        workers.connect_actor(granted, "/run/worker/actor.sock")
    with theirs:
        theirs.settimeout(60)
        while theirs.recv(2**16):  # up to the end: the connection is closed
            pass
    loop.close()

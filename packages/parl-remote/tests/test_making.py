"""What a client remembers of the actors that it has made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parl_remote._program import making
from parl_remote._program.known_actors import ActorRecord
from parl_remote.errors import DeathCause, DeathKind


def test_of_actors_with_names_that_have_ended_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_NAMES_KEPT", 3)
    nobody: Any = SimpleNamespace()
    maker = making.Making(
        nobody,
        nobody,
        nobody,
        register=nobody,
        connect=nobody,
        release=nobody,
        variables=nobody,
        limits=nobody,
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
    waits: list[float] = []
    monkeypatch.setattr(record, "_ended", SimpleNamespace(wait=waits.append))
    texts = {str(record.error("step")) for _ in range(80)}
    assert len(waits) == 1
    assert len(texts) == 1
    assert "without a reported cause" in texts.pop()

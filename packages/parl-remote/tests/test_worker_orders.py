"""A worker obeys its master's orders to end an actor, which may be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from parl_remote._config import Limits
from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseAssigned
from parl_remote._messages.overview import EndActor
from parl_remote._resources import Resources
from parl_remote._worker.actors import ActorProcess
from parl_remote._worker.worker import Worker
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, ResultTimeout


class Host:
    """A worker with one actor, whose process and clock are the test's."""

    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.loop = Loop(lambda: self.now)
        self._reads, self._writes = os.pipe()
        self.zygote = Mock()
        self.zygote.fileno.return_value = self._reads
        self.zygote.pending.return_value = False
        self.worker = Worker(
            self.loop,
            directory=directory,
            log_directory=directory,
            zygote=self.zygote,
            restart_zygote=Mock(),
            to_master=Mock(),
            limits=Limits(),
        )
        self.worker.on_master(LeaseAssigned("lease-1", "client-1", Resources(cpu=1)))
        lease = self.worker._leases.get("lease-1")
        assert lease is not None
        lease.actor = ActorProcess(1, os.getpid(), "", directory / "log", str(directory / "stats"))
        lease.channel = self.channel = Mock()
        self.worker._in_use[1] = lease

    def order(self, grace_s: float) -> None:
        self.worker.on_master(EndActor("lease-1", DeathKind.DRAINED, "new disk", grace_s))

    def is_killed_at(self, now: float) -> bool:
        self.now = now
        self.loop.run_once(0.0)
        return bool(self.zygote.kill.called)

    def close(self) -> None:
        self.worker.close(DeathCause(DeathKind.STOPPED))
        self.loop.close()
        os.close(self._reads)
        os.close(self._writes)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def test_a_repeated_order_changes_nothing(host: Host) -> None:
    host.order(10.0)
    host.channel.send.side_effect = ChannelClosed("the actor has closed it: its last call still runs")
    host.now = 105.0
    host.order(10.0)
    host.channel.send.assert_called_once_with(pack(Kind.CLOSE, 0, 1, 0), 0.0)
    assert not host.is_killed_at(109.9)
    assert host.is_killed_at(110.0)


def test_an_order_without_grace_ends_an_actor_that_was_asked_to_end(host: Host) -> None:
    host.order(10.0)
    host.order(0.0)
    assert host.is_killed_at(100.0)


@pytest.mark.parametrize("why", [ChannelClosed("it has closed it"), ResultTimeout("its last call still runs")])
def test_an_actor_that_cannot_be_asked_has_its_time_all_the_same(host: Host, why: Exception) -> None:
    host.channel.send.side_effect = why
    host.order(10.0)
    assert not host.is_killed_at(109.9)
    assert host.is_killed_at(110.0)


def test_an_actor_that_could_not_be_asked_is_asked_by_the_next_order(host: Host) -> None:
    host.channel.send.side_effect = ResultTimeout("it does not read now")
    host.order(10.0)
    host.channel.send.side_effect = None
    host.order(10.0)
    assert host.channel.send.call_count == 2

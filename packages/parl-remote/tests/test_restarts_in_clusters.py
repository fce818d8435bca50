"""Actors that are made again on clusters of several nodes, and after the program that made them has ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import ActorLost, with_options
from parl_remote.testing import LoopbackCluster

PATIENCE_S = 60.0


@parl_remote.remote_class(max_restarts=-1)
class Saving:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __parl_save__(self) -> int:
        return self.count

    def __parl_load__(self, state: int) -> None:
        self.count = state

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class
class Holder:
    def __init__(self, other: Any) -> None:
        self.other = other

    def add(self) -> Any:
        return self.other.add()

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """Two nodes with four CPUs each; the master has none."""
    parl_remote.disconnect()
    with LoopbackCluster(2, cpus=4, variables={"PARL_FORCE_TCP": "0"}) as one:
        one.connect()
        yield one
        parl_remote.disconnect()


def node_of(cluster: LoopbackCluster, pid: int) -> Any:
    return next(node for node in cluster.nodes.values() if pid in {actor.pid for actor in node.actors})


def answered(call: Callable[[], Any]) -> Any:
    """Return the result of a call after the restart of the actor."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except ActorLost as error:
            if not error.is_restarting or time.monotonic() > until:
                raise


def kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [], PATIENCE_S)
    os.close(process)


def test_state_survives_the_loss_of_the_node_for_all_holders_of_the_actor(cluster: LoopbackCluster) -> None:
    actor = Saving()
    lost = node_of(cluster, actor.pid())
    holders = [Holder(actor) for _ in range(4)]
    elsewhere = next(holder for holder in holders if node_of(cluster, holder.pid()) is not lost)
    assert [actor.add(), elsewhere.add(), actor.add()] == [1, 2, 3]
    lost.kill()
    assert answered(actor.add) == 4
    assert node_of(cluster, actor.pid()) is not lost
    assert answered(elsewhere.add) == 5


@pytest.mark.slow
def test_a_detached_actor_is_made_again_after_its_program_has_ended(cluster: LoopbackCluster, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            import parl_remote

            @parl_remote.remote_class
            class Lasting:
                def __init__(self, start):
                    self.count = start

                def __parl_save__(self):
                    return self.count

                def __parl_load__(self, state):
                    self.count = state

                def add(self):
                    self.count += 1
                    return self.count

                def pid(self):
                    import os
                    return os.getpid()

            parl_remote.connect(sys.argv[1], key_file=sys.argv[2])
            actor = Lasting.options(name="lasting", detached=True, max_restarts=2)(10)
            print(actor.add())
        """)
    )
    made = subprocess.run(
        [sys.executable, str(program), cluster.address, str(cluster.key_file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert made.stdout.split() == ["11"], made.stderr
    actor: Any = parl_remote.get_actor("lasting")
    assert actor.add() == 12
    for count in (13, 14):
        kill(actor.pid())
        assert answered(actor.add) == count
    kill(actor.pid())
    with pytest.raises(ActorLost):
        actor.add()
    with pytest.raises(parl_remote.NoSuchActor):
        parl_remote.get_actor("lasting")


@pytest.mark.slow
def test_a_detached_actor_that_is_killed_does_not_come_back(cluster: LoopbackCluster) -> None:
    actor = with_options(Saving, name="killed", detached=True, max_pending_calls=2)(5)
    assert actor.add() == 6
    with pytest.raises(parl_remote.NameTaken):
        with_options(Saving, name="killed", detached=True, lease_timeout_s=1)()
    parl_remote.kill("killed")
    with pytest.raises(ActorLost, match=r"destroyed|killed|ended"):
        answered(actor.add)
    again = with_options(Saving, name="killed", detached=True)(7)
    assert again.add() == 8


@pytest.mark.slow
def test_errors_of_a_detached_actors_making_come_as_they_are(cluster: LoopbackCluster) -> None:
    with pytest.raises(parl_remote.NoResources):
        with_options(Saving, detached=True, n_cpu=100, lease_timeout_s=0)()
    with pytest.raises(TypeError):
        with_options(Saving, detached=True)("no", "such", "arguments")  # type: ignore[call-arg, arg-type]

"""Remote actors fill the seam of the training loops: same calls, same numbers, other processes."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import parl_remote
from parl_core.actors import InProcessActors, open_actors, wait_any
from parl_core.env.vector import VectorEnv, make_vector_env
from parl_core.errors import LostActor
from parl_remote import _current
from parl_remote.actors import RemoteActors
from parl_remote.errors import ActorError, ActorLost


class Ledger:
    """An ordinary, undecorated class."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError(f"start is {start}")
        self.total = start

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def fail(self) -> None:
        raise KeyError("no such thing")

    def pid(self) -> int:
        return os.getpid()

    def wait_for_ever(self) -> None:
        threading.Event().wait()

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable)


class Brittle(gymnasium.Env[Any, Any]):
    """Raises, or ends its process, when told to."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise LookupError("the simulator lost its map")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.fixture(scope="module")
def actors(unconnected: None) -> Iterator[RemoteActors]:
    with RemoteActors(cpu_num=4) as system:
        yield system


def test_the_entry_point_finds_remote_actors(unconnected: None) -> None:
    with open_actors("remote", cpu_num=1) as system:
        assert isinstance(system, RemoteActors)
        assert system.slots == 1


@pytest.mark.parametrize(("n_cpu", "slots"), [(2, 2), (0.1, 40), (8, 1), (0, 4)])
def test_slots_are_the_actors_that_the_cpus_suffice_for(unconnected: None, n_cpu: float, slots: int) -> None:
    with RemoteActors(cpu_num=4, n_cpu=n_cpu) as system:
        assert system.slots == slots


def test_an_actor_lives_in_another_process_and_its_class_stays_as_it_is(actors: RemoteActors) -> None:
    ledger = actors.create(Ledger, 3)
    assert ledger.call("pid") != os.getpid()
    assert ledger.call("add", amount=4) == 7
    assert Ledger(1).total == 1
    ledger.close()


class Auditor:
    """Looks into other actors' ledgers."""

    def audit(self, ledger: Any, amount: int) -> int:
        total: int = ledger.call("add", amount)
        return total

    def note(self, total: int) -> int:
        return total


def test_handles_and_futures_go_to_other_actors(actors: RemoteActors) -> None:
    ledger, auditor = actors.create(Ledger, 3), actors.create(Auditor)
    assert auditor.call("audit", ledger, 4) == 7
    assert auditor.call("note", ledger.submit("add", 1)) == 8
    assert ledger.call("add", 1) == 9
    for handle in (ledger, auditor):
        handle.close()


def test_submitted_calls_run_in_order(actors: RemoteActors) -> None:
    ledger = actors.create(Ledger, 0)
    futures = [ledger.submit("add", amount) for amount in range(1, 101)]
    assert [future.result(timeout=240) for future in futures] == list(np.cumsum(range(1, 101)))
    assert futures[-1].done()
    ledger.close()


def test_exceptions_of_constructor_and_methods_come_back_and_the_actor_lives_on(actors: RemoteActors) -> None:
    with pytest.raises(ValueError, match="start is -1"):
        actors.create(Ledger, -1)
    ledger = actors.create(Ledger, 1)
    with pytest.raises(KeyError, match="no such thing"):
        ledger.call("fail")
    with pytest.raises(AttributeError, match="subtract"):
        ledger.call("subtract", 1)
    assert ledger.call("add", 1) == 2
    ledger.close()


def test_a_call_after_close_is_refused(actors: RemoteActors) -> None:
    ledger = actors.create(Ledger, 0)
    ledger.close()
    ledger.close()
    with pytest.raises(ActorError, match=r"'add'.*closed"):
        ledger.submit("add", 1)


def test_an_existing_connection_is_used_and_stays_open(actors: RemoteActors) -> None:
    with RemoteActors() as guest:
        assert guest.slots is None
        assert guest.create(Ledger, 1).call("add", 1) == 2
    assert _current.peek() is not None
    with pytest.raises(ValueError, match=r"there is a connection already.*cpu_num=3"):
        RemoteActors(cpu_num=3)


def drive(envs: VectorEnv, steps: int) -> list[tuple[Any, ...]]:
    envs.action_space.seed(3)
    log: list[tuple[Any, ...]] = [envs.reset(seed=11)]
    log.extend(envs.step(envs.action_space.sample()) for _ in range(steps))
    envs.close()
    for *_, infos in log:
        if "final_obs" in infos:  # numpy compares no arrays of arrays
            infos["final_obs"] = infos["final_obs"].tolist()
    return log


@pytest.mark.parametrize("envs_per_actor", [4, 2, 1])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_results_do_not_depend_on_where_environments_live(env: str, envs_per_actor: int, actors: RemoteActors) -> None:
    here = drive(make_vector_env(env, 4, actors=InProcessActors(), envs_per_actor=4), 60)
    there = drive(make_vector_env(env, 4, actors=actors, envs_per_actor=envs_per_actor), 60)
    np.testing.assert_equal(there, here)


def test_an_environment_that_raises_gives_its_exception_and_the_environments_go_on(actors: RemoteActors) -> None:
    with make_vector_env(Brittle, 4, actors=actors, envs_per_actor=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(LookupError, match="lost its map") as caught:
            envs.step(np.array([0, 0, 0, 1]))
        assert "its actor holds environments 2 to 3 of 4" in caught.value.__notes__
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))


def test_a_killed_actor_is_an_error_that_names_its_environments_and_close_still_works(actors: RemoteActors) -> None:
    envs = make_vector_env(Brittle, 4, actors=actors, envs_per_actor=2)
    envs.reset(seed=0)
    with pytest.raises(ActorLost, match="SIGKILL") as caught:
        envs.step(np.array([0, 2, 0, 0]))
    assert "its actor holds environments 0 to 1 of 4" in caught.value.__notes__
    envs.close()


def test_closing_ends_the_actors_processes() -> None:
    connection = _current.clear()  # this test needs a private cluster of its own
    try:
        with RemoteActors(cpu_num=2) as system:
            pids = [system.create(Ledger, 0).call("pid") for _ in range(2)]
        gone = threading.Event()
        for _ in range(200):
            if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
                gone.set()
                break
            gone.wait(0.01)
        assert gone.is_set()
        with pytest.raises(parl_remote.NotConnected):
            _current.client()
    finally:
        if connection is not None:
            _current.install(connection)


def test_waiting_for_any_does_not_wait_for_an_actor_that_hangs_and_that_one_can_be_killed(actors: RemoteActors) -> None:
    hanging, quick = (actors.create(Ledger, 0) for _ in range(2))
    futures = [hanging.submit("wait_for_ever"), quick.submit("add", 3)]
    assert wait_any(futures, 60.0) == futures[1:]
    assert wait_any(futures[:1], 0.01) == []
    hanging.kill()
    assert wait_any(futures[:1], 60.0) == futures[:1]
    with pytest.raises(LostActor):
        futures[0].result()


def test_what_was_put_arrives_as_a_value_that_is_stored_once(actors: RemoteActors) -> None:
    stored = actors.put(np.zeros(100_000))
    assert not actors.create(Ledger, 0).call("is_writable", stored)

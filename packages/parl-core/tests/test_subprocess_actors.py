"""Actors in plain processes: calls, errors, lost processes, and nothing left behind."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core._config import VARIABLES
from parl_core._subprocess_actors import SubprocessActors
from parl_core.actors import open_actors, wait_any
from parl_core.env.vector import make_vector_env
from parl_core.errors import ActorProcessLost, HyperparameterError, ParlError

DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("importable_classes")


class Odd(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Worker:
    def __init__(self, start: int = 0, *, fail: bool = False) -> None:
        if fail:
            raise LookupError("no start")
        self.count = start

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def echo(self, value: Any) -> Any:
        return value

    def fail(self, odd: bool = False) -> None:
        if odd:
            raise Odd(1, 2)
        raise KeyError("missing")

    def end(self) -> None:
        os._exit(7)

    def wait_for_ever(self) -> None:
        threading.Event().wait()

    def save(self, path: Path, gate: Path) -> None:
        with path.open("w") as file:
            file.write("half")
            gate.read_text()  # as soon as somebody opens it to write
            file.write(" whole")

    def secret(self) -> Any:
        return lambda: 1


@pytest.fixture(scope="module")
def actors() -> Iterator[SubprocessActors]:
    with SubprocessActors(2) as system:
        yield system


def test_calls_run_in_order_in_another_process(actors: SubprocessActors) -> None:
    handle = actors.create(Worker, 5)
    futures = [handle.submit("add", n) for n in range(100)]
    assert [future.result(DEADLINE_S) for future in futures] == [5 + n * (n + 1) // 2 for n in range(100)]
    assert handle.call("pid") != os.getpid()
    handle.close()
    handle.close()
    with pytest.raises(ParlError, match="closed"):
        handle.submit("add")


def test_large_calls_and_answers_may_cross(actors: SubprocessActors) -> None:
    handle = actors.create(Worker)
    arrays = [np.full(1_000_000, n) for n in range(5)]
    futures = [handle.submit("echo", array) for array in arrays]
    for future, array in zip(futures, arrays, strict=True):
        np.testing.assert_array_equal(future.result(DEADLINE_S), array)
    handle.close()


def test_exceptions_come_as_their_own_type_and_the_actor_lives_on(actors: SubprocessActors) -> None:
    handle = actors.create(Worker)
    with pytest.raises(KeyError, match="missing") as caught:
        handle.call("fail")
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(ParlError) as caught_odd:
        handle.call("fail", odd=True)
    assert str(caught_odd.value) == "Odd in an actor's process: 1 and 2"
    assert "in fail" in caught_odd.value.__notes__[0]
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):  # the latter from Python 3.14 on
        handle.call("secret")
    with pytest.raises(AttributeError, match="no_such"):
        handle.call("no_such")
    with pytest.raises(Exception, match="pickle"):
        handle.call("echo", lambda: 1)
    assert handle.call("add") == 1
    handle.close()


class Raising:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def fail(self) -> None:
        raise self.error("motor")


def test_an_exception_of_the_main_program_comes_as_its_own_type(
    actors: SubprocessActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = type("Broken", (Exception,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Broken", broken, raising=False)
    handle = actors.create(Raising, broken)
    with pytest.raises(broken) as caught:
        handle.call("fail")
    assert str(caught.value) == "motor"
    assert "in fail" in caught.value.__notes__[0]
    handle.close()


def test_a_call_under_way_ends_before_its_process_does_also_where_another_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("parl_core._subprocess_actors.CLOSE_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr("parl_core._subprocess_actors.STUCK_TIMEOUT_S", 0.0)
    path, gate = tmp_path / "saved", tmp_path / "gate"
    os.mkfifo(gate)
    with SubprocessActors(1) as actors:
        handle = actors.create(Worker)
        process = _started_by(handle)
        handle.submit("save", path, gate)
        handle.submit("add")

        def wait(timeout: float | None = None) -> int:
            if timeout:  # it is waited for: the call may go on
                gate.write_text("")
            return subprocess.Popen.wait(process, timeout)

        monkeypatch.setattr(process, "wait", wait)
        handle.close()
    assert path.read_text() == "half whole"


def _started_by(handle: Any) -> "subprocess.Popen[bytes]":
    process: subprocess.Popen[bytes] = handle._process
    return process


def test_a_failing_constructor_raises_here(actors: SubprocessActors) -> None:
    with pytest.raises(LookupError, match="no start"):
        actors.create(Worker, fail=True)


def test_a_process_that_ends_is_reported_with_its_exit_code_or_signal(actors: SubprocessActors) -> None:
    handle = actors.create(Worker)
    with pytest.raises(ActorProcessLost, match="exit code 7"):
        handle.call("end")
    later = handle.submit("add")
    with pytest.raises(ActorProcessLost, match="exit code 7"):
        later.result(DEADLINE_S)
    handle.close()

    handle = actors.create(Worker)
    pid = handle.call("pid")
    waiting = handle.submit("wait_for_ever")
    assert not waiting.done()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorProcessLost, match="signal 9"):
        waiting.result(DEADLINE_S)
    handle.close()


def test_a_result_that_does_not_come_in_time_raises_and_can_be_asked_for_again(actors: SubprocessActors) -> None:
    handle = actors.create(Worker)
    future = handle.submit("wait_for_ever")
    for _ in range(2):
        with pytest.raises(TimeoutError, match="did not answer within"):
            future.result(0.01)
    os.kill(_pid_of(handle), signal.SIGKILL)
    handle.close()


def test_environments_in_processes_give_the_same_numbers_as_here() -> None:
    runs = []
    with open_actors("subprocess", processes=2) as system:
        for where in (None, system):
            envs = make_vector_env("CartPole-v1", 5, actors=where)
            rng = np.random.default_rng(1)
            steps = [envs.reset(seed=4)[0]]
            steps += [np.asarray(part) for _ in range(60) for part in envs.step(rng.integers(2, size=5))[:4]]
            envs.close()
            runs.append(steps)
    for here, there in zip(*runs, strict=True):
        np.testing.assert_array_equal(here, there)


PROGRAM = """
import os, sys, threading
import gymnasium
from parl_core.env.vector import make_vector_env
from parl_core._subprocess_actors import SubprocessActors

class Mine(gymnasium.Env):  # of the main program, which no process imports again
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, pids): self.pids = pids
    def reset(self, *, seed=None, options=None):
        os.write(self.pids, b"%d\\n" % os.getpid())
        return self.observation_space.low, {}
    def step(self, action):
        threading.Event().wait()

actors = SubprocessActors(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_processes_end_with_a_parent_that_is_killed_in_a_call_too(busy: bool) -> None:
    read, write = os.pipe()
    program = PROGRAM + (
        "import parl_core._subprocess_actors as module\n"
        "popen = module.subprocess.Popen\n"
        # The processes get the pipe's end as well: it is closed when the last of them has ended.
        f"actors.close()\n"
        f"module.subprocess.Popen = lambda *a, pass_fds, **k: popen(*a, pass_fds=(*pass_fds, {write}), **k)\n"
        "actors = SubprocessActors(2)\n"
        f"envs = make_vector_env(lambda: Mine({write}), 2, actors=actors)\n"
        "envs.reset(seed=0)\n"
        "print('ready', flush=True)\n" + ("envs.step([0, 0])\n" if busy else "threading.Event().wait()\n")
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, pass_fds=(write,)) as parent:
        os.close(write)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
    with os.fdopen(read, "rb") as pids:
        assert len(set(pids.read().split())) == 2  # read to the end: all processes are gone


def test_zero_processes_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="processes must be at least 1, got 0"):
        SubprocessActors(0)


def _pid_of(handle: Any) -> int:
    return int(handle._process.pid)


def test_waiting_for_any_does_not_wait_for_all() -> None:
    with SubprocessActors(2) as actors:
        hanging, quick = (actors.create(Worker) for _ in range(2))
        futures = [hanging.submit("wait_for_ever"), quick.submit("add", actors.put(3))]
        assert wait_any(futures, DEADLINE_S) == futures[1:]
        assert wait_any(futures[:1], 0.01) == []
        hanging.kill()
        assert wait_any(futures[:1], DEADLINE_S) == futures[:1]
        with pytest.raises(ActorProcessLost):
            futures[0].result()


@pytest.mark.parametrize(("chosen", "threads"), [(None, "1"), ("3", "3")])
def test_numeric_libraries_get_one_thread_unless_the_user_chose(
    chosen: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    with SubprocessActors(1) as actors:
        assert actors.create(Worker).call("variable", "OMP_NUM_THREADS") == threads


WITH_OWN_CLASSES = """
import os
import pickle
from parl_core._subprocess_actors import SubprocessActors

class Mine:
    def double(self, x):
        return 2 * x

    def apply(self, function, x):
        return function(x)

    def lost(self):
        os._exit(3)

def triple(x):
    return 3 * x

def main():
    with SubprocessActors(2, start_method=METHOD) as actors:
        mine, other = actors.create(Mine), actors.create(Mine)
        print(mine.call("double", 2), other.call("apply", triple, 5))
        mine.close()
        print(other.call("double", 4))

GUARD
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_import_or_copy_the_program_take_its_classes_and_functions(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITH_OWN_CLASSES.replace("METHOD", repr(method)).replace("GUARD", 'if __name__ == "__main__":'))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.split(), done.returncode) == (["4", "15", "8"], 0), done.stderr


def test_a_program_without_a_guard_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITH_OWN_CLASSES.replace("METHOD", "'spawn'").replace("GUARD", "if True:"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=False)
    assert 'below `if __name__ == "__main__":`' in done.stderr
    assert "ended with exit code 1" in done.stderr
    assert done.returncode == 1


def test_an_unknown_start_method_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="fresh, spawn or fork, not 'forkserver'"):
        SubprocessActors(1, start_method="forkserver")

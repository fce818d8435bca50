"""Objects that dial in: `obj.as_remote(address)` there, `RemoteManager.get_remote()` here."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import (
    ActorLost,
    ActorPool,
    AuthenticationFailed,
    ClusterUnreachable,
    NotConnected,
    RemoteFuture,
    RemoteManager,
    ResultTimeout,
    SerializationError,
    Serving,
    TooManyPendingCalls,
    _current,
    as_remote,
)
from parl_remote._program.proxy import served_object
from parl_remote._security import ClusterKey

PATIENCE_S = 60.0


@parl_remote.remote_class
class Agent:
    """A remote class, whose objects are ordinary ones in a program that serves them."""

    scale = 2

    def __init__(self, name: str = "agent") -> None:
        self.name = name
        self.calls = 0
        self.gate = threading.Event()

    def sum(self, a: int, b: int) -> int:
        self.calls += 1
        return a + b

    def double(self, array: Any) -> Any:
        return array * 2

    def fail(self) -> None:
        raise KeyError("from afar")

    def learn(self) -> None:
        self.learned = True

    def hold(self) -> str:
        self.gate.wait(PATIENCE_S)
        return "through"


def agent_here(name: str = "agent") -> Agent:
    """An ordinary object of a remote class, as `as_remote` builds one."""
    with _current.local_objects():
        return Agent(name)


class Plain:
    """Not decorated."""

    def __init__(self) -> None:
        self.value = 1

    def add(self, n: int) -> int:
        self.value += n
        return self.value

    def __len__(self) -> int:
        return self.value


class Async:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> str:
        await self.event.wait()
        return "set"

    def set(self) -> None:
        self.event.set()


class WithOwn:
    def as_remote(self) -> str:
        return "mine"


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run files of these tests alone, and no connection to any cluster."""
    monkeypatch.setenv("PARL_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("PARL_KEY", raising=False)
    monkeypatch.delenv("PARL_KEY_FILE", raising=False)
    _current.clear()
    return tmp_path / "run"


@pytest.fixture
def manager() -> Iterator[RemoteManager]:
    with RemoteManager(reconnect_s=PATIENCE_S) as manager:
        yield manager


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    served: list[Serving] = []

    def begin(obj: Any, manager: RemoteManager, **options: Any) -> Serving:
        served.append(as_remote(obj, manager.address, **options))
        return served[-1]

    yield begin
    for serving in served:
        serving.close()
        assert serving.wait(PATIENCE_S) or serving.error


def program(tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(text))
    command = [sys.executable, str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def final_loss(call: Callable[[], object]) -> ActorLost:
    """Return the error that calls raise in the end, after those that may be repeated."""
    for _ in range(1000):
        try:
            call()
        except ActorLost as error:
            if not error.is_restarting:
                return error
    pytest.fail("it is not lost")


DOCUMENTED = """
    import os, sys
    import parl_remote as parl

    @parl.remote_class
    class Agent(object):

        def say_hello(self):
            print("Hello World!", flush=True)

        def sum(self, a, b):
            return a + b

        def pid(self):
            return os.getpid()

    if __name__ == '__main__':
        agent = Agent()
        agent.as_remote(sys.argv[1])
"""


def test_the_documented_program_runs_as_it_was(manager: RemoteManager, tmp_path: Path) -> None:
    process = program(tmp_path, DOCUMENTED, manager.address)
    agent = manager.get_remote(PATIENCE_S)
    agent.say_hello()
    assert agent.sum(1, 5) == 6
    assert agent.pid() == process.pid
    manager.close()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "Hello World!" in output


@pytest.mark.parametrize("end", ["object", "manager"])
def test_a_call_that_an_end_has_no_memory_for_fails_alone(
    manager: RemoteManager, serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    left = [1 if end == "object" else 2]

    def memory_for(size: int) -> bytearray:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        return bytearray(size)

    serve(agent_here(), manager)
    agent = manager.get_remote(PATIENCE_S)
    array = np.ones(400_000)
    monkeypatch.setattr("parl_remote._transport.zmq.sockets.bytearray", memory_for, raising=False)
    with pytest.raises(Exception, match="no memory for a frame of 3200000 bytes"):
        agent.double(array)
    assert agent.double(array).sum() == 800_000


FORKS = """
    import os, sys
    import parl_remote as parl

    class Agent:
        def fork(self, leave):
            child = os.fork()
            if child == 0:
                if leave == "raise":
                    raise ValueError("in the child")
                return "in the child"
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def pid(self):
            return os.getpid()

    if __name__ == '__main__':
        parl.as_remote(Agent(), sys.argv[1])
"""


@pytest.mark.skipif(
    sys.version_info[:3] in {(3, 12, 0), (3, 12, 1)}, reason="this Python forks no process when the program has ended"
)
def test_a_child_that_a_method_forks_does_not_serve(manager: RemoteManager, tmp_path: Path) -> None:
    process = program(tmp_path, FORKS, manager.address)
    agent = manager.get_remote(PATIENCE_S)
    assert (agent.fork("return"), agent.fork("raise")) == (0, 1)
    assert {agent.pid() for _ in range(20)} == {process.pid}
    manager.close()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


FORKED_CALLER = """
    import os, sys, warnings
    import parl_remote as parl
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

    class Agent:
        def sum(self, a, b):
            return a + b

    if __name__ == '__main__':
        manager = parl.RemoteManager(0)
        serving = parl.as_remote(Agent(), manager.address)
        agent = manager.get_remote()
        assert agent.sum(1, 2) == 3
        child = os.fork()
        if child == 0:
            try:
                agent.sum(1, 2)
            except parl.NotConnected as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(agent.sum(2, 2), flush=True)
"""


def test_a_forked_child_cannot_call_the_objects_of_its_parent(tmp_path: Path) -> None:
    output, _ = program(tmp_path, FORKED_CALLER).communicate(timeout=PATIENCE_S)
    listens, *lines = output.splitlines()
    assert "listens" in listens
    assert lines == [
        "objects of a RemoteManager answer the process that made it, from which this one was forked",
        "4",
    ]


def test_a_program_may_be_there_before_the_manager(tmp_path: Path) -> None:
    with RemoteManager() as first:
        port = first.port
    process = program(tmp_path, DOCUMENTED, f"localhost:{port}")
    with RemoteManager(port) as manager:
        assert manager.get_remote(PATIENCE_S).sum(2, 3) == 5
    process.communicate(timeout=PATIENCE_S)


def test_the_old_signature_is_taken(manager: RemoteManager) -> None:
    agent = Agent("old")
    with_ports: Any = agent
    serving = with_ports.as_remote("127.0.0.1", manager.port, remote_ip=None, remote_port=None)
    assert manager.get_remote(PATIENCE_S).name == "old"
    serving.close()


def test_a_handle_does_what_a_handle_does(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    serve(agent_here("first"), manager)
    agent = manager.get_remote(PATIENCE_S)
    assert isinstance(agent, Agent)
    assert agent.sum(a=1, b=2) == 3
    assert (agent.calls, agent.name, agent.scale) == (1, "first", 2)
    agent.name = "second"
    assert agent.name == "second"
    assert not hasattr(agent, "learned")
    agent.learn()
    assert agent.learned
    with pytest.raises(KeyError, match="from afar") as caught:
        agent.fail()
    assert isinstance(caught.value.__cause__, parl_remote.RemoteCallError)
    with pytest.raises(AttributeError, match="did you mean sum"):
        agent.sun(1, 2)  # type: ignore[attr-defined]


def test_arrays_go_there_and_back_and_may_change_after_the_call(
    manager: RemoteManager, serve: Callable[..., Serving]
) -> None:
    serve(agent_here(), manager)
    agent = manager.get_remote(PATIENCE_S, wait=False)
    array = np.ones(500_000)
    future = agent.double(array)
    array[:] = 5
    assert future.result(PATIENCE_S).sum() == 1_000_000


def test_calls_are_pipelined_in_order(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    serve(Plain(), manager)
    plain = manager.get_remote(PATIENCE_S, wait=False)
    futures = [plain.add(1) for _ in range(500)]
    assert isinstance(futures[0], RemoteFuture)
    assert [future.result(PATIENCE_S) for future in futures] == list(range(2, 502))

    async def main() -> int:
        result: int = await plain.add(0)
        return result

    assert asyncio.run(main()) == len(plain) == 501
    assert next(concurrent.futures.as_completed([plain.add(1)], PATIENCE_S)).result() == 502


def test_calls_can_be_limited_and_cancelled(
    manager: RemoteManager, serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, cancel, take = threading.Event(), Serving._cancel, Serving._take

    def note(serving: Serving, *args: Any) -> None:
        cancel(serving, *args)
        arrived.set()

    def take_in_time(serving: Serving, waiting: Any, caller: Any, timeout_s: float | None) -> bool:
        goes_on = take(serving, waiting, caller, timeout_s)
        while goes_on and timeout_s is not None and not arrived.is_set():  # before the next call has its turn
            goes_on = take(serving, waiting, caller, 0.1)
        return goes_on

    monkeypatch.setattr(Serving, "_cancel", note)
    monkeypatch.setattr(Serving, "_take", take_in_time)
    agent = agent_here()
    serve(agent, manager)
    handle = manager.get_remote(PATIENCE_S, wait=False, max_pending_calls=3)
    held = [handle.hold(), handle.sum(1, 1), handle.sum(1, 2)]
    assert held[2].cancel()
    later: list[Any] = []
    caller = threading.Thread(target=lambda: later.extend([handle.sum(1, 3), handle.sum(1, 4)]))
    caller.start()
    agent.gate.set()
    caller.join(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in (*held[:2], *later)] == ["through", 2, 4, 5]
    assert agent.calls == 3
    assert issubclass(TooManyPendingCalls, parl_remote.RemoteError)


def test_any_object_can_be_served_also_one_with_coroutines(
    manager: RemoteManager, serve: Callable[..., Serving]
) -> None:
    serve(Async(), manager)
    handle = manager.get_remote(PATIENCE_S, wait=False)
    waiting = [handle.wait() for _ in range(3)]
    assert not concurrent.futures.wait(waiting, 0.05).done
    handle.set()
    assert [future.result(PATIENCE_S) for future in waiting] == ["set"] * 3


def test_several_calls_run_at_once_where_that_was_asked_for(
    manager: RemoteManager, serve: Callable[..., Serving]
) -> None:
    agent = agent_here()
    serve(agent, manager, max_concurrency=2)
    handle = manager.get_remote(PATIENCE_S, wait=False)
    held = handle.hold()
    assert handle.sum(1, 1).result(PATIENCE_S) == 2
    agent.gate.set()
    assert held.result(PATIENCE_S) == "through"


def test_many_objects_make_a_pool(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    for _ in range(4):
        serve(Plain(), manager)
    pool = ActorPool([manager.get_remote(PATIENCE_S) for _ in range(4)])
    assert len(manager) == 4
    assert sorted(pool.map_unordered("add", [0] * 40)) == [1] * 40
    pool.close()


def test_an_actor_of_a_cluster_can_be_served(
    manager: RemoteManager, serve: Callable[..., Serving], connect: Callable[..., None]
) -> None:
    connect(cpu_num=1)
    actor: Any = parl_remote.with_options(Agent, wait=False)("in a cluster")
    serve(actor, manager)
    handle = manager.get_remote(PATIENCE_S)
    assert handle.sum(3, 4) == 7
    assert handle.name == "in a cluster"


def test_its_handle_is_refused_where_it_would_lead_nowhere(
    manager: RemoteManager, serve: Callable[..., Serving], connect: Callable[..., None]
) -> None:
    serve(agent_here(), manager)
    remote = manager.get_remote()
    with pytest.raises(TypeError, match="only the program with the RemoteManager can call a Agent"):
        pickle.dumps([remote])
    connect(cpu_num=1)
    other = Agent("in an actor")
    for argument in (remote, {"agent": remote}, remote.sum):
        with pytest.raises(SerializationError, match=r"argument 'b' .* of Agent\.sum\(\) cannot be sent"):
            other.sum(1, argument)  # type: ignore[arg-type]  # the point
    assert other.sum(1, remote.sum(2, 3)) == 6


def test_an_object_whose_handle_is_dropped_is_given_out_again(
    manager: RemoteManager, serve: Callable[..., Serving]
) -> None:
    serve(Plain(), manager)
    handle = manager.get_remote(PATIENCE_S)
    assert handle.add(1) == 2
    with pytest.raises(ResultTimeout, match="no object was served"):
        manager.get_remote(0.05)
    del handle
    assert manager.get_remote(PATIENCE_S).add(1) == 3


def test_a_connection_that_breaks_is_made_again_and_the_object_stays_as_it_is(
    manager: RemoteManager, serve: Callable[..., Serving]
) -> None:
    serving = serve(Plain(), manager)
    handle = manager.get_remote(PATIENCE_S)
    assert handle.add(1) == 2
    serving._channel._lost = "cut by the test"  # type: ignore[attr-defined]  # as zmq's monitor would have it
    serving._channel._waker.wake()  # type: ignore[attr-defined]
    losses: list[ActorLost] = []
    value = None
    while value is None and len(losses) < 200:
        try:
            value = handle.add(1)
        except ActorLost as error:
            losses.append(error)
    assert value is not None
    assert value >= 3
    assert all(error.is_restarting for error in losses)


def test_a_program_that_is_killed_is_lost_after_the_time_to_come_back(tmp_path: Path) -> None:
    with RemoteManager(reconnect_s=0.3) as manager:
        process = program(tmp_path, DOCUMENTED, manager.address)
        agent = manager.get_remote(PATIENCE_S)
        assert agent.sum(1, 1) == 2
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
        assert "did not come back within 0.3 s" in str(final_loss(lambda: agent.sum(1, 1)))
        assert len(manager) == 0


def test_ending_the_serving_is_final(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    serving = serve(Plain(), manager)
    handle = manager.get_remote(PATIENCE_S)
    assert handle.add(1) == 2
    serving.close()
    assert serving.wait(PATIENCE_S)
    assert not serving.is_alive
    assert "served no longer" in str(final_loss(lambda: handle.add(1)))


def test_destroying_the_handle_ends_the_serving(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    serving = serve(Plain(), manager)
    handle = manager.get_remote(PATIENCE_S)
    handle.destroy()
    assert serving.wait(PATIENCE_S)
    with pytest.raises(ActorLost, match="destroyed"):
        handle.add(1)


def test_closing_the_manager_ends_calls_and_waiting(manager: RemoteManager, serve: Callable[..., Serving]) -> None:
    agent = agent_here()
    serving = serve(agent, manager)
    handle = manager.get_remote(PATIENCE_S, wait=False)
    held = handle.hold()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(manager.get_remote)
        manager.close()
        with pytest.raises(NotConnected, match="closed"):
            waiting.result(PATIENCE_S)
    with pytest.raises(ActorLost, match="RemoteManager was closed"):
        held.result(PATIENCE_S)
    agent.gate.set()
    assert serving.wait(PATIENCE_S)


def test_a_peer_with_another_key_reads_and_changes_nothing(manager: RemoteManager, tmp_path: Path) -> None:
    other = tmp_path / "key"
    other.write_text(ClusterKey.generate().to_text() + "\n")
    other.chmod(0o600)
    with pytest.raises(AuthenticationFailed):
        as_remote(Plain(), manager.address, key_file=other)
    assert len(manager) == 0


def test_the_key_may_be_given_to_both(tmp_path: Path, run_dir: Path) -> None:
    key = tmp_path / "key"
    key.write_text(ClusterKey.generate().to_text() + "\n")
    key.chmod(0o600)
    with RemoteManager(key_file=key) as manager:
        assert not list(run_dir.glob("*"))
        serving = as_remote(Plain(), manager.address, key_file=key)
        assert manager.get_remote(PATIENCE_S).add(1) == 2
        with pytest.raises((AuthenticationFailed, ClusterUnreachable)):
            as_remote(Plain(), manager.address, timeout_s=0.1)
        serving.close()


def test_run_files_are_private_and_gone_at_the_end(manager: RemoteManager, run_dir: Path) -> None:
    (directory,) = run_dir.glob("*-manager-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    manager.close()
    assert not directory.exists()


def test_the_address_is_printed_where_the_manager_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with RemoteManager() as manager:
        assert f"RemoteManager listens on {manager.address}" in capsys.readouterr().err


def test_master_is_away_is_an_error_that_says_so() -> None:
    with RemoteManager() as manager:
        address = manager.address
    with pytest.raises((ClusterUnreachable, AuthenticationFailed), match=address.rpartition(":")[2]):
        as_remote(Plain(), address, timeout_s=0.1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RemoteManager(-1), "port"),
        (lambda: RemoteManager(70_000), "port"),
        (lambda: as_remote(Plain(), "nowhere"), "host:port"),
        (lambda: as_remote(Plain(), "localhost:1", max_concurrency=0), "max_concurrency"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_a_class_with_as_remote_of_its_own_keeps_it(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    assert parl_remote.remote_class(WithOwn)().as_remote() == "mine"


@parl_remote.remote_class
class Counted:
    made = 0

    def __init__(self, *sizes: int) -> None:
        Counted.made += 1
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def first(self) -> int:
        return self.sizes[0]


def test_a_function_that_names_as_remote_changes_nothing() -> None:
    def plain() -> object:
        return Agent()

    def names_it(config: object) -> object:
        made = plain()
        if config is None:
            config.as_remote  # type: ignore[attr-defined]  # noqa: B018  # never run
        return made

    assert type(names_it(1)) is type(plain()) is not Agent


@pytest.mark.parametrize(
    "use",
    [
        lambda obj: obj.first(),
        lambda obj: obj.sizes,
        lambda obj: hasattr(obj, "nothing"),
        lambda obj: setattr(obj, "sizes", ()),
        lambda obj: delattr(obj, "sizes"),
        lambda obj: obj.destroy(),
        len,
        bool,
        pickle.dumps,
        lambda obj: parl_remote.submit(obj.first),
        lambda obj: ActorPool([obj]),
    ],
)
def test_an_object_made_without_a_connection_refuses_every_other_use(use: Callable[[Any], object]) -> None:
    before = Counted.made
    obj = Counted(1, 2)
    with pytest.raises(NotConnected, match=r"Counted was made without a connection .* call parl\.connect\(\) before"):
        use(obj)
    assert isinstance(obj, Counted)
    assert repr(obj) == "<unconnected Counted>"
    assert Counted.made == before


@pytest.mark.parametrize("spelling", [lambda obj, to: obj.as_remote(to), as_remote], ids=["method", "function"])
def test_as_remote_builds_what_was_made_without_a_connection_once(
    manager: RemoteManager, spelling: Callable[[Any, str], Serving]
) -> None:
    before = Counted.made
    obj = Counted(3, 4)
    served = [spelling(obj, manager.address) for _ in range(2)]
    handles = [manager.get_remote(PATIENCE_S) for _ in range(2)]
    assert [len(handle) for handle in handles] == [2, 2]
    assert handles[0].first() == 3
    assert Counted.made == before + 1
    with pytest.raises(NotConnected):  # it is for the program with the manager alone
        obj.first()
    for serving in served:
        serving.close()


class Local:
    def __init__(self, number: int) -> None:
        self.number = number

    def double(self) -> int:
        return 2 * self.number


def test_as_remote_serves_objects_of_a_class_that_stays_local(manager: RemoteManager) -> None:
    obj: Any = parl_remote.remote_class(Local)(4)
    serving = obj.as_remote(manager.address)
    assert manager.get_remote(PATIENCE_S).double() == 8
    serving.close()
    assert not hasattr(Local, "as_remote")


def test_threads_that_serve_an_object_at_once_build_it_once() -> None:
    made: list[object] = []
    is_building, other_is_here = threading.Event(), threading.Event()

    @parl_remote.remote_class
    class Slow:
        def __init__(self) -> None:
            made.append(self)
            is_building.set()
            if len(made) == 1:
                assert other_is_here.wait(PATIENCE_S)
            else:
                other_is_here.set()

    class Seen:
        """The lock, which tells that another thread has come."""

        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                other_is_here.set()
                lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    obj = Slow()
    lock = object.__getattribute__(obj, "_parl_building")
    object.__setattr__(obj, "_parl_building", Seen())
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(served_object, obj)
        assert is_building.wait(PATIENCE_S)
        second = threads.submit(served_object, obj)
        assert first.result(PATIENCE_S) is second.result(PATIENCE_S) is made[0]
    assert len(made) == 1


def test_other_remote_objects_in_a_constructor_are_not_connected_either(manager: RemoteManager) -> None:
    @parl_remote.remote_class
    class Outer:
        def __init__(self) -> None:
            self._inner = Counted(1)

        def ask(self) -> str:
            try:
                return str(self._inner.first())
            except NotConnected:
                return "not connected"

    serving = Outer().as_remote(manager.address)  # type: ignore[attr-defined]
    assert manager.get_remote(PATIENCE_S).ask() == "not connected"
    serving.close()

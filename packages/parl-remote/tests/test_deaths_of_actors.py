"""The end of an actor as its callers see it, and the release of its slot."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import gc
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import (
    ActorLost,
    ClusterUnreachable,
    DeathKind,
    NoResources,
    NotConnected,
    _current,
    submit,
    with_options,
)
from parl_remote._actor import process as actor_process

PATIENCE_S = 60.0


@parl_remote.remote_class
class Victim:
    def __init__(self, fail: bool = False) -> None:
        self.hoard: list[bytes] = []
        if fail:
            raise ValueError("will not be made")

    def process(self) -> int:
        return os.getpid()

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def die_by(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def exit_with(self, code: int | None) -> None:
        if code is not None:
            os._exit(code)

    def read(self, path: str) -> str:
        with open(path) as file:
            return file.read()

    def sleep(self) -> None:
        time.sleep(600)

    def grow(self, mib: int) -> int:
        self.hoard.append(bytes(bytearray(mib * 2**20)))
        return len(self.hoard)

    def leave_a_child(self) -> int:
        pid = os.fork()
        if not pid:
            time.sleep(600)
        return pid

    def hang_at_the_end(self, how: str) -> None:
        actor_process._CHILDREN_S = actor_process._USERS_CODE_S = 0.1
        if how == "exit handler":
            atexit.register(self.sleep)
        elif how == "log handler":
            logging.getLogger().addHandler(HangsWhenFlushed())
        elif how == "exit handler that closed a child":
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            for step in (self.sleep, child.close, child.join, child.kill):  # the last one is taken first
                atexit.register(step)
        else:
            self.last = HangsWhenDropped()

    def start_a_process(self) -> int:
        actor_process._CHILDREN_S = 0.1
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        assert child.pid is not None
        return child.pid


@parl_remote.remote_class(n_cpu=0)
class Receiver:
    def __init__(self) -> None:
        self.count = 0

    def take(self, data: bytes, took_s: float) -> None:
        time.sleep(took_s)
        self.count += 1


@parl_remote.remote_class(n_cpu=0)
class Sender:
    def send(self, receiver: Any, count: int) -> int:
        actor_process._CHILDREN_S = actor_process._USERS_CODE_S = 0.5
        submit(receiver.take, b"", 2.0)
        for _ in range(count):
            submit(receiver.take, bytes(30_000), 0.0)
        return os.getpid()


class HangsWhenFlushed(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        pass

    def flush(self) -> None:
        time.sleep(600)  # with the lock of the handler, as `logging.shutdown` calls it


class HangsWhenDropped:
    def __del__(self) -> None:
        time.sleep(600)


def zygote_of(actor: int) -> int:
    """The process that an actor was forked from."""
    with open(f"/proc/{actor}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def wait_until_free(slots: int, within_s: float = 60.0) -> None:
    """Fails unless all slots can be taken again."""
    kind = with_options(Victim, lease_timeout_s=within_s)
    actors = [kind() for _ in range(slots)]
    assert len(actors) == slots


def test_a_killed_actor_is_reported_to_a_waiting_call_with_signal_and_last_words(connect: Callable[..., None]) -> None:
    connect()
    victim = Victim()
    victim.say("my last words")
    pid = victim.process()
    waiting = submit(victim.sleep)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorLost, match="Victim is lost: its process was killed by a signal") as lost:
        waiting.result(PATIENCE_S)
    assert lost.value.cause.kind is DeathKind.SIGNAL
    assert lost.value.cause.signal == signal.SIGKILL
    assert lost.value.cause.last_call == "sleep"
    assert lost.value.log_tail == ("my last words",)
    assert "my last words" in str(lost.value)


def test_an_actor_that_exits_is_reported_with_its_status(shared_cluster: None) -> None:
    with pytest.raises(ActorLost, match="its process exited with status 7") as lost:
        Victim().exit_with(7)
    assert lost.value.cause.exit_code == 7


def test_every_outstanding_call_of_a_lost_actor_raises(shared_cluster: None) -> None:
    victim = Victim()
    futures = [submit(victim.sleep)] + [submit(victim.process) for _ in range(20)]
    victim_future = futures[0]
    done = threading.Event()
    victim_future.add_done_callback(lambda _: done.set())
    destroy(victim)
    assert done.wait(PATIENCE_S)
    for future in futures:
        with pytest.raises(ActorLost):
            future.result(PATIENCE_S)


def test_a_result_that_is_not_requested_yet_survives_the_death(shared_cluster: None) -> None:
    victim = Victim()
    unread = submit(victim.process)
    pid = victim.process()
    last = submit(victim.die_by, signal.SIGKILL)
    concurrent.futures.wait([last], PATIENCE_S)
    assert unread.result(PATIENCE_S) == pid


@pytest.mark.parametrize("runs", [0, 1, 40])
def test_results_survive_one_of_the_first_runs_of_a_method_that_ends_the_process(
    shared_cluster: None, tmp_path: Path, runs: int
) -> None:
    victim = Victim()
    for _ in range(runs):
        victim.exit_with(None)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = submit(victim.read, str(gate))
    results = [submit(victim.process) for _ in range(5)]
    last = submit(victim.exit_with, 7)  # as the others, it has arrived when the first call returns
    gate.write_text("through")
    assert first.result(PATIENCE_S) == "through"
    assert len({result.result(PATIENCE_S) for result in results}) == 1
    with pytest.raises(ActorLost):
        last.result(PATIENCE_S)


def test_a_result_does_not_wait_for_the_slow_call_behind_it(shared_cluster: None) -> None:
    victim = Victim()
    quick = [submit(victim.process) for _ in range(10)]
    slow = submit(victim.sleep)
    assert len({future.result(PATIENCE_S) for future in quick}) == 1
    assert not slow.done()
    destroy(victim)


def test_a_call_after_the_death_says_so_at_once(shared_cluster: None) -> None:
    victim = Victim()
    with pytest.raises(ActorLost):
        victim.die_by(signal.SIGSEGV)
    with pytest.raises(ActorLost, match="SIGSEGV"):
        victim.process()
    with pytest.raises(ActorLost):
        _ = victim.hoard


def test_the_slot_of_a_killed_actor_is_free_again(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    for _ in range(3):
        victims = [Victim(), Victim()]
        for victim in victims:
            with pytest.raises(ActorLost):
                victim.die_by(signal.SIGKILL)
    wait_until_free(2)


def test_other_actors_go_on_when_one_dies(shared_cluster: None) -> None:
    victim, survivor = Victim(), Victim()
    before = survivor.process()
    with pytest.raises(ActorLost):
        victim.die_by(signal.SIGKILL)
    assert survivor.process() == before


def test_the_slot_of_a_failed_constructor_is_free_again(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="will not be made"):
            Victim(fail=True)
    wait_until_free(1)


def test_an_actor_ends_with_its_last_reference(
    share_cluster: Callable[[int], None], await_end: Callable[..., float]
) -> None:
    share_cluster(1)
    victim = Victim()
    pid = victim.process()
    del victim
    gc.collect()
    await_end([pid])
    wait_until_free(1)


def test_dropped_actors_free_slots_for_those_that_wait(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    for _ in range(10):
        assert with_options(Victim, lease_timeout_s=PATIENCE_S)().process() > 0


def test_a_destroyed_actor_is_gone_even_in_the_middle_of_a_call(
    share_cluster: Callable[[int], None], await_end: Callable[..., float]
) -> None:
    share_cluster(1)
    victim = Victim()
    pid = victim.process()
    waiting = submit(victim.sleep)
    destroy(victim)
    await_end([pid])
    with pytest.raises(ActorLost, match="destroyed by its owner"):
        waiting.result(PATIENCE_S)
    wait_until_free(1)


def test_an_actor_that_was_destroyed_by_name_says_by_whom_once(shared_cluster: None) -> None:
    victim = with_options(Victim, name="victim")()
    parl_remote.kill("victim")
    with pytest.raises(ActorLost, match=rf"it was destroyed: by [^,;]*\(process {os.getpid()}\)(;|$)"):
        victim.process()


def test_what_an_actor_has_started_goes_with_it(connect: Callable[..., None], await_end: Callable[..., float]) -> None:
    connect()
    victim = Victim()
    child = victim.leave_a_child()
    destroy(victim)
    await_end([child])


def test_an_actor_that_is_released_does_not_wait_long_for_a_child(
    share_cluster: Callable[[int], None], await_end: Callable[..., float]
) -> None:
    share_cluster(1)
    victim = Victim()
    child = victim.start_a_process()
    del victim
    assert Victim().process() != child  # its slot is free
    await_end([child])


@pytest.mark.parametrize(
    "how",
    [
        "exit handler",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("deleter", "log handler", "exit handler that closed a child")
        ),
    ],
)
def test_an_actor_whose_last_steps_hang_is_ended_and_frees_its_slot(
    share_cluster: Callable[[int], None], await_end: Callable[..., float], how: str
) -> None:
    share_cluster(1)
    victim = Victim()
    pid = victim.process()
    victim.hang_at_the_end(how)
    del victim
    assert Victim().process() != pid
    await_end([pid])


def test_a_released_actor_sends_its_last_calls_although_its_exit_handlers_have_a_limit(
    shared_cluster: None, await_end: Callable[..., float]
) -> None:
    receiver: Any = Receiver()
    sender: Any = Sender()
    pid = sender.send(receiver, 300)
    del sender
    await_end([pid])
    until = time.monotonic() + PATIENCE_S
    while receiver.count <= 300 and time.monotonic() < until:
        pass
    assert receiver.count == 301


def test_missing_resources_are_reported_with_what_was_asked_and_what_there_is(
    share_cluster: Callable[[int], None],
) -> None:
    share_cluster(2)
    kept = [Victim(), Victim()]
    with pytest.raises(NoResources, match=r"Victim asked for 1 CPU; the cluster has 2 CPU .*within 0.05 s") as refused:
        with_options(Victim, lease_timeout_s=0.05)()
    assert refused.value.asked == "1 CPU"
    assert kept[0].process() > 0


def test_a_refusal_keeps_no_actor_of_those_that_were_made_before_it(connect: Callable[..., None]) -> None:
    connect(cpu_num=2, lease_timeout_s=0.05)

    def make_as_many_as_there_are_slots_for() -> int:
        victims = []
        with contextlib.suppress(NoResources):
            while True:
                victims.append(Victim())
        return len(victims)

    gc.disable()  # the slot must come back without its help
    try:
        assert make_as_many_as_there_are_slots_for() == 2
        wait_until_free(2)
    finally:
        gc.enable()


def test_what_can_never_be_had_is_refused_at_once(connect: Callable[..., None]) -> None:
    connect(cpu_num=2, lease_timeout_s=None)
    with pytest.raises(NoResources, match="asked for 3 CPU"):
        with_options(Victim, n_cpu=3)()


def test_half_cpus_share_one(connect: Callable[..., None]) -> None:
    connect(cpu_num=1, lease_timeout_s=0.0)
    half = with_options(Victim, n_cpu=0.5)
    pair = [half(), half()]
    assert len({one.process() for one in pair}) == 2
    with pytest.raises(NoResources):
        half()


@pytest.mark.slow
def test_an_actor_that_passes_its_memory_limit_is_ended_with_the_sizes(connect: Callable[..., None]) -> None:
    connect()
    victim = with_options(Victim, max_memory=64)()
    assert victim.grow(8) == 1
    submit(victim.grow, 128)
    with pytest.raises(ActorLost, match=r"passed its memory limit: it used \d+ MiB, its limit is 64 MiB") as lost:
        victim.sleep()
    assert lost.value.cause.kind is DeathKind.MEMORY


def test_a_stopped_actor_is_lost_after_the_liveness_limit(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARL_LIVENESS_LIMIT", "1.5")
    connect()
    victim = Victim()
    os.kill(victim.process(), signal.SIGSTOP)
    waiting = submit(victim.process)
    with pytest.raises(ActorLost, match=r"SIGSTOP.*stopped for more than 1\.5 s"):
        waiting.result(PATIENCE_S)


@pytest.mark.slow
def test_a_stopped_node_is_lost_after_the_liveness_limit_and_actors_go_on(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARL_LIVENESS_LIMIT", "1.5")
    connect()
    victim = Victim()
    os.kill(node_pid(), signal.SIGSTOP)
    try:
        with pytest.raises((NotConnected, ClusterUnreachable), match="no sign of life"):
            Victim()
        assert victim.process() > 0
    finally:
        os.kill(node_pid(), signal.SIGCONT)


@pytest.mark.slow
def test_the_zygote_s_death_takes_its_actors_and_the_next_actor_gets_another(
    connect: Callable[..., None], session_processes: Callable[[int], dict[int, str]]
) -> None:
    connect()
    victim = Victim()
    actor = victim.process()
    zygote = zygote_of(actor)
    assert session_processes(node_pid())[zygote] == "parl:zygote"
    waiting = submit(victim.sleep)
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(ActorLost, match="forked from was killed"):
        waiting.result(PATIENCE_S)
    assert Victim().process() > 0


def test_a_stopped_zygote_is_not_left_behind(connect: Callable[..., None]) -> None:
    connect()
    victim = Victim()
    os.kill(zygote_of(victim.process()), signal.SIGSTOP)
    assert victim.process() > 0
    parl_remote.disconnect()  # `connect` looks for processes that are left


def test_the_node_s_death_is_reported_to_waiting_calls(
    connect: Callable[..., None], await_end: Callable[..., float], session_processes: Callable[[int], dict[int, str]]
) -> None:
    connect()
    victim = Victim()
    actor = victim.process()
    processes = list(session_processes(node_pid()))
    waiting = submit(victim.sleep)
    os.kill(node_pid(), signal.SIGKILL)
    with pytest.raises(ActorLost, match="node was lost") as lost:
        waiting.result(PATIENCE_S)
    cause = lost.value.cause
    assert (cause.class_name, cause.pid, cause.last_call) == ("Victim", actor, "sleep")
    assert cause.lease_id
    assert abs(cause.at - time.time()) < PATIENCE_S
    await_end(processes)
    with pytest.raises(NotConnected, match="is gone"):
        Victim()


@pytest.mark.slow
def test_objects_are_refused_after_disconnect_and_work_after_the_next_connect(connect: Callable[..., None]) -> None:
    connect()
    victim = Victim()
    parl_remote.disconnect()
    with pytest.raises(ActorLost, match="the program disconnected"):
        victim.process()
    with pytest.raises(NotConnected, match=r"call parl\.connect"):
        Victim().process()
    connect()
    assert Victim().process() > 0


def test_disconnecting_ends_a_call_that_waits(connect: Callable[..., None]) -> None:
    connect()
    waiting = submit(Victim().sleep)
    threading.Timer(0.0, parl_remote.disconnect).start()
    with pytest.raises(ActorLost):
        waiting.result(PATIENCE_S)


def test_an_actor_may_be_released_while_the_program_disconnects(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(cpu_num=1)
    victim: Any = Victim()
    client: Any = _current.client()
    (record,) = client.own.records.values()

    def released_meanwhile(connection: Any) -> bool:
        record.connection = None
        return True

    monkeypatch.setattr(type(record.connection), "is_full", released_meanwhile)
    parl_remote.disconnect()
    with pytest.raises(ActorLost):
        victim.process()


def test_actors_finish_what_was_sent_and_run_their_exit_handlers_when_the_program_disconnects(
    connect: Callable[..., None], tmp_path: Any
) -> None:
    @parl_remote.remote_class(wait=False)
    class Tidy:
        def __init__(self, path: str) -> None:
            self.path = path
            atexit.register(self.sign, "exit")

        def sign(self, word: str) -> None:
            with open(self.path, "a") as file:
                file.write(word + " ")

        def __del__(self) -> None:
            self.sign("del")

    connect()
    tidy: Any = Tidy(str(tmp_path / "signed"))
    tidy.sign("call")
    parl_remote.disconnect()
    assert (tmp_path / "signed").read_text().split()[:2] == ["call", "exit"]


def test_an_exit_handler_of_a_program_that_was_registered_after_connecting_uses_actors(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_program(
        program="""
import atexit
import parl_remote as parl

@parl.remote_class
class Counter:
    def add(self):
        return 1

parl.connect(cpu_num=1)
counter = Counter()
atexit.register(lambda: print(counter.add()))
"""
    )
    assert (done.stderr, done.stdout, done.returncode) == ("", "1\n", 0)


def test_a_released_actor_ends_though_a_thread_that_is_no_daemon_runs_on(
    shared_cluster: None, await_end: Callable[..., float]
) -> None:
    @parl_remote.remote_class
    class Waits:
        def start(self) -> int:
            threading.Thread(target=threading.Event().wait).start()
            return os.getpid()

    waits = Waits()
    pid = waits.start()
    del waits
    await_end([pid])


@parl_remote.remote_class
class Giver:
    def give(self) -> bytes:
        time.sleep(0.001 + actor_process._SLOW_S)
        return bytes(2**22)

    def most_memory(self) -> int:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@parl_remote.remote_class
class Taker:
    def take_from(self, giver: Any, calls: int) -> None:
        submitted = [submit(giver.give) for _ in range(calls)]
        submitted[0].result()
        os.kill(os.getpid(), signal.SIGKILL)


def test_answers_for_a_caller_that_is_gone_are_not_kept(shared_cluster: None) -> None:
    giver, taker, calls = Giver(), Taker(), 100
    with pytest.raises(ActorLost):
        taker.take_from(giver, calls)
    assert giver.most_memory() < 2**22 * calls / 2


def destroy(actor: object) -> None:
    """`destroy` is offered beside the class's own methods, unknown to type checkers."""
    getattr(actor, "destroy")()  # noqa: B009


def node_pid() -> int:
    cluster = getattr(_current.client(), "_cluster")  # noqa: B009
    return int(cluster.pid)


@pytest.fixture(autouse=True)
def _no_actor_left_in_a_local_variable() -> Any:
    yield
    with contextlib.suppress(Exception):
        gc.collect()

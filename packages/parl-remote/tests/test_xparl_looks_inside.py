"""`xparl list`, `logs`, `kill`, `drain` and `top` on real clusters, as a person uses them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from xparl_command import XPARL, xparl

from faults.polling import eventually
from faults.ports import unused_port
from parl_remote._config import environment
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Role
from parl_remote._messages.overview import ClusterEvent, EventKind, Events, ListEvents
from parl_remote._messages.parts import LogText, ReadLog
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote.cli._logs import _later_events
from parl_remote.cli._session import _matching
from parl_remote.cli._show import _actor_table, age, clip, size, table
from parl_remote.errors import RemoteError

PROGRAM = """
import logging, os, sys, time
import parl_remote as parl

@parl.remote_class
class Trainer:
    def __init__(self):
        print("made")
    def say(self, text, error=False):
        print(text, file=sys.stderr if error else sys.stdout, flush=True)
        return os.getpid()
    def root_logger(self):
        root = logging.getLogger()
        return f"{root.handlers} {logging.getLevelName(root.level)}"
    def sleep(self, seconds):
        time.sleep(seconds)
    def die(self):
        print("last words")
        os._exit(3)

@parl.remote_class
class Other:
    pass

parl.connect(f"localhost:{sys.argv[1]}")
"""


class Desk:
    """A user with a cluster on a separate port, and programs that use it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = unused_port()
        self.programs: list[subprocess.Popen[str]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_"))}
        self.environment = {
            **kept,
            "PARL_RUN_DIR": str(home / ".parl"),
            "PARL_MONITOR": "0",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }

    def xparl(self, *arguments: object, fails: bool = False, **variables: str) -> str:
        done = xparl(*arguments, environment={**self.environment, **variables})
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def program(self, body: str) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM + textwrap.dedent(body), str(self.port)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(running)
        return running

    def follow(self, *arguments: object) -> subprocess.Popen[str]:
        """A command that goes on."""
        running = subprocess.Popen(
            [*XPARL, *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(running)
        return running

    def listed(self, what: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = json.loads(self.xparl("list", what, "--json"))[what]
        return rows


def line_of(program: subprocess.Popen[str], seconds: float = 60.0) -> str:
    assert program.stdout is not None
    assert select.select([program.stdout], [], [], seconds)[0], "the program said nothing"
    line = program.stdout.readline()
    assert line, program.communicate()[1]
    return line.strip()


@contextmanager
def desk_at(home: Path) -> Iterator[Desk]:
    one = Desk(home)
    one.xparl("start", "--port", one.port, "--cpu_num", 4)
    yield one
    for program in one.programs:
        program.kill()
        program.communicate()
    one.xparl("stop", "--all")


def with_two_trainers(desk: Desk) -> Desk:
    """A program on it has two trainers, the first of which is named, and obeys lines."""
    program = desk.program("""
        first, second = Trainer.options(name="chief")(), Trainer()
        print(first.say("from the chief"), second.say("from the second"))
        for line in sys.stdin:
            try:
                exec(line)
            except parl.ActorLost as error:
                print("lost", error.cause.kind.name)
            print("done")
    """)
    line_of(program)
    return desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path) as one:
        yield one


@pytest.fixture
def busy_desk(desk: Desk) -> Desk:
    return with_two_trainers(desk)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One desk with two trainers for all tests that only look: their actors say nothing more, and live."""
    with desk_at(tmp_path_factory.mktemp("watched")) as one:
        yield with_two_trainers(one)


def tell(desk: Desk, line: str) -> str:
    program = desk.programs[0]
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()
    return line_of(program)


# -- list -------------------------------------------------------------------------------------------------------------


def test_list_shows_actors_nodes_and_clients(watched: Desk) -> None:
    shown = watched.xparl("list")
    assert re.search(r"^ID +CLASS +NAME +NODE +PID +STATE", shown)
    assert len(re.findall(r"^[0-9a-f]{8}  Trainer", shown, re.MULTILINE)) == 2
    actors = watched.listed("actors")
    assert [(one["class_name"], one["name"]) for one in actors] == [("Trainer", "chief"), ("Trainer", "")]
    (node,) = watched.listed("nodes")
    assert (node["phase"], node["actors"], node["is_master"]) == ("up", 2, True)
    (client,) = watched.listed("clients")
    assert (client["pid"], client["leases"]) == (watched.programs[0].pid, 2)
    assert "2 of 4" in watched.xparl("list", "nodes")
    assert str(client["pid"]) in watched.xparl("list", "clients")


@pytest.mark.slow
def test_list_of_an_empty_cluster_says_so(desk: Desk) -> None:
    assert "has no actors" in desk.xparl("list")
    assert json.loads(desk.xparl("list", "--json")) == {"actors": []}


@pytest.mark.slow
def test_a_death_is_listed_with_its_cause(busy_desk: Desk) -> None:
    assert tell(busy_desk, "second.die()") == "lost EXIT"
    shown = busy_desk.xparl("list", "deaths")
    assert "exited with status 3" in shown
    (death,) = busy_desk.listed("deaths")
    assert death["class_name"] == "Trainer"


def test_commands_without_a_cluster_say_how_to_name_one(tmp_path: Path) -> None:
    elsewhere = Desk(tmp_path)
    for command in (["list"], ["logs", "a"], ["kill", "a"], ["drain", "a"], ["top"]):
        said = elsewhere.xparl(*command, fails=True)
        assert "--address host:port" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_two_clusters_have_to_be_told_apart(desk: Desk) -> None:
    other = unused_port()
    desk.xparl("start", "--port", other, "--cpu_num", 1)
    said = desk.xparl("list", fails=True)
    assert f"--port {desk.port}" in said
    assert f"--port {other}" in said
    assert "has no actors" in desk.xparl("list", "--port", other)


@pytest.mark.slow
def test_a_host_that_only_joined_a_cluster_looks_at_that_one(busy_desk: Desk, tmp_path: Path) -> None:
    joined = Desk(tmp_path / "second")
    (key,) = (busy_desk.home / ".parl").glob("*/key")
    joined.xparl("connect", "--address", f"localhost:{busy_desk.port}", "--cpu_num", 1, PARL_KEY_FILE=str(key))
    try:
        assert len(joined.listed("nodes")) == 2
        assert "2 nodes" in joined.xparl("status")
        assert "from the chief" in joined.xparl("logs", "chief")
    finally:
        joined.xparl("stop", "--all")


# -- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_logs_are_found_by_id_prefix_name_and_class(watched: Desk) -> None:
    chief, second = watched.listed("actors")
    whole = str(second["lease_id"])
    for meant in (whole, whole[:12], whole.partition("-")[2][:8]):
        assert watched.xparl("logs", meant) == "made\nfrom the second\n"
    assert watched.xparl("logs", "chief", "-n", 1) == "from the chief\n"
    assert watched.xparl("logs", "chief", "-n", 0) == ""
    said = watched.xparl("logs", "Trainer", fails=True)
    assert "matches 2 actors" in said
    assert str(chief["lease_id"]).partition("-")[2][:8] in said
    assert "no actor 'nobody'" in watched.xparl("logs", "nobody", fails=True)


def test_actors_that_may_be_meant_are_told_apart_by_their_names() -> None:
    actors: Any = [
        SimpleNamespace(lease_id=f"lease-aaaa{number}", name=name, class_name="Trainer")
        for number, name in enumerate(["chief", ""])
    ]
    with pytest.raises(click.ClickException, match=r"aaaa0 \(Trainer chief\), aaaa1 \(Trainer\); give more"):
        _matching(actors, "Trainer")


def test_the_owner_of_a_detached_actor_is_left_out_when_it_has_ended() -> None:
    numbers = SimpleNamespace(pid=1, phase=SimpleNamespace(value="idle"), busy_with="", memory=0, calls=0)
    rest = {"node": "n", "node_address": "n:1", "numbers": numbers, "resources": "1 CPU", "age_s": 1.0, "name": ""}
    actors: Any = [
        SimpleNamespace(lease_id="lease-aaaa", class_name="Trainer", owner=owner, detached=True, **rest)
        for owner in ("train.py", "")
    ]
    lines = _actor_table(Mock(), actors)
    assert [line.partition("1 s  ")[2].strip() for line in lines[1:]] == ["train.py, detached", "detached"]


def test_the_root_logger_of_an_actor_has_nothing_of_its_node(watched: Desk) -> None:
    assert tell(watched, "print(first.root_logger(), end=' ')") == "[] WARNING done"


@pytest.mark.slow
def test_both_streams_are_in_one_log_in_order(busy_desk: Desk) -> None:
    tell(busy_desk, "[first.say(f'line {i}', error=i % 2 == 1) for i in range(6)]")
    assert busy_desk.xparl("logs", "chief", "-n", 6).splitlines() == [f"line {i}" for i in range(6)]


@pytest.mark.slow
def test_following_shows_lines_as_they_come_and_ends_with_the_actor(busy_desk: Desk) -> None:
    following = busy_desk.follow("logs", "chief", "-f", "-n", 1)
    assert line_of(following) == "from the chief"
    tell(busy_desk, "first.say('one more')")
    assert line_of(following) == "one more"
    assert tell(busy_desk, "first.die()") == "lost EXIT"
    assert line_of(following) == "last words"
    assert following.wait(30) == 0


def test_ctrl_c_ends_following_at_once(watched: Desk) -> None:
    following = watched.follow("logs", "chief", "-f")
    line_of(following)
    following.send_signal(signal.SIGINT)
    assert following.wait(30) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""


@pytest.mark.slow
def test_a_dead_actors_log_stays_readable_while_the_cluster_runs(busy_desk: Desk) -> None:
    chief = busy_desk.listed("actors")[0]
    tell(busy_desk, "first.die()")
    for meant in ("chief", str(chief["lease_id"])):
        assert busy_desk.xparl("logs", meant) == "made\nfrom the chief\nlast words\n"


@pytest.mark.slow
def test_logs_come_through_the_port_of_another_worker(desk: Desk) -> None:
    desk.xparl("stop", "--all")
    desk.xparl("start", "--port", desk.port, "--cpu_num", 0)
    desk.xparl("connect", "--address", f"localhost:{desk.port}", "--cpu_num", 1)
    program = desk.program("a = Trainer(); print(a.say('from the worker')); sys.stdin.read()")
    line_of(program)
    assert desk.xparl("logs", "Trainer") == "made\nfrom the worker\n"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "actor-1.log", "..", "", "lease-\x00", "*"])
def test_no_name_leads_a_worker_to_a_file(watched: Desk, name: str) -> None:
    found = environment(watched.environment)
    cluster = ClusterAddress(f"localhost:{watched.port}", found)
    worker = RequestConnection(cluster.connect_master(), Role.WORKER, found.limits, "test")
    with worker, pytest.raises(RemoteError, match="no log of"):
        worker.ask(lambda number: ReadLog(number, name), LogText)


# -- kill and drain ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_ends_the_actor_that_is_meant_and_says_how(busy_desk: Desk) -> None:
    said = busy_desk.xparl("kill", "chief", "--reason", "makes room")
    assert said.startswith("Trainer chief ")
    assert "makes room" in said
    assert [one["name"] for one in busy_desk.listed("actors")] == [""]
    assert tell(busy_desk, "first.say('x')") == "lost KILLED_BY_USER"


def test_kill_ends_no_actor_if_one_name_is_wrong(watched: Desk) -> None:
    assert "no actor 'nobody'" in watched.xparl("kill", "chief", "nobody", fails=True)
    assert len(watched.listed("actors")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("digits", [0, 1, 3])
def test_too_little_of_an_id_matches_no_actor(watched: Desk, digits: int) -> None:
    """An empty variable of a script, or the name of an actor that has ended, must not end another one."""
    little = str(watched.listed("actors")[1]["lease_id"]).partition("-")[2][:digits]
    assert f"no actor {little!r}" in watched.xparl("kill", little, fails=True)
    assert f"no actor {little!r}" in watched.xparl("logs", little, fails=True)
    assert f"no node {little!r}" in watched.xparl("drain", little, fails=True)
    assert len(watched.listed("actors")) == 2


@pytest.mark.slow
def test_a_drained_worker_takes_no_more_actors_and_leaves(desk: Desk) -> None:
    desk.xparl("connect", "--address", f"localhost:{desk.port}", "--cpu_num", 2)
    eventually(lambda: len(desk.listed("nodes")) == 2)
    worker: Any = next(node for node in desk.listed("nodes") if not node["is_master"])
    said = desk.xparl("drain", str(worker["node_id"]).partition("-")[2][:8], "--wait", "--reason", "new kernel")
    label = f"{worker['name']}:{str(worker['addresses'][0]).rpartition(':')[2]}"
    assert f"{label} takes no more actors" in said
    assert f"{label} has no actors any more" in said
    eventually(lambda: len(desk.listed("nodes")) == 1)
    assert "there is no node 'nothing'" in desk.xparl("drain", "nothing", fails=True)


@pytest.mark.slow
def test_status_says_that_the_master_s_node_is_drained_and_stays(desk: Desk) -> None:
    (node,) = desk.listed("nodes")
    said = desk.xparl("drain", str(node["node_id"]).partition("-")[2][:8], "--wait")
    assert "it stays, because the master runs in it" in said
    assert "is drained until the cluster is stopped and started again" in desk.xparl("status")
    desk.xparl("stop")
    desk.xparl("start", "--port", desk.port, "--cpu_num", 1)
    assert "drained" not in desk.xparl("status")


@pytest.mark.slow
def test_of_two_nodes_of_one_name_one_has_to_be_named_by_its_id(desk: Desk) -> None:
    desk.xparl("connect", "--address", f"localhost:{desk.port}", "--cpu_num", 2)
    eventually(lambda: len(desk.listed("nodes")) == 2)
    ids = [str(node["node_id"]).partition("-")[2][:8] for node in desk.listed("nodes")]
    said = desk.xparl("drain", socket.gethostname(), fails=True)
    assert all(one in said for one in ids)
    shown = desk.xparl("list", "nodes")
    assert all(one in shown for one in ids)


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_worker_is_reported_and_listed_until_it_is_acknowledged(desk: Desk) -> None:
    follower = subprocess.Popen(
        [*XPARL, "events", "-f", "--json"],
        env=desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    desk.programs.append(follower)
    assert json.loads(line_of(follower))["kind"] == "node_joined"
    desk.xparl("connect", "--address", f"localhost:{desk.port}", "--cpu_num", 2)
    joined = json.loads(line_of(follower))
    (worker,) = [one for one in desk.listed("nodes") if not one["is_master"]]
    assert (joined["kind"], joined["node_id"]) == ("node_joined", worker["node_id"])
    os.kill(int(str(worker["pid"])), signal.SIGKILL)
    lost = json.loads(line_of(follower))
    assert (lost["kind"], lost["address"]) == ("node_lost", joined["address"])
    (shown,) = [one for one in desk.listed("nodes") if one["phase"] == "lost"]
    assert shown["lost_at"] == lost["at"]
    port = lost["address"].rpartition(":")[2]
    label = f"{socket.gethostname()}:{port}"
    for text in (desk.xparl("status"), desk.xparl("list", "nodes")):
        assert str(shown["cause"]) in text
        assert port in text
    assert "lost" in desk.xparl("top")
    assert "there is no lost node 'else'" in desk.xparl("acknowledge", "else", fails=True)
    assert desk.xparl("acknowledge", label, label).count(label) == 1
    assert len(desk.listed("nodes")) == 1
    assert json.loads(line_of(follower))["kind"] == "node_acknowledged"
    assert "LOST" not in desk.xparl("status")
    shown_events = desk.xparl("events", "--kind", "node_lost", "--kind", "node_acknowledged").splitlines()
    assert ["node_lost" in line for line in shown_events] == [True, False]
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 0


@pytest.mark.slow
def test_following_events_goes_on_with_a_master_that_is_started_again(desk: Desk) -> None:
    follower = desk.follow("events", "-f", "--json")
    assert json.loads(line_of(follower))["kind"] == "node_joined"
    (node,) = desk.listed("nodes")
    os.kill(int(str(node["pid"])), signal.SIGKILL)
    assert follower.stderr is not None
    assert "waiting up to 30 s until it is started again" in follower.stderr.readline()
    desk.xparl("start", "--port", desk.port, "--cpu_num", 4)
    assert "answers again" in follower.stderr.readline()
    while (event := json.loads(line_of(follower)))["kind"] != "node_joined":
        pass
    assert event["number"] > 1
    desk.xparl("stop", "--port", desk.port)
    assert follower.wait(60) == 0
    assert "has ended: the cluster was stopped" in follower.stderr.read()


def test_events_of_a_master_that_has_lost_its_history_are_followed_from_the_first() -> None:
    def event(number: int) -> ClusterEvent:
        return ClusterEvent(number, 0.0, EventKind.NODE_JOINED, "joined")

    class Master:
        rest = staticmethod(lambda _: None)

        def ask(self, make: Callable[[int], ListEvents], _: object) -> Events:
            after = make(1).after
            since, numbers = told.pop(0)
            return Events(1, tuple(event(number) for number in numbers if number > after), max(numbers), since)

    told = [(1.0, [8, 9]), (2.0, [1, 2]), (2.0, [1, 2]), (2.0, [1, 2, 3])]
    events = _later_events(SimpleNamespace(master=Master()), 1.0, 8)  # type: ignore[arg-type]
    assert [next(events).number for _ in range(4)] == [9, 1, 2, 3]


# -- top --------------------------------------------------------------------------------------------------------------


def test_top_writes_one_look_into_a_pipe(watched: Desk) -> None:
    shown = watched.xparl("top")
    assert shown.startswith("xparl top - ")
    assert "1 node, 1 program, 2 actors" in shown
    assert "\x1b" not in shown
    assert "Trainer chief" in shown
    looks = [json.loads(line) for line in watched.xparl("top", "--json", "-n", 2, "-d", 0.1).splitlines()]
    assert [len(look["actors"]) for look in looks] == [2, 2]


def read_until(terminal: int, text: bytes, seconds: float = 60.0) -> bytes:
    """Return a terminal's output up to a text."""
    seen = b""
    deadline = time.monotonic() + seconds
    while text not in seen:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], seen
        seen += os.read(terminal, 65536)
    return seen


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_draws_on_a_terminal_and_leaves_it_as_it_was(watched: Desk, key: bytes) -> None:
    ours, theirs = pty.openpty()
    try:
        running = subprocess.Popen(
            [*XPARL, "top", "-d", "0.2"],
            env={**watched.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(theirs)
        seen = read_until(ours, b"Trainer chief")
        assert b"\x1b[?1049h" in seen
        os.write(ours, b"m")
        read_until(ours, b"Trainer chief")
        os.write(ours, key)
        read_until(ours, b"\x1b[?1049l")
        assert running.wait(60) in {0, 1}
    finally:
        os.close(ours)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_tables_align_and_no_name_moves_the_cursor() -> None:
    lines = table(["NAME", "N"], [["a\x1b[2Jb", "1"], ["强化", "22"]], right=("N",))
    assert lines == ["NAME     N", "a?[2Jb   1", "强化    22"]
    assert clip("强化学习", 5) == "强化"
    assert (size(5 * 2**20), size(3 * 2**30)) == ("5 M", "3.0 G")
    assert [age(s) for s in (5, 65, 3661, 200000)] == ["5 s", "1:05 m", "1:01 h", "2 d"]

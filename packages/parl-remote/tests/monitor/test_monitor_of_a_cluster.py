"""A real monitor of a real cluster: processes, ports, logs, stacks, and the end of all that."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xparl_command import XPARL, xparl

from faults.ports import unused_port
from parl_remote._links.identity import host_name, versions

DEADLINE_S = 60.0
PROGRAM = """
import sys, time
import parl_remote as parl
parl.connect(sys.argv[1])

@parl.remote_class(wait=False)
class Worker:
    def __init__(self):
        print("made")
    def quick(self):
        return 1
    def raises(self):
        raise ValueError("the step was too long")
    def busy_for_ever(self):
        print("busy", file=sys.stderr)
        while True:
            sum(range(1000))

busy, idle = Worker(), Worker()
for _ in range(50):
    idle.quick().get()
try:
    idle.raises().get()
except ValueError:
    pass
running = busy.busy_for_ever()
print("ready", flush=True)
try:
    running.get()
except Exception as error:
    print(type(error).__name__, error, flush=True)
sys.stdin.read()
"""


class Place:
    """A home for one cluster and its monitor."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self.monitor_port = unused_port(), unused_port()
        self.programs: list[subprocess.Popen[str]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_"))}
        paths = os.pathsep.join(path for path in sys.path if path)
        self.environment = {**kept, "HOME": str(home), "PARL_RUN_DIR": str(home / "run"), "PYTHONPATH": paths}

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.monitor_port}"

    @property
    def directory(self) -> Path:
        (found,) = (self.home / "run").glob(f"*-{self.port}")
        return found

    def xparl(self, *arguments: object, fails: bool = False, **variables: str) -> str:
        done = xparl(*arguments, environment={**self.environment, **variables})
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def start(self, *options: object) -> str:
        return self.xparl("start", "--port", self.port, "--cpu_num", 3, "--monitor_port", self.monitor_port, *options)

    def begin(
        self, *arguments: object, stdout: int = subprocess.PIPE, stderr: int | None = None
    ) -> subprocess.Popen[str]:
        """Start the command, which goes on."""
        command = [*XPARL, *map(str, arguments)]
        running = subprocess.Popen(
            command, env={**self.environment, "PYTHONUNBUFFERED": "1"}, text=True, stdout=stdout, stderr=stderr
        )
        self.programs.append(running)
        return running

    def program(self) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"localhost:{self.port}"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(running)
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        return running

    def get(self, path: str) -> Any:
        with _no_proxy.open(self.base + path, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def post(self, path: str) -> Any:
        token = (self.directory / "monitor.token").read_text().strip()
        request = urllib.request.Request(self.base + path, b"{}", {"Authorization": f"Bearer {token}"})
        with _no_proxy.open(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Ask repeatedly, as an open page does."""
        deadline = time.monotonic() + DEADLINE_S
        problem: object = ""
        while time.monotonic() < deadline:
            try:
                if found := condition():
                    return found
            except (urllib.error.URLError, ConnectionError) as error:
                problem = error
            select_nothing(0.05)
        pytest.fail(f"it never came to this: {what} {problem}")

    def up(self) -> None:
        self.until(lambda: self.get("/healthz")["ok"], "the monitor is up")

    def monitor_pid(self) -> int:
        record = self.until(lambda: next(iter((self.home / "run").glob("*/monitor.json")), None), "it is on record")
        return int(json.loads(record.read_text())["process"]["pid"])

    def close(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate()
        self.xparl("stop", "--all")


_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def select_nothing(seconds: float) -> None:
    """Let others work; there is no event to wait for at a web page."""
    signal.sigtimedwait([], seconds)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.mark.slow
def test_a_monitor_shows_what_a_cluster_does(place: Place, await_end: Callable[..., float]) -> None:
    said = place.start()
    assert f"In a browser       {place.base}" in said
    place.up()
    assert f"monitor at {place.base}" in place.xparl("status", "--port", place.port)
    program = place.program()

    def actors() -> dict[str, Any]:
        return {row["running"]: row for row in place.get("/api/v1/actors")["rows"]}

    row = place.until(lambda: actors().get("busy_for_ever"), "the busy actor is seen")
    assert (row["state"], row["class_name"]) == ("busy", "Worker")
    assert row["pid"] > 0
    assert row["memory"] > 2**20
    idle = place.until(lambda: (found := actors().get("")) and found["calls"] and found, "the idle one has counted")
    assert (idle["calls"], idle["errors"]) == (51, 1)
    assert idle["last_error"] == "ValueError: the step was too long"
    place.until(lambda: actors()["busy_for_ever"]["busy"] > 0.8, "it is seen to be busy all the time")

    assert place.get("/api/v1/cluster")["cluster"]["version"] == versions()["parl_remote"]
    (node,) = place.get("/api/v1/nodes")["rows"]
    assert (node["cpus"], node["cpus_used"], node["actors"]) == (3, 2, 2)
    assert node["memory_total"] > node["memory_used"] > 0
    (driver,) = place.get("/api/v1/drivers")["rows"]
    assert (driver["pid"], driver["actors"]) == (program.pid, 2)

    log = place.get(f"/api/v1/actors/{row['actor_id']}/log")
    assert "".join(text for text, _ in log["pieces"]) == "made\nbusy\n"

    stack = place.post(f"/api/v1/actors/{row['actor_id']}/stack")["text"]
    assert re.search(r"line \d+ in busy_for_ever", stack)

    place.post(f"/api/v1/actors/{row['actor_id']}/kill")
    assert program.stdout is not None
    assert "ActorLost" in program.stdout.readline()
    death = place.until(
        lambda: next(iter(place.get("/api/v1/deaths")["rows"]), None), "its death is on record in the monitor"
    )
    assert (death["actor_id"], death["kind"]) == (row["actor_id"], "killed_by_user")
    assert place.get(f"/api/v1/deaths/{row['actor_id']}")["log_tail"] == ["made", "busy"]
    assert 'parl_actor_deaths_total{cause="killed_by_user",class="Worker"} 1.0' in _text(place.base + "/metrics")

    pid = place.monitor_pid()
    place.xparl("stop", "--port", place.port)
    await_end([pid])
    assert not list((place.home / "run").glob("*/monitor.json"))


@pytest.mark.slow
def test_a_monitor_ends_with_a_cluster_that_is_killed(place: Place, await_end: Callable[..., float]) -> None:
    place.start()
    place.up()
    pid = place.monitor_pid()
    record = json.loads((place.directory / "cluster.json").read_text())
    os.kill(record["process"]["pid"], signal.SIGKILL)
    await_end([pid])


@pytest.mark.slow
def test_the_token_is_in_no_command_line_and_in_no_log(place: Place) -> None:
    place.start()
    place.up()
    token = (place.directory / "monitor.token").read_text().strip()
    command = Path(f"/proc/{place.monitor_pid()}/cmdline").read_bytes()
    assert token.encode() not in command
    for path in place.directory.glob("*.log"):
        assert token not in path.read_text()
    assert (place.directory / "monitor.token").stat().st_mode & 0o077 == 0
    assert (place.directory / "monitor.log").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_cluster_in_the_foreground_has_its_monitor_too(place: Place, await_end: Callable[..., float]) -> None:
    options = ["--port", place.port, "--cpu_num", 1, "--monitor_port", place.monitor_port, "--foreground"]
    node = place.begin("start", *options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    place.up()
    pid = place.monitor_pid()
    assert place.get("/api/v1/cluster")["totals"]["cpus"] == 1
    node.send_signal(signal.SIGINT)
    assert node.wait(DEADLINE_S) == 0
    await_end([pid])


@pytest.mark.slow
def test_the_token_exists_before_it_is_announced(place: Place) -> None:
    token_file = Path(place.start().split("to change anything, is in ")[1].split(")")[0])
    token = token_file.read_text()
    assert len(token) > 40
    assert token_file.stat().st_mode & 0o777 == 0o600
    place.up()
    assert token_file.read_text() == token  # the monitor has taken it
    place.xparl("stop", "--port", place.port)
    place.start()
    place.up()
    assert token_file.read_text() == token  # a scraper that has a copy goes on


@pytest.mark.slow
def test_a_token_can_be_given(place: Place) -> None:
    given = place.home / "given.token"
    assert "there is no token file" in place.xparl(
        "start", "--port", place.port, "--monitor_token_file", given, fails=True
    )
    given.write_text("of our own choice 123\n")
    given.chmod(0o600)
    place.start("--monitor_token_file", given)
    place.up()
    path = f"{place.base}/api/v1/session"

    def is_known(token: str) -> bool:
        with _no_proxy.open(urllib.request.Request(path, None, {"Authorization": f"Bearer {token}"})) as answer:
            return bool(json.load(answer)["signed_in"])

    assert is_known("of our own choice 123")
    assert not is_known("of our own choice 124")
    place.xparl("stop", "--port", place.port)
    given.write_text("short\n")
    refused = place.xparl("start", "--port", place.port, fails=True, PARL_MONITOR_TOKEN_FILE=str(given))
    assert "5 characters" in refused


@pytest.mark.slow
def test_no_monitor_is_started_where_none_is_wanted(place: Place) -> None:
    assert "In a browser" not in place.xparl("start", "--port", place.port, "--cpu_num", 1, "--monitor_port", 0)
    place.xparl("stop", "--port", place.port)
    assert "In a browser" not in place.xparl("start", "--port", place.port, "--cpu_num", 1, PARL_MONITOR="0")
    assert not list((place.home / "run").glob("*/monitor.*"))


def test_a_port_in_use_is_reported_before_anything_is_started(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.monitor_port)):
        said = place.xparl(
            "start", "--port", place.port, "--cpu_num", 1, "--monitor_port", place.monitor_port, fails=True
        )
        assert f"{place.monitor_port} is in use" in said
    assert "There is no cluster" in place.xparl("status", "--port", place.port, fails=True)


def test_a_monitor_can_be_started_for_a_cluster_that_runs(place: Place) -> None:
    place.xparl("start", "--port", place.port, "--cpu_num", 1, "--monitor_port", 0)
    monitor = place.begin("monitor", "--monitor_port", place.monitor_port)
    assert monitor.stdout is not None
    assert f"is shown at {place.base}" in monitor.stdout.readline()
    assert place.get("/api/v1/cluster")["totals"]["cpus"] == 1
    monitor.send_signal(signal.SIGINT)
    assert monitor.wait(DEADLINE_S) == 0
    assert not list((place.home / "run").glob("*/monitor.json"))


def test_a_monitor_runs_where_its_record_cannot_be_written(place: Place) -> None:
    place.xparl("start", "--port", place.port, "--cpu_num", 1, "--monitor_port", 0)
    token = place.home / "token"
    token.touch(0o600)
    token.write_text("a token of enough characters\n")
    in_its_place = place.home / "run" / f"{host_name()}-monitor-{place.monitor_port}" / "monitor.json"
    in_its_place.parent.mkdir(0o700)
    in_its_place.mkdir()
    command = ["monitor", "--monitor_port", str(place.monitor_port), "--token_file", str(token)]
    monitor = place.begin(*command, stderr=subprocess.PIPE)
    place.up()
    monitor.send_signal(signal.SIGINT)
    _, said = monitor.communicate(timeout=DEADLINE_S)
    assert monitor.returncode == 0, said
    assert f"xparl stop cannot find this monitor, process {monitor.pid}" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_monitor_stays_when_the_master_is_gone_and_says_so(place: Place) -> None:
    place.xparl("start", "--port", place.port, "--cpu_num", 1, "--monitor_port", 0)
    command = ["monitor", "--monitor_port", str(place.monitor_port), "--address", f"localhost:{place.port}"]
    place.begin(*command)
    place.up()
    record = json.loads((place.directory / "cluster.json").read_text())
    os.kill(record["process"]["pid"], signal.SIGKILL)

    def status() -> int:
        try:
            place.get("/healthz")
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    place.until(lambda: status() == 503, "the probe fails")
    assert place.get("/api/v1/cluster")["healthy"] is False
    place.xparl("start", "--port", place.port, "--cpu_num", 2, "--monitor_port", 0)
    place.until(lambda: status() == 200, "the probe is well again")
    assert place.get("/api/v1/cluster")["totals"]["cpus"] == 2


def test_missing_packages_are_reported_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from parl_remote._monitor import launch
    from parl_remote.errors import RemoteError

    monkeypatch.setattr(launch, "_NEEDS", ("flask", "a_module_that_is_not_there"))
    assert not launch.is_installed()
    with pytest.raises(RemoteError, match=r"a_module_that_is_not_there.*pip install 'parl-remote\[monitor\]'"):
        launch.check_installed()


def _text(url: str) -> str:
    with _no_proxy.open(url, timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
        return text

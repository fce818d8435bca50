"""`xparl doctor` and failing connections: real faults, and what is said about them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from xparl_command import xparl as run_xparl

import parl_remote
from faults.ports import unused_port
from parl_remote._config import environment
from parl_remote._doctor.local import Finding, Severity, check_here, imports_of
from parl_remote._doctor.reach import Probe, check_reach, probe
from parl_remote._links.handshake import Link, PeerAcceptor
from parl_remote._links.loop import Loop
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Hello, Message, NodeStatus, RefusalCode, Refused, Role, Status, StatusRequest
from parl_remote._messages.parts import CheckHost, HostReport, NodeReached, ReachNode
from parl_remote._messages.wire import decode, encode
from parl_remote._node.launch import NodeSettings
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._resources import Resources
from parl_remote._run_files import ClusterRecord, ProcessRecord, RunFiles
from parl_remote._security import ClusterKey
from parl_remote._transport import Received
from parl_remote._transport.addresses import Address
from parl_remote._transport.zmq import ZmqListener
from parl_remote._worker.host_check import missing_modules
from parl_remote.cli._start import _check_reached


@contextlib.contextmanager
def served(accept: Callable[[socket.socket], object] | None = None) -> Iterator[int]:
    """A port at which something listens that is no cluster; connections are kept open until the end."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    kept.append(connection)
                    if accept is not None:
                        accept(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60.0)
    for connection in kept:
        connection.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without clusters."""
    for name in list(os.environ):
        if name.startswith(("PARL_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PARL_RUN_DIR", str(tmp_path / ".parl"))
    monkeypatch.setenv("PARL_MONITOR", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return tmp_path


def test_a_cluster_of_one_interface_is_named_by_that(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ClusterRecord("cluster-1", "10.0.0.5", 8037, "host", ProcessRecord.of(os.getpid()))
    monkeypatch.setattr(RunFiles, "clusters", lambda _: iter([(home, record)]))
    found = reach(unused_port())
    assert "your clusters on this host are at 10.0.0.5:8037" in found.what
    assert "localhost:8037" not in found.what


@pytest.fixture
def xparl(home: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """The command, as this user runs it; the clusters of this user are stopped at the end."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_xparl(*arguments, environment={**os.environ, **variables})

    yield run
    run("stop", "--all")


def found_by(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """The findings of `xparl doctor --json`."""
    assert done.stdout, done.stderr
    return [finding for place in json.loads(done.stdout)["places"] for finding in place["findings"]]


def problems_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    return [finding for finding in found_by(done) if finding["severity"] == "problem"]


def reach(port: int, host: str = "127.0.0.1") -> Finding:
    return check_reach(Address(host, port), environment({"PARL_RUN_DIR": "/nonexistent"}), 1.0)


# -- the way to a port ------------------------------------------------------------------------------------------------


def test_a_closed_port_of_this_host_is_reported_with_the_command_that_opens_it() -> None:
    port = unused_port()
    finding = reach(port)
    assert (finding.check, finding.severity) == ("port", Severity.PROBLEM)
    assert "nothing listens" in finding.what
    assert f"xparl start --port {port}" in finding.remedy


def test_a_listener_that_never_answers_is_distinguished_from_a_cluster() -> None:
    with served() as port:
        finding = reach(port)
    assert "takes connections and says nothing" in finding.what
    assert finding.remedy


def test_another_program_is_recognised_by_what_it_sends() -> None:
    with served(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        finding = reach(port)
    assert "another program answers" in finding.what
    assert "SSH-2.0-OpenSSH_9.2" in finding.what


def test_a_web_server_is_recognised_although_it_sends_nothing_first() -> None:
    """The port of a cluster's own monitor is the wrong one that is closest at hand."""

    def answer(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 302 FOUND\r\nLocation: /login\r\n\r\n")

    with served(answer) as port:
        finding = reach(port)
    assert "another program answers" in finding.what
    assert "HTTP/1.1 302 FOUND" in finding.what


def test_an_unknown_name_is_reported() -> None:
    finding = reach(8037, "no-such-host.invalid")
    assert (finding.check, finding.severity) == ("address", Severity.PROBLEM)
    assert "no-such-host.invalid" in finding.what


def test_a_host_that_drops_packets_is_reported_within_the_time_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", never)
    finding = reach(8037)
    assert "does not answer at all within 1 s" in finding.what
    assert "open TCP port 8037" in finding.remedy


def test_a_cluster_can_be_reached() -> None:
    listener = ZmqListener("127.0.0.1", 0, ClusterKey.generate())
    try:
        finding = reach(Address.parse(listener.address).port)
    finally:
        listener.close()
    assert finding.severity is Severity.FINE, finding


# -- connect that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["closed", "silent", "other program"])
def test_a_connect_that_fails_says_what_to_do_after_a_short_probe(
    fault: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARL_KEY", ClusterKey.generate().to_text())
    monkeypatch.setenv("PARL_CONNECT_TIMEOUT", "1.0")
    with contextlib.ExitStack() as stack:
        if fault == "closed":
            port = unused_port()
        elif fault == "silent":
            port = stack.enter_context(served())
        else:
            port = stack.enter_context(served(lambda connection: connection.sendall(b"220 mail ready\r\n")))
        limits: list[float] = []

        def probed(at: Address, timeout_s: float) -> Probe:
            limits.append(timeout_s)
            return probe(at, timeout_s)

        monkeypatch.setattr("parl_remote._doctor.reach.probe", probed)
        with pytest.raises(parl_remote.ClusterUnreachable) as caught:
            parl_remote.connect(f"localhost:{port}")
    assert limits == [1.5]
    text = str(caught.value)
    assert "what to do: " in text
    assert f"xparl doctor --address localhost:{port}" in text
    expected = {"closed": "xparl start", "silent": "ss -ltnp", "other program": "220 mail ready"}[fault]
    assert expected in text
    assert caught.value.address == f"localhost:{port}"


@pytest.mark.slow
def test_connect_with_another_clusters_key_says_which_key_to_use(
    xparl: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    monkeypatch.setenv("PARL_KEY", ClusterKey.generate().to_text())
    with pytest.raises(parl_remote.AuthenticationFailed) as caught:
        parl_remote.connect(f"localhost:{port}")
    assert "what to do: PARL_KEY holds another cluster's key: unset it" in str(caught.value)
    refused = xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1)
    assert refused.returncode == 1
    assert "what to do: PARL_KEY holds another cluster's key" in refused.stderr


@pytest.mark.slow
def test_connect_with_a_readable_key_file_says_chmod(
    xparl: Callable[..., subprocess.CompletedProcess[str]], home: Path
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    (key,) = (home / ".parl").glob("*/key")
    copied = home / "copied.key"
    copied.write_text(key.read_text())
    copied.chmod(0o644)
    with pytest.raises(parl_remote.AuthenticationFailed) as caught:
        parl_remote.connect(f"localhost:{port}", key_file=copied)
    assert f"what to do: chmod 600 {copied}" in str(caught.value)
    assert str(caught.value).count("chmod") == 1
    done = xparl("doctor", "--json", PARL_KEY_FILE=str(copied))
    assert done.returncode == 1
    assert any(finding["remedy"] == f"chmod 600 {copied}" for finding in problems_of(done))


# -- a cluster, looked at ---------------------------------------------------------------------------------------------


def test_a_healthy_cluster_has_no_problem_and_exit_status_zero(
    xparl: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    done = xparl("doctor", "--port", port, "--module", "numpy", "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["ok"] is True
    said = xparl("doctor", "--address", f"localhost:{port}")
    assert "Nothing is wrong." in said.stdout
    assert "1 of 1 CPUs are free" in said.stdout


@pytest.mark.slow
def test_a_module_that_a_worker_lacks_is_named_with_the_command_that_installs_it(
    xparl: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    port = unused_port()
    script = tmp_path / "train.py"
    (tmp_path / "beside.py").touch()
    script.write_text(
        "import os, numpy, absent_one.part\nimport beside\nfrom absent_two import thing\n"
        "try:\n    import absent_but_optional\nexcept ImportError:\n    pass\nraise SystemExit('it was run')\n"
    )
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    done = xparl("doctor", "--port", port, "--script", script, "--json")
    assert done.returncode == 1
    (finding,) = problems_of(done)
    assert finding["check"] == "modules"
    assert finding["what"].endswith("does not find absent_one, absent_two")
    assert re.search(r"-m pip install absent_one absent_two$", finding["remedy"])


@pytest.mark.slow
def test_a_full_cluster_names_the_holders_of_its_cpus(xparl: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, parl_remote as parl\n"
            "@parl.remote_class\nclass A:\n    pass\n"
            f"parl.connect('localhost:{port}'); a = A(); print('made', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "made\n"
        done = xparl("doctor", "--port", port, "--json")
    finally:
        program.kill()
        program.communicate()
    assert done.returncode == 1
    (finding,) = problems_of(done)
    assert finding["check"] == "cpus"
    assert "1 of 1 are taken" in finding["what"]
    assert f"(process {program.pid}) has 1 actor" in finding["what"]


@pytest.mark.slow
def test_a_killed_cluster_is_distinguished_from_a_running_one(
    xparl: Callable[..., subprocess.CompletedProcess[str]], home: Path
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 0).returncode == 0
    (record,) = (home / ".parl").glob("*/cluster.json")
    os.kill(json.loads(record.read_text())["process"]["pid"], 9)
    done = xparl("doctor", "--json")
    assert done.returncode == 1
    stale = [finding for finding in found_by(done) if finding["check"] == "run files"]
    assert [f"xparl stop --port {port} clears it away" in finding["remedy"] for finding in stale] == [True]


# -- a master that is not as it should be -----------------------------------------------------------------------------


class FakeMaster:
    """Speaks the real protocol, and says what a test wants: other clocks, other workers."""

    def __init__(self, nodes: Sequence[NodeStatus] = (), *, ahead_s: float = 0.0, reaches: str | None = None) -> None:
        self.key = ClusterKey.generate()
        self._nodes = tuple(nodes)
        self._ahead_s = ahead_s
        self._reaches = reaches
        self._loop = Loop()
        self._listener = ZmqListener("127.0.0.1", 0, self.key)
        limits = environment({"PARL_RUN_DIR": "/nonexistent"}).limits
        reception = PeerAcceptor(self._loop, node_id="node-fake", cluster_id="fake", host_id="fake", limits=limits)
        reception.serve(Role.MASTER, self)
        reception.serve(Role.WORKER, self)
        reception.listen(self._listener)
        self.address = self._listener.address
        self.port = Address.parse(self.address).port
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def opened(self, link: Link) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        pass

    def received(self, link: Link, frames: list[memoryview]) -> None:
        answer = self._answer(decode(frames[0]))
        if answer is not None:
            link.tell(answer)

    def _answer(self, message: Message) -> Message | None:
        match message:
            case StatusRequest(request_id=number):
                total = Resources(cpu=4)
                return Status(number, "fake", 1.0, total, total, 0, 0, len(self._nodes), 0, 0, self._nodes)
            case CheckHost(request_id=number, modules=modules):
                now = time.time() + self._ahead_s
                versions = {"python": "3.2.1", "parl-remote": "0.0.1"}
                return HostReport(number, "fakehost", "fake", now, "/usr/bin/python3", versions, missing=modules)
            case ReachNode(request_id=number):
                return NodeReached(number, self._reaches is None, self._reaches or "")
        return None

    def close(self) -> None:
        self._loop.stop()
        self._thread.join(60.0)
        self._listener.close()


@pytest.fixture
def fake(xparl: Any) -> Iterator[Callable[..., FakeMaster]]:
    masters = []

    def make(*arguments: Any, **options: Any) -> FakeMaster:
        masters.append(FakeMaster(*arguments, **options))
        return masters[-1]

    yield make
    for master in masters:
        master.close()


def node_at(address: str, node_id: str = "worker-1") -> NodeStatus:
    room = Resources(cpu=4)
    return NodeStatus(node_id, "second", (address,), room, room, 0, 0.0, 0, 0.0)


def doctor(xparl: Any, master: FakeMaster, *more: str, **variables: str) -> list[dict[str, str]]:
    done = xparl("doctor", "--address", master.address, "--json", *more, PARL_KEY=master.key.to_text(), **variables)
    return problems_of(done)


def test_a_clock_that_differs_is_reported_with_the_difference(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    (finding,) = [one for one in doctor(xparl, fake([], ahead_s=-90.0)) if one["check"] == "clock"]
    assert re.search(r"clock of the master \(on fakehost\) is (89|90)\.\d s behind this host's", finding["what"])
    assert "timedatectl" in finding["remedy"]


def test_a_worker_at_a_wrong_address_is_tried_from_both_sides(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    master = fake([node_at(f"127.0.0.1:{unused_port()}")], reaches="Connection refused")
    (finding,) = [one for one in doctor(xparl, master) if one["check"] == "worker"]
    assert "from here: " in finding["what"]
    assert "from the master: Connection refused" in finding["what"]
    assert "its address is wrong" in finding["remedy"]
    assert "--host" in finding["remedy"]


def test_a_worker_that_only_the_master_reaches_is_behind_a_firewall(
    xparl: Any, fake: Callable[..., FakeMaster]
) -> None:
    port = unused_port()
    (finding,) = [one for one in doctor(xparl, fake([node_at(f"127.0.0.1:{port}")])) if one["check"] == "worker"]
    assert "the master does reach it" in finding["what"]
    assert f"open TCP port {port} of second" in finding["remedy"]


@pytest.mark.slow
def test_a_worker_that_joins_with_its_own_address_is_not_warned(
    xparl: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 0, "--host", "127.0.0.1").returncode == 0
    joined = xparl("connect", "--address", f"127.0.0.1:{port}", "--cpu_num", 1)
    assert "Warning" not in joined.stderr
    assert xparl("doctor", "--port", port).returncode == 0


def test_a_worker_that_joins_with_an_address_that_the_master_cannot_reach_is_warned(
    fake: Callable[..., FakeMaster], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master = fake([], reaches="No route to host")
    monkeypatch.setenv("PARL_KEY", master.key.to_text())
    found = environment()
    settings = NodeSettings("/nowhere", "worker-1", "", "10.9.9.9", "10.9.9.9", 1, master.address, 1.0, ())
    _check_reached(ClusterAddress(master.address, found), found.limits, settings)
    said = capsys.readouterr().err
    assert "Warning: the master cannot reach this worker at 10.9.9.9 (No route to host)" in said
    assert "xparl connect --host" in said


def test_an_address_at_which_another_node_answers_is_wrong(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    master = fake([])
    master._nodes = (node_at(master.address),)  # it answers there itself, under its own id
    (finding,) = [one for one in doctor(xparl, master) if one["check"] == "worker"]
    assert "another node answers there (node-fake)" in finding["what"]


def test_a_frozen_worker_is_distinguished_from_one_behind_a_firewall(
    xparl: Any, fake: Callable[..., FakeMaster]
) -> None:
    with served() as port:
        problems = doctor(xparl, fake([node_at(f"127.0.0.1:{port}")]), PARL_CONNECT_TIMEOUT="1")
    (finding,) = [one for one in problems if one["check"] == "worker"]
    assert "takes connections" in finding["what"]
    assert "stopped" in finding["remedy"]


def test_another_program_at_a_workers_address_is_reported(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    with served(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        problems = doctor(xparl, fake([node_at(f"127.0.0.1:{port}")]))
    (finding,) = [one for one in problems if one["check"] == "worker"]
    assert "HTTP/1.1 400" in finding["what"]
    assert "its address is wrong" in finding["remedy"]


def test_a_worker_with_another_key_is_at_a_wrong_address(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    other = fake([])
    (finding,) = [one for one in doctor(xparl, fake([node_at(other.address)])) if one["check"] == "worker"]
    assert "does not have the cluster's key" in finding["what"]


def test_another_python_on_a_worker_is_reported(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    master = fake([])
    master._nodes = (node_at(master.address, "node-fake"),)
    problems = doctor(xparl, master, "--module", "torch")
    assert ["worker second runs Python 3.2.1" in one["what"] for one in problems if one["check"] == "version"] == [True]
    (modules,) = [one for one in problems if one["check"] == "modules"]
    assert modules["remedy"] == "on fakehost: /usr/bin/python3 -m pip install torch"


def test_a_cluster_without_workers_is_reported(xparl: Any, fake: Callable[..., FakeMaster]) -> None:
    (finding,) = [one for one in doctor(xparl, fake([])) if one["check"] == "cpus"]
    assert "no worker" in finding["what"]


def test_a_cluster_that_is_drained_has_no_slot_though_none_is_taken(
    xparl: Any, fake: Callable[..., FakeMaster]
) -> None:
    drained = dataclasses.replace(node_at("127.0.0.1:1"), is_draining=True)
    (finding,) = [one for one in doctor(xparl, fake([drained])) if one["check"] == "cpus"]
    assert "every node is being drained" in finding["what"]
    assert "xparl connect" in finding["remedy"]


def test_an_old_protocol_is_reported_with_both_versions(xparl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ClusterKey.generate()
    listener = ZmqListener("127.0.0.1", 0, key)
    loop = Loop()

    def refuse() -> None:
        for event in listener.poll():
            if isinstance(event, Received):
                assert isinstance(decode(event.frames[0]), Hello)
                refusal = Refused(RefusalCode.VERSION, "The peer is parl-remote 9.9.", 98, 99)
                listener.send(event.peer, [encode(refusal)])
                listener.drop(event.peer)

    loop.add(listener, refuse)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        done = xparl("doctor", "--address", listener.address, "--json", PARL_KEY=key.to_text())
        monkeypatch.setenv("PARL_KEY", key.to_text())
        with pytest.raises(parl_remote.VersionMismatch, match="what to do: install the newer parl-remote here"):
            parl_remote.connect(listener.address)
    finally:
        loop.stop()
        thread.join(60.0)
        listener.close()
    (finding,) = problems_of(done)
    assert finding["check"] == "version"
    assert "versions 98 to 99" in finding["what"]


# -- this host --------------------------------------------------------------------------------------------------------


def here(**variables: str) -> dict[str, Finding]:
    """The findings about this host, by check; of several of one check the worst."""
    found = sorted(check_here(environment(variables)), key=lambda one: one.severity is Severity.PROBLEM)
    return {finding.check: finding for finding in found}


def test_a_full_disk_is_reported_with_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=5 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    finding = here(PARL_RUN_DIR=str(tmp_path / ".parl"), TMPDIR=str(tmp_path))["disk"]
    assert "has only 5 MiB free" in finding.what
    assert "PARL_RUN_DIR" in finding.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_without_rights_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be written to: Permission denied" in here(PARL_RUN_DIR=str(tmp_path / ".parl"))["disk"].what


def test_a_start_that_cannot_write_says_where_and_what_to_do(
    xparl: Callable[..., subprocess.CompletedProcess[str]], home: Path
) -> None:
    (home / ".parl").write_text("a file where a directory should be")
    done = xparl("start", "--port", unused_port())
    assert done.returncode == 1
    assert ".parl is not a directory; move it away" in done.stderr
    assert "Traceback" not in done.stderr


def test_small_limits_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    found = here(PARL_RUN_DIR=str(tmp_path / ".parl"))
    for check in ("descriptors", "processes", "file size"):
        assert found[check].severity is Severity.NOTE
        assert "ulimit" in found[check].remedy


def test_little_shared_memory_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, words in ((-1, "no /dev/shm"), (10 * 2**20, "only 10 MiB free")):
        monkeypatch.setattr("parl_remote._doctor.local.shared_memory_free", lambda free=free: free)
        assert words in here(PARL_RUN_DIR=str(tmp_path / ".parl"))["shared memory"].what


def test_run_files_that_others_could_read_are_reported_with_chmod(tmp_path: Path) -> None:
    (tmp_path / ".parl").mkdir(mode=0o755)
    (tmp_path / ".parl").chmod(0o755)
    finding = here(PARL_RUN_DIR=str(tmp_path / ".parl"))["run files"]
    assert finding.severity is Severity.PROBLEM
    assert finding.remedy == f"chmod 700 {tmp_path / '.parl'}"


def test_a_file_where_run_files_go_is_reported_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    finding = here(PARL_RUN_DIR=str(tmp_path / "run"))["run files"]
    assert finding.what.startswith(f"{tmp_path / 'run'} is not a directory")
    assert "PARL_RUN_DIR" in finding.remedy
    assert "chmod" not in finding.remedy


def test_an_invalid_key_is_reported_and_never_shown(tmp_path: Path) -> None:
    finding = here(PARL_RUN_DIR=str(tmp_path / ".parl"), PARL_KEY="parl1-secret-and-wrong")["key"]
    assert finding.severity is Severity.PROBLEM
    assert "secret-and-wrong" not in finding.what + finding.remedy


# -- smaller parts ----------------------------------------------------------------------------------------------------


def test_only_imports_that_a_program_cannot_do_without_are_looked_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "package").mkdir()
    script.write_text(
        "from __future__ import annotations\n"
        "import json, torch.nn as nn\n"
        "from typing import TYPE_CHECKING\n"
        "from . import nothing\n"
        "import package.module\n"
        "if TYPE_CHECKING:\n    import only_for_types\n"
        "def later():\n    import gymnasium\n"
        "class A:\n    from scipy import stats\n"
        "try:\n    import cupy\nexcept ImportError:\n    cupy = None\n"
    )
    assert imports_of(script) == ("gymnasium", "scipy", "torch")


def test_the_imports_of_a_notebook_are_read_too(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["import nothing"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch\n"]},
        {"cell_type": "code", "source": "!pip list\nfrom scipy import stats"},
    ]
    notebook.write_text(json.dumps({"cells": cells}))
    assert imports_of(notebook) == ("scipy", "torch")
    notebook.write_text("[]")
    with pytest.raises(ValueError, match="not a notebook"):
        imports_of(notebook)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 10_000, "\x00", "../../etc/passwd", "/etc", "numpy.no.such", "ünï"]
)
def test_strange_names_of_modules_are_missing_or_not_and_nothing_is_imported(name: str) -> None:
    before = set(sys.modules)
    assert missing_modules([name], ["relative", "/nonexistent", "\x00"]) in {(), (name,)}
    assert set(sys.modules) == before


@pytest.mark.slow
def test_a_node_answers_only_so_many_questions_about_its_health(
    xparl: Callable[..., subprocess.CompletedProcess[str]], home: Path
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    found = environment()
    cluster = ClusterAddress(f"localhost:{port}", found)
    for role in (Role.MASTER, Role.WORKER):
        with RequestConnection(cluster.connect_master(), role, found.limits, "test") as node:
            with pytest.raises(parl_remote.RemoteError, match="at most 500 modules"):
                node.ask(lambda number: CheckHost(number, ("m",) * 501), HostReport)
            report = node.ask(lambda number: CheckHost(number, ("numpy", "absent")), HostReport)
            assert report.missing == ("absent",)
            assert report.disk_error == ""

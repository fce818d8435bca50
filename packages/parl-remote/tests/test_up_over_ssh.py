"""`xparl up` and `xparl down`: what a file may say, and a cluster over a real sshd on 127.0.0.1."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from faults.polling import eventually
from faults.ports import unused_port
from parl_remote._run_files import ProcessRecord, RunFiles, WorkerRecord, write_record
from parl_remote.cli._up import ClusterFile

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
XPARL = [sys.executable, "-m", "parl_remote.cli"]
PATIENCE_S = 120.0


def written(folder: Path, text: str) -> Path:
    path = folder / "hosts.toml"
    path.write_text(text)
    return path


def test_a_file_names_hosts_and_what_each_of_them_gives(tmp_path: Path) -> None:
    file = ClusterFile.read(
        written(
            tmp_path,
            """
            [cluster]
            port = 9000
            ssh = "ssh -p 2222"
            xparl = "/opt/venv/bin/xparl"
            [master]
            host = "ada@first.example"
            cpu_num = 0
            monitor_port = 9100
            [[workers]]
            host = "second"
            gpu = "0,1"
            labels = {license = 2}
            environment = {OMP_NUM_THREADS = 1}
            [[workers]]
            host = "third"
            address = "10.0.0.3"
            port = 9001
            xparl = ["python3", "-m", "parl_remote.cli"]
            """,
        )
    )
    assert (file.address, file.ssh, file.key_file) == (
        "first.example:9000",
        ("ssh", "-p", "2222"),
        tmp_path / "hosts.key",
    )
    assert file.master.options == ("--port", "9000", "--host", "0.0.0.0", "--monitor_port", "9100", "--cpu_num", "0")
    second, third = file.workers
    assert second.shell("connect", *second.options) == (
        "sh -c 'env OMP_NUM_THREADS=1 /opt/venv/bin/xparl connect --gpu 0,1 --label license=2'"
    )
    assert third.options == ("--host", "10.0.0.3", "--port", "9001")
    assert third.xparl == ("python3", "-m", "parl_remote.cli")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("gpu1", "gpu1:8037"),
        ("ssh://ada@gpu1:2222", "gpu1:8037"),
        ("fe80::1", "[fe80::1]:8037"),
        ("ada@::1", "[::1]:8037"),
        ("ssh://root@[fd00::5]:2222", "[fd00::5]:8037"),
    ],
)
def test_the_address_of_a_host_is_the_host_of_its_destination(tmp_path: Path, host: str, address: str) -> None:
    assert ClusterFile.read(written(tmp_path, f"[master]\nhost = '{host}'")).address == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[master]\nhost = 'ada@'", "'ada@' names no host"),
        ("[cluster]\nport = 1", "a table \\[master\\]"),
        ("[master]\nhost = '-oProxyCommand=evil'", "needs a host"),
        ("[master]\nhost = 'a'\ncpus = 3", "has no 'cpus'; there are .*cpu_num"),
        ("[master]\nhost = 'a'\n[workers]\nhost = 'b'", "\\[\\[workers\\]\\]"),
        ("[cluster]\nport = 99999\n[master]\nhost = 'a'", "whole number from 1 to 65535"),
        ("[master]\nhost = 'a'\nenvironment = {'A B' = 1}", "not the name of a variable"),
        ("[cluster]\nport = true\n[master]\nhost = 'a'", "whole number from 1 to 65535, not True"),
        ("[master]\nhost = 'a'\nmonitor_port = 70000", r"\[master\]: .*monitor_port.*70000"),
        ("[master]\nhost = 'a'\nlabels = { license = 'two' }", r"\[master\]: --label .*license=two"),
        ("[master]\nhost = 'a'\ncpu_num = true", r"\[master\] cpu_num is a number or a text, not True"),
        ("[master]\nhost = 'a'\n[[workers]]\nhost = 'b'\ncpu_num = -1", r"\[\[workers\]\]: .*cpu_num.*-1"),
        ("[master]\nhost = 'a'\n[[workers]]\nhost = 'b'\nmemory = '24Q'", r"\[\[workers\]\]: --memory .*24Q"),
        ("[master]\nhost = 'a'\n[[workers]]\nhost = 'b'\ngpu = [0, 1]", r"\[\[workers\]\] gpu .*, not \[0, 1\]"),
        ("[master\n", "hosts.toml"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(click.ClickException, match=says):
        ClusterFile.read(written(tmp_path, text))


@pytest.mark.parametrize("name", ["two words", "it's", 'a"b', "$(touch pwned)", "a;b"])
def test_no_value_of_a_file_is_run_by_a_shell(tmp_path: Path, name: str) -> None:
    table = f"[master]\nhost = 'a'\nxparl = ['printf', '[%s]']\nenvironment = {{ X = {json.dumps(name)} }}\n"
    line = ClusterFile.read(written(tmp_path, table)).master.shell(name)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"[{name}]"
    assert not (tmp_path / "pwned").exists()


@dataclass
class Site:
    """This host as several ones, over its own sshd."""

    folder: Path
    ssh: str
    port: int

    def xparl(self, *arguments: object, status: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [*XPARL, *map(str, arguments)],
            env={**os.environ, **self.variables("here"), **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def variables(self, host: str) -> dict[str, str]:
        return {
            "PARL_RUN_DIR": str(self.folder / f"run-{host}"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PARL_MONITOR": "0",
        }

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the nodes in their run files."""
        return [
            json.loads(path.read_text())
            for folder in self.folder.glob("run-*")
            for path in (*folder.glob("*/cluster.json"), *folder.glob("*/worker.json"))
        ]

    def hosts(self, workers: int, **more: Any) -> Path:
        def host(name: str, **settings: Any) -> str:
            lines = [f"{key} = {json.dumps(value)}" for key, value in {"host": "127.0.0.1", **settings}.items()]
            lines.append(
                "environment = {" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in self.variables(name).items()) + "}"
            )
            return "\n".join(lines)

        text = f"[cluster]\nport = {self.port}\nssh = {json.dumps(self.ssh)}\nxparl = {json.dumps(XPARL)}\n"
        text += f"[master]\n{host('first', cpu_num=1, listen='127.0.0.1')}\n"
        for number in range(workers):
            text += f"[[workers]]\n{host(f'worker{number}', cpu_num=2, **more)}\n"
        return written(self.folder, text)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no sshd: apt-get install openssh-server openssh-client")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it there; its service makes it otherwise
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    ssh_port, port = unused_port(), unused_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {ssh_port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    host_key = " ".join((tmp_path / "host.pub").read_text().split()[:2])
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{ssh_port} {host_key}\n")
    (tmp_path / "ssh_config").write_text(
        f"Host *\n  Port {ssh_port}\n  IdentityFile {tmp_path}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known_hosts\n"
    )
    sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", ssh_port), 5).close()
            break
        except OSError:
            assert sshd.poll() is None, "sshd did not start"
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.05)
    site = Site(tmp_path, f"ssh -F {tmp_path}/ssh_config", port)
    yield site
    for folder in tmp_path.glob("run-*"):
        site.xparl("stop", "--all", PARL_RUN_DIR=str(folder))
    sshd.terminate()
    sshd.wait(PATIENCE_S)


@pytest.mark.slow
def test_a_cluster_is_started_and_stopped_over_ssh_with_its_key(site: Site) -> None:
    hosts = site.hosts(workers=2)
    said = site.xparl("up", hosts)
    key = site.folder / "hosts.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert said.count("belong to the cluster") == 2
    assert key.read_text().strip() not in said
    where = ("--address", f"127.0.0.1:{site.port}", "--key_file", key)
    nodes = json.loads(site.xparl("list", "nodes", "--json", *where))["nodes"]
    assert sorted((node["total"]["cpu"], node["is_master"]) for node in nodes) == [(1, True), (2, False), (2, False)]
    program = (
        "import parl_remote as parl\n"
        "@parl.remote_class\nclass A:\n    def f(self): return 7\n"
        f"parl.connect('127.0.0.1:{site.port}')\n"
        "print(sum(a.f() for a in [A() for _ in range(5)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **site.variables("here"), "PARL_KEY_FILE": str(key)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "35\n", done.stderr

    def phases() -> list[str]:
        return [node["phase"] for node in json.loads(site.xparl("list", "nodes", "--json", *where))["nodes"]]

    pids = {record["process"]["pid"] for record in site.records()}
    said = site.xparl("up", hosts)
    assert "the master runs already" in said
    assert said.count("It runs already: the worker") == 2
    assert {record["process"]["pid"] for record in site.records()} == pids
    (ended,) = [record for record in site.records() if record.get("once") == "127.0.0.1 2"]
    os.kill(ended["process"]["pid"], signal.SIGKILL)
    eventually(lambda: phases().count("up") == 2)
    said = site.xparl("up", hosts)
    assert (said.count("It runs already: the worker"), said.count("belong to the cluster")) == (1, 1)
    eventually(lambda: phases().count("up") == 3)
    assert site.xparl("down", hosts).count("has ended") >= 1
    site.xparl("status", *where, status=1)
    for folder in site.folder.glob("run-*"):
        assert not list(folder.glob("*/*.json")), "no process is left on record"
    assert not list(Path("/tmp").glob("tmp.*/key"))


@pytest.mark.slow
def test_a_host_that_fails_is_named_and_can_be_added_later(site: Site) -> None:
    said = site.xparl("up", site.hosts(workers=1, xparl="/nowhere/xparl"), status=1)
    assert "127.0.0.1: " in said
    assert "/nowhere/xparl" in said
    assert "1 worker of 1 did not start, for the reasons above; everything else runs" in said
    hosts = site.hosts(workers=1)
    assert "the master runs already" in site.xparl("up", hosts)
    assert "It runs already" in site.xparl("up", hosts, "--worker", "127.0.0.1")
    moved = hosts.with_name("moved.toml")
    shutil.copy(hosts, moved)
    assert "runs with another key than the given one" in site.xparl("up", moved, status=1)
    where = ("--address", f"127.0.0.1:{site.port}", "--key_file", site.folder / "hosts.key")
    assert len(json.loads(site.xparl("list", "nodes", "--json", *where))["nodes"]) == 2
    assert "has no worker on 'else'" in site.xparl("up", hosts, "--worker", "else", status=2)
    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    directory = RunFiles(site.folder / "run-worker0").worker_directory("foreign")
    record = WorkerRecord("foreign", f"127.0.0.2:{site.port}", ProcessRecord.of(foreign.pid), cluster_id="another")
    write_record(directory, record)
    site.xparl("down", hosts)
    site.xparl("down", hosts)
    assert foreign.poll() is None, "a worker of another cluster on that port"
    foreign.communicate(b"\n")


@pytest.mark.slow
def test_a_host_that_refuses_is_reported_in_the_words_of_ssh(site: Site) -> None:
    (site.folder / "user.pub").write_text("")
    assert "Permission denied" in site.xparl("up", site.hosts(workers=1), status=1)

"""Options and variables of `xparl start`, `connect` and `stop`, and their errors."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import psutil
import pytest
from click.testing import CliRunner
from xparl_command import XPARL
from xparl_command import xparl as run_xparl

from faults.polling import eventually
from faults.ports import unused_port
from parl_remote._config import Limits, environment
from parl_remote._run_files import ClusterRecord, ProcessRecord, RunFiles, WorkerRecord, write_record
from parl_remote._security import ClusterKey, write_private_file
from parl_remote._transport.addresses import Address
from parl_remote.cli import main
from parl_remote.cli._start import NodeResources
from parl_remote.cli._stop import NOTHING_THERE, _is_at, on_record, stop_all

COMMANDS = ["start", "connect", "status", "stop", "list", "logs", "top", "kill", "drain", "doctor", "key"]


Xparl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def xparl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Xparl]:
    for name in [name for name in os.environ if name.startswith(("PARL_", "XDG_", "XPARL", "DEBUG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARL_RUN_DIR", str(tmp_path / ".parl"))
    monkeypatch.setenv("PARL_MONITOR", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_xparl(*arguments, environment={**os.environ, **variables})

    yield run
    run("stop", "--all")


def nodes_of(xparl: Xparl) -> list[dict[str, object]]:
    nodes: list[dict[str, object]] = json.loads(xparl("list", "nodes", "--json").stdout)["nodes"]
    return nodes


# -- help and mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(main, [command, "--help"])
    assert shown.exit_code == 0
    assert re.search(rf"Examples?:\n( .*\n)*? +\S*.*xparl {command}", shown.output), shown.output


def test_the_list_of_commands_is_complete() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", shown, re.MULTILINE), command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["strat"], "there is no command 'strat'; xparl has start, connect"),
        (["start"], "Missing option '--port'"),
        (["start", "--port", "99999"], "99999"),
        (["start", "--port", "8037", "--cpu_num", "-1"], "-1"),
        (["start", "--port", "8037", "--cpu_num", "nan"], "'nan' is not a finite number"),
        (["drain", "node", "--timeout", "inf"], "'inf' is not a finite number"),
        (["timeline", "--seconds", "nan"], "'nan' is not a finite number"),
        (["start", "--port", "8037", "--gpu", "0,1,0"], "--gpu names 0 more than once"),
        (["start", "--port", "8037", "--gpu", "977"], "--gpu names 977, but "),
        (["connect", "--address", "localhost:1", "--gpu", "GPU-1,cuda:0"], "--gpu names cuda:0, but "),
        (["start", "--port", "8037", "--memory", "much"], '--memory is a size such as "24G"'),
        (["start", "--port", "8037", "--label", "license"], "for example license=2, not 'license'"),
        (["start", "--port", "8037", "--label", "a=1", "--label", "a=2"], "--label a is given twice"),
        (["start", "--port", "8037", "--label", "cpu=1"], "'cpu' cannot be the name of a label"),
        (["start", "--port", "8037", "--label", "a=nan"], "finite"),
        (["start", "--port", "8037", "--label", "a=-1"], "0 or more"),
        (["connect", "--address", "nowhere"], "an address is 'host:port'"),
        (["connect", "--address", "localhost:1", "--cpu_num", "0", "--gpu", ""], "must be above 0"),
        (["status", "--address", "localhost"], "an address is 'host:port'"),
        (["list", "elephants"], "elephants"),
        (["kill"], "Missing argument"),
        (["logs", "x", "-n", "-3"], "-3"),
        (["top", "--delay", "0"], "0"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_started(xparl: Xparl, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["start --port 8037", "connect --address localhost:1", "list", "stop", "doctor"])
def test_a_variable_that_cannot_be_read_is_named(xparl: Xparl, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_LIVENESS_LIMIT", "soon")
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 1
    assert "PARL_LIVENESS_LIMIT must be a number of seconds above 0, it is 'soon'" in done.output


# -- what a node offers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("24G", 24 * 2**30), ("512M", 512 * 2**20), ("1.5 GiB", 3 * 2**29), ("1000", 1000), ("2kb", 2048)],
)
def test_sizes_are_read_as_people_write_them(text: str, bytes_: int) -> None:
    assert NodeResources.of(1, "", text, ()).memory == bytes_


def test_an_offer_reads_as_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert str(NodeResources.of(2, "", None, ())) == "2 CPUs"
    assert str(NodeResources.of(1, "0", None, ())) == "1 CPU and 1 GPU"
    assert str(NodeResources.of(4, "0,1", None, ("license=2",))) == "4 CPUs, 2 GPUs and 2 license"


@pytest.mark.parametrize(("devices", "said"), [(["nvidia0", "nvidia2"], "2 GPUs"), (["nvidiactl"], "no NVIDIA GPU")])
def test_gpus_are_given_if_they_are_found_or_named_in_the_variable(
    devices: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parl_remote._system.host.os.listdir", lambda _: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(NodeResources.of(1, None, None, ()).gpus) == (2 if devices[1:] else 0)
    with pytest.raises(click.UsageError, match=rf"--gpu names 7, but {said}.*CUDA_VISIBLE_DEVICES=7"):
        NodeResources.of(1, "7", None, ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert NodeResources.of(1, "7", None, ()).gpus == ("7",)
    assert NodeResources.of(1, "GPU-8f3a", None, ()).gpus == ("GPU-8f3a",)


@pytest.mark.slow
def test_zero_cpus_are_none_and_never_all(xparl: Xparl) -> None:
    assert NodeResources.of(0, "", None, ()).cpu == 0
    port = unused_port()
    assert "A cluster with 0 CPUs" in xparl("start", "--port", port, "--cpu_num", 0).stdout
    refused = xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 0, "--gpu", "")
    assert refused.returncode != 0
    assert nodes_of(xparl) == []
    joined = xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 0, "--gpu", "", "--label", "license=2")
    assert "): 2 license.\n" in joined.stdout
    eventually(lambda: nodes_of(xparl))
    (node,) = nodes_of(xparl)
    assert node["total"] == {**dict(node["total"]), "cpu": 0.0, "gpu": 0.0, "labels": {"license": 2.0}}  # type: ignore[call-overload]


@pytest.mark.slow
def test_memory_and_labels_reach_the_master(xparl: Xparl) -> None:
    port = unused_port()
    xparl("start", "--port", port, "--cpu_num", 1, "--memory", "2G", "--label", "license=2", "--label", "disk=0.5")
    (node,) = nodes_of(xparl)
    assert node["total"] == {"cpu": 1.0, "gpu": 0.0, "memory": 2**31, "labels": {"disk": 0.5, "license": 2.0}}


@pytest.mark.slow
def test_options_of_old_are_taken_and_explained(xparl: Xparl) -> None:
    port = unused_port()
    done = xparl(
        *("start", "--port", port, "--cpu_num", 1, "--gpu_cluster", "--log_server_port_range", "8000-9000", "--debug")
    )
    assert done.returncode == 0
    assert "--gpu_cluster is no longer needed" in done.stderr
    assert "logs come through the node's port" in done.stderr
    joined = xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1, "--log_server_port_range", "8000-9000")
    assert joined.returncode == 0
    assert "the node's port" in joined.stderr


# -- variables --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_xparl_python_launches_the_node(xparl: Xparl, tmp_path: Path) -> None:
    loader = tmp_path / "my loader.sh"
    loader.write_text(f'#!/bin/sh\necho "loaded: $1" > {tmp_path}/witness\nshift\nexec {sys.executable} "$@"\n')
    loader.chmod(0o755)
    port = unused_port()
    started = xparl("start", "--port", port, "--cpu_num", 1, XPARL_PYTHON=f"'{loader}' extra")
    assert started.returncode == 0, started.stderr
    assert (tmp_path / "witness").read_text() == "loaded: extra\n"
    assert len(nodes_of(xparl)) == 1
    missing = xparl("start", "--port", unused_port(), XPARL_PYTHON="/no/such/python")
    assert missing.returncode == 1
    assert "cannot run /no/such/python" in missing.stderr
    assert "XPARL_PYTHON" in missing.stderr


@pytest.mark.parametrize(
    ("options", "value", "more"),
    [
        ((), "1", True),
        ((), "", False),
        pytest.param((), "0", False, marks=pytest.mark.slow),
        pytest.param(("--debug",), "", True, marks=pytest.mark.slow),
    ],
)
def test_debug_says_more_in_the_log(
    xparl: Xparl, tmp_path: Path, options: tuple[str, ...], value: str, more: bool
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1, *options, DEBUG=value).returncode == 0
    (log,) = tmp_path.glob(f".parl/*-{port}/node.log")
    assert (" DEBUG runs with NodeSettings(" in log.read_text()) is more


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full")
def test_output_for_which_there_is_no_space_is_an_error_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "parl_remote.cli", "key"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"Error: the output cannot be written: No space left on device\n"


@pytest.mark.slow
def test_debug_writes_a_file_beside_the_program(
    run_program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    program = "import parl_remote as parl\nparl.connect(cpu_num=1)\nparl.disconnect()\n"
    run_program(program=program, env={**os.environ, "DEBUG": "0"})
    assert not (tmp_path / "parl_debug.log").exists()
    done = run_program(program=program, env={**os.environ, "DEBUG": "1"})
    assert (done.returncode, done.stdout) == (0, "")
    assert "DEBUG parl-remote" in (tmp_path / "parl_debug.log").read_text()


@pytest.mark.slow
def test_logs_of_the_node_before_are_kept_once_and_not_mixed_up(xparl: Xparl, tmp_path: Path) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    (directory,) = tmp_path.glob(f".parl/*-{port}")
    (directory / "actors" / "actor-1.log").write_text("of the first node")
    (record,) = (record for _, record in RunFiles(environment().run_dir).clusters())
    os.kill(record.process.pid, signal.SIGKILL)
    eventually(lambda: not record.process.alive())
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    assert list((directory / "actors").iterdir()) == []
    assert (directory / "actors.before" / "actor-1.log").read_text() == "of the first node"


def test_xparl_python_must_be_readable_by_a_shell() -> None:
    with pytest.raises(ValueError, match="XPARL_PYTHON must be a command"):
        environment({"HOME": "/", "XPARL_PYTHON": "'open"})


# -- stop -------------------------------------------------------------------------------------------------------------


def processes_below(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


@pytest.mark.slow
def test_stop_ends_frozen_processes_and_no_others(xparl: Xparl, tmp_path: Path) -> None:
    port, other = unused_port(), unused_port()
    for one in (port, other):
        assert xparl("start", "--port", one, "--cpu_num", 2).returncode == 0
    found = environment()
    records = {record.port: record.process.pid for _, record in RunFiles(found.run_dir).clusters()}
    family, others = processes_below(records[port]), processes_below(records[other])
    assert len(family) > 2  # node, zygote, a spare actor
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    for process in family:
        os.kill(process.pid, signal.SIGSTOP)
    run_files = RunFiles(found.run_dir)
    said, left = stop_all(run_files, on_record(run_files, (port,)), Limits())
    assert "was killed, it did not end by itself" in said[0]
    assert not left
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert all(process.is_running() for process in others)
    assert bystander.poll() is None
    bystander.communicate()


@pytest.mark.slow
def test_stop_waits_for_the_processes_of_a_node_that_was_killed_and_names_those_left(
    xparl: Xparl, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    ((_, record),) = RunFiles(environment().run_dir).clusters()
    node, *others = processes_below(record.process.pid)
    zygote = next(process for process in others if process.ppid() == node.pid)
    zygote.suspend()  # so that it does not see the node's end
    node.kill()
    eventually(lambda: not record.process.alive())
    with monkeypatch.context() as patched:
        patched.setattr("parl_remote.cli._stop._KILLED_S", 0.1)
        done = CliRunner().invoke(main, ["stop", "--port", str(port)])
    assert done.exit_code == 1
    assert f"the cluster on port {port} (process {node.pid}) had ended before" in done.output
    assert f"{len(others)} of their processes have not ended yet:" in done.output
    assert f"process {zygote.pid} is stopped by a signal" in done.output
    zygote.resume()
    assert xparl("stop", "--port", port).returncode == 0
    assert not [process for process in others if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_stop_takes_several_ports_and_leaves_other_clusters(xparl: Xparl) -> None:
    ports = [unused_port() for _ in range(3)]
    for port in ports:
        assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    assert xparl("stop", "--port", ports[0], "--port", ports[1]).returncode == 0
    left = {record.port for _, record in RunFiles(environment().run_dir).clusters() if record.process.alive()}
    assert left == {ports[2]}
    nothing = xparl("stop", "--port", ports[0], "--port", ports[1])
    assert f"no cluster on port {ports[0]} or {ports[1]}" in nothing.stderr
    assert nothing.returncode == NOTHING_THERE


@pytest.mark.slow
def test_stop_takes_what_actors_have_started_along(xparl: Xparl, tmp_path: Path) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, parl_remote as parl\n"
            "@parl.remote_class\nclass A:\n"
            "    def start(self):\n"
            "        return subprocess.Popen(['sleep', '1000']).pid\n"
            f"parl.connect('localhost:{port}'); a = A(); print(a.start(), flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        child = psutil.Process(int(program.stdout.readline()))
        assert xparl("stop", "--port", port).returncode == 0
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        program.kill()
        program.communicate()


@pytest.mark.slow
def test_stop_without_a_port_says_what_it_stops(xparl: Xparl) -> None:
    port = unused_port()
    assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    done = xparl("stop")
    assert done.returncode == 0
    assert f"This stops:\n  the cluster on port {port} (process " in done.stdout
    assert "has ended" in done.stdout
    assert "nothing was stopped" in xparl("stop").stdout


@pytest.mark.slow
def test_stop_of_several_clusters_needs_an_answer(xparl: Xparl) -> None:
    ports = sorted(unused_port() for _ in range(2))
    for port in ports:
        assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    done = xparl("stop")  # without a terminal
    assert done.returncode == 2
    assert all(f"the cluster on port {port} (process " in done.stdout for port in ports)
    running = [record for _, record in RunFiles(environment().run_dir).clusters() if record.process.alive()]
    assert sorted(record.port for record in running) == ports
    assert xparl("stop", "--all").returncode == 0
    assert not any(record.process.alive() for record in running)


@pytest.mark.parametrize("options", [[], ["--port", "8037"]])
def test_stop_of_two_clusters_on_one_port_needs_an_answer(xparl: Xparl, options: list[str]) -> None:
    run_files = RunFiles(environment().run_dir)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        for name in ("first", "second"):
            record = WorkerRecord(name, f"{name}:8037", ProcessRecord.of(process.pid), cluster_id=name)
            write_record(run_files.worker_directory(name), record)
        done = xparl("stop", *options)
        assert done.returncode == 2
        assert all(f"the worker of {name}:8037" in done.stdout for name in ("first", "second"))
        assert process.poll() is None
        process.communicate()


def test_stop_of_all_on_a_port_leaves_other_ports(xparl: Xparl) -> None:
    run_files = RunFiles(environment().run_dir)
    with contextlib.ExitStack() as stack:
        running = {}
        for master in ("first:8037", "second:8037", "third:8038"):
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            process = running[master] = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            name = master.partition(":")[0]
            record = WorkerRecord(name, master, ProcessRecord.of(process.pid), cluster_id=name)
            write_record(run_files.worker_directory(name), record)
        done = xparl("stop", "--all", "--port", "8037")
        assert done.returncode == 0, done.stderr
        assert "This stops:\n  the worker of first:8037" in done.stdout
        assert [running[f"{name}:8037"].wait(60) for name in ("first", "second")] == [-signal.SIGTERM] * 2
        assert running["third:8038"].poll() is None
        running["third:8038"].communicate()


def test_what_runs_with_another_key_is_not_what_was_asked_for(xparl: Xparl, tmp_path: Path) -> None:
    run_files = RunFiles(environment().run_dir)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path in (right, wrong):
        write_private_file(path, ClusterKey.generate().to_text())
    cluster, worker = run_files.cluster_directory(8037), run_files.worker_directory("w")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as node:
        process = ProcessRecord.of(node.pid)
        write_record(cluster, ClusterRecord("it", "127.0.0.1", 8037, "here", process))
        write_record(worker, WorkerRecord("w", "first:8037", process, once="a"))
        for directory in (cluster, worker):
            shutil.copy(right, directory / "key")
        for command in (["start", "--port", "8037", "--once"], ["connect", "--address", "first:8037", "--once", "a"]):
            assert "It runs already" in xparl(*command).stdout
            assert "It runs already" in xparl(*command, "--key_file", right).stdout
            done = xparl(*command, "--key_file", wrong)
            assert done.returncode == 1
            assert "runs with another key than the given one" in done.stderr
        node.communicate(b"\n")


def test_a_refused_start_leaves_no_directory(xparl: Xparl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = xparl("start", "--port", str(other.getsockname()[1]), "--cpu_num", "1")
    assert (done.returncode, "is in use" in done.stderr) == (1, True), done.stderr
    assert [left for left in environment().run_dir.iterdir() if left.is_dir()] == []


def test_stop_says_what_has_ended_although_its_records_cannot_be_removed(
    xparl: Xparl, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_files = RunFiles(environment().run_dir)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as node:
        record = WorkerRecord("w", "first:8037", ProcessRecord.of(node.pid))
        write_record(run_files.worker_directory("w"), record)
        read_only = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
        monkeypatch.setattr("parl_remote.cli._stop.forget", read_only)
        (said,), left = stop_all(run_files, on_record(run_files), Limits())
        assert not left
        assert "has ended" in said
        read_only.assert_called_once()


def test_stop_ends_what_it_has_listed_and_nothing_that_began_since(xparl: Xparl) -> None:
    run_files = RunFiles(environment().run_dir)
    directory = run_files.worker_directory("w")
    with subprocess.Popen([sys.executable, "-c", ""]) as listed:
        write_record(directory, WorkerRecord("w", "first:8037", ProcessRecord.of(listed.pid)))
        nodes = on_record(run_files)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as begun:
        write_record(directory, WorkerRecord("w", "first:8037", ProcessRecord.of(begun.pid)))
        assert stop_all(run_files, nodes, Limits()).lines == [
            f"the worker of first:8037 (process {listed.pid}) had ended before"
        ]
        assert begun.poll() is None
        assert [record.process.pid for _, record in on_record(run_files)] == [begun.pid]
        begun.communicate(b"\n")


def test_stop_tells_what_it_ends_from_what_had_ended_before(xparl: Xparl) -> None:
    run_files = RunFiles(environment().run_dir)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        record = WorkerRecord("w", "first:8037", ProcessRecord.of(killed.pid))
        directory = run_files.worker_directory("w")
        write_record(directory, record)
        killed.kill()
    done = xparl("stop", "--port", "8037")
    assert done.stdout == f"the worker of first:8037 (process {killed.pid}) had ended before\n"
    assert not (directory / "worker.json").exists()
    assert xparl("stop", "--port", "8037").returncode == 3


def test_stop_does_not_speak_of_nodes_of_other_hosts_that_share_the_run_directory(xparl: Xparl) -> None:
    run_files = RunFiles(environment().run_dir)
    directory = run_files.worker_directory("w")
    write_record(directory, WorkerRecord("w", "first:8037", ProcessRecord(os.getpid(), 1, "another host")))
    assert xparl("stop", "--port", "8037").returncode == 3
    assert xparl("stop", "--all").stdout == "There is no cluster of yours on this host; nothing was stopped.\n"
    assert (directory / "worker.json").exists()


def test_a_port_without_a_cluster_is_a_failure(xparl: Xparl) -> None:
    for command, status in (("status", 1), ("stop", 3)):
        done = xparl(command, "--port", 1)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
        assert "There is no cluster on port 1 on this host" in done.stderr
    assert xparl("stop").returncode == 0, "there is nothing left to stop"
    for command in ("status", "list"):
        done = xparl(command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no cluster of yours on this host" in done.stderr
    assert "xparl start --port 1\n" in xparl("list", "--port", 1).stderr


def test_a_run_directory_that_others_may_enter_is_told_once(xparl: Xparl) -> None:
    directory = environment().run_dir
    directory.mkdir()
    directory.chmod(0o755)
    done = xparl("start", "--port", 8037)
    assert done.returncode == 1
    assert done.stderr.count("has mode 0755") == 1
    assert f"what to do: chmod 700 {directory}\n" in done.stderr
    assert done.stderr.count("chmod") == 1


def test_stop_by_address_leaves_another_cluster_on_that_port(xparl: Xparl) -> None:
    run_files = RunFiles(environment().run_dir)
    with contextlib.ExitStack() as stack:
        running = {}
        for name, master in (("a", "127.0.0.1:8037"), ("b", "localhost:8037"), ("c", "127.0.0.2:8037")):
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            process = running[name] = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            record = WorkerRecord(name, master, ProcessRecord.of(process.pid), cluster_id="c" if name == "c" else "ab")
            write_record(run_files.worker_directory(name), record)
        missed = xparl("stop", "--address", "127.0.0.3:8037")
        assert (missed.returncode, missed.stdout) == (3, "")
        assert "no cluster at 127.0.0.3:8037" in missed.stderr
        assert xparl("stop", "--address", "8037").returncode == 2
        assert xparl("stop", "--port", "8037", "--address", "localhost:8037").returncode == 2
        done = xparl("stop", "--address", "localhost:8037")
        assert done.returncode == 0, done.stderr
        assert [running[name].wait(60) for name in "ab"] == [-signal.SIGTERM] * 2
        assert running["c"].poll() is None
        running["c"].communicate()


@pytest.mark.parametrize(
    ("listens", "address", "is_it"),
    [
        ("0.0.0.0", "localhost:8037", True),
        ("0.0.0.0", "127.0.0.9:8037", True),
        ("127.0.0.1", "127.0.0.9:8037", False),
        ("::1", "[::1]:8037", True),
        ("127.0.0.1", "localhost:8038", False),
    ],
)
def test_an_address_names_the_cluster_that_listens_there(listens: str, address: str, is_it: bool) -> None:
    record = ClusterRecord("it", listens, 8037, "here", ProcessRecord.of(os.getpid()))
    assert _is_at(record, Address.parse(address)) is is_it


def answered(answer: str) -> int:
    """Return the exit status of `xparl stop` at a terminal whose user answers its question."""
    ours, theirs = os.openpty()
    with subprocess.Popen([*XPARL, "stop"], stdin=theirs, stdout=theirs, stderr=theirs) as asked:
        os.close(theirs)
        said = b""
        while b"Stop all of them?" not in said:
            said += os.read(ours, 4096)
        os.write(ours, answer.encode())
        with contextlib.suppress(OSError):  # as the end of a terminal is told
            while os.read(ours, 4096):
                pass
        status = asked.wait(60)
    os.close(ours)
    return status


@pytest.mark.slow
def test_stop_of_several_clusters_asks_at_a_terminal(xparl: Xparl) -> None:
    for port in (unused_port(), unused_port()):
        assert xparl("start", "--port", port, "--cpu_num", 1).returncode == 0
    running = [record.process for _, record in RunFiles(environment().run_dir).clusters()]
    assert answered("n\n") == 1
    assert [process.alive() for process in running] == [True, True]
    assert answered("y\n") == 0
    assert [process.alive() for process in running] == [False, False]

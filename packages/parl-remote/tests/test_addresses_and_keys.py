"""Addresses as people write them, the environment, run files, and where a cluster's key is found."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.ports import unused_port
from parl_remote._config import Environment, environment
from parl_remote._links.identity import host_id, host_name, new_id
from parl_remote._program.rendezvous import ClusterAddress, find_key, given_key
from parl_remote._run_files import (
    ClusterRecord,
    ProcessRecord,
    RunFiles,
    WorkerRecord,
    forget,
    key_of,
    signal_process,
    write_record,
)
from parl_remote._security import ClusterKey, write_private_file
from parl_remote._transport.addresses import (
    Address,
    address_here,
    advertised_by,
    is_loopback,
    is_this_host,
    own_address_toward,
    without_brackets,
)
from parl_remote.errors import AuthenticationFailed, ClusterUnreachable


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:8037", "localhost", 8037), (" 10.0.0.1:1 ", "10.0.0.1", 1), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_reads_as_it_is_written(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "localhost", "localhost:", ":8037", "[]:80", "a:b", "a:0", "a:65536", "::1:80", "a:-1", "a:٣"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="'host:port', for example 'localhost:8037'"):
        Address.parse(text)


def test_a_node_beside_its_master_is_where_the_master_was_dialled() -> None:
    dialled = Address("cluster.example", 8037)
    assert advertised_by(":9000", dialled) == Address("cluster.example", 9000)
    assert advertised_by("10.0.0.2:9000", dialled) == Address("10.0.0.2", 9000)


@pytest.mark.parametrize(
    ("listens", "seen"),
    [
        ("0.0.0.0", "localhost:8037"),
        ("::", "localhost:8037"),
        ("127.0.0.1", "localhost:8037"),
        ("127.0.0.2", "127.0.0.2:8037"),
        ("::1", "[::1]:8037"),
        ("10.0.0.1", "10.0.0.1:8037"),
    ],
)
def test_programs_here_dial_a_number_that_the_server_listens_on(listens: str, seen: str) -> None:
    assert str(address_here(listens, 8037)) == seen


def test_an_ipv6_interface_is_given_with_or_without_brackets() -> None:
    assert without_brackets("[::1]") == without_brackets("::1") == "::1"
    assert without_brackets("first") == "first"


def test_this_host_knows_itself() -> None:
    assert is_this_host("localhost")
    assert is_this_host("127.0.0.5")
    assert not is_this_host("192.0.2.1")
    assert not is_this_host("no-such-host.invalid")
    assert own_address_toward(Address("127.0.0.1", 1)) == "127.0.0.1"
    assert is_loopback("127.0.0.5")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("no-such-host.invalid")


def test_ids_are_never_the_same_and_the_host_always_is() -> None:
    assert len({new_id("lease") for _ in range(1000)}) == 1000
    assert host_id() == host_id() != ""


def test_the_host_stays_the_same_when_no_file_can_be_opened_any_more() -> None:
    """Else values that this process stores would be unknown to all others of this host."""
    program = (
        "import resource; from parl_remote._links.identity import host_id; {first}\n"
        "files = []; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "try:\n while True: files.append(open('/dev/null'))\n"
        "except OSError: pass\n"
        "print(host_id())"
    )

    def run(first: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program.format(first=first)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert run("host_id()").stdout.strip() == host_id()
    unknown = run("")
    assert unknown.stdout == ""
    assert "Too many open files" in unknown.stderr


# -- the environment ------------------------------------------------------------------------------------------------


def test_run_files_lie_in_one_directory_that_one_variable_alone_changes() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    others = {"HOME": "/h", "XDG_RUNTIME_DIR": "/r", "TMPDIR": "/t", "USER": "other"}
    assert environment({}).run_dir == environment(others).run_dir == home / ".parl"
    assert environment({**others, "PARL_RUN_DIR": "/x"}).run_dir == Path("/x")
    assert environment({**others, "PARL_RUN_DIR": "x"}).run_dir == Path.cwd() / "x"


def test_a_user_without_an_account_entry_has_a_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert environment({"HOME": "/h"}).run_dir == Path("/tmp/parl-of-user-4000000000")


def test_times_come_from_the_environment_and_heartbeats_follow_the_limit() -> None:
    limits = environment(
        {"HOME": "/h", "PARL_CONNECT_TIMEOUT": "0.5", "PARL_LIVENESS_LIMIT": "3", "PARL_SHUTDOWN_GRACE": "9"}
    ).limits
    assert (limits.connect_timeout_s, limits.liveness_limit_s, limits.heartbeat_interval_s) == (0.5, 3.0, 1.0)
    assert limits.shutdown_grace_s == 9.0


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_time_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"PARL_LIVENESS_LIMIT must be a number of seconds above 0, it is '{text}'"):
        environment({"HOME": "/h", "PARL_LIVENESS_LIMIT": text})


# -- run files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Environment:
    return environment({"PARL_RUN_DIR": str(tmp_path / "run"), "PARL_CONNECT_TIMEOUT": "1"})


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def on_record(here: Environment, pid: int, port: int = 8037, host: str = "127.0.0.1") -> Path:
    directory = RunFiles(here.run_dir).cluster_directory(port)
    key_of(directory)
    write_record(directory, ClusterRecord("cluster-1", host, port, host_name(), ProcessRecord.of(pid)))
    return directory


def test_what_is_put_on_record_is_found_again(here: Environment) -> None:
    directory = on_record(here, os.getpid())
    ((where, record),) = RunFiles(here.run_dir).clusters()
    assert (where, record.port, record.process.alive()) == (directory, 8037, True)
    worker = RunFiles(here.run_dir).worker_directory("worker-1")
    write_record(worker, WorkerRecord("worker-1", "first:8037", ProcessRecord.of(os.getpid())))
    assert [record.master for _, record in RunFiles(here.run_dir).workers()] == ["first:8037"]


def test_a_run_directory_that_is_not_private_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run").chmod(0o755)
    found = environment({"PARL_RUN_DIR": str(tmp_path / "run")})
    with pytest.raises(AuthenticationFailed, match="mode 0755"):
        RunFiles(found.run_dir).cluster_directory(8037)


def test_a_clean_end_leaves_neither_record_nor_key(here: Environment) -> None:
    directory = on_record(here, os.getpid())
    (directory / "node.log").touch()
    forget(directory)
    assert [path.name for path in directory.iterdir()] == ["node.log"]
    assert list(RunFiles(here.run_dir).clusters()) == []


def test_logs_of_workers_that_ended_are_kept_for_a_day(here: Environment) -> None:
    run_files = RunFiles(here.run_dir)
    old, recent, running = (run_files.worker_directory(f"worker-{name}") for name in ("old", "recent", "running"))
    write_record(running, WorkerRecord("worker-running", "first:8037", ProcessRecord.of(os.getpid())))
    for directory in (old, running):
        os.utime(directory, (0, 0))
    new = run_files.worker_directory("worker-new")
    assert [path.exists() for path in (old, recent, running, new)] == [False, True, True, True]


def test_damaged_and_foreign_records_are_passed_over(here: Environment) -> None:
    directory = on_record(here, os.getpid())
    for text in ("", "[]", "{", '{"port": 1}', json.dumps({"cluster_id": 5})):
        write_private_file(directory / "cluster.json", text)
        assert list(RunFiles(here.run_dir).clusters()) == []
    on_record(here, os.getpid())
    (directory / "cluster.json").chmod(0o644)
    assert list(RunFiles(here.run_dir).clusters()) == []


def test_only_the_very_process_on_record_is_signalled(here: Environment, sleeper: subprocess.Popen[bytes]) -> None:
    record = ProcessRecord.of(sleeper.pid)
    for other in (
        ProcessRecord(record.pid, record.started + 1, record.host_id),  # the number has gone to another process
        ProcessRecord(record.pid, record.started, "another host"),
    ):
        assert not other.alive()
        assert not signal_process(other, signal.SIGKILL)
    assert sleeper.poll() is None
    assert signal_process(record, signal.SIGKILL)
    sleeper.wait(60)
    assert not record.alive()
    assert not signal_process(record, signal.SIGKILL)


def test_a_process_that_is_not_there_has_no_record() -> None:
    with pytest.raises(ProcessLookupError):
        ProcessRecord.of(2**22 + 1)


# -- keys -----------------------------------------------------------------------------------------------------------


def test_a_cluster_takes_a_key_that_was_made_elsewhere_and_keeps_it(here: Environment, tmp_path: Path) -> None:
    directory = on_record(here, os.getpid())
    made_before = key_of(directory)
    (tmp_path / "given").touch(0o600)
    (tmp_path / "given").write_text(ClusterKey.generate().to_text())
    given = given_key(here, tmp_path / "given")
    assert given is not None
    assert given != made_before
    assert key_of(directory, given) == given
    assert key_of(directory) == given
    assert given_key(here) is None


def test_the_key_of_an_own_cluster_on_this_host_is_found_by_any_of_its_names(here: Environment) -> None:
    key = key_of(on_record(here, os.getpid()))
    for host in ("localhost", "127.0.0.1", host_name()):
        if is_this_host(host):
            assert find_key(Address(host, 8037), here) == key


def test_a_key_that_is_named_goes_before_those_that_are_found(here: Environment, tmp_path: Path) -> None:
    on_record(here, os.getpid())
    keys = {name: ClusterKey.generate() for name in ("argument", "file", "text")}
    for name, key in keys.items():
        write_private_file(tmp_path / name, key.to_text())
    variables = {"PARL_RUN_DIR": str(tmp_path / "run"), "PARL_KEY": keys["text"].to_text()}
    address = Address("localhost", 8037)
    assert find_key(address, environment(variables)) == keys["text"]
    variables["PARL_KEY_FILE"] = str(tmp_path / "file")
    assert find_key(address, environment(variables)) == keys["file"]
    assert find_key(address, environment(variables), tmp_path / "argument") == keys["argument"]


def test_without_a_key_and_with_master_is_away_the_address_is_the_problem(here: Environment) -> None:
    on_record(here, os.getpid(), port=8037)
    port = unused_port()
    with pytest.raises(ClusterUnreachable, match=rf"nothing answers at localhost:{port} .*ports \[8037\]") as caught:
        ClusterAddress(f"localhost:{port}", here)
    assert caught.value.address == f"localhost:{port}"


def test_without_a_key_at_an_open_port_the_key_is_the_problem(here: Environment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AuthenticationFailed, match=rf"no key for {address}.*key_file=, PARL_KEY_FILE or PARL_KEY"):
            ClusterAddress(address, here)


def test_the_key_of_a_crashed_cluster_is_not_used_for_the_next_program_at_its_port(
    here: Environment, sleeper: subprocess.Popen[bytes]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        on_record(here, sleeper.pid, port=port)
        sleeper.kill()
        sleeper.wait(60)
        with pytest.raises(AuthenticationFailed, match="no key for"):
            find_key(Address("localhost", port), here)

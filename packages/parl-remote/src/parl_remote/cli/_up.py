"""`xparl up` and `xparl down`: start and stop a cluster on the hosts of a file, over ssh.

    hosts.toml --ClusterFile--> ssh master: xparl start --once     the key goes through stdin, never on a command line
                            `-> ssh worker: xparl connect --once   all workers at once, when the master is up
                            `-> ssh every host: xparl stop, of this cluster alone

The OpenSSH client does the rest: names, ports, users, jump hosts and keys are its configuration's.
"""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from parl_remote._security import ClusterKey, write_private_file
from parl_remote._transport.addresses import Address
from parl_remote.cli._session import FiniteRange
from parl_remote.cli._show import count, plain
from parl_remote.cli._start import RUNS_ALREADY, NodeResources, connect_command, start_command
from parl_remote.cli._stop import NOTHING_THERE
from parl_remote.errors import RemoteError

__all__ = ["down_command", "up_command"]

_AT_ONCE = 32
_TIMEOUT_S = 120.0  # seconds per host: a login with slow name resolution and a start on a busy machine
_NOT_FOUND = 127  # the exit status of a shell for an unknown command
_SSH_FAILED = 255

_CLUSTER = {"port", "key_file", "ssh", "xparl"}
_HOST = {"host", "address", "listen", "cpu_num", "gpu", "memory", "labels", "environment", "xparl"}
_MASTER = _HOST | {"monitor_port", "monitor_host"}
_WORKER = _HOST | {"port"}


@dataclass(frozen=True, slots=True)
class Host:
    """One node of a cluster.

    Attributes:
        destination: The destination of ssh.
        address: Its name for the other hosts.
        options: Options of `xparl start` or `xparl connect`.
        variables: Environment variables of the node.
        xparl: The command `xparl` there.
    """

    destination: str
    address: str
    options: tuple[str, ...]
    variables: Mapping[str, str]
    xparl: tuple[str, ...]

    def shell(self, *arguments: str, key: bool = False) -> str:
        """Return the command line for the login shell there; with `key` it reads the cluster's key from stdin."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        command = shlex.join([*(["env", *variables] if variables else []), *self.xparl, *arguments])
        if key:
            command = (
                "umask 077; key=$(mktemp) || exit 1; trap 'rm -f \"$key\"' EXIT; "
                f'cat > "$key" && {command} --key_file "$key"'
            )
        return f"sh -c {shlex.quote(command)}"  # a login shell may be another one


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The hosts of a cluster.

    Attributes:
        port: The cluster's port.
        key_file: The file with its key, on this host.
        ssh: The ssh command.
        master: The host of the master.
        workers: The hosts of workers.
    """

    port: int
    key_file: Path
    ssh: tuple[str, ...]
    master: Host
    workers: tuple[Host, ...]

    @property
    def address(self) -> str:
        """The master's address for the other hosts."""
        return str(Address(self.master.address, self.port))

    @classmethod
    def read(cls, path: Path) -> ClusterFile:
        """Return the cluster of a file.

        Raises:
            click.ClickException: It cannot be read, or its content makes no sense.
        """
        try:
            with path.open("rb") as file:
                found = tomllib.load(file)
            return cls._of(found, path)
        except (OSError, tomllib.TOMLDecodeError, ValueError) as error:
            raise click.ClickException(f"{path}: {error}") from error

    @classmethod
    def _of(cls, found: dict[str, Any], path: Path) -> ClusterFile:
        _check_names("the file", found, {"cluster", "master", "workers"})
        cluster = _table("[cluster]", found.get("cluster", {}))
        _check_names("[cluster]", cluster, _CLUSTER)
        port = _integer("[cluster] port", cluster.get("port", 8037), 1)
        xparl = _command_words("[cluster] xparl", cluster.get("xparl", "xparl"))
        if "master" not in found:
            raise ValueError("a table [master] with the host of the master is needed")
        master = _table("[master]", found["master"])
        _check_names("[master]", master, _MASTER)
        workers = found.get("workers", [])
        if not isinstance(workers, list):
            raise ValueError("workers are given as [[workers]], one table each")
        for worker in workers:
            _check_names("[[workers]]", _table("[[workers]]", worker), _WORKER)
        options = ["--port", str(port), "--host", _text("[master] listen", master.get("listen", "0.0.0.0"))]
        for name in ("monitor_port", "monitor_host"):
            if name in master:
                options += [f"--{name}", str(master[name])]
        key_file = cluster.get("key_file")
        return cls(
            port=port,
            key_file=path.parent / Path(_text("[cluster] key_file", key_file)).expanduser()
            if key_file is not None
            else path.with_suffix(".key"),
            ssh=_command_words("[cluster] ssh", cluster.get("ssh", "ssh")),
            master=_host("[master]", start_command, master, options, xparl),
            workers=tuple(
                _host("[[workers]]", connect_command, worker, _worker_options(worker), xparl) for worker in workers
            ),
        )


def _host(
    where: str, command: click.Command, table: Mapping[str, Any], options: Sequence[str], xparl: tuple[str, ...]
) -> Host:
    destination = _text(f"{where} host", table.get("host", ""))
    if not destination or destination.startswith("-"):
        raise ValueError(f"{where} needs a host: the destination for `ssh`")
    shared = []
    for name in ("cpu_num", "gpu", "memory"):
        if name in table:
            shared += [f"--{name}", _number_or_text(f"{where} {name}", table[name])]
    for name, amount in _table(f"{where} labels", table.get("labels", {})).items():
        shared += ["--label", f"{name}={amount}"]
    variables = _table(f"{where} environment", table.get("environment", {}))
    if bad := [name for name in variables if not name.isidentifier()]:
        raise ValueError(f"{where} environment: {bad[0]!r} is not the name of a variable")
    _check_options(where, command, (*options, *shared))
    name = _name_in(destination)
    if not name:
        raise ValueError(f"{where} host: {destination!r} names no host")
    return Host(
        destination=destination,
        address=_text(f"{where} address", table.get("address", name)),
        options=(*options, *shared),
        variables={name: str(value) for name, value in variables.items()},
        xparl=_command_words(f"{where} xparl", table["xparl"]) if "xparl" in table else xparl,
    )


def _check_options(where: str, command: click.Command, options: Sequence[str]) -> None:
    """Check options as the command will on the host, except for its GPUs.

    Raises:
        ValueError: One is invalid.
    """
    master = ["--address", "master:1"] if command is connect_command else []
    try:
        with command.make_context(command.name, [*master, *options]) as given:
            NodeResources.of(given.params["cpu_num"], "", given.params["memory"], given.params["label"])
    except click.UsageError as error:
        raise ValueError(f"{where}: {error.format_message()}") from error


def _name_in(destination: str) -> str:
    """Return the name or number of the host in a destination for `ssh`, without user and port."""
    host = destination.removeprefix("ssh://").rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]  # more than one is an IPv6 number


def _worker_options(table: Mapping[str, Any]) -> list[str]:
    options = []
    if "listen" in table or "address" in table:
        options += ["--host", _text("[[workers]] listen", table.get("listen", table.get("address")))]
    if "port" in table:
        options += ["--port", str(_integer("[[workers]] port", table["port"], 0))]
    return options


def _check_names(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"{where} has no {unknown[0]!r}; there are {', '.join(sorted(known))}")


def _table(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is a table, not {value!r}")
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is a text, not {value!r}")
    return value


def _number_or_text(where: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{where} is a number or a text, not {value!r}")
    return str(value)


def _integer(where: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 65535:
        raise ValueError(f"{where} is a whole number from {least} to 65535, not {value!r}")
    return value


def _command_words(where: str, value: object) -> tuple[str, ...]:
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{where} is a command: a text, or a list of texts, not {value!r}")
    return tuple(words)


@dataclass(frozen=True, slots=True)
class _Job:
    """A command line for the shell of one host."""

    file: ClusterFile
    destination: str
    line: str
    stdin: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The output of a command on a host, or the reason of its failure."""

    destination: str
    text: str
    error: str = ""


def _run(job: _Job) -> _Outcome:
    ssh, to = job.file.ssh, job.destination
    command = [*ssh, "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", to, job.line]
    try:
        done = subprocess.run(
            command,
            input=job.stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=job.timeout_s,
            check=False,
        )
    except OSError as error:
        return _Outcome(to, "", f"{ssh[0]} cannot be run: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return _Outcome(to, "", f"no answer within {job.timeout_s:g} s")
    if done.returncode in {0, NOTHING_THERE}:
        return _Outcome(to, done.stdout.strip() or done.stderr.strip())
    said = done.stderr.strip() or done.stdout.strip() or f"the exit status was {done.returncode}"
    if done.returncode == _SSH_FAILED:
        said = f"ssh: {said.removeprefix('ssh: ')}"
    elif done.returncode == _NOT_FOUND:
        said += '; name the command there: xparl = "/path/to/xparl" in its table, or in [cluster]'
    return _Outcome(to, "", said)


def _run_all(jobs: Sequence[_Job]) -> Iterable[_Outcome]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_run, jobs)


def _key_of(path: Path) -> ClusterKey:
    try:
        if not path.exists():
            write_private_file(path, ClusterKey.generate().to_text() + "\n")
            click.echo(f"The cluster's key is new: {path}")
        return ClusterKey.from_file(path)
    except (RemoteError, OSError) as error:
        raise click.ClickException(str(error)) from error


_file_argument = click.argument("hosts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_timeout_option = click.option(
    "--timeout",
    type=FiniteRange(1),
    default=_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for one host.",
)


@click.command("up")
@_file_argument
@click.option(
    "--worker",
    "only",
    multiple=True,
    metavar="HOST",
    help="Start only the workers of this host, while the cluster runs; may be repeated.",
)
@_timeout_option
def up_command(hosts: Path, only: tuple[str, ...], timeout: float) -> None:
    r"""Start a cluster on the hosts of a file, over ssh.

    HOSTS is a TOML file with the tables [cluster] (port), [master] (host) and one [[workers]] (host) per worker; the
    page "Use several machines as one cluster" describes all settings. ssh has to log in without a prompt, and xparl has
    to be installed on the hosts. If the cluster has no key, one is made here. The key is sent to every host.

    Running nodes do not change. Run the command again to start nodes that failed, ended or are new in the file.

    \b
    Examples:
      xparl up hosts.toml
      xparl up hosts.toml --worker gpu-3        only the workers of gpu-3
    """
    file = ClusterFile.read(hosts)
    if unknown := set(only) - {worker.destination for worker in file.workers}:
        raise click.UsageError(f"{hosts} has no worker on {min(unknown)!r}")
    key = _key_of(file.key_file).to_text() + "\n"
    if not only:
        start = file.master.shell("start", "--once", *file.master.options, key=True)
        started = _run(_Job(file, file.master.destination, start, key, timeout))
        if started.error:
            raise click.ClickException(
                f"the master on {started.destination} did not start, and no worker was: {plain(started.error)}"
            )
        ran = "runs already" if started.text.startswith(RUNS_ALREADY) else "is"
        click.echo(f"{file.master.destination}: the master {ran} at {file.address}")
    jobs = [job for job in _worker_jobs(file, key, timeout) if not only or job.destination in only]
    failed = 0
    for outcome in _run_all(jobs):
        failed += bool(outcome.error)
        _print_outcome(outcome, 1)
    click.echo(f'Use it: PARL_KEY_FILE={shlex.quote(str(file.key_file))} python ...   # parl.connect("{file.address}")')
    if failed:
        raise click.ClickException(
            f"{count(failed, 'worker')} of {len(jobs)} did not start, for the reasons above; everything else runs. To "
            f"start the missing ones: xparl up {hosts}; to end all: xparl down {hosts}"
        )


def _worker_jobs(file: ClusterFile, key: str, timeout_s: float) -> Iterator[_Job]:
    """Yield the start of each worker, under the name by which a second `up` knows it: its number on its host."""
    numbers: Counter[str] = Counter()
    for worker in file.workers:
        numbers[worker.destination] += 1
        once = f"{worker.destination} {numbers[worker.destination]}"
        line = worker.shell("connect", "--once", once, "--address", file.address, *worker.options, key=True)
        yield _Job(file, worker.destination, line, key, timeout_s)


@click.command("down")
@_file_argument
@_timeout_option
def down_command(hosts: Path, timeout: float) -> None:
    r"""Stop a cluster that xparl up has started: its master, and its workers on every host of the file.

    \b
    Examples:
      xparl down hosts.toml
    """
    file = ClusterFile.read(hosts)
    # The master by its port: the address that others have for it may not be one of its host's.
    every = {(file.master.destination, file.master.shell("stop", "--port", str(file.port))): None}
    every |= {(worker.destination, worker.shell("stop", "--address", file.address)): None for worker in file.workers}
    outcomes = list(_run_all([_Job(file, destination, line, "", timeout) for destination, line in every]))
    for outcome in outcomes:
        _print_outcome(outcome)
    if any(outcome.error for outcome in outcomes):
        raise click.ClickException("not every host could be reached; processes there may still run")


def _print_outcome(outcome: _Outcome, lines: int | None = None) -> None:
    for line in (outcome.error or outcome.text).splitlines()[: None if outcome.error else lines]:
        click.echo(f"{outcome.destination}: {plain(line)}", err=bool(outcome.error))

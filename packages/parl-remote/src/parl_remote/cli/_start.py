"""`xparl start`, `xparl connect` and `xparl key`: the first node of a cluster, further nodes, and keys."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from parl_remote._config import Environment, Limits, environment
from parl_remote._doctor.reach import explained, explained_here
from parl_remote._links.identity import host_name, new_id
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Role
from parl_remote._messages.parts import NodeReached, ReachNode
from parl_remote._node.launch import NodeSettings, start_program
from parl_remote._program.rendezvous import ClusterAddress, given_key
from parl_remote._resources import Resources
from parl_remote._run_files import RunFiles, key_of, locked
from parl_remote._security import ClusterKey, write_private_file
from parl_remote._system.facilities import cpu_count
from parl_remote._system.host import usable_memory, visible_gpus
from parl_remote._transport.addresses import (
    EVERY_INTERFACE,
    Address,
    address_here,
    is_loopback,
    own_address_toward,
    without_brackets,
)
from parl_remote.cli._monitor import plan_monitor
from parl_remote.cli._session import FiniteRange, check_port, key_option
from parl_remote.errors import RemoteError

__all__ = ["RUNS_ALREADY", "NodeResources", "connect_command", "key_command", "start_command"]

RUNS_ALREADY = "It runs already"
"""The beginning of the message of `--once` about something that runs already."""


_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_foreground_option = click.option(
    "--foreground", is_flag=True, help="Stay in this terminal until Ctrl-C or SIGTERM; for systemd and containers."
)


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources that one node gives to actors.

    Attributes:
        cpu: CPUs.
        gpus: GPUs, as CUDA_VISIBLE_DEVICES names them.
        memory: Bytes.
        labels: Amounts of what the cluster's owner has named.
    """

    cpu: float
    gpus: tuple[str, ...]
    memory: int
    labels: Mapping[str, float]

    @classmethod
    def of(cls, cpu_num: float | None, gpu: str | None, memory: str | None, label: Sequence[str]) -> NodeResources:
        """Return the resources given by the options.

        Raises:
            click.UsageError: An option is invalid.
        """
        cpu = float(cpu_count()) if cpu_num is None else round(cpu_num, 3)
        resources = cls(cpu, _gpus(gpu), usable_memory() if memory is None else _bytes(memory), _labels(label))
        try:
            Resources(resources.cpu, len(resources.gpus), resources.memory, resources.labels)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return resources

    def __str__(self) -> str:
        parts = [f"{self.cpu:g} CPU{'s' * (self.cpu != 1)}"] if self.cpu else []
        if self.gpus:
            parts.append(f"{len(self.gpus)} GPU{'s' * (len(self.gpus) != 1)}")
        parts += [f"{amount:g} {name}" for name, amount in self.labels.items()]
        return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "0 CPUs"


def resource_options(command: _Decorated) -> _Decorated:
    """Add the options common to the commands that start a node."""
    for option in (
        click.option(
            "--label",
            multiple=True,
            metavar="NAME=AMOUNT",
            help="An amount of another resource that actors can request, for example license=2; may be repeated.",
        ),
        click.option(
            "--memory",
            metavar="SIZE",
            help='Memory for actors that request memory, for example "24G". Default: all of this host.',
        ),
        click.option(
            "--gpu",
            metavar="IDS",
            help='GPUs for actors, for example "0,1", which this host has or CUDA_VISIBLE_DEVICES lists. Default: '
            "CUDA_VISIBLE_DEVICES, else all of this host.",
        ),
        click.option(
            "--cpu_num",
            "--cpu-num",
            "cpu_num",
            type=FiniteRange(0, 1_000_000),
            help="CPUs for actors; an actor uses one unless it requests another number. Default: all of this host.",
        ),
    ):
        command = option(command)
    return command


_GPU_IDS = ("GPU-", "MIG-")  # unique ids, which only the driver can look up


def _gpus(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return visible_gpus(os.environ)
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    if twice := {name for name in names if names.count(name) > 1}:
        raise click.UsageError(f"--gpu names {', '.join(sorted(twice))} more than once")
    here = visible_gpus({})
    known = {*here, *visible_gpus(os.environ)}
    if unknown := [name for name in names if name not in known and not name.startswith(_GPU_IDS)]:
        found = f"{len(here)} GPU{'s' * (len(here) != 1)} found on this host ({', '.join(here)})" if here else ""
        raise click.UsageError(
            f"--gpu names {', '.join(unknown)}, but {found or 'no NVIDIA GPU is found on this host (/dev/nvidia0)'}; "
            f"to give GPUs that cannot be found, set CUDA_VISIBLE_DEVICES={asked}"
        )
    return names


def _labels(given: Sequence[str]) -> dict[str, float]:
    labels: dict[str, float] = {}
    for text in given:
        name, equals, amount = text.partition("=")
        name = name.strip()
        try:
            value = float(amount)
        except ValueError:
            equals = ""
            value = 0.0
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--label takes a name and an amount, for example license=2, not {text!r}")
        if name in labels:
            raise click.UsageError(f"--label {name} is given twice")
        labels[name] = value
    return labels


def _bytes(text: str) -> int:
    read = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if read is None:
        raise click.UsageError(f'--memory is a size such as "24G" or "512M", not {text!r}')
    return int(float(read[1]) * _UNITS[read[2].upper()])


@click.command("start")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="The TCP port of the cluster.")
@resource_options
@click.option(
    "--host",
    type=without_brackets,
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. Other hosts can only join with 0.0.0.0 or an address of this host.",
)
@click.option(
    "--monitor_port",
    "--monitor-port",
    type=click.IntRange(0, 65535),
    help="Port of the web monitor, 0 for none. Default: --port + 100, or a free one; none with PARL_MONITOR=0.",
)
@click.option(
    "--monitor_host",
    "--monitor-host",
    type=without_brackets,
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Interface of the web monitor. On any other than loopback, users have to sign in with its token.",
)
@click.option(
    "--monitor_token_file",
    "--monitor-token-file",
    type=click.Path(path_type=Path),
    help="The file with the monitor's token. Default: PARL_MONITOR_TOKEN_FILE, else a file that is made once and kept.",
)
@key_option
@click.option("--debug", is_flag=True, help="Write more detail into the node's log, like the variable DEBUG=1.")
@click.option(
    "--gpu_cluster", "--gpu-cluster", is_flag=True, help="No longer needed: a cluster has both CPUs and GPUs."
)
@click.option(
    "--log_server_port_range",
    "--log-server-port-range",
    metavar="LOW-HIGH",
    help="No longer needed: logs use the cluster's single port.",
)
@click.option("--once", is_flag=True, help="If your cluster runs at this port already, report it and start nothing.")
@_foreground_option
def start_command(
    port: int,
    cpu_num: float | None,
    gpu: str | None,
    memory: str | None,
    label: tuple[str, ...],
    host: str,
    monitor_port: int | None,
    monitor_host: str,
    monitor_token_file: Path | None,
    key_file: Path | None,
    debug: bool,
    gpu_cluster: bool,
    log_server_port_range: str | None,
    once: bool,
    foreground: bool,
) -> None:
    r"""Start a cluster on this host, with this host's CPUs.

    \b
    Examples:
      xparl start --port 8037                       all CPUs, for programs on this host
      xparl start --port 8037 --cpu_num 4 --gpu 0,1
      xparl start --port 8037 --host 0.0.0.0        other hosts can join
      xparl start --port 8037 --cpu_num 0           a master that runs no actors itself
    """
    explain_old_options(gpu_cluster=gpu_cluster, log_server_port_range=log_server_port_range)
    found = environment()
    run_files = RunFiles(found.run_dir)
    # Without CPUs it is a master alone, whatever GPUs this host may have; they can still be asked for by name.
    resources = NodeResources.of(cpu_num, "" if cpu_num == 0 and gpu is None else gpu, memory, label)
    with contextlib.ExitStack() as start:
        try:
            # A second `xparl start` waits here, and then finds the cluster of the first.
            start.enter_context(locked(run_files.lock_file(str(port))))
            directory = run_files.cluster_directory(port)
            start.callback(_remove_if_empty, directory)  # if nothing is started
            for where, record in run_files.clusters() if once else ():
                if record.port == port and record.process.alive():
                    _print_running(
                        f"your cluster at port {port} (process {record.process.pid})", where, found, key_file
                    )
                    return
            check_port(host, port, run_files)
            monitor = plan_monitor(found, monitor_host, monitor_port, port, monitor_token_file)
            key_of(directory, given_key(found, key_file))
        except (RemoteError, OSError) as error:
            raise click.ClickException(explained_here(str(error), found)) from error
        before = next((record for where, record in run_files.clusters() if where == directory), None)
        settings = NodeSettings(
            directory=str(directory),
            node_id=new_id("node"),
            # a crashed cluster on this port is continued
            cluster_id=before.cluster_id if before else new_id("cluster"),
            host=host,
            known_as="",
            port=port,
            master="",
            cpu=resources.cpu,
            gpus=resources.gpus,
            memory=resources.memory,
            labels=resources.labels,
            debug=debug,
        )

        def show(address: str) -> None:
            start.close()
            _print_started(address, settings, resources, monitor.start(settings))

        _launch(settings, foreground, found, show)


def _launch(settings: NodeSettings, foreground: bool, found: Environment, show: Callable[[str], None]) -> None:
    """Start a node, here or detached, and report it to the user.

    Args:
        settings: Its settings.
        foreground: Whether this process becomes the node; it then does not return.
        found: Limits, and the command that nodes are started with.
        show: Prints the address that it listens on.

    Raises:
        click.ClickException: It did not come up.
    """
    if not foreground:
        log_file = Path(settings.directory) / "node.log"
        try:
            address = start_program("parl_remote._node.cluster_node", settings, log_file, found, what="node")
        except RemoteError as error:
            raise click.ClickException(str(error)) from error
        show(address)
        return

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            click.echo(f"Error: {error}", err=True)
        else:
            show(outcome["address"])

    from parl_remote._node.cluster_node import run_node  # 0.1 s of imports that a detached node pays itself

    sys.exit(run_node(settings, report))


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _print_running(what: str, directory: Path, found: Environment, key_file: Path | None) -> None:
    """Print that a node of this name runs.

    Raises:
        click.ClickException: It has another key than the given one, which is of no use there.
    """
    try:
        given = given_key(found, key_file)
        if given not in {None, ClusterKey.from_file(directory / "key")}:
            raise click.ClickException(
                f"{what} runs with another key than the given one: give it that of {directory / 'key'}, or stop it "
                "first (xparl stop)"
            )
    except RemoteError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{RUNS_ALREADY}: {what}.")


def explain_old_options(*, gpu_cluster: bool = False, log_server_port_range: str | None = None) -> None:
    """Print the replacements of options that PARL needed."""
    if gpu_cluster:
        click.echo(
            "Note: --gpu_cluster is no longer needed: one cluster has CPUs and GPUs, and actors ask for either.",
            err=True,
        )
    if log_server_port_range is not None:
        click.echo(
            "Note: --log_server_port_range is no longer needed: logs come through the node's port (xparl logs ACTOR).",
            err=True,
        )


def _print_started(address: str, settings: NodeSettings, resources: NodeResources, monitor: str) -> None:
    port, key = settings.port, Path(settings.directory) / "key"
    click.echo(f"A cluster with {resources} runs at {address}.")
    click.echo(f'  Use it here        parl.connect("{address_here(settings.host, port)}")')
    if is_loopback(settings.host):
        click.echo(
            "  Other hosts        cannot join: it listens on this host only; start it with --host 0.0.0.0 for that"
        )
    else:
        reachable = Address(host_name() if settings.host in EVERY_INTERFACE else settings.host, port)
        click.echo(f"  From other hosts   copy the key file {key} there (mode 0600), then")
        click.echo(f"                     PARL_KEY_FILE=<the copy> xparl connect --address {reachable}")
        click.echo(f'                     PARL_KEY_FILE=<the copy> python ...   # parl.connect("{reachable}")')
    click.echo("  Look at it         xparl status")
    if monitor:
        click.echo(f"  In a browser       {monitor}")
    click.echo(f"  Stop it            xparl stop --port {port}")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")


_PATIENCE_S = 2.0
_LOOK_S = 0.05


@click.command("connect")
@click.option("--address", required=True, metavar="HOST:PORT", help="The master.")
@resource_options
@click.option(
    "--host",
    type=without_brackets,
    metavar="HOST",
    help="Interface to listen on. Default: the interface towards the master.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The TCP port of this worker. Default: a free one."
)
@key_option
@click.option("--debug", is_flag=True, help="Write more detail into the worker's log, like the variable DEBUG=1.")
@click.option(
    "--log_server_port_range",
    "--log-server-port-range",
    metavar="LOW-HIGH",
    help="No longer needed: logs use the worker's single port.",
)
@click.option(
    "--once",
    default="",
    metavar="NAME",
    help="If a worker of this name, started here for this master, runs already, report it and start nothing.",
)
@_foreground_option
def connect_command(
    address: str,
    cpu_num: float | None,
    gpu: str | None,
    memory: str | None,
    label: tuple[str, ...],
    host: str | None,
    port: int,
    key_file: Path | None,
    debug: bool,
    log_server_port_range: str | None,
    once: str,
    foreground: bool,
) -> None:
    r"""Add this host's CPUs to a cluster.

    The cluster's key comes from --key_file, PARL_KEY_FILE, PARL_KEY or, on the host where you started the cluster,
    from your run directory.

    \b
    Examples:
      xparl connect --address first:8037
      xparl connect --address first:8037 --cpu_num 8 --memory 24G
      xparl connect --address first:8037 --cpu_num 0 --gpu 0,1
      xparl connect --address first:8037 --label license=2
    """
    explain_old_options(log_server_port_range=log_server_port_range)
    found = environment()
    try:
        master = Address.parse(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    resources = NodeResources.of(cpu_num, gpu, memory, label)
    if not resources.cpu and not resources.gpus and not resources.labels:
        raise click.UsageError("a worker without CPUs and GPUs has nothing to offer; --cpu_num must be above 0")
    run_files = RunFiles(found.run_dir)
    with contextlib.ExitStack() as start:
        try:
            if once:
                # A second command waits here, and then finds the worker of the first.
                start.enter_context(locked(run_files.lock_file("once")))
                for where, record in run_files.workers():
                    if (record.once, record.master) == (once, str(master)) and record.process.alive():
                        what = f"the worker {record.node_id} (process {record.process.pid})"
                        _print_running(what, where, found, key_file)
                        return
            cluster = ClusterAddress(str(master), found, key_file)
            # It fails if the master refuses this host.
            RequestConnection(cluster.connect_master(), Role.MASTER, found.limits, "xparl connect").close()
            listen_on, known_as = _worker_host(host, master, run_files)
            if port:
                check_port(listen_on, port, run_files)
            node_id = new_id("worker")
            directory = run_files.worker_directory(node_id)
            write_private_file(directory / "key", cluster.key.to_text() + "\n")
        except RemoteError as error:
            raise click.ClickException(str(explained(error, address, found))) from error
        except OSError as error:
            raise click.ClickException(explained_here(str(error), found)) from error
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        settings = NodeSettings(
            directory=str(directory),
            node_id=node_id,
            cluster_id="",
            host=listen_on,
            known_as=known_as,
            port=port,
            master=str(master),
            cpu=resources.cpu,
            gpus=resources.gpus,
            memory=resources.memory,
            labels=resources.labels,
            debug=debug,
            once=once,
        )

        def show(listening: str) -> None:
            start.close()
            _print_joined(listening, settings, resources)

        _launch(settings, foreground, found, show)
    _check_reached(cluster.within(_PATIENCE_S), found.limits, settings)


def _print_joined(address: str, settings: NodeSettings, resources: NodeResources) -> None:
    click.echo(
        f"These resources of this host belong to the cluster at {settings.master} (worker at {address}): {resources}."
    )
    click.echo("  It ends with the cluster, or here with xparl stop")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")


def _check_reached(cluster: ClusterAddress, limits: Limits, settings: NodeSettings) -> None:
    """Warn if not even the master can reach the worker at its advertised address."""
    deadline = time.monotonic() + _PATIENCE_S
    with (
        contextlib.suppress(RemoteError),
        RequestConnection(cluster.connect_master(), Role.MASTER, limits, "xparl connect") as it,
    ):
        while time.monotonic() < deadline:
            try:
                seen = it.ask(lambda number: ReachNode(number, settings.node_id), NodeReached, 2 * _PATIENCE_S)
            except RemoteError:  # the worker is about to introduce itself
                time.sleep(_LOOK_S)
                continue
            if not seen.reached:
                click.echo(
                    f"Warning: the master cannot reach this worker at {settings.known_as} ({seen.problem}), so other "
                    "hosts cannot, either; xparl stop, then xparl connect --host with an address that they reach.",
                    err=True,
                )
            return


def _worker_host(asked: str | None, master: Address, run_files: RunFiles) -> tuple[str, str]:
    """Return the interface that a worker listens on, and the host by which others reach it (empty: the master's)."""
    towards = own_address_toward(master)
    if asked is not None:
        return asked, towards if asked in EVERY_INTERFACE else asked
    if not is_loopback(towards):
        return towards, towards
    beside = (record.host for _, record in run_files.clusters() if record.port == master.port)
    return next(beside, towards), ""


@click.command("key")
def key_command() -> None:
    r"""Print a new cluster key.

    xparl start makes a key itself. Use this command if a job script, a secret store or a configuration management
    system gives the same key to all nodes. xparl start, xparl connect and programs take it from --key_file (in programs
    key_file=), PARL_KEY_FILE or PARL_KEY.

    \b
    Example:
      (umask 077; xparl key > cluster.key)
      PARL_KEY_FILE=cluster.key xparl start --port 8037 --host 0.0.0.0
    """
    click.echo(ClusterKey.generate().to_text())

"""The commands of `xparl`; each says what it did and what can be done next."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click

from parl_remote._version import __version__
from parl_remote.addresses import Address, is_loopback, own_address_toward
from parl_remote.cli.launch import check_port, detach
from parl_remote.cli.show import report_cluster
from parl_remote.cli.stopping import stop_all
from parl_remote.cluster_node import NodeSettings
from parl_remote.config import Environment, environment
from parl_remote.daemon import run_node
from parl_remote.errors import RemoteError
from parl_remote.gpus import visible_gpus
from parl_remote.identity import host_name, new_id
from parl_remote.rendezvous import find_key
from parl_remote.run_files import RunFiles, key_of
from parl_remote.security import write_private_file

__all__ = ["main"]

_EVERYWHERE = frozenset({"0.0.0.0", "::"})

_port = click.option("--port", type=click.IntRange(1, 65535), help="The cluster's port.")
_cpu_num = click.option(
    "--cpu_num",
    "--cpu-num",
    "cpu_num",
    type=click.FloatRange(0, 1_000_000),
    help="CPUs to give to actors, one for each actor unless it asks for something else. Default: all of this host.",
)
_gpu = click.option(
    "--gpu", help='GPUs to give to actors, for example "0,1". Default: CUDA_VISIBLE_DEVICES, else none.'
)
_foreground = click.option(
    "--foreground", is_flag=True, help="Stay in this terminal until Ctrl-C or SIGTERM; for systemd and containers."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="parl-remote")
def main() -> None:
    """Start, join, look at and stop clusters of remote actors.

    A program needs none of this for a private cluster on its own machine: parl.connect() makes one.
    """


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="The one TCP port of the cluster.")
@_cpu_num
@_gpu
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. Other hosts can only join with 0.0.0.0 or an address of this host.",
)
@_foreground
def start(port: int, cpu_num: float | None, gpu: str | None, host: str, foreground: bool) -> None:
    """Start a cluster on this host, with this host's CPUs."""
    found = environment()
    run_files = RunFiles(found.run_dirs)
    check_port(host, port, run_files)
    try:
        directory = run_files.cluster_directory(port)
        key_of(directory)
    except (RemoteError, OSError) as error:
        raise click.ClickException(str(error)) from error
    before = next((record for where, record in run_files.clusters() if where == directory), None)
    settings = NodeSettings(
        directory=str(directory),
        node_id=new_id("node"),
        cluster_id=before.cluster_id if before else new_id("cluster"),  # one that crashed here is taken up again
        host=host,
        known_as="",
        port=port,
        master="",
        cpu=_cpus(cpu_num),
        gpus=_gpus(gpu),
    )
    _run(settings, foreground, found, lambda address: _say_started(address, settings))


@main.command()
@click.option("--address", required=True, help='The master, "host:port".')
@_cpu_num
@_gpu
@click.option("--host", help="Interface to listen on. Default: the one towards the master.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The one TCP port of this worker. Default: a free one."
)
@click.option("--key_file", "--key-file", type=click.Path(path_type=Path), help="The cluster's key. Default: see docs.")
@_foreground
def connect(
    address: str,
    cpu_num: float | None,
    gpu: str | None,
    host: str | None,
    port: int,
    key_file: Path | None,
    foreground: bool,
) -> None:
    """Add this host's CPUs to a cluster."""
    found = environment()
    cpus, gpus = _cpus(cpu_num), _gpus(gpu)
    if not cpus and not gpus:
        raise click.UsageError("a worker without CPUs and GPUs has nothing to offer; --cpu_num must be above 0")
    try:
        master = Address.parse(address)
        key = find_key(master, found, key_file)
        listen_on, known_as = _worker_host(host, master, RunFiles(found.run_dirs))
        node_id = new_id("worker")
        directory = RunFiles(found.run_dirs).worker_directory(node_id)
        write_private_file(directory / "key", key.to_text() + "\n")
    except (RemoteError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    settings = NodeSettings(
        directory=str(directory),
        node_id=node_id,
        cluster_id="",
        host=listen_on,
        known_as=known_as,
        port=port,
        master=str(master),
        cpu=cpus,
        gpus=gpus,
    )
    _run(settings, foreground, found, lambda listening: _say_joined(listening, settings))


@main.command()
@_port
@click.option("--address", help='A cluster anywhere, "host:port". Default: all your clusters on this host.')
@click.option("--key_file", "--key-file", type=click.Path(path_type=Path), help="The key, with --address.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(port: int | None, address: str | None, key_file: Path | None, as_json: bool) -> None:
    """Show nodes, slots, actors and clients of clusters."""
    found = environment()
    if address is not None:
        targets = [(address, key_file)]
    else:
        records = [
            (where, record) for where, record in RunFiles(found.run_dirs).clusters() if port in {None, record.port}
        ]
        targets = [(f"{_dialled(record.host)}:{record.port}", where / "key") for where, record in records]
    reports = [report_cluster(target, key, found) for target, key in targets]
    if as_json:
        click.echo(json.dumps({"clusters": [report.as_json() for report in reports]}, indent=2))
    elif reports:
        click.echo("\n\n".join(report.as_text() for report in reports))
    else:
        which = f"on port {port}" if port else "of yours"
        click.echo(f"There is no cluster {which} on this host. Start one: xparl start --port 8037")
    if any(report.error for report in reports):
        sys.exit(1)


@main.command()
@_port
def stop(port: int | None) -> None:
    """Stop your clusters and workers on this host: all of them, or those of one port."""
    found = environment()
    stopped = stop_all(RunFiles(found.run_dirs), port, found.limits)
    for line in stopped:
        click.echo(line)
    if not stopped:
        which = f"on port {port}" if port else "of yours"
        click.echo(f"There is no cluster {which} on this host; nothing was stopped.")


def _run(settings: NodeSettings, foreground: bool, found: Environment, say: Callable[[str], None]) -> None:
    """Start the node, here or detached, and tell the user."""
    if not foreground:
        say(detach(settings, found.limits))
        return

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            click.echo(f"Error: {error}", err=True)
        else:
            say(outcome["address"])

    sys.exit(run_node(settings, report))


def _say_started(address: str, settings: NodeSettings) -> None:
    port, key = settings.port, Path(settings.directory) / "key"
    click.echo(f"A cluster with {_offer(settings)} runs at {address}.")
    click.echo(f'  Use it here        parl.connect("localhost:{port}")')
    if is_loopback(settings.host):
        click.echo(
            "  Other hosts        cannot join: it listens on this host only; start it with --host 0.0.0.0 for that"
        )
    else:
        reachable = host_name() if settings.host in _EVERYWHERE else settings.host
        click.echo(f"  From other hosts   copy the key file {key} there (mode 0600), then")
        click.echo(f"                     PARL_KEY_FILE=<the copy> xparl connect --address {reachable}:{port}")
        click.echo(f'                     PARL_KEY_FILE=<the copy> python ...   # parl.connect("{reachable}:{port}")')
    click.echo("  Look at it         xparl status")
    click.echo(f"  Stop it            xparl stop --port {port}")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")


def _say_joined(address: str, settings: NodeSettings) -> None:
    click.echo(f"This host's {_offer(settings)} belong to the cluster at {settings.master} (worker at {address}).")
    click.echo("  It ends with the cluster, or here with xparl stop")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")


def _worker_host(asked: str | None, master: Address, run_files: RunFiles) -> tuple[str, str]:
    """Which interface a worker listens on, and the host by which others reach it (empty: the master's)."""
    towards = own_address_toward(master)
    if asked is not None:
        return asked, towards if asked in _EVERYWHERE else asked
    if not is_loopback(towards):
        return towards, towards
    beside = (record.host for _, record in run_files.clusters() if record.port == master.port)
    return next(beside, towards), ""


def _offer(settings: NodeSettings) -> str:
    parts = [f"{settings.cpu:g} CPU{'s' * (settings.cpu != 1)}"]
    if settings.gpus:
        parts.append(f"{len(settings.gpus)} GPU{'s' * (len(settings.gpus) != 1)}")
    return " and ".join(parts)


def _cpus(asked: float | None) -> float:
    return float(len(os.sched_getaffinity(0))) if asked is None else round(asked, 3)


def _gpus(asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return visible_gpus(os.environ)
    return tuple(name.strip() for name in asked.split(",") if name.strip())


def _dialled(host: str) -> str:
    return "localhost" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host

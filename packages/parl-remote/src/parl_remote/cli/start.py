"""`xparl start`: a cluster's first node."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from parl_remote.cli.launch import check_port, foreground_option, launch
from parl_remote.cli.monitor_plan import plan_monitor
from parl_remote.cli.offer import Offer, offer_options
from parl_remote.cli.target import key_option
from parl_remote.config import environment
from parl_remote.doctor.explain import explained_here
from parl_remote.errors import RemoteError
from parl_remote.links.identity import host_name, new_id
from parl_remote.node.cluster_node import NodeSettings
from parl_remote.node.run_files import RunFiles, key_of
from parl_remote.program.rendezvous import given_key
from parl_remote.transport.addresses import Address, is_loopback

__all__ = ["command"]

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


@click.command("start")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="The one TCP port of the cluster.")
@offer_options
@click.option(
    "--host",
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
    default="127.0.0.1",
    show_default=True,
    help="Interface of the web monitor. Elsewhere than on loopback it asks for its token.",
)
@key_option
@click.option("--debug", is_flag=True, help="Write more into the node's log; the variable DEBUG=1 does so, too.")
@click.option("--gpu_cluster", "--gpu-cluster", is_flag=True, help="Not needed any more: a cluster has both kinds.")
@click.option(
    "--log_server_port_range",
    "--log-server-port-range",
    metavar="LOW-HIGH",
    help="Not needed any more: logs come through the cluster's one port.",
)
@foreground_option
def command(
    port: int,
    cpu_num: float | None,
    gpu: str | None,
    memory: str | None,
    label: tuple[str, ...],
    host: str,
    monitor_port: int | None,
    monitor_host: str,
    key_file: Path | None,
    debug: bool,
    gpu_cluster: bool,
    log_server_port_range: str | None,
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
    run_files = RunFiles(found.run_dirs)
    # Without CPUs it is a master alone, whatever GPUs this host may have; they can still be asked for by name.
    offer = Offer.of(cpu_num, "" if cpu_num == 0 and gpu is None else gpu, memory, label)
    check_port(host, port, run_files)
    monitor = plan_monitor(found, monitor_host, monitor_port, port)
    try:
        directory = run_files.cluster_directory(port)
        key_of(directory, given_key(found, key_file))
    except (RemoteError, OSError) as error:
        raise click.ClickException(explained_here(str(error), found)) from error
    before = next((record for where, record in run_files.clusters() if where == directory), None)
    settings = NodeSettings(
        directory=str(directory),
        node_id=new_id("node"),
        cluster_id=before.cluster_id if before else new_id("cluster"),  # one that crashed here is taken up again
        host=host,
        known_as="",
        port=port,
        master="",
        cpu=offer.cpu,
        gpus=offer.gpus,
        memory=offer.memory,
        labels=offer.labels,
        debug=debug,
    )
    launch(settings, foreground, found, lambda address: _say_started(address, settings, offer, monitor.start(settings)))


def explain_old_options(*, gpu_cluster: bool = False, log_server_port_range: str | None = None) -> None:
    """Say of options that PARL needed what became of them."""
    if gpu_cluster:
        click.echo(
            "Note: --gpu_cluster is not needed any more: one cluster has CPUs and GPUs, and actors ask for either.",
            err=True,
        )
    if log_server_port_range is not None:
        click.echo(
            "Note: --log_server_port_range is not needed any more: logs come through the node's one port "
            "(xparl logs ACTOR).",
            err=True,
        )


def _say_started(address: str, settings: NodeSettings, offer: Offer, monitor: str) -> None:
    port, key = settings.port, Path(settings.directory) / "key"
    click.echo(f"A cluster with {offer} runs at {address}.")
    anywhere = is_loopback(settings.host) or settings.host in _EVERYWHERE
    here = Address("localhost" if anywhere else settings.host, port)
    click.echo(f'  Use it here        parl.connect("{here}")')
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
    if monitor:
        click.echo(f"  In a browser       {monitor}")
    click.echo(f"  Stop it            xparl stop --port {port}")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")

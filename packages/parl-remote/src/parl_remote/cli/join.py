"""`xparl connect`: this host as one more worker of a cluster."""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path

import click

from parl_remote.cli.launch import check_port, foreground_option, launch
from parl_remote.cli.offer import Offer, offer_options
from parl_remote.cli.start import explain_old_options
from parl_remote.cli.target import key_option
from parl_remote.config import Limits, environment
from parl_remote.doctor.explain import explained, explained_here
from parl_remote.errors import RemoteError
from parl_remote.links.identity import new_id
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages import Role
from parl_remote.messages.health import NodeReached, ReachNode
from parl_remote.node.cluster_node import NodeSettings
from parl_remote.node.run_files import RunFiles
from parl_remote.program.rendezvous import ClusterAddress
from parl_remote.security import write_private_file
from parl_remote.transport.addresses import Address, is_loopback, own_address_toward

__all__ = ["command"]

_PATIENCE_S = 2.0
_LOOK_S = 0.05
_EVERYWHERE = frozenset({"0.0.0.0", "::"})


@click.command("connect")
@click.option("--address", required=True, metavar="HOST:PORT", help="The master.")
@offer_options
@click.option("--host", help="Interface to listen on. Default: the one towards the master.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The one TCP port of this worker. Default: a free one."
)
@key_option
@click.option("--debug", is_flag=True, help="Write more into the worker's log; the variable DEBUG=1 does so, too.")
@click.option(
    "--log_server_port_range",
    "--log-server-port-range",
    metavar="LOW-HIGH",
    help="Not needed any more: logs come through the worker's one port.",
)
@foreground_option
def command(
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
    foreground: bool,
) -> None:
    r"""Add this host's CPUs to a cluster.

    The cluster's key is taken from --key_file, PARL_KEY_FILE, PARL_KEY, or, on the host where you started the
    cluster, from your run files.

    \b
    Examples:
      xparl connect --address first:8037
      xparl connect --address first:8037 --cpu_num 8 --memory 24G
      xparl connect --address first:8037 --cpu_num 0 --gpu 0,1
      xparl connect --address first:8037 --label license=2
    """
    explain_old_options(log_server_port_range=log_server_port_range)
    found = environment()
    offer = Offer.of(cpu_num, gpu, memory, label)
    if not offer.cpu and not offer.gpus and not offer.labels:
        raise click.UsageError("a worker without CPUs and GPUs has nothing to offer; --cpu_num must be above 0")
    try:
        master = Address.parse(address)
        cluster = ClusterAddress(str(master), found, key_file)
        Inquiry(cluster.connect_master(), Role.MASTER, found.limits, "xparl connect").close()  # are we wanted there?
        listen_on, known_as = _worker_host(host, master, RunFiles(found.run_dirs))
        if port:
            check_port(listen_on, port, RunFiles(found.run_dirs))
        node_id = new_id("worker")
        directory = RunFiles(found.run_dirs).worker_directory(node_id)
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
        cpu=offer.cpu,
        gpus=offer.gpus,
        memory=offer.memory,
        labels=offer.labels,
        debug=debug,
    )
    launch(settings, foreground, found, lambda listening: _say_joined(listening, settings, offer))
    _check_reached(cluster.within(_PATIENCE_S), found.limits, settings)


def _say_joined(address: str, settings: NodeSettings, offer: Offer) -> None:
    click.echo(f"This host's {offer} belong to the cluster at {settings.master} (worker at {address}).")
    click.echo("  It ends with the cluster, or here with xparl stop")
    click.echo(f"  Logs               {shlex.quote(settings.directory)}")


def _check_reached(cluster: ClusterAddress, limits: Limits, settings: NodeSettings) -> None:
    """Say so if not even the master can reach the worker where it says that it is."""
    deadline = time.monotonic() + _PATIENCE_S
    with (
        contextlib.suppress(RemoteError),
        Inquiry(cluster.connect_master(), Role.MASTER, limits, "xparl connect") as it,
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
    """Which interface a worker listens on, and the host by which others reach it (empty: the master's)."""
    towards = own_address_toward(master)
    if asked is not None:
        return asked, towards if asked in _EVERYWHERE else asked
    if not is_loopback(towards):
        return towards, towards
    beside = (record.host for _, record in run_files.clusters() if record.port == master.port)
    return next(beside, towards), ""

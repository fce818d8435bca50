"""`xparl stop`: ends exactly the processes in the run files and those that they have started.

node on record --SIGTERM--> ends its actors, sends Bye         not within the grace time: SIGKILL
its descendants, noted before -----------------------------> those left: SIGKILL --> those still left are reported
node killed before  --> its zygote and actors end by themselves, those left are reported
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click

from parl_remote._config import Limits, environment
from parl_remote._run_files import (
    ClusterRecord,
    MonitorRecord,
    ProcessRecord,
    RunFiles,
    WorkerRecord,
    forget,
    forget_monitor,
    signal_process,
)
from parl_remote._system import processes
from parl_remote._transport.addresses import EVERY_INTERFACE, Address, address_here, is_this_host
from parl_remote.cli._commands import parsed

__all__ = ["NOTHING_THERE", "Stopped", "on_record", "stop_all", "stop_command"]

NOTHING_THERE = 3
"""The exit status of `xparl stop` if the clusters that it names are unknown on this host."""


_Record: TypeAlias = ClusterRecord | WorkerRecord | MonitorRecord
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process either way
_LAST_WORK_S = 0.5  # a zygote whose node was killed detects that and ends its actors by itself
_KILLED_S = 6.0  # one that was killed needs only a CPU for its own end; hundreds on a busy machine take seconds


class Stopped(NamedTuple):
    """The outcome of `stop_all`.

    Attributes:
        lines: A line for each process on how it ended; monitors that ended with their cluster are not listed.
        left: The processes that have not ended.
    """

    lines: list[str]
    left: list[ProcessRecord]


def stop_all(run_files: RunFiles, nodes: Sequence[tuple[Path, _Record]], limits: Limits) -> Stopped:
    """Stop nodes and monitors on this host.

    Args:
        run_files: The records of the processes.
        nodes: The records of those to stop, from `on_record`.
        limits: The grace time before SIGKILL.
    """
    clusters = {where for where, node in nodes if isinstance(node, ClusterRecord)}
    gone = {node.process for _, node in nodes if not node.process.alive()}
    relatives = {node.process: set(_relatives_of(node.process)) for _, node in nodes}
    masters = [node for _, node in nodes if isinstance(node, ClusterRecord)]
    deadline = time.monotonic() + limits.shutdown_grace_s
    for master in masters:
        signal_process(master.process, signal.SIGTERM)
    for master in masters:  # it ends its workers, whose programs then hear that the cluster was stopped, not the worker
        _ended(master.process, deadline - limits.shutdown_grace_s / 2)
    for _, node in nodes:
        if not isinstance(node, ClusterRecord):
            signal_process(node.process, signal.SIGTERM)
    late = [node.process for _, node in nodes if not _ended(node.process, deadline)]
    for process in late:
        relatives[process] |= {process, *_descendants(process)}  # with those that were started since
        signal_process(process, _KILL)
    family = {one for process, found in relatives.items() if process not in gone for one in found}
    deadline = time.monotonic() + _LAST_WORK_S
    for process in family:
        _ended(process, deadline)
    foreign = set()
    for process in family:  # those that did not end with the others, because they were stopped or detached
        try:
            signal_process(process, _KILL)
        except PermissionError:  # of another user, so it cannot belong to a cluster of this user
            foreign.add(process)
    deadline = time.monotonic() + _KILLED_S
    left = {
        process: [one for one in found - foreign if not _ended(one, deadline)] for process, found in relatives.items()
    }
    now = on_record(run_files)
    for where, node in nodes:
        if not left[node.process] and (where, node) in now:  # else another one has begun there since
            with contextlib.suppress(OSError):  # not empty, or a read-only disk: records that stay name no process
                (forget_monitor if isinstance(node, MonitorRecord) else forget)(where)
                where.rmdir()
    listed = [node for where, node in nodes if not (isinstance(node, MonitorRecord) and where in clusters)]
    return Stopped([_line(node, late, gone) for node in listed], list({*chain.from_iterable(left.values())}))


def on_record(
    run_files: RunFiles, ports: Collection[int] = (), addresses: Collection[Address] = ()
) -> list[tuple[Path, _Record]]:
    """Return this user's nodes and monitors on this host, with the directories of their records.

    Args:
        run_files: The records of the processes.
        ports: Only the clusters on these ports and their workers here; none, without addresses, means all.
        addresses: Only the clusters at these addresses and their workers here.
    """
    records: list[tuple[Path, _Record]] = [*run_files.clusters(), *run_files.workers(), *run_files.monitors()]
    known = [(where, one) for where, one in records if _is_from_here(one.process)]  # hosts may share the directory
    if not ports and not addresses:
        return known
    at = [one for _, one in known if any(_is_at(one, address) for address in addresses)]
    clusters = {one.cluster_id for one in at} - {""}
    return [(where, one) for where, one in known if _port_of(one) in ports or one in at or one.cluster_id in clusters]


def _is_at(node: _Record, address: Address) -> bool:
    """Return whether the cluster that a process belongs to is known here by this address."""
    asked = address_here(address.host, address.port)
    if not isinstance(node, ClusterRecord):
        master = Address.parse(node.master)
        return asked == address_here(master.host, master.port)
    on_all = node.host in EVERY_INTERFACE and node.port == address.port
    return asked == address_here(node.host, node.port) or (on_all and is_this_host(address.host))


def _port_of(node: _Record) -> int:
    """Return the port of the cluster that a process belongs to."""
    return node.port if isinstance(node, ClusterRecord) else Address.parse(node.master).port


def _cluster_of(node: _Record) -> str:
    """Return the cluster that a process belongs to; hosts and ports alone do not identify clusters."""
    return node.cluster_id or str(_port_of(node))


def _running(nodes: Sequence[tuple[Path, _Record]]) -> list[_Record]:
    """Return those that run, without monitors that end with their cluster."""
    alive = [(where, one) for where, one in nodes if one.process.alive()]
    clusters = {where for where, one in alive if isinstance(one, ClusterRecord)}
    return [one for where, one in alive if not (isinstance(one, MonitorRecord) and where in clusters)]


def _relatives_of(node: ProcessRecord) -> Iterator[ProcessRecord]:
    """Yield records of the processes below a node; of its zygote and actors, if it has ended."""
    if node.alive():
        yield from _descendants(node)
    elif not list(_records([node.pid])):  # no other process has its pid
        yield from _records(processes.in_session(node.pid, "parl:"))


def _descendants(root: ProcessRecord) -> Iterator[ProcessRecord]:
    """Yield records of the descendants of a process, since a pid alone may be reused later."""
    return _records(processes.descendants([root.pid] if root.alive() else []))


def _records(pids: Iterable[int]) -> Iterator[ProcessRecord]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield ProcessRecord.of(pid)


def _ended(process: ProcessRecord, deadline: float) -> bool:
    return process.ended_within(max(0.0, deadline - time.monotonic()))


def _line(node: _Record, late: Collection[ProcessRecord], gone: Collection[ProcessRecord]) -> str:
    how = "was killed, it did not end by itself" if node.process in late else "has ended"
    return f"{_name_of(node)} {'had ended before' if node.process in gone else how}"


def _name_of(node: _Record) -> str:
    if isinstance(node, ClusterRecord):
        what = f"the cluster on port {node.port}"
    else:
        what = f"the {'worker' if isinstance(node, WorkerRecord) else 'monitor'} of {node.master}"
    return f"{what} (process {node.process.pid})"


def _is_from_here(process: ProcessRecord) -> bool:
    return process.host_id == ProcessRecord.of(os.getpid()).host_id


_MOST_NAMED = 10
_UNANSWERED = 2  # the exit status where no user can be asked


@click.command("stop")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    help="Your cluster on this port of this host; may be repeated.",
)
@click.option(
    "--address",
    "addresses",
    metavar="HOST:PORT",
    multiple=True,
    callback=lambda _context, _option, given: [parsed(text) for text in given],
    help="The cluster at this address: your cluster of this host, or one that has workers here; may be repeated.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Stop all your clusters, or all on the given ports, without asking."
)
def stop_command(ports: tuple[int, ...], addresses: list[Address], everything: bool) -> None:
    r"""Stop your clusters and workers on this host: those at the given ports or addresses, or all.

    Without --port and --address, the command lists what it stops. If that belongs to several clusters, it asks for
    confirmation; a single port may belong to several clusters if workers of other hosts' clusters run here. With --all
    it does not ask. If it has to ask but there is no terminal, it stops nothing and exits with 2. If it finds nothing
    at the given ports or addresses, it exits with 3.

    Each node has a short time to end its actors and to disconnect; then its remaining processes are killed. The command
    returns when all of them have ended; if some do not end, it names them and exits with 1.

    The command finds processes by the records of xparl start and xparl connect in your run directory (PARL_RUN_DIR),
    never by name.

    \b
    Examples:
      xparl stop --port 8037
      xparl stop --port 8037 --port 8038
      xparl stop --address first:8037
      xparl stop
      xparl stop --all
      xparl stop --all --port 8037
    """
    found = environment()
    run_files = RunFiles(found.run_dir)
    if ports and addresses:
        raise click.UsageError("--port and --address both name clusters; use one of them")
    nodes = on_record(run_files, ports, addresses)
    running = _running(nodes)
    several = len({_cluster_of(one) for one in running}) > max(1, len({_port_of(one) for one in running} & set(ports)))
    if not addresses and (several or not ports):
        _announce(running, asks=several and not everything)
    stopped = stop_all(run_files, nodes, found.limits)
    for line in stopped.lines:
        click.echo(line)
    if stopped.left:
        states = "".join(f"\n  {processes.state_of(process.pid)}" for process in stopped.left[:_MOST_NAMED])
        click.echo(f"{len(stopped.left)} of their processes have not ended yet:{states}", err=True)
        sys.exit(1)
    if not stopped.lines:
        which = f"on port {' or '.join(map(str, ports))}" if ports else "of yours"
        which = f"at {' or '.join(map(str, addresses))}" if addresses else which
        named = bool(ports or addresses)
        click.echo(f"There is no cluster {which} on this host; nothing was stopped.", err=named)
        if named:
            sys.exit(NOTHING_THERE)


def _announce(running: Sequence[_Record], *, asks: bool) -> None:
    """Print the processes to be stopped; ask for confirmation, or refuse, if they belong to several clusters."""
    if running:
        click.echo("This stops:")
    for one in running:
        click.echo(f"  {_name_of(one)}")
    if not asks:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(
            "This would stop several clusters, and there is no terminal to ask on; name one with --port or --address, "
            "or pass --all (with --port: all clusters on that port).",
            err=True,
        )
        raise SystemExit(_UNANSWERED)
    click.confirm("Stop all of them?", abort=True)

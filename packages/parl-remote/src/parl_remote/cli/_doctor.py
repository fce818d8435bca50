"""`xparl doctor`: checks this host (`doctor.local`), the way to a cluster (`doctor.reach`), and the cluster.

    master --Status, HostReport--> findings --its workers--> each of them:
    this host --Hello--> worker's address --Welcome, HostReport--> findings
    master ----TCP-----> the same address, where this host fails: both fail: the address is wrong; one: a firewall

Checked through the cluster's port: key, versions, clocks and disks, free CPUs, and each worker from two sides.
"""

from __future__ import annotations

import concurrent.futures
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from parl_remote._config import Environment, Limits, environment
from parl_remote._doctor.local import Finding, Severity, check_here, fine, imports_of, note, problem
from parl_remote._doctor.reach import ProbeResult, check_reach, finding_for, probe
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import NodeStatus, Role, Status, StatusRequest
from parl_remote._messages.parts import CheckHost, HostReport, NodeReached, ReachNode
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._system.texts import visible
from parl_remote._transport.addresses import Address, advertised_by
from parl_remote._worker.host_check import versions_that_matter
from parl_remote.cli._session import Target, address_option, key_option, port_option, targets
from parl_remote.errors import AuthenticationFailed, RemoteError, RemoteProtocolError, VersionMismatch

__all__ = ["check_cluster", "doctor_command"]


_AT_ONCE = 16  # workers checked in parallel
_PATIENCE_S = 3.0  # the time limit for each of them


@dataclass(frozen=True, slots=True)
class _WorkerCheck:
    """The result of checking a worker from here: findings, or why it cannot be reached."""

    findings: tuple[Finding, ...] = ()
    unreachable: str = ""


def check_workers(
    master: RequestConnection, cluster: ClusterAddress, nodes: Sequence[NodeStatus], modules: Sequence[str]
) -> Iterator[Finding]:
    """Check the workers of a master.

    Args:
        master: The master, for trying to reach a worker from its side.
        cluster: The cluster's address.
        nodes: The master's status of the workers.
        modules: Modules that they must have.
    """
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        sights = list(pool.map(lambda node: _look(cluster, node, modules), nodes))
    for node, sight in zip(nodes, sights, strict=True):
        if sight.unreachable:
            yield _from_both_sides(master, cluster, node, sight.unreachable)
        yield from sight.findings


def _look(cluster: ClusterAddress, node: NodeStatus, modules: Sequence[str]) -> _WorkerCheck:
    name, where = _name(node), _where(cluster, node)
    limits = Limits(connect_timeout_s=_PATIENCE_S)
    try:
        worker = RequestConnection(
            cluster.within(_PATIENCE_S).connect_node(node.addresses), Role.WORKER, limits, "xparl doctor"
        )
    except AuthenticationFailed:
        return _WorkerCheck((_wrong_address(cluster, node, "the peer there does not have the cluster's key"),))
    except VersionMismatch as error:
        return _WorkerCheck((_other_version(node, str(error)),))
    except RemoteProtocolError as error:
        return _WorkerCheck((_wrong_address(cluster, node, f"the peer there is no worker ({error})"),))
    except (RemoteError, OSError):
        return _not_reached(cluster, node)
    with worker:
        if worker.welcome.id != node.node_id:
            return _WorkerCheck((_wrong_address(cluster, node, f"another node answers there ({worker.welcome.id})"),))
        heard = report_of_host(worker, modules, [path for path in sys.path if path])
    findings = [fine("worker", f"worker {name} can be reached at {where}")]
    who = f"worker {name}"
    if heard is None:
        findings.append(note("version", f"{who} does not report its health", "install the same parl-remote there"))
    else:
        findings += check_clock(who, heard)
        findings += check_disk(who, heard.report)
        findings += _versions(who, heard.report)
        findings += _modules(who, heard.report, modules)
    return _WorkerCheck(tuple(findings))


def _not_reached(cluster: ClusterAddress, node: NodeStatus) -> _WorkerCheck:
    """Check an address that leads to no worker, without a key."""
    if not node.addresses:
        return _WorkerCheck(unreachable="it has no address for other hosts")
    address = advertised_by(node.addresses[0], cluster.address)
    look = probe(address, _PATIENCE_S)
    match look.seen:
        case ProbeResult.OTHER_PROGRAM:
            return _WorkerCheck((_wrong_address(cluster, node, f"another program answers there ({look.detail!r})"),))
        case ProbeResult.SILENT | ProbeResult.NODE:
            frozen = problem(
                "worker",
                f"worker {_name(node)} takes connections at {address} and does not answer them",
                f"on {_name(node)}, see whether its process is stopped or the host swaps (top); xparl stop ends it",
            )
            return _WorkerCheck((frozen,))
        case _:
            return _WorkerCheck(unreachable=look.detail)


def _other_version(node: NodeStatus, reason: str) -> Finding:
    return problem(
        "version",
        f"worker {_name(node)}: {reason}",
        f"install the same parl-remote on {_name(node)} as here, and start its worker anew",
    )


def _from_both_sides(master: RequestConnection, cluster: ClusterAddress, node: NodeStatus, from_here: str) -> Finding:
    """Return the finding on a worker that this host cannot reach, after the master has tried, too."""
    name = _name(node)
    what = f"worker {name} says that it is at {_where(cluster, node)}; from here: {from_here}"
    try:
        seen = master.ask(lambda number: ReachNode(number, node.node_id), NodeReached, 2 * _PATIENCE_S)
    except RemoteError as error:
        seen = NodeReached(0, False, str(error))
    if not seen.reached:
        return problem(
            "worker",
            f"{what}; from the master: {seen.problem}",
            f"its address is wrong: on {name}, xparl stop, then xparl connect --address {cluster} --host ADDRESS with "
            "one that all hosts reach (hostname -I prints those it has)",
        )
    ports = ", ".join(address.rpartition(":")[2] for address in node.addresses)
    return problem(
        "worker",
        f"{what}; the master does reach it",
        f"open TCP port {ports} of {name} for this host, or start the worker with an address that this host reaches, "
        f"too: xparl connect --address {cluster} --host ADDRESS",
    )


def _wrong_address(cluster: ClusterAddress, node: NodeStatus, why: str) -> Finding:
    name = _name(node)
    return problem(
        "worker",
        f"worker {name} says that it is at {_where(cluster, node)}, but {why}",
        f"its address is wrong: on {name}, xparl stop, then xparl connect --address {cluster} --host ADDRESS with one "
        "that is its own (hostname -I prints them)",
    )


def _versions(who: str, report: HostReport) -> Iterator[Finding]:
    ours = versions_that_matter()
    mine = platform.python_version_tuple()[:2]
    theirs = report.versions.get("python", "")
    if tuple(theirs.split(".")[:2]) != mine:
        yield problem(
            "version",
            f"{who} runs Python {theirs or 'of an unknown version'}, this host {ours['python']}: classes of a "
            "program's own file cannot be sent between them",
            f"run it with Python {'.'.join(mine)} (in a virtual environment of it, or by XPARL_PYTHON)",
        )
    for package, version in ours.items():
        other = report.versions.get(package, "")
        if package != "python" and other.split(".")[:1] != version.split(".")[:1]:
            yield note(
                "version",
                f"{who} has {package} {other or 'not at all'}, this host {version}",
                f"on {report.name}: {report.python} -m pip install {package}=={version}",
            )


def _modules(who: str, report: HostReport, modules: Sequence[str]) -> Iterator[Finding]:
    if report.missing:
        yield problem(
            "modules",
            f"{who} (on {report.name}) does not find {', '.join(report.missing)}",
            f"on {report.name}: {report.python} -m pip install {' '.join(report.missing)}",
        )
    elif modules:
        yield fine("modules", f"{who} finds {', '.join(modules)}")


def _name(node: NodeStatus) -> str:
    return node.name or node.node_id


def _where(cluster: ClusterAddress, node: NodeStatus) -> str:
    return ", ".join(str(advertised_by(address, cluster.address)) for address in node.addresses) or "no address at all"


_MIB = 2**20
_CLOCKS_APART_S = 2.0  # less than this is not noticed in logs and curves
_LITTLE_DISK = 200 * _MIB


@dataclass(frozen=True, slots=True)
class MeasuredReport:
    """A node's report, with the offset of its clock.

    Attributes:
        report: The report.
        ahead_s: The seconds by which its clock is ahead of this host's.
        error_s: The error of that: half of the round-trip time.
    """

    report: HostReport
    ahead_s: float
    error_s: float


def report_of_host(
    node: RequestConnection, modules: Sequence[str] = (), paths: Sequence[str] = ()
) -> MeasuredReport | None:
    """Request a node's report; return None if it does not support that."""
    began = time.time()
    try:
        report = node.ask(lambda number: CheckHost(number, tuple(modules), tuple(paths)), HostReport, _PATIENCE_S)
    except RemoteError:
        return None
    ended = time.time()
    return MeasuredReport(report, report.time_s - (began + ended) / 2, (ended - began) / 2)


def check_clock(who: str, heard: MeasuredReport) -> Iterator[Finding]:
    """Check whether a node's clock agrees with this host's."""
    if abs(heard.ahead_s) - heard.error_s >= _CLOCKS_APART_S:
        direction = "ahead of" if heard.ahead_s > 0 else "behind"
        yield problem(
            "clock",
            f"the clock of {who} (on {heard.report.name}) is {abs(heard.ahead_s):.1f} s {direction} this host's",
            f"synchronise both hosts: timedatectl set-ntp true (or chronyc makestep), first on {heard.report.name}",
        )


def check_disk(who: str, report: HostReport) -> Iterator[Finding]:
    """Check whether a node can write its logs and files."""
    remedy = f"free space in {report.disk} on {report.name}, or start its node with PARL_RUN_DIR on another disk"
    if report.disk_error:
        yield problem("disk", f"{who} (on {report.name}) cannot write to {report.disk}: {report.disk_error}", remedy)
    elif 0 <= report.disk_free < _LITTLE_DISK:
        free = f"{report.disk_free / _MIB:.0f} MiB"
        yield problem("disk", f"{who} (on {report.name}) has only {free} free in {report.disk}", remedy)


_NAMED = 5  # number of programs listed if no node has a free CPU


def check_cluster(cluster: ClusterAddress, found: Environment, modules: Sequence[str]) -> Iterator[Finding]:
    """Check a cluster whose port can be reached.

    Args:
        cluster: Its address and key.
        found: Limits.
        modules: Modules that workers must have.
    """
    try:
        master = RequestConnection(cluster.connect_master(), Role.MASTER, found.limits, "xparl doctor")
    except RemoteError as error:
        yield refused(cluster, error)
        return
    with master:
        yield fine("key", "the cluster's key is right")
        yield fine("version", f"the cluster speaks protocol {master.welcome.protocol}, as this host does")
        try:
            status = master.ask(StatusRequest, Status)
            heard = report_of_host(master)
            if heard is not None:
                yield from check_clock("the master", heard)
                yield from check_disk("the master", heard.report)
            yield from _capacity(cluster, status)
            yield from check_workers(master, cluster, status.nodes, modules)
        except RemoteError as error:
            yield refused(cluster, error)


def refused(cluster: ClusterAddress, error: RemoteError) -> Finding:
    """Return the finding on a master that refuses the link."""
    if isinstance(error, VersionMismatch):
        return problem(
            "version",
            str(error),
            "install the same parl-remote on both hosts (xparl --version shows it), and start the cluster anew",
        )
    if isinstance(error, AuthenticationFailed):
        return problem(
            "key",
            f"the cluster at {cluster} has another key than the one found here",
            "copy the key file that `xparl start` named on its host to this one, mode 0600, and let PARL_KEY_FILE name "
            "it; a cluster that was stopped and started has a new one",
        )
    return problem(
        "master",
        f"the master at {cluster} does not answer: {error}",
        f"look into node.log in its run directory; xparl stop --port {cluster.address.port} and xparl start end it and "
        "start it anew",
    )


def _capacity(cluster: ClusterAddress, status: Status) -> Iterator[Finding]:
    """Check whether an actor of one CPU would fit, and which programs hold the CPUs if not."""
    if not status.node_count:
        yield problem(
            "cpus",
            "the cluster has no worker: no actor can run",
            f"xparl connect --address {cluster} on a host that has CPUs to give",
        )
    elif status.nodes and all(node.is_draining for node in status.nodes):
        yield problem(
            "cpus",
            "every node is being drained: no actor can be made any more",
            f"add a worker (xparl connect --address {cluster}), or stop the cluster and start it anew",
        )
    elif any(node.free.cpu >= 1 and not node.is_draining for node in status.nodes):
        yield fine("cpus", f"{status.free.cpu:g} of {status.total.cpu:g} CPUs are free")
    else:
        waiting = f", {status.waiting} actors wait for resources" if status.waiting else ""
        yield problem(
            "cpus",
            f"no node has a free CPU, {status.total.cpu - status.free.cpu:g} of {status.total.cpu:g} are taken"
            f"{waiting}{_holders(status)}",
            f"end what is not needed (xparl list, xparl kill ACTOR), add a worker (xparl connect --address {cluster}), "
            "or let actors ask for less (n_cpu=0.5)",
        )


def _holders(status: Status) -> str:
    holders = sorted((client for client in status.clients if client.leases), key=lambda client: -client.leases)
    names = [
        f"{client.name or client.client_id} (process {client.pid}) has {client.leases} "
        f"actor{'s' * (client.leases != 1)}"
        for client in holders[:_NAMED]
    ]
    if len(holders) > _NAMED:
        names.append(f"{len(holders) - _NAMED} more programs have the others")
    return f": {'; '.join(names)}" if names else ""


_REACH_S = 3.0
_MARKS = {Severity.FINE: "ok  ", Severity.NOTE: "note", Severity.PROBLEM: "FAIL"}
_COLOURS = {Severity.FINE: "green", Severity.NOTE: "yellow", Severity.PROBLEM: "red"}


@click.command("doctor")
@address_option
@port_option
@key_option
@click.option("--module", multiple=True, metavar="NAME", help="A module that workers must have; may be repeated.")
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A program or notebook whose imported modules workers must have; it is read, not run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(
    address: str | None,
    port: int | None,
    key_file: Path | None,
    module: tuple[str, ...],
    script: Path | None,
    as_json: bool,
) -> None:
    r"""Find problems of this host and of a cluster, with their remedies.

    The command checks this host (disk, limits, keys, remains of killed nodes), the route to the master, key, versions
    and clocks, and which programs use the CPUs. It checks whether each worker can be reached from here and from the
    master, and whether it has the modules that a program needs. It changes nothing.

    The exit status is 1 if there are problems, else 0. Notes are not problems.

    \b
    Examples:
      xparl doctor                                         this host and your clusters on it
      xparl doctor --address first:8037                    a cluster elsewhere, as seen from here
      xparl doctor --address first:8037 --module torch     whether every worker has torch
      xparl doctor --port 8037 --script train.py --json
    """
    found = environment()
    modules = list(module)
    try:
        if script is not None:
            modules += [name for name in imports_of(script) if name not in modules]
    except (OSError, SyntaxError, ValueError) as error:
        raise click.ClickException(f"cannot read the imports of {script}: {error}") from error
    wanted = targets(found, port, address, key_file)
    report: list[tuple[str, list[Finding]]] = [("this host", _shown("this host", check_here(found), as_json))]
    for target in wanted:
        title = f"the cluster at {target.address}"
        report.append((target.address, _shown(title, _look_at(target, found, modules), as_json)))
    if not wanted:
        nothing = note(
            "cluster",
            f"there is no cluster of yours {f'on port {port} of' if port else 'on'} this host to look at",
            "name one with --address host:port, or start one: xparl start --port 8037",
        )
        report.append(("cluster", _shown("clusters", [nothing], as_json)))
    _end(report, as_json)


def _look_at(target: Target, found: Environment, modules: Sequence[str]) -> Iterator[Finding]:
    reach = check_reach(Address.parse(target.address), found, _REACH_S)
    yield reach
    if reach.severity is Severity.FINE:
        try:
            cluster = target.cluster(found)
        except RemoteError as error:
            yield finding_for(error, target.address, found) or problem("key", str(error), "")
            return
        yield from check_cluster(cluster, found, modules)


def _shown(title: str, findings: Sequence[Finding] | Iterator[Finding], as_json: bool) -> list[Finding]:
    """Return the findings, printing each as soon as it is available."""
    kept = []
    if not as_json:
        click.echo(click.style(title, bold=True))
    for finding in findings:
        kept.append(finding)
        if not as_json:
            mark = click.style(_MARKS[finding.severity], fg=_COLOURS[finding.severity])
            click.echo(f"  {mark}  {visible(finding.what)}")
            if finding.remedy:
                click.echo(f"        -> {visible(finding.remedy)}")
    return kept


def _end(report: Sequence[tuple[str, Sequence[Finding]]], as_json: bool) -> None:
    problems = sum(finding.severity is Severity.PROBLEM for _, findings in report for finding in findings)
    if as_json:
        places = [{"place": place, "findings": [one.as_json() for one in findings]} for place, findings in report]
        click.echo(json.dumps({"ok": not problems, "problems": problems, "places": places}, indent=2))
    elif problems:
        click.echo(f"{problems} problem{'s' * (problems != 1)} found.")
    else:
        click.echo("Nothing is wrong.")
    sys.exit(1 if problems else 0)

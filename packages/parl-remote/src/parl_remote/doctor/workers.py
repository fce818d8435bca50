"""Each worker of a cluster: where it says that it is, from here and from the master, and whether it fits this host.

this host --Hello--> worker's address --Welcome, HostReport--> findings
master ----TCP-----> the same address, where we had no luck: both fail: the address is wrong; one: a firewall
"""

from __future__ import annotations

import concurrent.futures
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parl_remote.config import Limits
from parl_remote.doctor.finding import Finding, fine, note, problem
from parl_remote.doctor.host import check_clock, check_disk, report_of_host
from parl_remote.doctor.probe import Seen, probe
from parl_remote.errors import AuthenticationFailed, RemoteError, RemoteProtocolError, VersionMismatch
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages import NodeStatus, Role
from parl_remote.messages.health import HostReport, NodeReached, ReachNode
from parl_remote.program.rendezvous import ClusterAddress
from parl_remote.transport.addresses import advertised_by
from parl_remote.worker.host_check import versions_that_matter

__all__ = ["check_workers"]

_AT_ONCE = 16  # workers that are looked at side by side
_PATIENCE_S = 3.0  # what one of them may take


@dataclass(frozen=True, slots=True)
class _Sight:
    """A worker from here: what was found, or why it cannot be reached."""

    findings: tuple[Finding, ...] = ()
    unreachable: str = ""


def check_workers(
    master: Inquiry, cluster: ClusterAddress, nodes: Sequence[NodeStatus], modules: Sequence[str]
) -> Iterator[Finding]:
    """Look at the workers that a master knows.

    Args:
        master: The master, to try the way to a worker from its side.
        cluster: How to reach them.
        nodes: What the master says of them.
        modules: Modules that they must have.
    """
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        sights = list(pool.map(lambda node: _look(cluster, node, modules), nodes))
    for node, sight in zip(nodes, sights, strict=True):
        if sight.unreachable:
            yield _from_both_sides(master, cluster, node, sight.unreachable)
        yield from sight.findings


def _look(cluster: ClusterAddress, node: NodeStatus, modules: Sequence[str]) -> _Sight:
    name, where = _name(node), _where(cluster, node)
    limits = Limits(connect_timeout_s=_PATIENCE_S)
    try:
        worker = Inquiry(cluster.within(_PATIENCE_S).connect_node(node.addresses), Role.WORKER, limits, "xparl doctor")
    except AuthenticationFailed:
        return _Sight((_wrong_address(cluster, node, "what answers there has not the cluster's key"),))
    except VersionMismatch as error:
        return _Sight((_other_version(node, str(error)),))
    except RemoteProtocolError as error:
        return _Sight((_wrong_address(cluster, node, f"what answers there is no worker ({error})"),))
    except (RemoteError, OSError):
        return _not_reached(cluster, node)
    with worker:
        if worker.welcome.id != node.node_id:
            return _Sight((_wrong_address(cluster, node, f"another node answers there ({worker.welcome.id})"),))
        heard = report_of_host(worker, modules, [path for path in sys.path if path])
    findings = [fine("worker", f"worker {name} can be reached at {where}")]
    who = f"worker {name}"
    if heard is None:
        findings.append(note("version", f"{who} does not tell how it is", "install the same parl-remote there"))
    else:
        findings += check_clock(who, heard)
        findings += check_disk(who, heard.report)
        findings += _versions(who, heard.report)
        findings += _modules(who, heard.report, modules)
    return _Sight(tuple(findings))


def _not_reached(cluster: ClusterAddress, node: NodeStatus) -> _Sight:
    """Look at an address that leads to no worker without a key."""
    if not node.addresses:
        return _Sight(unreachable="it has no address for other hosts")
    address = advertised_by(node.addresses[0], cluster.address)
    look = probe(address, _PATIENCE_S)
    match look.seen:
        case Seen.STRANGER:
            return _Sight((_wrong_address(cluster, node, f"another program answers there ({look.detail!r})"),))
        case Seen.SILENT | Seen.NODE:
            frozen = problem(
                "worker",
                f"worker {_name(node)} takes connections at {address} and does not answer them",
                f"on {_name(node)}, see whether its process is stopped or the host swaps (top); xparl stop ends it",
            )
            return _Sight((frozen,))
        case _:
            return _Sight(unreachable=look.detail)


def _other_version(node: NodeStatus, reason: str) -> Finding:
    return problem(
        "version",
        f"worker {_name(node)}: {reason}",
        f"install the same parl-remote on {_name(node)} as here, and start its worker anew",
    )


def _from_both_sides(master: Inquiry, cluster: ClusterAddress, node: NodeStatus, from_here: str) -> Finding:
    """A worker that cannot be reached from here: have the master try, and say what the two together mean."""
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

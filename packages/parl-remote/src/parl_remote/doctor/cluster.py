"""Through a cluster's port: key, versions, the master's clock and disk, room for actors, then each worker.

master --Status, HostReport--> findings --the workers that it names--> `workers`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parl_remote.config import Environment
from parl_remote.doctor.finding import Finding, fine, problem
from parl_remote.doctor.host import check_clock, check_disk, report_of_host
from parl_remote.doctor.workers import check_workers
from parl_remote.errors import AuthenticationFailed, RemoteError, VersionMismatch
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages import Role, Status, StatusRequest
from parl_remote.program.rendezvous import ClusterAddress

__all__ = ["check_cluster", "refused"]

_NAMED = 5  # programs that are named where none has a free CPU


def check_cluster(cluster: ClusterAddress, found: Environment, modules: Sequence[str]) -> Iterator[Finding]:
    """Look at a cluster whose port can be reached.

    Args:
        cluster: Where it is, with its key.
        found: Limits.
        modules: Modules that workers must have.
    """
    try:
        master = Inquiry(cluster.connect_master(), Role.MASTER, found.limits, "xparl doctor")
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
            yield from _room(cluster, status)
            yield from check_workers(master, cluster, status.nodes, modules)
        except RemoteError as error:
            yield refused(cluster, error)


def refused(cluster: ClusterAddress, error: RemoteError) -> Finding:
    """Why the master does not talk to us."""
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


def _room(cluster: ClusterAddress, status: Status) -> Iterator[Finding]:
    """Whether an actor of one CPU would find room, and who has it if not."""
    if not status.node_count:
        yield problem(
            "cpus",
            "the cluster has no worker: nobody can run an actor",
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
        waiting = f", {status.waiting} actors wait for room" if status.waiting else ""
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

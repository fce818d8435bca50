"""What `xparl status` shows of one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from parl_remote.cli.ask import ask_status
from parl_remote.codec import to_json
from parl_remote.config import Environment
from parl_remote.errors import RemoteError
from parl_remote.messages import ClientStatus, NodeStatus, Status, WaitingStatus
from parl_remote.node.run_files import RunFiles
from parl_remote.program.rendezvous import ClusterAddress

__all__ = ["ClusterReport", "report_cluster"]

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """One cluster's status, or why there is none; `monitor` is the address of its monitor on this host."""

    address: str
    status: Status | None
    error: str
    monitor: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs: the fields of `Status`, or an error."""
        return {
            "address": self.address,
            "error": self.error or None,
            "monitor": self.monitor or None,
            "status": to_json(self.status) if self.status is not None else None,
        }

    def as_text(self) -> str:
        """For people."""
        if self.status is None:
            return f"{self.address}: {self.error}"
        one = self.status
        programs = [client for client in one.clients if not client.name.startswith("xparl ")]
        lines = [
            f"{self.address}: {one.cluster_id}, up {timedelta(seconds=int(one.uptime_s))}",
            f"  {one.total.cpu - one.free.cpu:g} used cpus, {one.free.cpu:g} vacant cpus, "
            f"{one.total.gpu - one.free.gpu:g} used gpus, {one.free.gpu:g} vacant gpus",
            f"  {_count(one.node_count, 'node')}, {_count(len(programs), 'program')}, "
            f"{_count(one.leases, 'actor')}, {_count(one.waiting, 'actor')} waiting for room",
        ]
        if self.monitor:
            lines.append(f"  monitor at {self.monitor}")
        lines += [f"  {_node(node)}" for node in one.nodes]
        lines += [f"  {_program(client)}" for client in programs]
        lines += [f"  {_waiting(entry)}" for entry in one.queue]
        shown = sum(entry.count for entry in one.queue)
        if shown < one.waiting:
            lines.append(f"  and {one.waiting - shown} more that wait")
        return "\n".join(lines)


def report_cluster(address: str, key_file: Path | None, environment: Environment) -> ClusterReport:
    """Ask a cluster; what goes wrong is part of the report."""
    try:
        cluster = ClusterAddress(address, environment, key_file)
        status = ask_status(cluster.connect_master, environment.limits)
        return ClusterReport(address, status, "", _monitor_of(address, environment))
    except (RemoteError, ValueError) as error:
        return ClusterReport(address, None, str(error))


def _monitor_of(address: str, environment: Environment) -> str:
    records = (record for _, record in RunFiles(environment.run_dirs).monitors() if record.master == address)
    return next((record.url for record in records if record.process.alive()), "")


def _node(node: NodeStatus) -> str:
    parts = [
        f"{node.total.cpu - node.free.cpu:g} of {node.total.cpu:g} cpus used",
        *([f"{node.total.gpu - node.free.gpu:g} of {node.total.gpu:g} gpus used"] if node.total.gpu else []),
        *(
            f"{amount - node.free.amount(name):g} of {amount:g} {name} used"
            for name, amount in node.total.labels.items()
        ),
        *(_reserved(node.total.memory, node.free.memory)),
        f"load {node.load:.2f}",
        f"{node.memory_free / _MIB:.0f} MiB memory free",
        f"heard {node.silent_s:.0f} s ago",
        *(["is being drained"] if node.is_draining else []),
    ]
    return f"node {node.name or node.node_id} ({', '.join(node.addresses)}): {', '.join(parts)}"


def _program(client: ClientStatus) -> str:
    who = f"{client.name} (process {client.pid})" if client.pid else f"{client.client_id}, which has not come back yet"
    waiting = f", {client.waiting} waiting" if client.waiting else ""
    return f"program {who}: {_count(client.leases, 'actor')}{waiting}"


def _reserved(total: int, free: int) -> list[str]:
    """Memory that is set aside, where some is: most actors ask for none."""
    return [f"{(total - free) / _MIB:.0f} of {total / _MIB:.0f} MiB memory set aside"] if free < total else []


def _waiting(entry: WaitingStatus) -> str:
    times = f"{entry.count} x " if entry.count > 1 else ""
    who = entry.owner or entry.client_id
    return (
        f"waiting {entry.waited_s:.0f} s: {times}{entry.class_name or 'actor'} of {who} for {entry.resources}; "
        f"{entry.reason}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"

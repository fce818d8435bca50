"""Read-only views of the master's tables for `xparl` and the monitor: status and lists."""

from __future__ import annotations

import itertools
from dataclasses import replace

from parl_remote._master.cluster_tables import ClusterTables, Lease
from parl_remote._master.events import LostNode
from parl_remote._master.placing import Node, Waiting, reasons
from parl_remote._messages import ClientStatus, NodeStatus, Status, WaitingStatus
from parl_remote._messages.events import Events, ListEvents
from parl_remote._messages.overview import (
    ActorList,
    ActorNumbers,
    ActorPhase,
    ActorStatus,
    Deaths,
    LeaseWaiting,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeDetail,
    NodeList,
    NodePhase,
    WhyWaiting,
)
from parl_remote._resources import Resources
from parl_remote.errors import RemoteError

__all__ = ["ClusterView"]

_LONGEST_PAGE = 2000
_MOST_DEATHS = 1000
_MOST_EVENTS = 1000
_LONGEST_QUEUE = 100


class ClusterView:
    """Answers to questions about a cluster.

    Args:
        tables: The master's tables.
        cluster_id: The cluster's id.
        started: When it started, on the loop's clock.
    """

    def __init__(self, tables: ClusterTables, *, cluster_id: str, started: float) -> None:
        self._tables = tables
        self._cluster_id = cluster_id
        self._started = started

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int, nodes: bool = True) -> Status:
        """Return the cluster's status, see StatusRequest; `dropped` is the reception's count of rejected peers."""
        tables = self._tables
        total, free = self._amounts()
        absent = sum(client.is_absent for client in tables.clients.values())
        return Status(
            request_id=request_id,
            cluster_id=self._cluster_id,
            uptime_s=round(now - self._started, 3),
            total=total,
            free=free,
            leases=len(tables.leases),
            waiting=len(tables.queue),
            node_count=len(tables.pool),
            client_count=len(tables.clients) - absent,
            dropped=dropped,
            nodes=tuple(self._node_status(node, now) for node in tables.pool) if detail and nodes else (),
            clients=self._clients(now) if detail else (),
            queue=self._queue(now) if detail else (),
            lost=tuple(self._lost_status(lost, now) for lost in tables.lost) if detail and nodes else (),
        )

    def actors(self, asked: ListActors, now: float) -> ActorList:
        """Return a page of actors."""

        limit = min(max(1, asked.limit), _LONGEST_PAGE)
        wanted = (
            lease
            for lease in self._tables.leases_after(asked.after)
            if asked.client_id in ("", lease.client_id) and (not asked.node or lease.node.is_called(asked.node))
        )
        page = list(itertools.islice(wanted, limit + 1))
        more = page[limit - 1].number if len(page) > limit else None
        rows = tuple(self._actor(lease, now) for lease in page[:limit])
        return ActorList(asked.request_id, rows, len(self._tables.leases), more)

    def nodes(self, asked: ListNodes, now: float, own_node_id: str) -> NodeList:
        """Return a page of nodes; the master runs in `own_node_id`."""

        present = len(self._tables.pool)
        count = present + (len(self._tables.lost) if asked.lost else 0)
        start = min(max(0, asked.after), count)
        end = min(start + max(1, asked.limit), count)
        page = itertools.islice(self._tables.pool, start, end)
        lost = itertools.islice(self._tables.lost, max(0, start - present), max(0, end - present))
        rows = (
            *(self._node_detail(node, now, own_node_id) for node in page),
            *(self._lost_detail(one, now, own_node_id) for one in lost),
        )
        return NodeList(asked.request_id, rows, end if end < count else None)

    def deaths(self, asked: ListDeaths) -> Deaths:
        """Return the latest lost actors."""

        log = self._tables.deaths
        limit = min(max(1, asked.limit), _MOST_DEATHS)
        latest = log.latest(limit, client_id=asked.client_id, lease_id=asked.lease_id, released=asked.released)
        return Deaths(asked.request_id, latest, log.total)

    def events(self, asked: ListEvents) -> Events:
        """Return events after a position, or the latest."""
        log = self._tables.events
        page = log.after(asked.after, min(max(1, asked.limit), _MOST_EVENTS))
        counts = {kind.value: count for kind, count in log.counts.items()}
        return Events(asked.request_id, page, log.latest, log.since, counts)

    def why_waiting(self, client_id: str, asked: WhyWaiting, now: float) -> LeaseWaiting:
        """Return why a request is not granted yet.

        Raises:
            RemoteError: It is not waiting.
        """

        queue = self._tables.queue
        waiting = queue.get((client_id, asked.waiting))
        if waiting is None:
            raise RemoteError(f"request {asked.waiting} does not wait (any more)")
        reason = reasons(self._tables.pool, queue)[waiting.shape]
        ahead, placement = queue.ahead_of(waiting), waiting.request.placement
        return LeaseWaiting(asked.request_id, reason, ahead, round(now - waiting.since, 3), placement)

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _amounts(self) -> tuple[Resources, Resources]:
        """Return the total and the free resources; memory that nodes of one host share is counted once."""
        pool = self._tables.pool
        hosts: dict[str, list[Node]] = {}
        for node in pool:
            if node.is_open:
                hosts.setdefault(node.joined.host_id, []).append(node)
        total = free = 0
        for nodes in hosts.values():
            offered = sum(node.total.memory for node in nodes)
            used = offered - sum(node.free.memory for node in nodes)
            there = max(node.beat.memory_total for node in nodes)
            most = min(offered, there) if there and len(nodes) > 1 else offered
            total += most
            free += max(0, most - used)
        return replace(pool.total, memory=total), replace(pool.free, memory=free)

    def _lost_status(self, lost: LostNode, now: float) -> NodeStatus:
        return self._node_status(lost.node, now, lost)

    def _node_status(self, node: Node, now: float, lost: LostNode | None = None) -> NodeStatus:
        return NodeStatus(
            node_id=node.node_id,
            name=node.joined.name,
            addresses=node.joined.addresses,
            total=node.total,
            free=node.free,
            leases=len(node.leases) if lost is None else lost.actors,
            load=node.beat.load,
            memory_free=node.beat.memory_free,
            silent_s=self._silent_s(node, now, lost),
            is_draining=lost is None and not node.is_open,
            lost_at=None if lost is None else self._tables.events.unix(lost.at),
            cause="" if lost is None else lost.cause,
        )

    def _lost_detail(self, lost: LostNode, now: float, own_node_id: str) -> NodeDetail:
        return self._node_detail(lost.node, now, own_node_id, lost)

    def _silent_s(self, node: Node, now: float, lost: LostNode | None) -> float:
        return round(self._tables.alive.silent_s(node.node_id, now) if lost is None else now - lost.at, 3)

    def _node_detail(self, node: Node, now: float, own_node_id: str, lost: LostNode | None = None) -> NodeDetail:
        is_master = node.node_id == own_node_id
        closed = NodePhase.DRAINED if is_master and not node.leases else NodePhase.DRAINING
        return NodeDetail(
            node_id=node.node_id,
            name=node.name,
            addresses=node.joined.addresses,
            host_id=node.joined.host_id,
            pid=node.pid,
            phase=NodePhase.LOST if lost is not None else NodePhase.UP if node.is_open else closed,
            is_master=is_master,
            total=node.total,
            free=node.free,
            gpus=node.gpu_names,
            gpus_free=node.gpus.free,
            actors=len(node.leases) if lost is None else lost.actors,
            load=node.beat.load,
            cpu_busy=node.beat.cpu_busy,
            gpu_use=node.beat.gpus,
            memory_total=node.beat.memory_total,
            memory_free=node.beat.memory_free,
            age_s=round(now - node.joined_at, 3),
            silent_s=self._silent_s(node, now, lost),
            versions=node.versions,
            lost_at=None if lost is None else self._tables.events.unix(lost.at),
            cause="" if lost is None else lost.cause,
        )

    def _clients(self, now: float) -> tuple[ClientStatus, ...]:
        return tuple(
            ClientStatus(
                client.client_id,
                client.name,
                client.pid,
                len(client.leases),
                self._tables.queue.count_of(client.client_id),
                client.host_id,
                round(now - client.since, 3),
            )
            for client in self._tables.clients.values()
        )

    def _queue(self, now: float) -> tuple[WaitingStatus, ...]:
        tables = self._tables
        alike: dict[tuple[str, str, Resources, str], list[Waiting]] = {}
        for waiting in tables.queue:
            request = waiting.request
            alike.setdefault((waiting.client_id, request.class_name, request.resources, request.node), []).append(
                waiting
            )
        why = reasons(tables.pool, tables.queue) if alike else {}
        return tuple(
            WaitingStatus(
                client_id=first.client_id,
                owner=tables.owner_of(first.client_id),
                class_name=first.request.class_name,
                resources=first.request.resources,
                count=len(group),
                waited_s=round(now - first.since, 3),
                reason=why[first.shape],
            )
            for group in itertools.islice(alike.values(), _LONGEST_QUEUE)
            for first in group[:1]
        )

    def _actor(self, lease: Lease, now: float) -> ActorStatus:

        return ActorStatus(
            lease_id=lease.lease_id,
            name=lease.actor_name,
            class_name=lease.class_name,
            client_id=lease.client_id,
            owner=self._tables.owner_of(lease.client_id),
            node_id=lease.node.node_id,
            node=lease.node.name,
            resources=lease.resources,
            gpus=lease.gpus,
            age_s=round(now - lease.since, 3),
            numbers=lease.numbers or ActorNumbers(lease.lease_id, ActorPhase.STARTING),
            restarts=lease.restarts,
            detached=lease.detached,
            node_address=lease.node.address,
        )

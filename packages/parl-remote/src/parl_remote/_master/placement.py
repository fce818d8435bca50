"""The nodes of a cluster with their free resources, the waiting requests, and the rules of placement.

1. Requests of one shape are served in order.
2. Among different shapes, the request that has waited longest is served first, if resources for it are free.
3. A request that cannot be served yet blocks later requests for the kind of resource that it waits for, so that small
   requests do not starve large ones. It does not block requests for other kinds only.
4. A request for several kinds waits for one after the other: for GPUs and labels in the order of their names, then for
   memory, then for CPUs. So it blocks the first kind that it is short of, and the kinds before that one, which it has;
   if there is enough of each, but not on one node, it waits for all. A kind that it has once waited for stays blocked
   until it is served. So streams of later requests cannot take turns in keeping it short of one kind or another, and no
   CPU is kept free while it waits for a GPU, unless another node has a free one.
5. A request for one particular node blocks later requests on that node only.
6. A request that no present node could hold, even if the node were empty, waits for a new node and blocks nothing.

Requests of one shape (the same resources and the same constraint on the node) share a queue, so a thousand equal
requests are as cheap to search as one.

    kind "cpu":  0.5 -> {b}    3 -> {a, d}    8 -> {c}         `FreeIndex`, so that finding a node stays fast
                 <-- pack: least first that is enough --    spread: most first -->

Nodes that offer the same kinds of resources (CPUs; CPUs and GPUs; ...) form a group; a group sorts its nodes by their
free amount of each kind. A node that is being drained stays in the pool, but belongs to no group.

Nodes of one host share its memory: together they give actors no more than the host has, whatever each node offers.

A whole GPU is assigned to one actor. A fraction is assigned on the fullest GPU that can still hold it, so that whole
GPUs stay free. The master assigns GPUs, because only the master has all actors of a node before they run. The sum of
the free fractions is not enough for that: of two GPUs with 0.4 free each, no actor can have 0.8.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from parl_remote._messages.leases import LeaseRequest, NodeJoin
from parl_remote._messages.links import Heartbeat
from parl_remote._resources import Placement, Resources

__all__ = ["FreeIndex", "GpuShares", "Host", "LeaseQueue", "Node", "NodePool", "Waiting", "next_placement", "reasons"]


_Node = TypeVar("_Node")


class FreeIndex(Generic[_Node]):
    """The index of one kind of resource."""

    __slots__ = ("_amount_of", "_amounts", "_nodes")

    def __init__(self) -> None:
        self._amounts: list[float] = []
        self._nodes: dict[float, dict[_Node, None]] = {}
        self._amount_of: dict[_Node, float] = {}

    def put(self, node: _Node, amount: float) -> None:
        """Set a node's free amount; the node goes to the end of the queue of that amount."""
        self.remove(node)
        line = self._nodes.get(amount)
        if line is None:
            line = self._nodes[amount] = {}
            bisect.insort(self._amounts, amount)
        line[node] = None
        self._amount_of[node] = amount

    def remove(self, node: _Node) -> None:
        """Remove a node; unknown ones are ignored."""
        amount = self._amount_of.pop(node, None)
        if amount is None:
            return
        line = self._nodes[amount]
        del line[node]
        if not line:
            del self._nodes[amount]
            del self._amounts[bisect.bisect_left(self._amounts, amount)]

    @property
    def most(self) -> float:
        """The largest free amount of a node, 0 if there is none."""
        return self._amounts[-1] if self._amounts else 0.0

    def from_most(self, need: float) -> Iterator[_Node]:
        """Yield nodes with at least `need`, the one with the most first."""
        for amount in reversed(self._amounts):
            if amount < need:
                return
            yield from self._nodes[amount]

    def from_least(self, need: float) -> Iterator[_Node]:
        """Yield nodes with at least `need`, the one with the least first."""
        for amount in self._amounts[bisect.bisect_left(self._amounts, need) :]:
            yield from self._nodes[amount]


_THOUSANDTHS = 1000


class GpuShares:
    """The free share of each GPU of a node, in thousandths.

    Args:
        names: The GPUs, as CUDA_VISIBLE_DEVICES names them.
    """

    __slots__ = ("_free",)

    def __init__(self, names: tuple[str, ...]) -> None:
        self._free = dict.fromkeys(names, _THOUSANDTHS)

    @property
    def free(self) -> tuple[float, ...]:
        """The free share of each GPU, 0 to 1, in the order of their names."""
        return tuple(free / _THOUSANDTHS for free in self._free.values())

    def has(self, amount: float) -> bool:
        """Return whether `take` would succeed, which the sum of the free shares cannot tell for fractions."""
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            return not need or any(free >= need for free in self._free.values())
        return amount == int(amount) <= sum(free == _THOUSANDTHS for free in self._free.values())

    def take(self, amount: float) -> tuple[str, ...]:
        """Assign GPUs to one actor and return their names.

        Raises:
            ValueError: There are not enough.
        """
        if not self.has(amount):
            raise ValueError(f"{amount:g} GPU are not available, {self.free} are free")
        if not amount:
            return ()
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            selected = [min((free, name) for name, free in self._free.items() if free >= need)[1]]
        else:
            selected = [name for name, free in self._free.items() if free == _THOUSANDTHS][: int(amount)]
        self.claim(tuple(selected), amount)
        return tuple(selected)

    def claim(self, names: tuple[str, ...], amount: float) -> None:
        """Assign exactly these GPUs, for an actor that has them already; unknown ones are ignored."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = max(0, self._free[name] - need)

    def give(self, names: tuple[str, ...], amount: float) -> None:
        """Return the GPUs of a `take(amount)`."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = min(_THOUSANDTHS, self._free[name] + need)


class Shape(NamedTuple):
    """The properties that requests share if they are interchangeable for placement.

    Attributes:
        resources: The resources that the actor needs.
        placement: The policy that selects among the nodes with enough.
        node: The only eligible node, by its name or id; empty for any.
    """

    resources: Resources
    placement: Placement = Placement.SPREAD
    node: str = ""


class Host:
    """The memory that the nodes of one host share, in bytes.

    By default a node offers all memory of its host; in a container, the container's limit.

    Attributes:
        nodes: The nodes in the pool.
    """

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    @property
    def memory(self) -> int:
        """The maximum for actors: the host's memory or a node's larger offer; the sum of offers before a heartbeat."""
        there = max(node.beat.memory_total for node in self.nodes)
        offers = [node.total.memory for node in self.nodes]
        return max(there, *offers) if there else sum(offers)

    @property
    def memory_free(self) -> int:
        """The part of `memory` that is not reserved for an actor."""
        return max(0, self.memory - sum(node.total.memory - node.free.memory for node in self.nodes))


class Node:
    """The master's record of one worker; only the pool changes `free`, `host`, `is_open` and `is_away`.

    Attributes:
        joined: Its NodeJoin message.
        joined_at: The time at which it joined, on the loop's clock.
        pid: Its process id on its host.
        versions: Versions of parl_remote and python there.
        beat: Its last heartbeat.
        leases: The ids of its running leases.
        free: Its free resources.
        host: Its host, while it is in the pool.
        gpus: The free share of each GPU.
        is_open: Whether it takes actors.
        is_away: Whether it takes none only until it has joined again.
    """

    __slots__ = (
        "beat",
        "free",
        "gpus",
        "host",
        "is_away",
        "is_open",
        "joined",
        "joined_at",
        "leases",
        "pid",
        "versions",
    )

    def __init__(self, joined: NodeJoin, joined_at: float, pid: int, versions: Mapping[str, str]) -> None:
        self.joined = joined
        self.joined_at = joined_at
        self.pid = pid
        self.versions = versions
        self.beat = Heartbeat(0)
        self.leases: dict[str, None] = {}
        self.free = joined.resources
        self.host: Host | None = None
        self.gpus = GpuShares(self.gpu_names)
        self.is_open = True
        self.is_away = False

    @property
    def is_draining(self) -> bool:
        """Return whether the node is being drained and takes no more actors."""
        return not self.is_open and not self.is_away

    @property
    def node_id(self) -> str:
        """The worker's own id."""
        return self.joined.node_id

    @property
    def name(self) -> str:
        """The worker's displayed name."""
        return self.joined.name or self.joined.node_id

    @property
    def total(self) -> Resources:
        """The worker's resources when it joined."""
        return self.joined.resources

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The worker's GPUs, as CUDA_VISIBLE_DEVICES names them."""
        return self.joined.gpus or tuple(map(str, range(int(self.total.gpu))))

    @property
    def address(self) -> str:
        """The worker's first address, "host:port"; without a host if that is the host of the address known to peers."""
        return self.joined.addresses[0] if self.joined.addresses else ""

    @property
    def label(self) -> str:
        """The worker's name with its port, which distinguishes it from other nodes of its host."""
        _, colon, port = self.address.rpartition(":")
        return f"{self.name}{colon}{port}"

    def is_called(self, text: str) -> bool:
        """Return whether `text` is the worker's id, its name, or its name with its port."""
        return text in (self.joined.node_id, self.joined.name, self.label)

    @property
    def memory_free(self) -> int:
        """The largest amount of memory that an actor can get here now, in bytes."""
        free = self.free.memory
        return free if self.host is None else min(free, self.host.memory_free)

    def can_hold(self, need: Resources) -> bool:
        """Return whether an actor fits here now."""
        if need.memory and need.memory > self.memory_free:
            return False
        return self.free.fits(need) and (not need.gpu or self.gpus.has(need.gpu))

    def has(self, kind: str, need: Resources) -> bool:
        """Return whether there is enough of one kind here now."""
        if kind == "memory":
            return need.memory <= self.memory_free
        return need.amount(kind) <= self.free.amount(kind) and (kind != "gpu" or self.gpus.has(need.gpu))


class NodePool:
    """The nodes of a cluster by id, with their free resources."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._hosts: dict[str, Host] = {}
        self._groups: dict[frozenset[str], _Group] = {}
        self._totals: Counter[Resources] = Counter()
        self._total = Resources()
        self._free = Resources()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def amounts(self) -> tuple[Resources, Resources]:
        """Return the total and the free resources of the nodes that take actors; memory of one host is counted once."""
        total = free = 0
        for host in self._hosts.values():
            nodes = [node for node in host.nodes if node.is_open]
            total += min(host.memory, sum(node.total.memory for node in nodes))
            free += min(host.memory_free, sum(node.free.memory for node in nodes))
        return replace(self._total, memory=total), replace(self._free, memory=free)

    def get(self, node_id: str) -> Node | None:
        """Return the node with that id, or None."""
        return self._nodes.get(node_id)

    def called(self, text: str) -> list[Node]:
        """Return the node with that id, or all nodes with that name."""
        by_id = self._nodes.get(text)
        return [by_id] if by_id else [node for node in self._nodes.values() if node.is_called(text)]

    def add(self, node: Node) -> None:
        """Add a new node with all resources free."""
        self._nodes[node.node_id] = node
        node.host = self._hosts.setdefault(node.joined.host_id, Host())
        node.host.nodes.append(node)
        self._totals[node.total] += 1
        self._total += node.total
        self._free += node.total
        kinds = node.total.kinds()
        if kinds not in self._groups:
            self._groups[kinds] = _Group(kinds)
            self._groups = dict(sorted(self._groups.items(), key=lambda item: (len(item[0]), sorted(item[0]))))
        self._groups[kinds].add(node)

    def close(self, node: Node, *, is_away: bool = False) -> None:
        """Stop placing actors on a node; its running actors continue."""
        if not node.is_open:
            return
        node.is_open, node.is_away = False, is_away
        self._totals[node.total] -= 1
        if not self._totals[node.total]:
            del self._totals[node.total]
        self._total -= node.total
        self._free -= node.free
        kinds = node.total.kinds()
        self._groups[kinds].remove(node)
        if not self._groups[kinds].nodes:
            del self._groups[kinds]

    def remove(self, node: Node) -> None:
        """Forget a node and its free and taken resources."""
        self.close(node)
        del self._nodes[node.node_id]
        host = self._hosts[node.joined.host_id]
        host.nodes.remove(node)
        node.host = None
        if not host.nodes:
            del self._hosts[node.joined.host_id]

    def take(self, node: Node, amount: Resources, gpus: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Take resources that fit, and return the GPUs.

        Args:
            node: The node.
            amount: The resources.
            gpus: The GPUs of an actor that has them already; None selects them.

        Returns:
            The names of the GPUs.
        """
        if gpus is None:
            gpus = node.gpus.take(amount.gpu) if amount.gpu else ()
        else:
            node.gpus.claim(gpus, amount.gpu)
        node.free -= amount
        if node.is_open:
            self._free -= amount
            self._groups[node.total.kinds()].changed(node)
        return gpus

    def give(self, node: Node, amount: Resources, gpus: tuple[str, ...]) -> None:
        """Return resources that were taken."""
        node.gpus.give(gpus, amount.gpu)
        node.free += amount
        if node.is_open:
            self._free += amount
            self._groups[node.total.kinds()].changed(node)

    def pick(self, shape: Shape, avoid: Collection[Node] = ()) -> Node | None:
        """Return the node for an actor, by its placement among the nodes with the fewest other kinds of resources.

        So an actor that needs no GPU uses a node with GPUs only if no other node has enough.

        Args:
            shape: The resources and placement that it needs.
            avoid: Nodes that are not eligible.
        """
        need = shape.resources
        if shape.node:
            bound = [node for node in self.called(shape.node) if node.is_open and node not in avoid]
            return next((node for node in bound if node.can_hold(need)), None)
        kinds = need.kinds()
        for group in self._groups.values():
            if kinds <= group.kinds and (node := group.pick(need, kinds, shape.placement, avoid)):
                return node
        return None

    def could_hold(self, shape: Shape) -> bool:
        """Return whether any node could hold the request if the node were empty."""
        need = shape.resources
        if need.gpu > 1 and need.gpu != int(need.gpu):
            return False
        if shape.node:
            return any(node.is_open and node.total.fits(need) for node in self.called(shape.node))
        return any(total.fits(need) for total in self._totals)

    def short_of(self, need: Resources) -> frozenset[str]:
        """Return the kinds of which no node has enough now; none if no node has all of them at the same time."""
        short = frozenset(kind for kind in need.kinds() if self.most_free(kind) < need.amount(kind))
        if "gpu" not in short and need.gpu and not any(node.gpus.has(need.gpu) for node in self if node.is_open):
            short |= {"gpu"}  # there is enough in pieces
        return short

    def awaited(self, shape: Shape) -> tuple[list[str], list[str]]:
        """Return the kinds that a request waits for now, and those that it blocks; see the module's rules."""
        need, nodes = shape.resources, self.called(shape.node) if shape.node else None
        kinds = sorted(need.kinds(), key=_cpus_last)
        if nodes is None:
            short = self.short_of(need)
        else:
            short = frozenset(kind for kind in kinds if not any(node.has(kind, need) for node in nodes if node.is_open))
        for number, kind in enumerate(kinds):
            if kind in short:
                return [kind], kinds[: number + 1]
        return kinds, kinds

    def most_free(self, kind: str) -> float:
        """Return the largest free amount of a kind on one node."""
        return max((group.most_free(kind) for group in self._groups.values() if kind in group.kinds), default=0.0)


class _Group:
    """Nodes with the same kinds of resources."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.nodes: set[Node] = set()
        self._free: dict[str, FreeIndex[Node]] = {kind: FreeIndex() for kind in {"cpu", *kinds}}

    def add(self, node: Node) -> None:
        self.nodes.add(node)
        self.changed(node)

    def remove(self, node: Node) -> None:
        self.nodes.discard(node)
        for index in self._free.values():
            index.remove(node)

    def changed(self, node: Node) -> None:
        for kind, index in self._free.items():
            index.put(node, node.free.amount(kind))

    def pick(
        self, need: Resources, kinds: frozenset[str], placement: Placement, avoid: Collection[Node]
    ) -> Node | None:
        kind = min(kinds, key=_rarest_first) if kinds else "cpu"
        index, wanted = self._free[kind], need.amount(kind)
        if any(self._free[other].most < need.amount(other) for other in kinds):
            return None
        nodes = index.from_least(wanted) if placement is Placement.PACK else index.from_most(wanted)
        return next((node for node in nodes if node.can_hold(need) and node not in avoid), None)

    def most_free(self, kind: str) -> float:
        if kind == "memory":
            return max(node.memory_free for node in self.nodes)
        return self._free[kind].most


def _rarest_first(kind: str) -> tuple[int, str]:
    return {"cpu": 2, "memory": 3}.get(kind, 1), kind


def _cpus_last(kind: str) -> tuple[int, str]:
    """Return the key of the order in which a request waits for its kinds: most need CPUs, few need a GPU."""
    return {"memory": 2, "cpu": 3}.get(kind, 1), kind


_Key = tuple[str, int]
_FEW = 100  # deadlines of requests that have left, which are removed once most are


class Waiting:
    """A request in the queue."""

    __slots__ = ("client_id", "deadline", "gone", "order", "request", "shape", "since", "wants")

    def __init__(self, order: int, client_id: str, request: LeaseRequest, since: float, deadline: float | None) -> None:
        self.order = order
        self.client_id = client_id
        self.request = request
        self.shape = Shape(request.resources, request.placement, request.node)
        self.since = since
        self.deadline = deadline
        self.gone = False
        self.wants = ""  # the lease that another client was asked to give back for it

    @property
    def key(self) -> _Key:
        """The request's key: the client and the client's number for it."""
        return (self.client_id, self.request.request_id)


class LeaseQueue:
    """A first-come, first-served queue of requests, with a separate queue for each shape."""

    def __init__(self) -> None:
        self._lines: dict[Shape, OrderedDict[int, Waiting]] = {}  # by their order
        self._by_key: dict[_Key, Waiting] = {}
        self._by_client: dict[str, dict[int, Waiting]] = {}
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._orders = itertools.count()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: _Key) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._by_key.values()))

    def get(self, key: _Key) -> Waiting | None:
        """Return the request with that key, None if it is not waiting."""
        return self._by_key.get(key)

    def count_of(self, client_id: str) -> int:
        """Return the number of a client's pending requests."""
        return len(self._by_client.get(client_id, ()))

    def add(self, client_id: str, request: LeaseRequest, now: float) -> Waiting:
        """Append a request to the queue of its shape."""
        deadline = None if request.timeout_s is None else now + request.timeout_s
        waiting = Waiting(next(self._orders), client_id, request, now, deadline)
        self._by_key[waiting.key] = waiting
        self._by_client.setdefault(client_id, {})[request.request_id] = waiting
        self._lines.setdefault(waiting.shape, OrderedDict())[waiting.order] = waiting
        if deadline is not None:
            if len(self._deadlines) > 2 * len(self._by_key) + _FEW:
                self._deadlines = [one for one in self._deadlines if not one[2].gone]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (deadline, waiting.order, waiting))
        return waiting

    def remove(self, key: _Key) -> Waiting | None:
        """Remove a request and return it; None if it is not waiting."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.gone = True
            line = self._lines[waiting.shape]
            del line[waiting.order]
            if not line:
                del self._lines[waiting.shape]
            of_client = self._by_client[waiting.client_id]
            del of_client[waiting.request.request_id]
            if not of_client:
                del self._by_client[waiting.client_id]
        return waiting

    def remove_client(self, client_id: str) -> list[Waiting]:
        """Remove all requests of a client and return them."""
        gone = list(self._by_client.get(client_id, {}).values())
        for waiting in gone:
            self.remove(waiting.key)
        return gone

    def ahead_of(self, waiting: Waiting) -> int:
        """Return the number of earlier requests of the same shape."""
        return sum(order < waiting.order for order in self._lines[waiting.shape])

    def heads(self) -> list[Waiting]:
        """Return the first request of each shape, the one that has waited longest first."""
        heads = (next(iter(line.values())) for line in self._lines.values())
        return sorted(heads, key=lambda waiting: waiting.order)

    def due(self, now: float) -> list[Waiting]:
        """Return the requests past their deadlines, which stay in the queue until they are removed."""
        due = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            due.append(heapq.heappop(self._deadlines)[2])
        return due

    def next_deadline(self) -> float | None:
        """Return the next deadline of a request, or None."""
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None


@dataclass(slots=True)
class _Held:
    """The kinds and nodes that earlier requests block.

    Attributes:
        kinds: For each kind, the first request that blocks it.
        on: The same for the kinds blocked on single nodes.
    """

    kinds: dict[str, Waiting] = field(default_factory=dict)
    on: dict[Node, dict[str, Waiting]] = field(default_factory=dict)

    def nodes_for(self, kinds: frozenset[str]) -> set[Node]:
        return {node for node, held in self.on.items() if held.keys() & kinds} if self.on else set()

    def before(self, pool: NodePool, shape: Shape) -> Waiting | None:
        """Return the oldest request that blocks one of this shape, None if it is not blocked."""
        kinds = shape.resources.kinds()
        node = pool.pick(shape) if self.on else None
        blocked = [self.kinds, self.on.get(node, {})] if node is not None else [self.kinds]
        found = [held[kind] for held in blocked for kind in kinds & held.keys()]
        return min(found, key=lambda one: one.order, default=None)

    def hold(self, pool: NodePool, waiting: Waiting) -> None:
        where = waiting.shape.node
        _, blocked = pool.awaited(waiting.shape)
        if where:
            for node in pool.called(where):
                for kind in blocked:
                    self.on.setdefault(node, {}).setdefault(kind, waiting)
                for beside in node.host.nodes if "memory" in blocked and node.host is not None else ():
                    self.on.setdefault(beside, {}).setdefault("memory", waiting)
        else:
            for kind in blocked:
                self.kinds.setdefault(kind, waiting)


def next_placement(pool: NodePool, queue: LeaseQueue) -> tuple[Waiting, Node] | None:
    """Return the next request to serve and its node; None if all requests have to wait."""
    held = _Held()
    for waiting in queue.heads():
        kinds = waiting.shape.resources.kinds()
        if not held.kinds.keys().isdisjoint(kinds) or not pool.could_hold(waiting.shape):
            continue
        if node := pool.pick(waiting.shape, held.nodes_for(kinds)):
            return waiting, node
        held.hold(pool, waiting)
    return None


def reasons(pool: NodePool, queue: LeaseQueue) -> dict[Shape, str]:
    """Return for each pending shape why it has to wait."""
    held = _Held()
    found: dict[Shape, str] = {}
    for waiting in queue.heads():
        shape = waiting.shape
        if not pool.could_hold(shape):
            found[shape] = _too_large(pool, shape)
            continue
        before = held.before(pool, shape)
        if before is None:
            found[shape] = _short(pool, shape)
        else:
            who, where = before.request.class_name or "an actor", before.shape.node
            wants = before.shape.resources.as_request() + (f" on node {where}" if where else "")
            found[shape] = f"it is behind {who}, which asked earlier for {wants}"
        if held.kinds.keys().isdisjoint(shape.resources.kinds()):
            held.hold(pool, waiting)
    return found


def _too_large(pool: NodePool, shape: Shape) -> str:
    """Return why no node could ever hold this."""
    need = shape.resources
    if shape.node:
        bound = pool.called(shape.node)
        if not bound:
            return f"there is no node {shape.node!r}"
        is_open = any(node.is_open for node in bound)
        return f"node {shape.node} has {bound[0].total} in all" if is_open else f"node {shape.node} is being drained"
    if not any(node.is_open for node in pool):
        return "every node is being drained" if len(pool) else "there is no node"
    missing = sorted(kind for kind in need.kinds() if all(node.total.amount(kind) < need.amount(kind) for node in pool))
    if not missing:
        return "no single node is large enough"
    return "no single node is large enough: " + ", ".join(
        f"it needs {_only(need, kind)}, the largest has {_most(pool, kind)}" for kind in missing
    )


def _short(pool: NodePool, shape: Shape) -> str:
    need = shape.resources
    if shape.node:
        bound = [node for node in pool.called(shape.node) if node.is_open]
        free = replace(bound[0].free, memory=bound[0].memory_free)
        return f"node {shape.node} has {free} free"
    short = pool.short_of(need)
    if not short:
        return f"no single node has {need} free at the same time"
    scarce = sorted(kind for kind in short if pool.most_free(kind) < need.amount(kind))
    if not scarce:
        return f"it needs {_only(need, 'gpu')}, and no single GPU has so much left"
    parts = [f"it needs {_only(need, kind)} and no node has {_left(pool, kind)}" for kind in scarce]
    return f"short of {' and '.join(scarce)}: " + ", ".join(parts)


def _left(pool: NodePool, kind: str) -> str:
    most = pool.most_free(kind)
    return f"more than {_amount(kind, most)} free" if most else "any free"


def _only(need: Resources, kind: str) -> str:
    return _amount(kind, need.amount(kind))


def _most(pool: NodePool, kind: str) -> str:
    return _amount(kind, max((node.total.amount(kind) for node in pool), default=0.0))


def _amount(kind: str, amount: float) -> str:
    if not amount:
        return f"no {kind}" if kind not in ("cpu", "gpu") else f"0 {kind.upper()}"
    if kind in ("cpu", "gpu"):
        return f"{amount:g} {kind.upper()}"
    if kind == "memory":
        return f"{amount / 2**20:.0f} MiB memory"
    return f"{amount:g} {kind}"

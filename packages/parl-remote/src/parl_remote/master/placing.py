"""Requests that wait for room, and the rules by which they get it.

1. Requests of one shape are served in the order in which they came.
2. Of different shapes, the one that has waited longest comes first, if there is room for it now.
3. Who waits for a kind that is short holds back everybody younger who wants any of that kind, so that large requests
   are not starved by small ones; who wants other kinds only goes ahead.
4. Who waits for one particular node holds back younger ones on that node only.
5. What no present node could hold even if it were empty waits for one that can, and holds back nobody.

Requests of one shape (the same resources, the same wish where to go) stand in one line, so that a thousand equal ones
cost no more to look through than one. A request that left (granted, cancelled, timed out) is only marked, and skipped
when it comes to the front.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from parl_remote.master.node_pool import Node, NodePool, Shape
from parl_remote.messages import LeaseRequest
from parl_remote.resources import Resources

__all__ = ["LeaseQueue", "Waiting", "next_placement", "reasons"]


_Key = tuple[str, int]


class Waiting:
    """One request in the queue."""

    __slots__ = ("client_id", "deadline", "gone", "order", "request", "shape", "since")

    def __init__(self, order: int, client_id: str, request: LeaseRequest, since: float, deadline: float | None) -> None:
        self.order = order
        self.client_id = client_id
        self.request = request
        self.shape = Shape(request.resources, request.placement, request.node)
        self.since = since
        self.deadline = deadline
        self.gone = False

    @property
    def key(self) -> _Key:
        """Names it: the client and the client's number for it."""
        return (self.client_id, self.request.request_id)


class LeaseQueue:
    """First come, first served, a line for each shape."""

    def __init__(self) -> None:
        self._lines: dict[Shape, deque[Waiting]] = {}
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
        """Return the request of that key, None if it is not waiting."""
        return self._by_key.get(key)

    def count_of(self, client_id: str) -> int:
        """Return how many requests of a client wait."""
        return len(self._by_client.get(client_id, ()))

    def add(self, client_id: str, request: LeaseRequest, now: float) -> Waiting:
        """Put a request at the end of its line."""
        deadline = None if request.timeout_s is None else now + request.timeout_s
        waiting = Waiting(next(self._orders), client_id, request, now, deadline)
        self._by_key[waiting.key] = waiting
        self._by_client.setdefault(client_id, {})[request.request_id] = waiting
        self._lines.setdefault(waiting.shape, deque()).append(waiting)
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, waiting.order, waiting))
        return waiting

    def remove(self, key: _Key) -> Waiting | None:
        """Take a request out; None if it is not waiting."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.gone = True
            self._tidy(waiting.shape)
            of_client = self._by_client[waiting.client_id]
            del of_client[waiting.request.request_id]
            if not of_client:
                del self._by_client[waiting.client_id]
        return waiting

    def remove_client(self, client_id: str) -> list[Waiting]:
        """Take out everything that a client waits for."""
        gone = list(self._by_client.get(client_id, {}).values())
        for waiting in gone:
            self.remove(waiting.key)
        return gone

    def ahead_of(self, waiting: Waiting) -> int:
        """Return how many requests of the same shape came earlier."""
        return sum(not one.gone for one in self._lines[waiting.shape] if one.order < waiting.order)

    def heads(self) -> list[Waiting]:
        """Return the first of each line, the longest waiting one first."""
        return sorted((line[0] for line in self._lines.values()), key=lambda waiting: waiting.order)

    def due(self, now: float) -> list[Waiting]:
        """Return what has waited for as long as it was willing to; it stays in the queue until it is removed."""
        due = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            due.append(heapq.heappop(self._deadlines)[2])
        return due

    def next_deadline(self) -> float | None:
        """Return when the next request runs out of time."""
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _tidy(self, shape: Shape) -> None:
        line = self._lines[shape]
        while line and line[0].gone:
            line.popleft()
        if not line:
            del self._lines[shape]


@dataclass(slots=True)
class _Held:
    """What older requests hold back.

    Attributes:
        kinds: For whom: the first request that is short of each kind.
        on: The same for single nodes.
    """

    kinds: dict[str, Waiting] = field(default_factory=dict)
    on: dict[Node, set[str]] = field(default_factory=dict)

    def nodes_for(self, kinds: frozenset[str]) -> set[Node]:
        return {node for node, held in self.on.items() if held & kinds} if self.on else set()

    def hold(self, pool: NodePool, waiting: Waiting) -> None:
        need, where = waiting.shape.resources, waiting.shape.node
        if where:
            for node in pool.called(where):
                self.on.setdefault(node, set()).update(need.kinds())
        else:
            for kind in pool.short_of(need):
                self.kinds.setdefault(kind, waiting)


def next_placement(pool: NodePool, queue: LeaseQueue) -> tuple[Waiting, Node] | None:
    """Return the request that is served next and its node; None if all have to wait."""
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
    """Return why each shape that waits has to."""
    held = _Held()
    found: dict[Shape, str] = {}
    for waiting in queue.heads():
        shape = waiting.shape
        kinds = shape.resources.kinds()
        before = [held.kinds[kind] for kind in sorted(kinds & held.kinds.keys())]
        if not pool.could_hold(shape):
            found[shape] = _too_large(pool, shape)
        elif before:
            first = min(before, key=lambda one: one.order)
            who = first.request.class_name or "an actor"
            found[shape] = f"it is behind {who}, which asked earlier for {first.shape.resources}"
        else:
            found[shape] = _short(pool, shape)
            held.hold(pool, waiting)
    return found


def _too_large(pool: NodePool, shape: Shape) -> str:
    """Return why no node could ever take this."""
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
        return f"node {shape.node} has {bound[0].free} free"
    short = pool.short_of(need)
    if all(pool.most_free(kind) >= need.amount(kind) for kind in short):
        if short == {"gpu"}:
            return f"it needs {_only(need, 'gpu')}, and no single GPU has so much left"
        return f"no single node has {need} free at the same time"
    parts = [f"it needs {_only(need, kind)} and no node has {_left(pool, kind)}" for kind in sorted(short)]
    return f"short of {' and '.join(sorted(short))}: " + ", ".join(parts)


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

"""The nodes of a cluster and what is free on them, so arranged that choosing one does not slow down as they grow more.

Nodes that offer the same kinds of things (CPUs; CPUs and GPUs; ...) form a group. In a group, one heap a kind has the
node with the most of it free on top, so that work spreads. Changing a node pushes a new entry and leaves the old one to
be thrown away when it comes up: its stamp does not match the node's any more.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator

from parl_remote.messages import NodeJoin
from parl_remote.resources import Resources

__all__ = ["Node", "NodePool"]


class Node:
    """One worker as the master knows it; only the pool changes `free`."""

    __slots__ = ("free", "joined", "leases", "load", "memory_free", "stamp")

    def __init__(self, joined: NodeJoin) -> None:
        self.joined = joined
        self.free = joined.resources
        self.leases: set[str] = set()
        self.load = 0.0
        self.memory_free = 0
        self.stamp = 0

    @property
    def node_id(self) -> str:
        """The worker's own id."""
        return self.joined.node_id

    @property
    def total(self) -> Resources:
        """What it offered when it joined."""
        return self.joined.resources


_Entry = tuple[float, int, int, Node]  # minus what is free, order of arrival, stamp, node


class NodePool:
    """All nodes, by id, with their free resources.

    Attributes:
        total: The sum of what all nodes offer.
        free: The sum of what is free on them.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._groups: dict[frozenset[str], _Group] = {}
        self._totals: Counter[Resources] = Counter()
        self.total = Resources()
        self.free = Resources()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, node_id: str) -> Node | None:
        """The node of that id, if it is here."""
        return self._nodes.get(node_id)

    def add(self, joined: NodeJoin) -> Node:
        """Take in a node that is not here yet, with everything free."""
        node = self._nodes[joined.node_id] = Node(joined)
        self._totals[node.total] += 1
        self.total += node.total
        self.free += node.total
        kinds = node.total.kinds()
        if kinds not in self._groups:
            self._groups[kinds] = _Group(kinds)
            self._groups = dict(sorted(self._groups.items(), key=lambda item: (len(item[0]), sorted(item[0]))))
        self._groups[kinds].add(node)
        return node

    def remove(self, node: Node) -> None:
        """Forget a node and everything that was free or taken on it."""
        del self._nodes[node.node_id]
        self._totals[node.total] -= 1
        if not self._totals[node.total]:
            del self._totals[node.total]
        self.total -= node.total
        self.free -= node.free
        kinds = node.total.kinds()
        self._groups[kinds].remove(node)
        if not self._groups[kinds].nodes:
            del self._groups[kinds]

    def take(self, node: Node, amount: Resources) -> None:
        """Take resources that fit."""
        node.free -= amount
        self.free -= amount
        self._groups[node.total.kinds()].changed(node)

    def give(self, node: Node, amount: Resources) -> None:
        """Give back what was taken."""
        node.free += amount
        self.free += amount
        self._groups[node.total.kinds()].changed(node)

    def pick(self, need: Resources) -> Node | None:
        """The node where `need` fits and most is left, of those that offer the fewest other kinds.

        Actors without GPUs so leave the nodes that have some to those that want them.
        """
        kinds = need.kinds()
        for group in self._groups.values():
            if kinds <= group.kinds and (node := group.pick(need, kinds)):
                return node
        return None

    def could_hold(self, need: Resources) -> bool:
        """Whether any node could take `need` if it were empty."""
        return any(total.fits(need) for total in self._totals)

    def short_of(self, need: Resources) -> frozenset[str]:
        """Which kinds no node has enough of now; all kinds of `need` if only their combination is lacking."""
        kinds = need.kinds()
        short = frozenset(kind for kind in kinds if self._most_free(kind) < need.amount(kind))
        return short or kinds

    def _most_free(self, kind: str) -> float:
        return max((group.most_free(kind) for group in self._groups.values() if kind in group.kinds), default=0.0)


class _Group:
    """Nodes that offer the same kinds."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.nodes: set[Node] = set()
        self._heaps: dict[str, list[_Entry]] = {kind: [] for kind in {"cpu", *kinds}}
        self._arrivals = itertools.count()

    def add(self, node: Node) -> None:
        self.nodes.add(node)
        self.changed(node)

    def remove(self, node: Node) -> None:
        self.nodes.discard(node)
        node.stamp += 1

    def changed(self, node: Node) -> None:
        node.stamp += 1
        for kind, heap in self._heaps.items():
            heapq.heappush(heap, self._entry(kind, node))
            if len(heap) > 2 * len(self.nodes) + 64:
                heap[:] = [self._entry(kind, one) for one in self.nodes]
                heapq.heapify(heap)

    def pick(self, need: Resources, kinds: frozenset[str]) -> Node | None:
        kind = min(kinds, key=_rarest_first) if kinds else "cpu"
        heap, wanted = self._heaps[kind], need.amount(kind)
        unfit: list[_Entry] = []
        found = None
        while (top := self._top(kind)) is not None and -top[0] >= wanted:
            if top[3].free.fits(need):
                found = top[3]
                break
            unfit.append(heapq.heappop(heap))  # it has this kind, but not enough of another
        for entry in unfit:
            heapq.heappush(heap, entry)
        return found

    def most_free(self, kind: str) -> float:
        top = self._top(kind)
        return -top[0] if top else 0.0

    def _top(self, kind: str) -> _Entry | None:
        heap = self._heaps[kind]
        while heap and heap[0][2] != heap[0][3].stamp:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _entry(self, kind: str, node: Node) -> _Entry:
        return (-node.free.amount(kind), next(self._arrivals), node.stamp, node)


def _rarest_first(kind: str) -> tuple[int, str]:
    return {"cpu": 2, "memory": 3}.get(kind, 1), kind

"""The nodes of a cluster and what is free on them: which one takes an actor, and which kind is short if none can.

    kind "cpu":  0.5 -> {b}    3 -> {a, d}    8 -> {c}         `FreeIndex`, so that finding a node stays fast
                 <-- pack: least first that is enough --    spread: most first -->

Nodes that offer the same kinds of things (CPUs; CPUs and GPUs; ...) form a group; a group sorts its nodes by what they
have free of each kind. A node that is being drained stays in the pool, but in no group.

Whole GPUs go to one actor each; fractions share the fullest GPU that still has room, so that whole ones stay free. The
master decides, because only it knows all actors of a node before they are there, and sums of fractions say too little:
of two GPUs with 0.4 free each, nobody can have 0.8.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from parl_remote.messages import Heartbeat, NodeJoin
from parl_remote.resources import Placement, Resources

__all__ = ["FreeIndex", "GpuShares", "Node", "NodePool"]


_Node = TypeVar("_Node")


class FreeIndex(Generic[_Node]):
    """One kind's order."""

    __slots__ = ("_amounts", "_nodes", "_places")

    def __init__(self) -> None:
        self._amounts: list[float] = []
        self._nodes: dict[float, dict[_Node, None]] = {}
        self._places: dict[_Node, float] = {}

    def put(self, node: _Node, amount: float) -> None:
        """Note how much a node has free now; a known one goes to the end of its new place's line."""
        self.remove(node)
        line = self._nodes.get(amount)
        if line is None:
            line = self._nodes[amount] = {}
            bisect.insort(self._amounts, amount)
        line[node] = None
        self._places[node] = amount

    def remove(self, node: _Node) -> None:
        """Forget a node; unknown ones are ignored."""
        amount = self._places.pop(node, None)
        if amount is None:
            return
        line = self._nodes[amount]
        del line[node]
        if not line:
            del self._nodes[amount]
            del self._amounts[bisect.bisect_left(self._amounts, amount)]

    @property
    def most(self) -> float:
        """The largest amount that a node has free, 0 if there is none."""
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
    """What is free of each GPU of a node, in thousandths.

    Args:
        names: The GPUs, as CUDA_VISIBLE_DEVICES names them.
    """

    __slots__ = ("_free",)

    def __init__(self, names: tuple[str, ...]) -> None:
        self._free = dict.fromkeys(names, _THOUSANDTHS)

    @property
    def free(self) -> tuple[float, ...]:
        """The free share of each, 0 to 1, in the order of their names."""
        return tuple(free / _THOUSANDTHS for free in self._free.values())

    def has(self, amount: float) -> bool:
        """Return whether `take` would give GPUs; the sum of what is free says nothing about fractions."""
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            return not need or any(free >= need for free in self._free.values())
        return amount == int(amount) <= sum(free == _THOUSANDTHS for free in self._free.values())

    def take(self, amount: float) -> tuple[str, ...]:
        """GPUs for one actor.

        Raises:
            ValueError: There are not enough.
        """
        if not self.has(amount):
            raise ValueError(f"there is no room for {amount:g} GPU, {self.free} are free")
        if not amount:
            return ()
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            chosen = [min((free, name) for name, free in self._free.items() if free >= need)[1]]
        else:
            chosen = [name for name, free in self._free.items() if free == _THOUSANDTHS][: int(amount)]
        self.claim(tuple(chosen), amount)
        return tuple(chosen)

    def claim(self, names: tuple[str, ...], amount: float) -> None:
        """Take exactly these, for an actor that has them already; those that are not here are ignored."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = max(0, self._free[name] - need)

    def give(self, names: tuple[str, ...], amount: float) -> None:
        """Give back what `take(amount)` gave."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = min(_THOUSANDTHS, self._free[name] + need)


class Shape(NamedTuple):
    """What requests must have in common to be served alike.

    Attributes:
        resources: What the actor needs.
        placement: Which of the nodes that have it takes the actor.
        node: The only node that may, by its name or id; empty for any.
    """

    resources: Resources
    placement: Placement = Placement.SPREAD
    node: str = ""


class Node:
    """One worker as the master knows it; only the pool changes `free` and `is_open`.

    Attributes:
        joined: What it said when it joined.
        joined_at: When that was.
        pid: Its process on its host.
        versions: Versions of parl_remote and python there.
        beat: Its last heartbeat.
        leases: The ids of those that run here.
        free: What is free.
        gpus: What is free of each GPU.
        is_open: Whether it takes actors.
    """

    __slots__ = ("beat", "free", "gpus", "is_open", "joined", "joined_at", "leases", "pid", "versions")

    def __init__(self, joined: NodeJoin, joined_at: float, pid: int, versions: Mapping[str, str]) -> None:
        self.joined = joined
        self.joined_at = joined_at
        self.pid = pid
        self.versions = versions
        self.beat = Heartbeat(0)
        self.leases: dict[str, None] = {}
        self.free = joined.resources
        self.gpus = GpuShares(self.gpu_names)
        self.is_open = True

    @property
    def node_id(self) -> str:
        """The worker's own id."""
        return self.joined.node_id

    @property
    def name(self) -> str:
        """What people call it."""
        return self.joined.name or self.joined.node_id

    @property
    def total(self) -> Resources:
        """What it offered when it joined."""
        return self.joined.resources

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Its GPUs, as CUDA_VISIBLE_DEVICES names them."""
        return self.joined.gpus or tuple(map(str, range(int(self.total.gpu))))

    def is_called(self, text: str) -> bool:
        """Return whether `text` is its id or its name."""
        return text in (self.joined.node_id, self.joined.name)

    def has_room(self, need: Resources) -> bool:
        """Return whether an actor can go here now."""
        return self.free.fits(need) and (not need.gpu or self.gpus.has(need.gpu))


class NodePool:
    """All nodes, by id, with their free resources.

    Attributes:
        total: The sum of what all nodes that take actors offer.
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
        """Return the node of that id, if it is here."""
        return self._nodes.get(node_id)

    def called(self, text: str) -> list[Node]:
        """Return the node of that id, or all of that name."""
        by_id = self._nodes.get(text)
        return [by_id] if by_id else [node for node in self._nodes.values() if node.is_called(text)]

    def add(self, node: Node) -> None:
        """Take in a node that is not here yet, with everything free."""
        self._nodes[node.node_id] = node
        self._totals[node.total] += 1
        self.total += node.total
        self.free += node.total
        kinds = node.total.kinds()
        if kinds not in self._groups:
            self._groups[kinds] = _Group(kinds)
            self._groups = dict(sorted(self._groups.items(), key=lambda item: (len(item[0]), sorted(item[0]))))
        self._groups[kinds].add(node)

    def close(self, node: Node) -> None:
        """Give the node nothing more; what runs there goes on."""
        if not node.is_open:
            return
        node.is_open = False
        self._totals[node.total] -= 1
        if not self._totals[node.total]:
            del self._totals[node.total]
        self.total -= node.total
        self.free -= node.free
        kinds = node.total.kinds()
        self._groups[kinds].remove(node)
        if not self._groups[kinds].nodes:
            del self._groups[kinds]

    def remove(self, node: Node) -> None:
        """Forget a node and everything that was free or taken on it."""
        self.close(node)
        del self._nodes[node.node_id]

    def take(self, node: Node, amount: Resources, gpus: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Take resources that fit.

        Args:
            node: Where.
            amount: How much.
            gpus: Which GPUs, for an actor that has them already; None chooses.

        Returns:
            Which GPUs these are.
        """
        if gpus is None:
            gpus = node.gpus.take(amount.gpu) if amount.gpu else ()
        else:
            node.gpus.claim(gpus, amount.gpu)
        node.free -= amount
        if node.is_open:
            self.free -= amount
            self._groups[node.total.kinds()].changed(node)
        return gpus

    def give(self, node: Node, amount: Resources, gpus: tuple[str, ...]) -> None:
        """Give back what was taken."""
        node.gpus.give(gpus, amount.gpu)
        node.free += amount
        if node.is_open:
            self.free += amount
            self._groups[node.total.kinds()].changed(node)

    def pick(self, shape: Shape, avoid: Collection[Node] = ()) -> Node | None:
        """Return the node that an actor goes to: by its placement, of those that offer the fewest other kinds.

        Actors without GPUs so leave the nodes that have some to those that want them.

        Args:
            shape: What it needs, and where it wants to go.
            avoid: Where it may not.
        """
        need = shape.resources
        if shape.node:
            bound = [node for node in self.called(shape.node) if node.is_open and node not in avoid]
            return next((node for node in bound if node.has_room(need)), None)
        kinds = need.kinds()
        for group in self._groups.values():
            if kinds <= group.kinds and (node := group.pick(need, kinds, shape.placement, avoid)):
                return node
        return None

    def could_hold(self, shape: Shape) -> bool:
        """Return whether any node could take this if it were empty."""
        need = shape.resources
        if need.gpu > 1 and need.gpu != int(need.gpu):
            return False
        if shape.node:
            return any(node.is_open and node.total.fits(need) for node in self.called(shape.node))
        return any(total.fits(need) for total in self._totals)

    def short_of(self, need: Resources) -> frozenset[str]:
        """Return which kinds no node has enough of now; all kinds of `need` if only their combination is lacking."""
        kinds = need.kinds()
        short = frozenset(kind for kind in kinds if self.most_free(kind) < need.amount(kind))
        if not short and need.gpu and not any(node.gpus.has(need.gpu) for node in self if node.is_open):
            short = frozenset(("gpu",))  # there is enough in pieces
        return short or kinds

    def most_free(self, kind: str) -> float:
        """Return the most that one node has free of a kind."""
        return max((group.most_free(kind) for group in self._groups.values() if kind in group.kinds), default=0.0)


class _Group:
    """Nodes that offer the same kinds."""

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
        return next((node for node in nodes if node.has_room(need) and node not in avoid), None)

    def most_free(self, kind: str) -> float:
        return self._free[kind].most


def _rarest_first(kind: str) -> tuple[int, str]:
    return {"cpu": 2, "memory": 3}.get(kind, 1), kind

"""The nodes of a cluster and what is free on them: which one takes an actor, and which kind is short if none can.

Nodes that offer the same kinds of things (CPUs; CPUs and GPUs; ...) form a group; a group sorts its nodes by what they
have free of each kind (`RoomIndex`). A node that is being drained stays in the pool, but in no group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from parl_remote.master.gpus import GpuShares
from parl_remote.master.lease_queue import Shape
from parl_remote.master.room_index import RoomIndex
from parl_remote.messages import Heartbeat, NodeJoin
from parl_remote.placement import Placement
from parl_remote.resources import Resources

__all__ = ["Node", "NodePool"]


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
        """Whether `text` is its id or its name."""
        return text in (self.joined.node_id, self.joined.name)

    def has_room(self, need: Resources) -> bool:
        """Whether an actor can go here now."""
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
        """The node of that id, if it is here."""
        return self._nodes.get(node_id)

    def called(self, text: str) -> list[Node]:
        """The node of that id, or all of that name."""
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
        """The node that an actor goes to: by its placement, of those that offer the fewest other kinds.

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
        """Whether any node could take this if it were empty."""
        need = shape.resources
        if need.gpu > 1 and need.gpu != int(need.gpu):
            return False
        if shape.node:
            return any(node.is_open and node.total.fits(need) for node in self.called(shape.node))
        return any(total.fits(need) for total in self._totals)

    def short_of(self, need: Resources) -> frozenset[str]:
        """Which kinds no node has enough of now; all kinds of `need` if only their combination is lacking."""
        kinds = need.kinds()
        short = frozenset(kind for kind in kinds if self.most_free(kind) < need.amount(kind))
        if not short and need.gpu and not any(node.gpus.has(need.gpu) for node in self if node.is_open):
            short = frozenset(("gpu",))  # there is enough in pieces
        return short or kinds

    def most_free(self, kind: str) -> float:
        """The most that one node has free of a kind."""
        return max((group.most_free(kind) for group in self._groups.values() if kind in group.kinds), default=0.0)


class _Group:
    """Nodes that offer the same kinds."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.nodes: set[Node] = set()
        self._rooms: dict[str, RoomIndex[Node]] = {kind: RoomIndex() for kind in {"cpu", *kinds}}

    def add(self, node: Node) -> None:
        self.nodes.add(node)
        self.changed(node)

    def remove(self, node: Node) -> None:
        self.nodes.discard(node)
        for room in self._rooms.values():
            room.remove(node)

    def changed(self, node: Node) -> None:
        for kind, room in self._rooms.items():
            room.put(node, node.free.amount(kind))

    def pick(
        self, need: Resources, kinds: frozenset[str], placement: Placement, avoid: Collection[Node]
    ) -> Node | None:
        kind = min(kinds, key=_rarest_first) if kinds else "cpu"
        room, wanted = self._rooms[kind], need.amount(kind)
        if any(self._rooms[other].most < need.amount(other) for other in kinds):
            return None
        nodes = room.from_least(wanted) if placement is Placement.PACK else room.from_most(wanted)
        return next((node for node in nodes if node.has_room(need) and node not in avoid), None)

    def most_free(self, kind: str) -> float:
        return self._rooms[kind].most


def _rarest_first(kind: str) -> tuple[int, str]:
    return {"cpu": 2, "memory": 3}.get(kind, 1), kind

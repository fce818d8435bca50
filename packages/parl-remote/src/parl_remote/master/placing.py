"""Who gets room next, and why others have to wait: the rules of the queue, in one place.

1. Requests of one shape are served in the order in which they came.
2. Of different shapes, the one that has waited longest comes first, if there is room for it now.
3. Who waits for a kind that is short holds back everybody younger who wants any of that kind, so that large requests
   are not starved by small ones; who wants other kinds only goes ahead.
4. Who waits for one particular node holds back younger ones on that node only.
5. What no present node could hold even if it were empty waits for one that can, and holds back nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parl_remote.master.lease_queue import LeaseQueue, Shape, Waiting
from parl_remote.master.node_pool import Node, NodePool
from parl_remote.resources import Resources

__all__ = ["next_placement", "reasons"]


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
    """The request that is served next and its node; None if all have to wait."""
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
    """Why each shape that waits has to."""
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
    """Why no node could ever take this."""
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

"""Nodes sorted by how much they have free of each kind, so that finding one does not slow down as they grow more.

    kind "cpu":  0.5 -> {b}    3 -> {a, d}    8 -> {c}
                 <-- pack: least first that is enough --    spread: most first -->

Nodes with the same amount stand in the order in which they came to have it, so that equal ones take turns.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["RoomIndex"]

_Node = TypeVar("_Node")


class RoomIndex(Generic[_Node]):
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
        """Nodes with at least `need`, the one with the most first."""
        for amount in reversed(self._amounts):
            if amount < need:
                return
            yield from self._nodes[amount]

    def from_least(self, need: float) -> Iterator[_Node]:
        """Nodes with at least `need`, the one with the least first."""
        for amount in self._amounts[bisect.bisect_left(self._amounts, need) :]:
            yield from self._nodes[amount]

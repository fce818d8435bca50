"""Requests for leases that wait for room, in the order in which they came.

Requests of one shape (the same resources, the same wish where to go) stand in one line, so that a thousand equal ones
cost no more to look through than one. A request that left (granted, cancelled, timed out) is only marked, and skipped
when it comes to the front.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from parl_remote.messages import LeaseRequest
from parl_remote.placement import Placement
from parl_remote.resources import Resources

__all__ = ["LeaseQueue", "Shape", "Waiting"]

_Key = tuple[str, int]


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
        """The request of that key, None if it is not waiting."""
        return self._by_key.get(key)

    def count_of(self, client_id: str) -> int:
        """How many requests of a client wait."""
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
        """How many requests of the same shape came earlier."""
        return sum(not one.gone for one in self._lines[waiting.shape] if one.order < waiting.order)

    def heads(self) -> list[Waiting]:
        """The first of each line, the longest waiting one first."""
        return sorted((line[0] for line in self._lines.values()), key=lambda waiting: waiting.order)

    def due(self, now: float) -> list[Waiting]:
        """What has waited for as long as it was willing to; it stays in the queue until it is removed."""
        due = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            due.append(heapq.heappop(self._deadlines)[2])
        return due

    def next_deadline(self) -> float | None:
        """When the next request runs out of time."""
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _tidy(self, shape: Shape) -> None:
        line = self._lines[shape]
        while line and line[0].gone:
            line.popleft()
        if not line:
            del self._lines[shape]

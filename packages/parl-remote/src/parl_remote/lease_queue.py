"""Requests for leases that wait for room, in the order in which they came.

Requests of one shape (the same resources) stand in one line, so that a thousand equal ones cost no more to look through
than one. A request that left (granted, cancelled, timed out) is only marked, and skipped when it comes to the front.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

from parl_remote.messages import LeaseRequest
from parl_remote.resources import Resources

__all__ = ["LeaseQueue", "Waiting"]

_Key = tuple[str, int]


class Waiting:
    """One request in the queue."""

    __slots__ = ("client_id", "deadline", "gone", "order", "request")

    def __init__(self, order: int, client_id: str, request: LeaseRequest, deadline: float | None) -> None:
        self.order = order
        self.client_id = client_id
        self.request = request
        self.deadline = deadline
        self.gone = False

    @property
    def key(self) -> _Key:
        """Names it: the client and the client's number for it."""
        return (self.client_id, self.request.request_id)


class LeaseQueue:
    """First come, first served, a line for each shape."""

    def __init__(self) -> None:
        self._lines: dict[Resources, deque[Waiting]] = {}
        self._by_key: dict[_Key, Waiting] = {}
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._orders = itertools.count()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: _Key) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._by_key.values()))

    def add(self, client_id: str, request: LeaseRequest, now: float) -> Waiting:
        """Put a request at the end of its line."""
        deadline = None if request.timeout_s is None else now + request.timeout_s
        waiting = Waiting(next(self._orders), client_id, request, deadline)
        self._by_key[waiting.key] = waiting
        self._lines.setdefault(request.resources, deque()).append(waiting)
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, waiting.order, waiting))
        return waiting

    def remove(self, key: _Key) -> Waiting | None:
        """Take a request out; None if it is not waiting."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.gone = True
            self._tidy(waiting.request.resources)
        return waiting

    def remove_client(self, client_id: str) -> None:
        """Take out everything that a client waits for."""
        for waiting in self:
            if waiting.client_id == client_id:
                self.remove(waiting.key)

    def heads(self) -> list[Waiting]:
        """The first of each line, the longest waiting one first."""
        return sorted((line[0] for line in self._lines.values()), key=lambda waiting: waiting.order)

    def expired(self, now: float) -> list[Waiting]:
        """Take out and return what has waited for as long as it was willing to."""
        due = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            waiting = heapq.heappop(self._deadlines)[2]
            self.remove(waiting.key)
            due.append(waiting)
        return due

    def next_deadline(self) -> float | None:
        """When the next request runs out of time."""
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _tidy(self, shape: Resources) -> None:
        line = self._lines[shape]
        while line and line[0].gone:
            line.popleft()
        if not line:
            del self._lines[shape]

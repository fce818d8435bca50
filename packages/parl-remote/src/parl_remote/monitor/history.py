"""Numbers over time in rings of fixed size: fine ones for the last half hour or so, coarse ones for the day.

    add(time, cpu=..., memory=...) --> fine ring   (one entry a step)
                                   `-> coarse ring (the mean of several)

An entry is some twenty bytes, so that a thousand nodes and ten thousand actors fit into about a hundred megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ACTORS", "CLUSTER", "NODES", "History", "Keep"]


@dataclass(frozen=True, slots=True)
class Keep:
    """How much a history keeps.

    Attributes:
        fine: Entries as they come.
        coarse: Entries of means.
        every: How many seconds one mean covers.
    """

    fine: int
    coarse: int
    every: float


CLUSTER = Keep(fine=1800, coarse=1440, every=60.0)  # an hour at two seconds each, then a day
NODES = Keep(fine=720, coarse=720, every=120.0)
ACTORS = Keep(fine=360, coarse=180, every=120.0)

_GAP_S = 1e-3  # two entries of one moment are one


class _Ring:
    """Rows of numbers; the oldest is overwritten once it is full. Memory grows only as rows come."""

    __slots__ = ("_columns", "_next", "_size", "_times")

    def __init__(self, columns: int, size: int) -> None:
        self._times = array("d")
        self._columns = tuple(array("f") for _ in range(columns))
        self._size = size
        self._next = 0

    def add(self, at: float, row: Sequence[float]) -> None:
        if len(self._times) < self._size:
            self._times.append(at)
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return
        self._times[self._next] = at
        for column, value in zip(self._columns, row, strict=True):
            column[self._next] = value
        self._next = (self._next + 1) % self._size

    def rows(self, since: float) -> tuple[list[float], list[list[float]]]:
        order = [*range(self._next, len(self._times)), *range(self._next)]
        kept = [i for i in order if self._times[i] >= since]
        return [self._times[i] for i in kept], [[column[i] for i in kept] for column in self._columns]

    def oldest(self) -> float:
        return self._times[self._next] if len(self._times) == self._size else -math.inf


class History:
    """Some numbers of one thing over time.

    Args:
        names: What they are called.
        keep: How many entries to keep.
    """

    __slots__ = ("_coarse", "_count", "_fine", "_keep", "_last", "_names", "_since", "_sums")

    def __init__(self, names: tuple[str, ...], keep: Keep) -> None:
        self._names = names
        self._keep = keep
        self._fine = _Ring(len(names), keep.fine)
        self._coarse = _Ring(len(names), keep.coarse)
        self._last = -math.inf
        self._since = math.nan
        self._sums = [0.0] * len(names)
        self._count = [0] * len(names)

    def add(self, at: float, values: Sequence[float | None]) -> None:
        """Add an entry, in the order of the names; None was not measured. Entries out of order are dropped."""
        if at < self._last + _GAP_S:
            return
        self._last = at
        self._fine.add(at, [math.nan if value is None else value for value in values])
        if math.isnan(self._since):
            self._since = at
        for i, value in enumerate(values):
            if value is not None:
                self._sums[i] += value
                self._count[i] += 1
        if at - self._since >= self._keep.every:
            means = [s / n if n else math.nan for s, n in zip(self._sums, self._count, strict=True)]
            self._coarse.add((self._since + at) / 2, means)
            self._since = at
            self._sums = [0.0] * len(self._names)
            self._count = [0] * len(self._names)

    def read(self, since: float, most: int = 400) -> dict[str, list[float | None]]:
        """The entries from a time on, as one list a name and one of times, `t`; thinned out to at most `most`.

        Args:
            since: Earliest time.
            most: How many entries to give; neighbours are averaged beyond that.
        """
        times, columns = self._fine.rows(since)
        begins = self._fine.oldest()
        if since < begins:  # older than the fine ring reaches
            older, means = self._coarse.rows(since)
            count = sum(at < begins for at in older)
            times = older[:count] + times
            columns = [mean[:count] + column for mean, column in zip(means, columns, strict=True)]
        group = -(-len(times) // most) if times else 1
        return {
            "t": [round(value, 3) for value in _means(times, group) if value is not None],
            **{name: _means(column, group) for name, column in zip(self._names, columns, strict=True)},
        }


def _means(values: list[float], group: int) -> list[float | None]:
    if group <= 1:
        return [None if math.isnan(value) else value for value in values]
    out: list[float | None] = []
    for start in range(0, len(values), group):
        part = [value for value in values[start : start + group] if not math.isnan(value)]
        out.append(sum(part) / len(part) if part else None)
    return out

"""Reading of a map's items: few at a time, so that results that have arrived do not wait for items that come slowly.

    take --step by step--> items         items that come fast make the steps longer, one that is late makes them short
    is_late                              a read may block as long as an earlier one did: results come first

The thread that requests results reads the items, because they are the program's own iterator. A read that blocks cannot
be ended, so that what is there is looked at before each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from parl_remote._system.interrupts import take_items

__all__ = ["FILL_S", "ItemReader"]

FILL_S = 0.005  # how long an available result waits for more items, and an item for others of its chunk
_LATE_S = 0.05  # an item that takes longer is late; less may be a pause of this process on a busy machine
_STEP_S = 50e-6  # seconds of reading between two checks, which take some microseconds
# doubles, so that the first 16 items are read one by one: those of a step are not visible before its end
_FIRST_STEP = 2.0**-16
_EXPECTED = 3  # others are expected to be late for this many times the time of a late item
_PATIENCE = 0.1  # the part of that time for which a result is awaited first


class ItemReader:
    """Reads an iterator of the program in steps.

    Attributes:
        is_exhausted: Whether there are no more items.
        patience_s: Seconds to wait for a result before an item that is expected to be late.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self.is_exhausted = False
        self.patience_s = 0.0
        self._items = items
        self._step = _FIRST_STEP
        self._late_until = 0.0

    def let_go(self) -> None:
        """Read no more, and drop the iterator; takes no lock."""
        self.is_exhausted = True
        self._items = iter(())

    def is_late(self, now: float) -> bool:
        """Return whether the next item is expected to be late, at a time of `time.monotonic`."""
        return now < self._late_until

    def take(self, into: list[Any], most: float) -> BaseException | None:
        """Add at most `most` of the next items to a list; fewer if they may be late.

        Returns:
            What ended the iterator, if that was an error.
        """
        number = int(min(max(1, self._step), most))
        began, before = time.monotonic(), len(into)
        error = take_items(into, self._items, number)
        now = time.monotonic()
        took = now - began
        self.is_exhausted = len(into) - before < number
        if took > _LATE_S:
            self._late_until = now + _EXPECTED * took
            self.patience_s = _PATIENCE * took
        if now < self._late_until:
            self._step = _FIRST_STEP
        elif took < _STEP_S:
            self._step *= 2
        elif number > 1:
            self._step /= 2
        return error

"""Waiting for the first of several calls in the caller's own thread.

`concurrent.futures.wait` has a background thread read in the caller's place, which has to be woken, and wakes the
caller in turn. Here the caller reads all the connections itself, as a blocking call does with one. Where another thread
reads one of them already, or the answer comes some other way, that function does it.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from parl_remote.system.polling import wait_for_input

if TYPE_CHECKING:
    from parl_remote.future import RemoteFuture

__all__ = ["wait_any"]

_LOOK_AGAIN_S = 1.0  # in case that another thread closed a connection just before it was waited for


class Readable(Protocol):
    """A carrier of which one thread at a time reads for all."""

    def is_led_here(self) -> bool:
        """Whether this thread reads it already, and calls from a callback."""

    def lead(self) -> bool:
        """Begin to read for everybody; False if another thread does."""

    def leave(self) -> None:
        """Let others read, unless this thread did not."""

    def drain(self) -> None:
        """Settle what has arrived; of a thread that leads."""

    def has_read_ahead(self) -> bool:
        """Whether something has arrived that the descriptor does not tell of."""

    def fileno(self) -> int:
        """Readable when something arrives."""


def wait_any(futures: Sequence[RemoteFuture[Any]], timeout_s: float | None = None) -> None:
    """Sleep until one of several calls has ended, or the time has passed.

    Args:
        futures: Of the calls, at least one.
        timeout_s: How long to wait; None waits as long as it takes.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    carriers = list(dict.fromkeys(future._carrier for future in futures))
    if all(hasattr(carrier, "lead") for carrier in carriers):
        readable = cast("list[Readable]", carriers)
        others = [carrier for carrier in readable if not carrier.is_led_here()]
        try:
            if all(carrier.lead() for carrier in others):
                _read(readable, futures, deadline)
                return
        finally:
            for carrier in others:
                carrier.leave()
    some: list[concurrent.futures.Future[Any]] = list(futures)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    concurrent.futures.wait(some, left, concurrent.futures.FIRST_COMPLETED)


def _read(carriers: Sequence[Readable], futures: Sequence[RemoteFuture[Any]], deadline: float | None) -> None:
    ready = [carrier for carrier in carriers if carrier.has_read_ahead()]
    while True:
        for carrier in ready:
            carrier.drain()
        if any(future.settled for future in futures):
            return
        left = _LOOK_AGAIN_S if deadline is None else min(_LOOK_AGAIN_S, deadline - time.monotonic())
        if left <= 0:
            return
        try:
            by_descriptor = {carrier.fileno(): carrier for carrier in carriers}
            ready = [by_descriptor[found] for found in wait_for_input(list(by_descriptor), 1000 * left)]
        except ValueError:  # another thread has closed one of them, which is told when it is read
            ready = []
        if not ready:
            ready = list(carriers)

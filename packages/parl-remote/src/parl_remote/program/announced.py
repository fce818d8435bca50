"""Something that this process itself will tell its threads: a future that no actor answers."""

from __future__ import annotations

import threading
import time
from typing import Any

from parl_remote.future import RemoteFuture

__all__ = ["Announced"]


class _Sleeper:
    """A thread that waits."""

    def __init__(self) -> None:
        event = threading.Event()
        self.wake = event.set
        self.sleep = event.wait


class Announced:
    """Fills `future.Carrier` for futures that some thread of this process settles.

    Attributes:
        future: Settled by `settle`.
    """

    def __init__(self, what: str = "") -> None:
        self.future: RemoteFuture[Any] = RemoteFuture(self)
        self.future.method = what

    def settle(self) -> None:
        """Wake everybody; a second call does nothing."""
        if not self.future.settled:
            self.future.settle(None)

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        sleeper = _Sleeper()
        if future._sleepers is None:
            future._sleepers = []
        future._sleepers.append(sleeper)
        while not future.settled:  # looked at again now that whoever settles it can see us
            if not sleeper.sleep(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return future.settled
        return True

    def look(self) -> None:
        """See `Carrier.look`; there is nothing to look at."""

    def watch(self, future: RemoteFuture[Any]) -> None:
        """See `Carrier.watch`; whoever settles it does not have to be asked to."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:  # noqa: ARG002  # as the protocol has it
        """See `Carrier.cancel`; it cannot be."""
        return False

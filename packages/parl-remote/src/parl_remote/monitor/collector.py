"""Asks the source again and again, and gives the store what it says; slower where that costs the master much.

Source --snapshot--> Collector --add | failed--> Store
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from parl_remote.monitor.source import Source, SourceError
from parl_remote.monitor.store import Store

__all__ = ["Collector"]

_log = logging.getLogger("parl.remote")

_SHARE = 0.05  # of the time that asking may take; the rest of it the master belongs to those who work
_LONGEST_S = 15.0


class Collector:
    """A thread that keeps a store up to date.

    Args:
        source: Whom to ask.
        store: Whom to tell.
        interval_s: How often to ask at most.
        clock: Any clock in seconds.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._store = store
        self._interval_s = interval_s
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parl-monitor-collector", daemon=True)
        self._reason = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """End, and wait for that so long."""
        self._over.set()
        self._thread.join(wait_s)

    def collect(self) -> float:
        """Ask once; returns how long to wait until the next time."""
        started = self._clock()
        try:
            snapshot = self._source.snapshot()
        except SourceError as error:
            self._failed(str(error))
            return self._interval_s
        except Exception as error:  # whatever it is, the next snapshot may be better, and pages stay up
            _log.exception("a snapshot of the cluster failed")
            self._failed(f"{type(error).__name__}: {error}")
            return self._interval_s
        if self._reason:
            _log.info("the master answers again")
            self._reason = ""
        wait_s = min(_LONGEST_S, max(self._interval_s, (self._clock() - started) / _SHARE))
        self._store.add(snapshot, next_in_s=wait_s)
        return wait_s

    def _failed(self, reason: str) -> None:
        if reason != self._reason:
            _log.warning("no news of the cluster: %s", reason)
            self._reason = reason
        self._store.failed(reason)

    def _run(self) -> None:
        while not self._over.wait(self.collect()):
            pass

"""The last actors that were lost, for whoever asks later: `xparl`, the monitor."""

from __future__ import annotations

import itertools
from collections import deque

from parl_remote.death import DeathRecord

__all__ = ["DeathLog"]

_LOST_KEPT = 1000
_RELEASED_KEPT = 200  # ends that somebody wanted are many and tell little


class DeathLog:
    """Records of ends, the latest ones.

    Attributes:
        total: How many actors have been lost, also those that are no longer kept.
    """

    def __init__(self) -> None:
        self._lost: deque[tuple[int, DeathRecord]] = deque(maxlen=_LOST_KEPT)
        self._released: deque[tuple[int, DeathRecord]] = deque(maxlen=_RELEASED_KEPT)
        self._order = itertools.count()
        self.total = 0

    def add(self, record: DeathRecord) -> None:
        """Keep a record."""
        if record.cause.kind.is_loss:
            self.total += 1
            self._lost.append((next(self._order), record))
        else:
            self._released.append((next(self._order), record))

    def latest(
        self, limit: int, *, client_id: str = "", lease_id: str = "", released: bool = False
    ) -> tuple[DeathRecord, ...]:
        """Up to `limit` records, the latest first; see `messages.overview.ListDeaths`."""
        kept = sorted((*self._lost, *(self._released if released else ())), key=lambda entry: -entry[0])
        wanted = (
            record for _, record in kept if client_id in ("", record.client_id) and lease_id in ("", record.lease_id)
        )
        return tuple(itertools.islice(wanted, limit))

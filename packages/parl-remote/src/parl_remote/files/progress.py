"""A line that tells how far a large upload is, on a terminal; a log line elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import Self

__all__ = ["Progress"]

_log = logging.getLogger("parl.remote")

_LARGE = 32 * 2**20  # below it there is nothing to wait for
_EVERY_S = 0.1
_WIDTH = 30


class Progress:
    """One upload.

    Args:
        what: Whereto, for people.
        total: Bytes to come.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown_at = 0.0
        self._speaks = total >= _LARGE
        self._draws = self._speaks and sys.stderr is not None and sys.stderr.isatty()
        if self._speaks and not self._draws:
            _log.info("sending %s to %s", _mib(total), what)

    def advance(self, size: int) -> None:
        """So many bytes more have arrived."""
        self._done += size
        now = time.monotonic()
        if self._draws and (now - self._shown_at > _EVERY_S or self._done >= self._total):
            self._shown_at = now
            share = min(1.0, self._done / self._total)
            bar = "#" * round(share * _WIDTH)
            sys.stderr.write(f"\rsending to {self._what} [{bar:<{_WIDTH}}] {_mib(self._done)} of {_mib(self._total)}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._draws and self._shown_at:
            sys.stderr.write("\n")
            sys.stderr.flush()


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

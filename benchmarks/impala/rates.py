"""How a contender is timed: it says after every update how far it is, and stops when this says so."""

import json
import time

__all__ = ["Rates"]


class Rates:
    """Rates between the end of warming up and the end.

    Args:
        warm_up_s: seconds from the first update that do not count.
        seconds: that count.
    """

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._first: float | None = None
        self._began: tuple[float, int, int] | None = None
        self._now = (0.0, 0, 0)

    def update(self, sampled: int, trained: int) -> bool:
        """Note environment steps so far; True when enough was seen."""
        now = time.perf_counter()
        self._first = now if self._first is None else self._first
        self._now = now, sampled, trained
        if self._began is None:
            if now - self._first >= self._warm_up_s:
                self._began = self._now
            return False
        return now - self._began[0] >= self._seconds

    def print(self) -> None:
        """One line of JSON."""
        assert self._began is not None, "it ended before it was warm"
        seconds, sampled, trained = (end - begin for end, begin in zip(self._now, self._began, strict=True))
        print(json.dumps({"sampled": sampled / seconds, "trained": trained / seconds}), flush=True)

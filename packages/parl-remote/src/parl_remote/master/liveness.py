"""Who has been silent for too long: bookkeeping of signs of life, with the clock passed in.

Heartbeats are for nodes and links that vanish without a word (a cut cable, a stopped process); everything that can be
seen at once, such as a process's end or a closed connection, does not come through here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Liveness"]

_Peer = TypeVar("_Peer", bound=Hashable)


class Liveness(Generic[_Peer]):
    """When each peer was heard last.

    Peers are kept in the order in which they were heard, so that a sign of life and the search for silent ones cost
    the same with ten peers as with ten thousand.
    """

    def __init__(self, limit_s: float) -> None:
        """Start with no peers.

        Args:
            limit_s: Silence longer than this is death, in seconds.
        """
        if not limit_s > 0:
            raise ValueError(f"the limit must be above 0 seconds, not {limit_s!r}")
        self.limit_s = limit_s
        self._heard: OrderedDict[_Peer, float] = OrderedDict()

    def heard(self, peer: _Peer, now: float) -> None:
        """Note a sign of life of a new or known peer."""
        self._heard[peer] = now
        self._heard.move_to_end(peer)

    def forget(self, peer: _Peer) -> None:
        """Stop watching a peer; unknown ones are ignored."""
        self._heard.pop(peer, None)

    def silent_s(self, peer: _Peer, now: float) -> float:
        """How long a watched peer has been silent."""
        return now - self._heard[peer]

    def expired(self, now: float) -> list[_Peer]:
        """Remove and return who was silent for longer than the limit."""
        dead = []
        while self._heard:
            peer, heard = next(iter(self._heard.items()))
            if now - heard <= self.limit_s:
                break
            del self._heard[peer]
            dead.append(peer)
        return dead

    def pardon(self, now: float) -> None:
        """Count everybody's silence from now on: it was the listener who slept."""
        for peer in self._heard:
            self._heard[peer] = now

    def next_check(self) -> float | None:
        """The earliest time at which a peer could be lost, None if there is none."""
        return next(iter(self._heard.values())) + self.limit_s if self._heard else None

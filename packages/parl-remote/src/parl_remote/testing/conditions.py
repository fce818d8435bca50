"""What a connection does to the data that passes it: how late, how much of it, in which order, or not at all.

The same conditions apply to a `Line`, which carries TCP connections, and to a `PacketNetwork`, which carries packets.
Only packets can really be lost, doubled or reordered: TCP repairs all of that, and what is left for its users is that
data comes later. On a line, a lost segment is therefore one that comes `retransmit_s` later, with all that follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

__all__ = ["Conditions", "Direction"]


class Direction(Flag):
    """Which way, as seen from the one who is behind the line (a `Line`'s target, a network's host)."""

    IN = auto()
    OUT = auto()
    BOTH = IN | OUT


@dataclass(frozen=True, slots=True)
class Conditions:
    """One direction's quality; the default is a perfect one.

    Attributes:
        delay_s: Seconds that everything takes longer, 0 or more. A round trip takes it twice if both directions do.
        jitter_s: At most so much is added to it at random, uniformly.
        loss: Share of packets that never arrive, from 0 to below 1.
        duplicate: Share of packets that arrive twice, from 0 to 1.
        reorder: Share of packets that are not delayed and so overtake others, from 0 to 1; needs a delay.
        bytes_per_s: The most that passes in a second; None has no limit.
        retransmit_s: How much later a lost segment comes on a line; 0.2 s is the least that Linux waits.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float | None = None
    retransmit_s: float = 0.2

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s", "retransmit_s"):
            if not 0 <= getattr(self, name) < 3600:
                raise ValueError(f"{name} must be seconds from 0 to below 3600, not {getattr(self, name)!r}")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not {getattr(self, name)!r}")
        if self.loss == 1:
            raise ValueError("a loss of 1 is a cut; use cut()")
        if self.reorder and not self.delay_s:
            raise ValueError("reorder needs a delay_s: a packet overtakes only what is held back")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"bytes_per_s must be above 0 or None, not {self.bytes_per_s!r}")

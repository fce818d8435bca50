"""Where an actor goes when several nodes have room for it."""

from __future__ import annotations

from enum import Enum

__all__ = ["Placement"]


class Placement(Enum):
    """Which of the nodes with enough room takes an actor.

    SPREAD: the one with the most left, so that actors share the work's machines evenly. PACK: the one with the least
    left, so that whole nodes stay free for large actors.
    """

    SPREAD = "spread"
    PACK = "pack"

"""Who needs an actor, as its process knows it; when nobody does any more, it ends.

    the owner        from CREATE to CLOSE
    a borrower       on his way: between HOLD, which the worker sends before it tells him where the actor is, and
                     RELEASE; then as long as his connection, or to CLOSE
    the cluster      a detached actor, for ever

An owner whose connection breaks without CLOSE is dead or cut off; the worker hears of that and ends the actor, with the
cause. No sockets here.
"""

from __future__ import annotations

__all__ = ["Holders"]


class Holders:
    """Counts those who need one actor.

    Attributes:
        is_kept: Whether the actor lives although nobody holds it.
    """

    def __init__(self) -> None:
        self.is_kept = False
        self._somebody_comes = False
        self._here: set[object] = set()
        self._owner_has_left = False

    def connected(self, caller: object) -> None:
        """Somebody has connected; he counts until he says that he does not, or leaves."""
        self._here.add(caller)

    def does_not_hold(self, caller: object) -> None:
        """It is the worker, or the actor itself with a handle of its own."""
        self._here.discard(caller)

    def expect(self) -> None:
        """Somebody is on his way."""
        self._somebody_comes = True

    def expect_nobody(self) -> None:
        """Whoever was on his way has connected, or will not come."""
        self._somebody_comes = False

    def left(self, caller: object, *, closed: bool) -> None:
        """A caller has gone; `closed` if he said that he needs the actor no more."""
        self._here.discard(caller)
        self._owner_has_left |= closed

    @property
    def nobody_left(self) -> bool:
        """Whether the actor may end."""
        return self._owner_has_left and not (self._here or self._somebody_comes or self.is_kept)

"""Who needs an actor, as its process knows it; when nobody does any more, it ends.

    the owner        from CREATE to CLOSE
    a borrower       on his way: from HOLD, which the worker sends before it tells him where the actor is, to JOIN;
                     then as long as his connection, or to CLOSE
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
        self._on_their_way: set[int] = set()
        self._here: set[object] = set()
        self._owner_has_left = False

    def connected(self, caller: object) -> None:
        """Somebody has connected; he counts until he says that he does not, or leaves."""
        self._here.add(caller)

    def does_not_hold(self, caller: object) -> None:
        """It is the worker, or the actor itself with a handle of its own."""
        self._here.discard(caller)

    def expect(self, token: int) -> None:
        """Somebody will come."""
        self._on_their_way.add(token)

    def expect_no_more(self, token: int) -> None:
        """He has come, or will not."""
        self._on_their_way.discard(token)

    def left(self, caller: object, *, closed: bool) -> None:
        """A caller has gone; `closed` if he said that he needs the actor no more."""
        self._here.discard(caller)
        self._owner_has_left |= closed

    @property
    def nobody_left(self) -> bool:
        """Whether the actor may end."""
        return self._owner_has_left and not (self._here or self._on_their_way or self.is_kept)

"""The interface of a peer; each module in `peers` has a `PEER` of this kind."""

from collections.abc import Sequence
from typing import Any, Protocol


class NotOffered(Exception):
    """The peer lacks the feature; its field stays empty."""


class Actor(Protocol):
    """One `Subject` in a process of its own."""

    def call(self, method: str, *args: Any) -> Any:
        """Call and wait for the result."""

    def submit(self, method: str, *args: Any) -> Any:
        """Call without waiting, and return the ticket for `collect`; tickets are collected in order."""

    def collect(self, ticket: Any) -> Any:
        """Wait for the result of a call."""

    def drop(self) -> None:
        """Release the actor, as a user of this peer does."""


class Peer(Protocol):
    """One program."""

    imports: str  # the import statement of a program that uses it
    lost: tuple[type[BaseException], ...]  # the error of a caller whose actor was killed; empty if it waits for ever
    has_slots: bool  # True if it counts free and occupied slots

    def start(self, slots: int) -> None:
        """Prepare for `slots` concurrent actors, without making any."""

    def create(self, *, wait: bool = True) -> Actor:
        """Make an actor, for blocking calls if `wait` is true, if the peer has different actors for them."""

    def burst(self, actors: Sequence[Actor], calls: int) -> None:
        """Make `calls` calls of `nothing`, distributed over the actors, as many in flight as the peer allows."""

    def broadcast(self, actors: Sequence[Actor], method: str, value: Any) -> None:
        """Call a method of all actors with one value and wait for all."""

    def broadcast_stored(self, actors: Sequence[Actor], method: str, value: Any) -> None:
        """Store a value, and call a method of all actors with a reference to it.

        Raises:
            NotOffered: The peer has no stored values.
        """

    def stop(self) -> None:
        """End everything."""

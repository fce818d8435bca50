"""The interface of a peer; each module in `peers` has a `PEER` of this kind."""

from collections.abc import Sequence
from typing import Any, Protocol


class NotOffered(Exception):
    """The peer has no such thing; its field stays empty."""


class Actor(Protocol):
    """One `Subject` in a process of its own."""

    def call(self, method: str, *args: Any) -> Any:
        """Call and wait for the result."""

    def submit(self, method: str, *args: Any) -> Any:
        """Call without waiting; gives what `collect` takes. Results are collected in the order of the calls."""

    def collect(self, ticket: Any) -> Any:
        """Wait for the result of a call."""

    def drop(self) -> None:
        """Give the actor up, the way a user of this peer does."""


class Peer(Protocol):
    """One program."""

    imports: str  # the import statement of a program that uses it
    lost: tuple[type[BaseException], ...]  # what a caller gets whose actor was killed; empty: it waits for ever
    has_slots: bool  # whether it knows what is free and what is taken

    def start(self, slots: int) -> None:
        """Get ready for `slots` actors at once, without making any."""

    def create(self, *, wait: bool = True) -> Actor:
        """Make an actor. `wait` says which calls it is for, where a user would make it differently for each."""

    def burst(self, actors: Sequence[Actor], calls: int) -> None:
        """Make `calls` calls of `nothing`, spread over the actors, as many in flight as the peer allows."""

    def broadcast(self, actors: Sequence[Actor], method: str, value: Any) -> None:
        """Call a method of all actors with one value and wait for all."""

    def broadcast_stored(self, actors: Sequence[Actor], method: str, value: Any) -> None:
        """Store a value, and call a method of all actors with a reference to it.

        Raises:
            NotOffered: There is no such thing.
        """

    def stop(self) -> None:
        """End everything."""

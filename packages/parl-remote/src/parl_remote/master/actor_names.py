"""Names of actors, unique in a cluster: who has one, from the request for room until the actor is gone for good.

free --request--> waiting --granted--> the actor's --lost, will be made again--> kept for its program
                    `- refused, cancelled          `- gone for good: free          `- its restart takes it over
"""

from __future__ import annotations

from dataclasses import dataclass

from parl_remote.messages import LeaseRequest

__all__ = ["ActorNames", "NameHolder"]


@dataclass(slots=True)
class NameHolder:
    """Who has a name.

    Attributes:
        client_id: The client that asked for it.
        request_id: Its request that waits for room; None once it was granted.
        lease_id: The actor; empty while the first one waits for room.
        is_lost: Whether that actor was lost, and the name is kept for the one that will replace it.
    """

    client_id: str
    request_id: int | None
    lease_id: str = ""
    is_lost: bool = False


class ActorNames:
    """All names of a cluster."""

    def __init__(self) -> None:
        self._holders: dict[str, NameHolder] = {}

    def get(self, name: str) -> NameHolder | None:
        """Who has a name."""
        return self._holders.get(name)

    def all(self) -> list[str]:
        """Every name that is taken."""
        return list(self._holders)

    def in_the_way_of(self, client_id: str, request: LeaseRequest) -> NameHolder | None:
        """Who has the name that a request wants; None if it may have it.

        A restart takes over the name of the actor that it replaces, and a program that of an actor it has lost.
        """
        holder = self._holders.get(request.actor_name) if request.actor_name else None
        if holder is None:
            return None
        of_same_client = holder.client_id == client_id and holder.request_id is None
        if of_same_client and (holder.is_lost or (request.replaces and holder.lease_id == request.replaces)):
            return None
        return holder

    def ask(self, client_id: str, request: LeaseRequest) -> None:
        """A request waits that may have its name."""
        if request.actor_name:
            before = self._holders.get(request.actor_name)
            lease_id, is_lost = (before.lease_id, before.is_lost) if before else ("", False)
            self._holders[request.actor_name] = NameHolder(client_id, request.request_id, lease_id, is_lost)

    def give_up(self, client_id: str, request: LeaseRequest) -> None:
        """A request no longer waits; the actor that it was to replace keeps the name if it still lives."""
        holder = self._holders.get(request.actor_name) if request.actor_name else None
        if holder is not None and (holder.client_id, holder.request_id) == (client_id, request.request_id):
            if holder.lease_id and not holder.is_lost:
                holder.request_id = None
            else:
                del self._holders[request.actor_name]

    def assign(self, name: str, client_id: str, lease_id: str) -> None:
        """An actor has its room, or was brought along by its worker; the first one of a name keeps it."""
        if name:
            self._holders[name] = NameHolder(client_id, None, lease_id)

    def end(self, name: str, lease_id: str, *, comes_back: bool) -> None:
        """An actor is gone, for good or to be made again."""
        holder = self._holders.get(name) if name else None
        if holder is None or holder.lease_id != lease_id:
            return
        if comes_back or holder.request_id is not None:
            holder.is_lost = True
        else:
            del self._holders[name]

    def forget_client(self, client_id: str) -> None:
        """A program is gone: what is kept for actors that it would have made again is free."""
        for name in [n for n, h in self._holders.items() if h.client_id == client_id and h.is_lost]:
            del self._holders[name]

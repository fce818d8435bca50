"""Handles of actors on their way: what of a proxy travels, and who holds the actor meanwhile.

    sender     pickle(proxy) -> (arrive, place, class, wait, ...); the message's pickler notes the reference, and the
               call's future, or the actor that answers, holds it until it has arrived
    receiver   arrive(...) -> current.client().borrow(...) -> a proxy with a connection of its own to the actor

A handle that comes home leads to the reference that is already there: one process has one reference to an actor.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from parl_remote import current
from parl_remote.shipping.class_spec import ClassSpec, ShippedSpec

if TYPE_CHECKING:
    from parl_remote.program.proxy import RemoteObject

__all__ = ["ActorPlace", "arrive", "arrive_method", "unpacked"]


class ActorPlace(NamedTuple):
    """Where an actor is, for everybody who may talk to its cluster.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        node_addresses: "host:port" of the worker, as peers on other hosts reach it.
        socket_dir: The worker's private directory of unix sockets, usable on its own host.
        host_id: The worker's host.
        may_return: Whether the actor is perhaps made again when it is lost, see `restarts`.
        limit: How many calls of each process may be unanswered, 0 for any number, see `pending_calls`.
        waits: Whether a call above the limit waits.
    """

    lease_id: str
    node_id: str
    node_addresses: tuple[str, ...]
    socket_dir: str
    host_id: str
    may_return: bool = False
    limit: int = 0
    waits: bool = True


def arrive(place: Any, shipped: ShippedSpec, wait: bool, attributes: tuple[str, ...]) -> RemoteObject:
    """The receiving end of a proxy's pickle.

    Args:
        place: Where the actor is, in a form that the connected cluster understands.
        shipped: Its class.
        wait: What the proxy's methods do.
        attributes: Names of its attributes when the handle left.

    Raises:
        NotConnected: This process is connected to no cluster.
    """
    from parl_remote.program.proxy import make_proxy

    spec, proxies = unpacked(shipped)
    ref = current.client().borrow(place, spec, attributes)
    return make_proxy(proxies, ref, wait=wait)


@functools.lru_cache(maxsize=512)
def unpacked(shipped: ShippedSpec) -> tuple[ClassSpec, type[RemoteObject]]:
    """A class that came with a handle, and the class of its proxies; made once for all handles of that class."""
    from parl_remote.program.proxy import proxy_class

    spec = ClassSpec.of_shipped(shipped)
    return spec, proxy_class(spec)


def arrive_method(proxy: RemoteObject, name: str, wait: bool) -> Any:
    """The receiving end of a bound method's pickle."""
    from parl_remote.program.proxy import bound_method

    return bound_method(proxy, name, wait=wait)

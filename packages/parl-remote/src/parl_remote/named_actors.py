"""Actors by name: `get_actor` finds one that any program of the cluster has made with `name=`, `kill` ends one."""

from __future__ import annotations

from typing import Any

from parl_remote import current
from parl_remote.program.proxy import RemoteMethod, make_proxy, reference_of, unpacked

__all__ = ["get_actor", "kill"]

_LOOK_UP_S = 30.0  # as long as making an actor may wait for a slot: one that is still being made is waited for


def get_actor(name: str, *, timeout_s: float | None = _LOOK_UP_S) -> Any:
    """Return a handle of the actor that was made with this name, by this program or another one of the cluster.

    Args:
        name: The name.
        timeout_s: Seconds to wait for an actor that is just being made; None waits as long as that takes.

    Raises:
        NoSuchActor: Nobody has that name; the message names a similar one.
        ActorLost: It ended while it was being looked up.
        ResultTimeout: It was not made in time.
        NotConnected: There is no connection.
        TypeError: The name is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"get_actor takes the name of an actor, not {name!r}")
    client = current.client()
    found = client.find(name, timeout_s)
    spec, proxies = unpacked(found.shipped)
    return make_proxy(proxies, client.borrow(found.place, spec, None), wait=found.wait)


def kill(actor: object) -> None:
    """End an actor at once, whatever it does and whoever has made it; it is not restarted.

    Args:
        actor: A handle of it, or its name.

    Raises:
        NoSuchActor: Nobody has that name.
        NotConnected: There is no connection.
        TypeError: It is neither.
    """
    if isinstance(actor, str):
        current.client().kill(actor)
        return
    ref = reference_of(actor)
    if ref is None:
        hint = "; kill takes the object, not a method of it" if isinstance(actor, RemoteMethod) else ""
        raise TypeError(f"kill takes a remote object or the name of one, not {actor!r}{hint}")
    ref.destroy()

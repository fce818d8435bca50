"""Detached actors that are made again: somebody must still be there to do it when their program has ended.

    program --keep(class, options, arguments)--> Keeper, a detached actor without a CPU --makes--> the detached actor
            <------------------- a handle ------'        `--- lost? makes it again, with its last state

A program has one keeper for all such actors. It ends when all of them have ended for good.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import TYPE_CHECKING, Any

from parl_remote import current
from parl_remote.data import serialize
from parl_remote.errors import ActorLost, RemoteCallError
from parl_remote.options import ActorOptions
from parl_remote.program.actor_ref import ActorRef, settled
from parl_remote.program.pending_calls import kind_of_reference
from parl_remote.program.proxy import make_proxy, proxy_class, reference_of
from parl_remote.program.restarts import Comeback
from parl_remote.shipping.class_shipping import dumps_class
from parl_remote.shipping.class_spec import ClassSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parl_remote.program.client import Client

__all__ = ["Keeper", "keep"]

_AT_ONCE = 16  # actors that are being made: those that wait for room shall not keep the others waiting
_LOOK_S = 5.0  # between looks whether anything is kept
_OPTIONS = ActorOptions(n_cpu=0, detached=True, max_concurrency=_AT_ONCE)


class Keeper:
    """What runs in the actor."""

    def __init__(self) -> None:
        self._kept: list[ActorRef] = []
        self._being_made = 0
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None

    def keep(self, cls: bytes, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an actor, give a handle of it, and make it again whenever it is lost."""
        client: Any = current.client()
        client.keeps = True
        with self._lock:
            self._being_made += 1
        try:
            spec = ClassSpec(serialize.loads(cls))
            ref = client.create(spec, options, args, kwargs)
            with self._lock:
                self._kept.append(ref)
                if self._looking is None:
                    self._looking = threading.Thread(target=self._look, name="parl-keeper", daemon=True)
                    self._looking.start()
        finally:
            with self._lock:
                self._being_made -= 1
        return make_proxy(proxy_class(spec), ref, wait=options.wait)

    def _look(self) -> None:
        """End this process when nothing is kept any more."""
        nothing_since = 0
        never = threading.Event()
        while True:
            never.wait(_LOOK_S)
            with self._lock:
                self._kept = [ref for ref in self._kept if not _is_over(ref)]
                nothing_since = 0 if self._kept or self._being_made else nothing_since + 1
            if nothing_since > 1:
                os._exit(0)


def _is_over(ref: ActorRef) -> bool:
    path = ref._path
    return isinstance(path, Comeback) and path.is_over


def keep(
    client: Client, spec: ClassSpec, options: ActorOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ActorRef:
    """Have a detached actor made, and made again, by the program's keeper; raises what `Client.create` does."""
    args, kwargs = settled(args, kwargs)
    timeout_s = client.making.lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
    told = dataclasses.replace(options, lease_timeout_s=timeout_s)
    request = (dumps_class(spec.cls), told, args, dict(kwargs))
    try:
        handle = _keeper_of(client).call("keep", request, {})
    except ActorLost as error:
        if isinstance(error.__cause__, RemoteCallError):
            raise  # the actor's, not the keeper's
        client.keeper = None  # it had nothing to keep, and has ended
        handle = _keeper_of(client).call("keep", request, {})
    ref = reference_of(handle)
    assert ref is not None  # it is a handle
    if options.max_pending_calls is None:
        return ref
    return kind_of_reference(options)(
        spec,
        ref._path,
        let_go=lambda: _with(ref),  # it lives as long as this one
        destroy=ref.destroy,
        attributes=ref.attributes,
        place=ref.place,
    )


def _with(ref: ActorRef) -> None:
    """Nothing: what is called with it, has it."""


def _keeper_of(client: Client) -> ActorRef:
    with client._keeper_lock:
        if client.keeper is None:
            client.keeper = client.create(ClassSpec(Keeper), _OPTIONS, (), {})
        return client.keeper

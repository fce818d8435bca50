"""Detached actors that are made again: a supervisor does it, because their program may have ended.

    program --supervise(class, options, arguments)--> Supervisor, a detached actor without a CPU --makes--> the actor
            <------------------- a handle -----------'        `--- lost? makes it again, with its last state

A program has one supervisor for all such actors. It ends when all of them have ended for good.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from parl_remote import current
from parl_remote.data import serialize
from parl_remote.data.class_spec import ClassSpec, dumps_class
from parl_remote.errors import ActorLost, RemoteCallError
from parl_remote.options import ActorOptions
from parl_remote.program.actor_ref import ActorRef, kind_of_reference, settled
from parl_remote.program.proxy import make_proxy, proxy_class, reference_of

__all__ = ["Supervisor", "SupervisorLink"]

_AT_ONCE = 16  # actors that are being made: those that wait for resources shall not keep the others waiting
_LOOK_S = 5.0  # between looks whether anything is supervised
_OPTIONS = ActorOptions(n_cpu=0, detached=True, max_concurrency=_AT_ONCE)


class Supervisor:
    """The actor that makes a program's detached actors, and makes them again whenever they are lost."""

    def __init__(self) -> None:
        self._supervised: list[ActorRef] = []
        self._being_made = 0
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None

    def supervise(self, cls: bytes, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an actor, give a handle of it, and make it again whenever it is lost."""
        client: Any = current.client()
        client.supervises = True
        with self._lock:
            self._being_made += 1
        try:
            spec = ClassSpec(serialize.loads(cls))
            ref = client.create(spec, options, args, kwargs)
            with self._lock:
                self._supervised.append(ref)
                if self._looking is None:
                    self._looking = threading.Thread(target=self._look, name="parl-supervisor", daemon=True)
                    self._looking.start()
        finally:
            with self._lock:
                self._being_made -= 1
        return make_proxy(proxy_class(spec), ref, wait=options.wait)

    def _look(self) -> None:
        """End this process when nothing is supervised any more."""
        nothing_since = 0
        never = threading.Event()
        while True:
            never.wait(_LOOK_S)
            with self._lock:
                self._supervised = [ref for ref in self._supervised if not _is_over(ref)]
                nothing_since = 0 if self._supervised or self._being_made else nothing_since + 1
            if nothing_since > 1:
                os._exit(0)


def _is_over(ref: ActorRef) -> bool:
    is_over: bool = getattr(ref._path, "is_over", False)  # of `restarts.Comeback`; while calls are held it is not over
    return is_over


class SupervisorLink:
    """A program's way to its supervisor, which is made with the first actor that it has to supervise.

    Args:
        create: Makes an actor, see `Client.create`.
    """

    def __init__(self, create: Callable[[ClassSpec, ActorOptions, tuple[Any, ...], dict[str, Any]], ActorRef]) -> None:
        self._create = create
        self._lock = threading.RLock()
        self._supervisor: ActorRef | None = None

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        lease_timeout_s: float | None,
    ) -> ActorRef:
        """Have a detached actor made, and made again, by the supervisor; raises what `Client.create` does."""
        args, kwargs = settled(args, kwargs)
        timeout_s = lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        told = dataclasses.replace(options, lease_timeout_s=timeout_s)
        request = (dumps_class(spec.cls), told, args, dict(kwargs))
        try:
            handle = self._reference().call("supervise", request, {})
        except ActorLost as error:
            if isinstance(error.__cause__, RemoteCallError):
                raise  # the actor's, not the supervisor's
            self._supervisor = None  # it had nothing to supervise, and has ended
            handle = self._reference().call("supervise", request, {})
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

    def _reference(self) -> ActorRef:
        with self._lock:
            if self._supervisor is None:
                self._supervisor = self._create(ClassSpec(Supervisor), _OPTIONS, (), {})
            return self._supervisor


def _with(ref: ActorRef) -> None:
    """Nothing: what is called with it, has it."""

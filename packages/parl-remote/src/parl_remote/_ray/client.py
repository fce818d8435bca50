"""A program's side of a Ray cluster: connects to it, makes actors, finds them, ends them.

    create() --HostedObject.remote--> Ray finds a slot --place()--> it has a process --created()--> the object is there

Ray itself schedules, restarts, counts handles, and ends the actors of a program that is gone. The Ray of this machine
that `connect("ray")` starts ends with the program.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from parl_remote import _current
from parl_remote._actor.host import ConcurrencyMode, concurrency_of
from parl_remote._current import FoundActor
from parl_remote._data import serialize
from parl_remote._data.answers import read_answer
from parl_remote._data.class_spec import ClassSpec, description_of, dumps_class, read_description
from parl_remote._display import ConnectionDisplay
from parl_remote._links.call_messages import Kind, pack
from parl_remote._object_ref import ObjectRef, received
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorRef, AttributeNames, settled
from parl_remote._program.outbox import Outbox
from parl_remote._ray.hosted import ConcurrentObject, Folder, HostedObject, Setup, copied, visible
from parl_remote._ray.path import (
    NAMESPACE,
    Message,
    RayPath,
    RayPlace,
    Wire,
    cause_of,
    extras_of,
    lost,
    opened,
    packed,
    ray,
)
from parl_remote.errors import (
    CONNECTION_CLOSED,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    NameTaken,
    NoResources,
    NoSuchActor,
    NotConnected,
    RemoteError,
    ResultTimeout,
)

__all__ = ["open_ray"]


_log = logging.getLogger("parl.remote")

_SHUTDOWN_S = 0.5  # time for actors to end by themselves when the program ends, as on a native cluster
_QUIET_WAIT_S = 3.0  # a request that waits longer than this logs the reason
_MANY_CALLS = 10_000  # calls that Ray delivers at once to objects that run several; these have limits of their own


class RayClient(ConnectionDisplay):
    """A client of a Ray cluster; implements `current.ActorMaker`.

    Args:
        address: The address given to `connect`.
        lease_timeout_s: The time that creating an actor waits for free resources unless its class says otherwise.
        folder: The directory of actors; None for that of this process.
        on_close: Closes the connection to Ray, if this client has opened it.

    Attributes:
        values_travel: Whether values of `put` are sent with each call, because actors may be on other hosts.
    """

    def __init__(
        self,
        address: str,
        *,
        lease_timeout_s: float | None,
        folder: Folder | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self.values_travel = address != "ray"
        self._lease_timeout_s = lease_timeout_s
        self._folder = folder
        self._on_close = on_close
        self._closed = False
        self._lock = threading.RLock()  # dropping references meanwhile may call this again
        self._refs: weakref.WeakValueDictionary[str, ActorRef] = weakref.WeakValueDictionary()
        self._own: dict[str, RayPath] = {}
        self._arriving: dict[str, list[Any]] = {}
        self._stored: weakref.WeakKeyDictionary[ObjectRef[Any], Any] = weakref.WeakKeyDictionary()
        self._background: queue.SimpleQueue[Callable[[], None] | None] | None = None

    @property
    def address(self) -> str:
        """The address that `connect` was given."""
        return self._address

    @property
    def is_gone(self) -> bool:
        """Return False: Ray reports that itself."""
        return False

    @property
    def actor_num(self) -> int:
        """The number of actors that this program has now."""
        return len(self._own)

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> ActorRef:
        """Make an actor; see `client.Client.create`."""
        self._check_open()
        _current.refuse_at_import(f"makes {spec.name}", spec.cls.__module__)
        if options.max_memory is not None:
            raise ValueError("on Ray actors have no max_memory; leave it out, or set memory aside with memory=")
        folder = self._folder or visible()
        cls = dumps_class(spec.cls)
        args, kwargs = settled(args, kwargs)
        travelling: list[object] = []
        call = f"{spec.name}.__init__"
        arguments = serialize.dumps_arguments(args, kwargs, call, partial(spec.parameters, "__init__"), travelling)
        creation = serialize.dumps(
            (
                folder.sys_path,
                tuple(sys.argv),
                spec.name,
                cls,
                spec.names,
                bytes(arguments[0]),
                bool(kwargs),
                options.max_concurrency,
            )
        )
        message = packed(pack(Kind.CREATE, 0, 0, 0, [*creation, *arguments[1:]]), travelling, self.stored)
        lease_timeout_s = self._lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        description = description_of(spec, options)
        setup = Setup(folder, description, bool(options.n_gpu), self._lease_timeout_s, self._address, RayClient)
        handle = self._order(spec, options, message, setup)
        names = AttributeNames()
        try:
            place = self._await_process(handle, spec, options, lease_timeout_s)
            names.set(self._await_object(handle, spec))
        except BaseException:
            with contextlib.suppress(Exception):
                ray().kill(handle)
            raise
        ref, path = self._reference(spec, place, handle, names, options)
        if not options.detached:
            self._own[place.actor_id] = path
        return ref

    def start_reading(self) -> None:
        """Do nothing; see `current.ActorMaker`."""

    def borrow(self, place: object, spec: ClassSpec, attributes: tuple[str, ...] | None) -> ActorRef:
        """Return the reference to the actor of a handle; see `current.ActorMaker`.

        Raises:
            NotConnected: The handle belongs to another kind of cluster, or did not arrive in a call.
        """
        if not isinstance(place, RayPlace):
            raise NotConnected(f"this handle belongs to another kind of cluster than {self._address!r}")
        with self._lock:
            known = self._refs.get(place.actor_id)
            if known is not None:
                return known
            handles = self._arriving.get(place.actor_id)
            handle = handles[-1] if handles else place.handle
            if handle is None:
                raise NotConnected(
                    f"this handle of a {spec.name} did not arrive in a call; on Ray, handles are sent in calls"
                )
            return self._reference(spec, place, handle, AttributeNames(attributes))[0]

    def find(self, name: str, timeout_s: float | None) -> FoundActor:
        """Return the actor with a name; see `parl_remote.get_actor`."""
        self._check_open()
        handle = self._named(name)
        try:
            described, place = ray().get([handle.description.remote(), handle.place.remote()], timeout=timeout_s)
        except ray().exceptions.GetTimeoutError:
            raise ResultTimeout(f"the actor {name!r} did not answer within {timeout_s:g} s") from None
        except ray().exceptions.RayError as error:
            cause = cause_of(error)
            if cause is None:
                raise
            raise lost(cause, "", f"the actor {name!r}") from None
        return FoundActor(RayPlace(place.actor_id, place.concurrent, handle), *read_description(described)[:2])

    def kill(self, name: str) -> None:
        """End the actor with a name; see `parl_remote.kill`."""
        self._check_open()
        ray().kill(self._named(name))

    def close(self) -> None:
        """End all actors of this program and close the connection; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        cause = DeathCause(DeathKind.STOPPED, detail="the program disconnected")
        with self._lock:
            own = list(self._own.values())
            self._own.clear()
        ending = []
        for path in own:
            handle = path.handle
            path.close(cause)
            if handle is not None:
                with contextlib.suppress(Exception):
                    ending.append((handle, handle.__ray_terminate__.remote()))
        if ending:
            with contextlib.suppress(Exception):
                ray().wait([result for _, result in ending], num_returns=len(ending), timeout=_SHUTDOWN_S)
        for handle, _ in ending:
            with contextlib.suppress(Exception):
                ray().kill(handle)
        if self._background is not None:
            self._background.put(None)
        self._on_close()

    def abandon(self) -> None:
        """Mark the client as closed in the child of a fork, whose parent owns the connection."""
        self._closed = True

    # -- for paths and for actors' processes ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def arriving(self, extras: Message) -> Iterator[None]:
        """Make the actors and values sent beside a message available to its handles, within the block."""
        actors = extras.actors
        if not actors and not extras.values:
            yield
            return
        values = self.restored(extras)
        with self._lock:
            for actor_id, handle in actors.items():
                self._arriving.setdefault(actor_id, []).append(handle)
        try:
            yield
        finally:
            with self._lock:
                for actor_id in actors:
                    self._arriving[actor_id].pop()
                    if not self._arriving[actor_id]:
                        del self._arriving[actor_id]
            values.clear()

    def stored(self, ref: ObjectRef[Any]) -> Any:
        """Return Ray's reference to a value of `put`; None if the receiver can map its memory."""
        if self._folder is None or not self._folder.is_unpacked:
            return None
        with self._lock:
            known = self._stored.get(ref)
            if known is None and (image := ref.image()) is not None:
                known = self._stored[ref] = ray().put(bytes(image))
            return known

    def restored(self, extras: Message) -> list[ObjectRef[Any]]:
        """Return the values sent beside a message, to be held until the message has been read."""
        return [
            received(object_id, nbytes, functools.partial(_fetched, value))
            for object_id, (nbytes, value) in extras.values.items()
        ]

    def in_background(self, action: Callable[[], None]) -> None:
        """Run a function in the thread that reads results for callbacks; Ray's own threads must not block."""
        with self._lock:
            if self._background is None:
                self._background = queue.SimpleQueue()
                threading.Thread(target=_work, args=(self._background,), name="parl-results", daemon=True).start()
        self._background.put(action)

    # -- inner steps ---------------------------------------------------------------------------------------------------

    def _order(self, spec: ClassSpec, options: ActorOptions, message: Wire, setup: Setup) -> Any:
        """Request an actor from Ray."""
        concurrency = concurrency_of(spec.cls, options.max_concurrency)
        kind = HostedObject if concurrency.how is ConcurrencyMode.SERIAL else ConcurrentObject
        wanted: dict[str, Any] = {
            "num_cpus": options.n_cpu,
            "num_gpus": options.n_gpu,
            "max_restarts": options.max_restarts,
            "scheduling_strategy": "SPREAD" if options.placement == "spread" else "DEFAULT",
        }
        if options.memory:
            wanted["memory"] = options.resources.memory
        if options.labels:
            wanted["resources"] = dict(options.labels)
        if options.node:  # Ray has a resource for each node, named by its address
            wanted.setdefault("resources", {})[f"node:{options.node}"] = 0.001
        if options.name:
            wanted |= {"name": options.name, "namespace": NAMESPACE}
        if options.detached:
            wanted["lifetime"] = "detached"
        if kind is ConcurrentObject:
            wanted["max_concurrency"] = _MANY_CALLS
        try:
            return ray().remote(kind).options(**wanted).remote(message, setup)
        except ValueError as error:
            if not options.name or "name" not in str(error):
                raise
            name = options.name
            raise NameTaken(
                f"the name {name!r} is taken; choose another, or use that one: parl.get_actor({name!r})"
            ) from None

    def _await_process(self, handle: Any, spec: ClassSpec, options: ActorOptions, timeout_s: float | None) -> RayPlace:
        """Wait until an actor has a process."""
        began = time.monotonic()
        asked = handle.place.remote()
        quiet_s = _QUIET_WAIT_S if timeout_s is None else min(timeout_s, _QUIET_WAIT_S)
        if not ray().wait([asked], timeout=quiet_s)[0]:
            _current.free_slots(self, spec.name)
            _log.warning("%s waits for %s on Ray", spec.name, options.resources)
            left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
            if not ray().wait([asked], timeout=left_s)[0]:
                need, has = str(options.resources), _described(ray().available_resources())
                reason = f"{spec.name} asked for {need} and got no resources within {timeout_s:g} s; Ray has {has} free"
                raise NoResources(reason, asked=need, available=has)
        place: RayPlace = self._got(asked, spec)
        return place

    def _await_object(self, handle: Any, spec: ClassSpec) -> tuple[str, ...]:
        """Wait for the constructor; return the names of the object's attributes."""
        wire: Wire = self._got(handle.created.remote(), spec)
        with self.arriving(extras_of(wire)):
            answer = read_answer(opened(wire), "__init__")
        if answer.error is not None:
            raise answer.error
        names: tuple[str, ...] = answer.value
        return names

    def _got(self, result: Any, spec: ClassSpec) -> Any:
        try:
            return ray().get(result)
        except ray().exceptions.RayError as error:
            cause = cause_of(error)
            if cause is None:
                raise RemoteError(f"Ray could not make a {spec.name}: {type(error).__name__}: {error}") from error
            raise lost(cause, "__init__", spec.name) from None

    def _reference(
        self,
        spec: ClassSpec,
        place: RayPlace,
        handle: Any,
        names: AttributeNames,
        options: ActorOptions | None = None,
    ) -> tuple[ActorRef, RayPath]:
        path = RayPath(self, handle, spec.name, names, concurrent=place.concurrent)
        actor_id = place.actor_id
        ref = ActorRef(
            spec,
            Outbox(path),
            let_go=lambda: self._let_go(actor_id, path),
            destroy=lambda: self._destroy(actor_id, path),
            attributes=names,
            place=RayPlace(actor_id, place.concurrent, handle),
            options=options,
        )
        self._refs[actor_id] = ref
        return ref, path

    def _let_go(self, actor_id: str, path: RayPath) -> None:
        self._own.pop(actor_id, None)
        path.let_go()

    def _destroy(self, actor_id: str, path: RayPath) -> None:
        handle = path.handle
        path.close(DeathCause(DeathKind.KILLED_BY_USER))
        self._own.pop(actor_id, None)
        if handle is not None and not self._closed:
            ray().kill(handle)

    def _named(self, name: str) -> Any:
        try:
            return ray().get_actor(name, namespace=NAMESPACE)
        except ValueError:
            raise NoSuchActor(f"there is no actor called {name!r} on this Ray cluster") from None

    def _check_open(self) -> None:
        if self._closed:
            raise NotConnected(CONNECTION_CLOSED)


def _fetched(value: Any) -> memoryview:
    return memoryview(ray().get(value))


def _work(actions: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (action := actions.get()) is not None:
        try:
            action()
        except Exception:
            _log.exception("a result could not be read")
        del action  # it holds a future, which holds its actor


def _described(resources: Mapping[str, float]) -> str:
    """Return Ray's resources as text."""
    kept = {name: amount for name, amount in resources.items() if not name.startswith(("node:", "object_store"))}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(kept.items())) or "nothing"


def open_ray(
    address: str, cpu_num: int | None, files: Sequence[str], lease_timeout_s: float | None, *, logs: bool
) -> RayClient:
    """Connect to Ray; an existing connection of the program is used, and left open afterwards.

    Args:
        address: "ray" for an instance on this machine, or "ray://host:port".
        cpu_num: CPUs that an instance on this machine gives to actors; None for all.
        files: The patterns of `distributed_files`.
        lease_timeout_s: The time that creating an actor waits for free resources unless its class says otherwise.
        logs: Whether Ray shows the output of actors here.

    Raises:
        ImportError: Ray is not installed.
        ClusterUnreachable: The cluster does not answer.
        TypeError: The patterns are not a list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
    """
    module = ray()
    is_here = address == "ray"
    folder: Folder | None = None
    directory: tempfile.TemporaryDirectory[str] | None = None
    if not is_here or files:
        folder, directory = copied(files, with_code=not is_here)
    is_ours = not module.is_initialized()
    try:
        if is_ours:
            _init(module, address, cpu_num, directory.name if directory is not None and not is_here else None, logs)
    except BaseException:
        if directory is not None:
            directory.cleanup()
        raise

    def close() -> None:
        if is_ours:
            module.shutdown()
        if directory is not None:
            directory.cleanup()

    return RayClient(address, lease_timeout_s=lease_timeout_s, folder=folder, on_close=close)


def _init(module: Any, address: str, cpu_num: int | None, working_dir: str | None, logs: bool) -> None:
    common = {"namespace": NAMESPACE, "log_to_driver": logs, "logging_level": logging.ERROR}
    if address == "ray":
        module.init("local", num_cpus=cpu_num, include_dashboard=False, **common)
        return
    try:
        module.init(address, runtime_env={"working_dir": working_dir}, **common)
    except (ConnectionError, TimeoutError) as error:
        hint = "a cluster that asks for a token needs RAY_AUTH_MODE=token here, and the token"
        raise ClusterUnreachable(f"nothing answers at {address}: {error}; {hint}", address=address) from error

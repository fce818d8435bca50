"""`connect(debug=True)`: actors within the calling process, for breakpoints and step-by-step reading.

The same messages go to the same `ActorHost` as in an actor's process, so arguments and results are copied, exceptions
cross and names are checked exactly as there; only the process is missing. A call runs in the thread that makes it, at
once, also with `wait=False`; those of objects that run several at a time run in threads or on a loop,
see `LocalCalls`.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from parl_remote import _current
from parl_remote._actor.host import ActorHost, Concurrency, ConcurrencyMode, Creation, HoldingReply
from parl_remote._actor.loop_runner import LoopThread
from parl_remote._actor.runners import ClosableRunner, Job, ThreadRunner
from parl_remote._actor.state import ActorState
from parl_remote._current import FoundActor
from parl_remote._data import serialize
from parl_remote._data.answers import Answer, read_answer
from parl_remote._data.calls import Call
from parl_remote._data.class_spec import ClassSpec, dumps_class
from parl_remote._display import ConnectionDisplay
from parl_remote._future import RemoteFuture, Waiter
from parl_remote._links.call_messages import Kind, header_of, pack
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorRef, AttributeNames, settled
from parl_remote._program.outbox import OpenPath, Outbox
from parl_remote._resources import Resources
from parl_remote._streams import close_unwanted
from parl_remote._system.interrupts import run_finalizers
from parl_remote._transport import Buffer
from parl_remote.errors import (
    CONNECTION_CLOSED,
    ActorLost,
    DeathCause,
    DeathKind,
    NameTaken,
    NoResources,
    NoSuchActor,
    NotConnected,
)

if TYPE_CHECKING:
    import asyncio

__all__ = ["DebugClient", "DebugPlace", "LocalCalls"]


class LocalCalls:
    """Runs calls, carries their futures, and receives their answers.

    Args:
        host: The object.
        on_names: Called with the names of the object's attributes when they have changed.
    """

    def __init__(self, host: ActorHost, on_names: Callable[[tuple[str, ...]], None]) -> None:
        self._host = host
        self._on_names = on_names
        self._naming = threading.Lock()
        self._runner: ClosableRunner | None = None
        self._pending: dict[int, RemoteFuture[Any]] = {}
        self._held: deque[list[Buffer]] = deque()
        host.construct = self._construct

    @property
    def used(self) -> bool:
        """Return whether the object runs several calls at a time."""
        return self._runner is not None

    def submit(self, frames: Sequence[memoryview], future: RemoteFuture[Any]) -> None:
        """Run a call; the future is settled when it is answered."""
        if self._runner is None:
            raise RuntimeError("this object runs one call at a time")
        run = self._host.accept(frames)
        future._call_id = run.call_id
        self._pending[run.call_id] = future
        self._runner.take(Job(run, self))

    def close(self, error: Callable[[], Exception]) -> None:
        """Fail all calls that are not answered."""
        if self._runner is not None:
            self._runner.close()
        while self._pending:
            self._pending.popitem()[1]._settle(None, error())

    # -- runners.Answerer ----------------------------------------------------------------------------------------------

    def answer(self, reply: list[Buffer]) -> None:
        """Buffer a reply."""
        self._held.append(reply)

    def flush(self) -> None:
        """Settle the futures of the buffered replies."""
        while self._held:
            try:
                reply = self._held.popleft()
            except IndexError:  # another thread took the last one
                return
            frames = [memoryview(bytearray(frame)) for frame in reply]
            future = self._pending.pop(header_of(frames[0])[3], None)
            if future is None and isinstance(reply, HoldingReply):
                close_unwanted(reply.references)
            if future is not None:
                answer = read_answer(frames, future.method)
                if answer.names is not None:
                    with self._naming:  # several threads settle answers, in any order; the object has the latest names
                        self._on_names(self._host.attributes)
                future._settle(answer.value, answer.error, cancelled=answer.cancelled)

    # -- future.Carrier --------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Wait for the thread that settles the future."""
        waiter = Waiter()
        future._block(waiter)
        if not future._settled:  # checked again now that the settling thread can see this waiter
            waiter.sleep(timeout_s)
        future._unblock(waiter)

    def look(self) -> None:
        """Do nothing: no answer has to be read."""

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Do nothing: the future is settled without being read."""

    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """Do nothing: the future is settled without being read."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled unless its result has arrived, and cancel its call."""
        if self._pending.pop(future._call_id, None) is None or self._runner is None:
            self.wait_for(future, None)  # another thread is just settling it
            return future.cancelled()
        future._settle(None, cancelled=True)
        self._runner.cancel(self, future._call_id)
        return True

    def _construct(self, concurrency: Concurrency, make: Callable[[], object]) -> object:
        if concurrency.how is ConcurrencyMode.SERIAL:
            return make()
        if concurrency.how is ConcurrencyMode.THREADS:
            instance = make()
            self._runner = ThreadRunner(self._host, concurrency.limit)
            return instance
        thread = LoopThread()
        try:
            instance = thread.construct(make)
        except BaseException:
            thread.close()
            raise
        thread.serve(self._host, concurrency.limit)
        self._runner = thread
        return instance


class _LocalPath(OpenPath):
    """The path to a host in this process."""

    def __init__(self, spec: ClassSpec, names: AttributeNames) -> None:
        self._host = ActorHost(lambda _: spec.cls)  # the class itself, where breakpoints are set
        self._class_name = spec.name
        self._names = names
        self._numbers = itertools.count(1)
        self._calls = LocalCalls(self._host, names.set)
        self._turn = threading.RLock()  # one call at a time; a call may come back to its own actor

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        """Run a call; see `outbox.CallPath`."""
        with self._turn, _current.acting():
            if self._host.machine.state is ActorState.CLOSED:
                future._settle(None, self._lost())
                return True
            packed = pack(call.kind, call.flags, call.target, next(self._numbers), call.payload)
            frames = [memoryview(bytearray(frame)) for frame in packed]
            if self._calls.used:
                future._carrier = self._calls
                self._calls.submit(frames, future)
                return True
            sent = self._host.handle(frames)
            reply = [memoryview(bytearray(frame)) for frame in sent]
        answer: Answer = read_answer(reply, call.method)
        del sent  # the actors whose handles are in the reply; now it has been read
        if answer.names is not None:
            self._names.set(answer.names)
        future._settle(answer.value, answer.error)
        return True

    def close(self) -> None:
        with self._turn:
            self._host.machine.state = ActorState.CLOSED
            self._calls.close(self._lost)
            self._host.drop_instance()

    def _lost(self) -> ActorLost:
        return ActorLost(DeathCause(DeathKind.KILLED_BY_USER), class_name=self._class_name)


class DebugPlace(NamedTuple):
    """The address of an actor in this process, by its number."""

    client: int
    number: int


class DebugClient(ConnectionDisplay):
    """Makes actors in this process, limited by its slots.

    Args:
        slots: CPUs to give to actors, so that a program that requests too much fails here as well.
    """

    def __init__(self, slots: int) -> None:
        self._total = self._free = Resources(cpu=slots)
        self._lock = threading.RLock()
        self._paths: set[_LocalPath] = set()
        self._refs: weakref.WeakValueDictionary[object, ActorRef] = weakref.WeakValueDictionary()
        self._names: dict[str, tuple[weakref.ref[ActorRef] | None, bool]] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def address(self) -> str:
        """The address given to `connect`."""
        return "debug"

    @property
    def cpu_num(self) -> int:
        """The number of CPUs to give to actors."""
        return int(self._total.cpu)

    @property
    def is_gone(self) -> bool:
        """Return False: the actors are in this process."""
        return False

    @property
    def actor_num(self) -> int:
        """The number of actors now."""
        return len(self._paths)

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> ActorRef:
        """Make an actor; see `Client.create`. It does not wait for a slot, because none can be freed meanwhile."""
        if self._closed:
            raise NotConnected(CONNECTION_CLOSED)
        if options.detached:
            raise ValueError(
                f"a detached {spec.name} would outlive this program, but with debug=True it is in this process; leave "
                "out detached, or connect without debug"
            )
        need = options.resources
        args, kwargs = settled(args, kwargs)
        arguments = serialize.dumps_arguments(
            args, kwargs, f"{spec.name}.__init__", partial(spec.parameters, "__init__")
        )
        dumps_class(spec.cls)  # a class that could not be sent to an actor must not work here either
        creation = Creation(
            tuple(sys.path),
            tuple(sys.argv),
            spec.name,
            b"",
            spec.names,
            bytes(arguments[0]),
            bool(kwargs),
            options.max_concurrency,
        )
        if not self._free.fits(need):
            run_finalizers()
            gc.collect()  # garbage may hold actors, in cycles that an exception's traceback closes
            _current.free_slots(self, spec.name)
        with self._lock:
            if not self._free.fits(need):
                available = f"{self._total}, {self._free} free"
                reason = f"{spec.name} asked for {need}; this process has {available}"
                raise NoResources(reason, asked=str(need), available=available)
            self._reserve(options.name)
            self._free -= need
        names = AttributeNames()
        path = _LocalPath(spec, names)
        self._paths.add(path)

        def end() -> None:
            with self._lock:
                if path in self._paths:
                    self._paths.discard(path)
                    self._free += need
                    self._names.pop(options.name, None)
            path.close()

        try:
            payload = [*serialize.dumps(tuple(creation)), *arguments[1:]]
            created: RemoteFuture[tuple[str, ...]] = RemoteFuture(None)
            path.send(Call(Kind.CREATE, 0, 0, payload, "__init__"), created)
            names.set(created.result())
        except BaseException:
            end()
            raise
        place = DebugPlace(id(self), next(self._numbers))
        ref = self._refs[place] = ActorRef(
            spec, Outbox(path), let_go=end, destroy=end, attributes=names, place=place, options=options
        )
        if options.name:
            self._names[options.name] = weakref.ref(ref), options.wait
        return ref

    def _reserve(self, name: str) -> None:
        if name in self._names:
            raise NameTaken(f"the name {name!r} is taken; choose another, or use that one: parl.get_actor({name!r})")
        if name:
            self._names[name] = None, True

    def start_reading(self) -> None:
        """Do nothing; see `current.ActorMaker`."""

    def borrow(self, place: object, spec: ClassSpec, attributes: tuple[str, ...] | None) -> ActorRef:  # noqa: ARG002
        """Return the reference to an actor of this process; see `_current.ActorMaker`.

        Raises:
            ActorLost: The actor has ended.
            NotConnected: The handle belongs to another cluster.
        """
        ref = self._refs.get(place) if isinstance(place, DebugPlace) else None
        if ref is not None:
            return ref
        if isinstance(place, DebugPlace) and place.client == id(self):
            raise ActorLost(DeathCause(DeathKind.STOPPED, detail="it had no holders any more"), class_name=spec.name)
        raise NotConnected("this handle belongs to another cluster; with debug=True only this process exists")

    def find(self, name: str, timeout_s: float | None) -> FoundActor:  # noqa: ARG002  # they are made at once
        """Return the actor with a name; see `parl_remote.get_actor`."""
        ref, wait = self._names.get(name, (None, True))
        alive = ref() if ref is not None else None
        if alive is None:
            known = ", ".join(sorted(self._names)) or "none"
            raise NoSuchActor(f"there is no actor called {name!r}; there are {known}")
        return FoundActor(alive.place, alive.spec.shipped(), wait)

    def kill(self, name: str) -> None:
        """End the actor with a name; see `parl_remote.kill`."""
        self._refs[self.find(name, None).place].destroy()

    def close(self) -> None:
        """End all actors."""
        self._closed = True
        for path in list(self._paths):
            path.close()
        self._paths.clear()

    def abandon(self) -> None:
        """Mark the client as closed in the child of a fork, whose copied objects belong to the parent."""
        self._closed = True

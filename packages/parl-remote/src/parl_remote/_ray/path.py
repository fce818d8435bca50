"""The path to an actor on Ray: calls are Ray tasks, and results are the tasks' results. The only import of ray.

    submit --HostedObject.handle.remote--> Ray             the future remembers Ray's reference to the result
    result()       ray.get(reference) in the thread that waits
    callbacks, await, wait()   Ray announces the result, and the client's thread for results reads it

    one frame    goes as it is: most calls
    more         a Message: large frames are buffers of their own for Ray, which shares them on one host; they are
                 copied once on arrival, because a receiver may write into its array, as everywhere else

Handles of actors, and values of `put` that the other host cannot see, travel beside the frames and not within, so that
Ray keeps them alive while anything refers to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pickle
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from parl_remote._data.answers import Answer, read_answer
from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import pack
from parl_remote._object_ref import ObjectRef
from parl_remote._program.actor_ref import AttributeNames
from parl_remote._program.outbox import OpenPath
from parl_remote._system.interrupts import uninterrupted
from parl_remote._transport import Buffer, allocate
from parl_remote.errors import ActorLost, DeathCause, DeathKind, RemoteError

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "NAMESPACE",
    "Message",
    "RayPath",
    "RayPlace",
    "Wire",
    "cause_of",
    "extras_of",
    "lost",
    "opened",
    "packed",
    "ray",
]


NAMESPACE = "parl"  # of named actors, so that all programs of a cluster find them
_EXIT_CODE = re.compile(r"exit code[: ]+(\d+)")


def ray() -> Any:
    """Return the module ray.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError(
            'connecting to Ray needs its package, which is not installed: pip install "parl-remote[ray]"', name="ray"
        ) from error


def cause_of(error: Exception) -> DeathCause | None:
    """Return the cause of an actor's end from Ray's error; None if it did not end."""
    exceptions = ray().exceptions
    text = " ".join(str(error).split())
    if isinstance(error, exceptions.OutOfMemoryError) or "OutOfMemory" in text or "memory monitor" in text:
        return DeathCause(DeathKind.OUT_OF_MEMORY, detail=text)
    if isinstance(error, exceptions.NodeDiedError) or "node has died" in text:
        return DeathCause(DeathKind.NODE_LOST, detail=text)
    if isinstance(error, exceptions.RayActorError | exceptions.WorkerCrashedError | exceptions.OwnerDiedError):
        if "ray.kill" in text:
            return DeathCause(DeathKind.KILLED_BY_USER, detail=text)
        if "owner" in text and "died" in text:
            return DeathCause(DeathKind.CLIENT_GONE, detail=text)
        code = _EXIT_CODE.search(text)
        return DeathCause(DeathKind.EXIT, exit_code=int(code[1]) if code else None, detail=text)
    if isinstance(error, RemoteError) or not isinstance(error, exceptions.RayError):
        raise TypeError(f"Ray does not raise {error!r}")
    return None


_LARGE = 8192  # what `serialize` keeps out of pickles is at least this long


class RayPlace:
    """The address of an actor within its cluster.

    Attributes:
        actor_id: Its id.
        concurrent: Whether it runs several calls at a time.
        handle: Ray's own handle of it, in processes that have one.
    """

    __slots__ = ("actor_id", "concurrent", "handle")

    def __init__(self, actor_id: str, concurrent: bool, handle: Any = None) -> None:
        self.actor_id = actor_id
        self.concurrent = concurrent
        self.handle = handle

    def __reduce__(self) -> tuple[type[RayPlace], tuple[str, bool]]:
        return RayPlace, (self.actor_id, self.concurrent)


class Message(NamedTuple):
    """A message of more than one frame.

    Attributes:
        frames: As `call_messages.pack` makes them.
        actors: Ray's handles of the actors that the frames refer to, by their ids.
        values: Sizes and Ray's references of the values of `put` that the frames refer to, by their ids.
    """

    frames: tuple[Buffer, ...]
    actors: Mapping[str, Any]
    values: Mapping[str, tuple[int, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        frames = tuple(pickle.PickleBuffer(frame) if len(frame) >= _LARGE else bytes(frame) for frame in self.frames)
        return Message, (frames, dict(self.actors), dict(self.values))


Wire: TypeAlias = Message | bytes
_NOTHING = Message((), {}, {})


def packed(frames: Sequence[Buffer], refs: Iterable[object], store: Callable[[ObjectRef[Any]], Any]) -> Wire:
    """Return the message in the form that is passed to Ray.

    Args:
        frames: The frames.
        refs: The objects that the references contained in them lead to.
        store: Returns Ray's reference to a value of `put`, None if the receiver can map its memory.
    """
    actors, values = {}, {}
    for ref in refs:
        place = getattr(ref, "place", None)
        if isinstance(place, RayPlace):
            actors[place.actor_id] = place.handle
        elif isinstance(ref, ObjectRef) and (stored := store(ref)) is not None:
            values[ref.id] = (ref.nbytes, stored)
    if len(frames) == 1 and not actors and not values:
        return bytes(frames[0])
    return Message(tuple(frames), actors, values)


def opened(wire: Wire) -> list[memoryview]:
    """Return the frames in memory of this process."""
    return [memoryview(wire)] if isinstance(wire, bytes) else [_own(frame) for frame in wire.frames]


def extras_of(wire: Wire) -> Message:
    """Return the handles and values beside the frames."""
    return _NOTHING if isinstance(wire, bytes) else wire


def _own(frame: Any) -> memoryview:
    view = memoryview(frame).cast("B")
    if len(view) < _LARGE or not view.readonly:
        return view
    mine = memoryview(allocate(len(view)))
    mine[:] = view
    return mine


_MOMENT_S = 0.05  # seconds between two checks of an actor that is being restarted, which takes Ray about a second


class Client(Protocol):
    """The part of the program's client that a path needs; `RayClient` is one."""

    def stored(self, ref: ObjectRef[Any]) -> Any:
        """Return Ray's reference to a value of `put`; None where the receiver sees the memory that it is in."""

    def arriving(self, extras: Message) -> AbstractContextManager[None]:
        """Resolve handles to the actors sent beside them, within this block."""

    def in_background(self, action: Callable[[], None]) -> None:
        """Run a function in the thread for results."""


class RayPath(OpenPath):
    """A path and carrier on Ray; implements `outbox.CallPath` and `future.Carrier`.

    Args:
        client: The client that the path belongs to.
        handle: Ray's handle of the actor.
        class_name: Its class, for messages.
        names: Updated when an answer reports changed attributes.
        concurrent: Whether it runs several calls at a time.
    """

    def __init__(
        self,
        client: Client,
        handle: Any,
        class_name: str,
        names: AttributeNames,
        *,
        concurrent: bool,
    ) -> None:
        self.handle = handle
        self._concurrent = concurrent
        self._client = client
        self._class_name = class_name
        self._names = names
        self._results: weakref.WeakKeyDictionary[RemoteFuture[Any], Any] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()  # dropping a future while results are read may call this again
        self._cause: DeathCause | None = None
        self._restarting = False

    # -- outbox.CallPath --------------------------------------------------------------------------------------------

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        """Send a call as a Ray task; where Ray is restarting the actor, wait for that first."""
        owner = call.owner
        travelling = owner[1:] if isinstance(owner, tuple) else ()
        handle = self.handle
        if self._restarting and handle is not None:
            self._await_restart(handle)
        if self._cause is not None or handle is None:
            future._settle(None, self._lost(""))
            return True
        try:
            frames = pack(call.kind, call.flags, call.target, 0, call.payload)
            wire = packed(frames, travelling, self._client.stored)
            result = handle.handle.remote(wire)
        except Exception as error:
            future._settle(None, self._translated(error, call.method))
            return True
        with self._lock:
            self._results[future] = result
        future._carrier = self  # a call that was held back had another carrier so far
        if future._made_condition is not None:
            self.watch(future)
        return True

    # -- future.Carrier ----------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Wait for the task of the future and settle it, until the timeout is over."""
        result = self._results.get(future)
        if result is not None and not future._settled:
            self._read(future, result, timeout_s)
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not future._settled:  # of a future without a task of its own: it waits for any answer, see `actor_ref`
            with self._lock:
                results = list(self._results.values())
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not results or not ray().wait(results, timeout=left_s)[0]:
                break
            self.look()

    def look(self) -> None:
        """Settle the futures whose tasks have ended, without waiting."""
        with self._lock:
            waiting = [(future, result) for future, result in self._results.items() if not future._settled]
        for future, result in waiting:
            if ray().wait([result], timeout=0)[0]:
                self._read(future, result, None)

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Settle the future in the background once its task has ended."""
        result = self._results.get(future)
        if result is not None:
            later = self._client.in_background
            result.future().add_done_callback(lambda _: later(lambda: self._take(future, result)))

    @uninterrupted
    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:  # noqa: ARG002
        """Settle the future in the background."""
        self.watch(future)

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled unless its result has arrived; cancel the task of a concurrent actor."""
        with self._lock:
            result = self._results.pop(future, None)
            if result is None or future._settled:
                return future.cancelled()
            future._settle(None, cancelled=True)
        if self._concurrent:  # others run all the same: what Ray has queued for them it does not take back
            with contextlib.suppress(Exception):  # it has just ended, and nothing waits for its result
                ray().cancel(result)
        return True

    # -- ends --------------------------------------------------------------------------------------------------------

    def close(self, cause: DeathCause) -> None:
        """Refuse all later messages; the first cause counts."""
        if self._cause is None:
            self._cause = cause

    def let_go(self) -> None:
        """Drop Ray's handle; without any handle left, the actor ends after its pending calls."""
        self.handle = None

    # -- inner steps -------------------------------------------------------------------------------------------------

    def _take(self, future: RemoteFuture[Any], result: Any) -> None:
        """Settle a future whose result is available."""
        self._read(future, result, None)

    def _read(self, future: RemoteFuture[Any], result: Any, timeout_s: float | None) -> None:
        """Wait for a result and settle its future."""
        try:
            wire = ray().get(result, timeout=timeout_s)
        except ray().exceptions.GetTimeoutError:
            return
        except Exception as error:
            answer = self._failed(error, future.method)
        else:
            with self._client.arriving(extras_of(wire)):
                answer = read_answer(opened(wire), future.method)
        with self._lock:
            if future._settled:
                return
            self._results.pop(future, None)
            if answer.names is not None:
                self._names.set(answer.names)
            future._settle(answer.value, answer.error, cancelled=answer.cancelled)

    def _failed(self, error: Exception, method: str) -> Answer:
        if isinstance(error, ray().exceptions.TaskCancelledError):
            return Answer(cancelled=True)
        return Answer(error=self._translated(error, method))

    def _translated(self, error: Exception, method: str) -> Exception:
        """Return the user's error for an error of Ray."""
        if not isinstance(error, ray().exceptions.RayError):
            return RemoteError(f"{self._class_name}.{method}() could not be sent: {type(error).__name__}: {error}")
        cause = cause_of(error)
        if cause is None:
            return RemoteError(f"{self._class_name}.{method}() failed on Ray: {type(error).__name__}: {error}")
        if isinstance(error, ray().exceptions.ActorUnavailableError):
            self._restarting = True  # later calls wait for the outcome
        else:
            self.close(cause)
        return self._lost(method, cause)

    def _await_restart(self, handle: Any) -> None:
        """Wait until Ray has restarted the actor, or given it up."""
        while self._restarting and self._cause is None:
            try:
                ray().get(handle.place.remote())
                self._restarting = False
            except ray().exceptions.ActorUnavailableError:
                time.sleep(_MOMENT_S)  # there is no event to wait for: Ray raises this at once while the restart lasts
            except ray().exceptions.RayError as error:
                self.close(cause_of(error) or DeathCause(DeathKind.EXIT, detail=str(error)))

    def _lost(self, running: str, cause: DeathCause | None = None) -> ActorLost:
        known = self._cause or cause or DeathCause(DeathKind.STOPPED, detail="it had no holders any more")
        return lost(known, running, self._class_name)


def lost(cause: DeathCause, running: str, class_name: str) -> ActorLost:
    """Return the error of a call that will not be answered."""
    return ActorLost(dataclasses.replace(cause, last_call=running), class_name=class_name)

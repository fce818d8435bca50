"""The client side of `put` where memory cannot be shared: values are sent to workers and fetched from them.

    deliver(ref)     before a call that refers to it: StoreObject with the value's image, once for each worker
    hold(ref, ...)   a reference arrived from an actor there: HoldObject, so that the value outlives its actor
    fetch(id)        its value is requested: FetchObject
    the reference was dropped: ReleaseObject

All use one link to the worker, made on first use; when it closes the worker releases everything.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from parl_remote._data.object_memory import Reference, ValueAddress
from parl_remote._messages import Failed, Message
from parl_remote._messages.parts import FetchObject, HoldObject, ReleaseObject, StoreObject
from parl_remote._messages.wire import decode, encode, request_number
from parl_remote._object_ref import ObjectRef
from parl_remote._transport import Buffer, Channel, CutMessage
from parl_remote.errors import (
    ActorLost,
    ChannelClosed,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    ObjectLost,
    RemoteError,
    ResultTimeout,
)

__all__ = ["Delivery", "NodeObjects", "ObjectTransfers"]


class NodeObjects:
    """The values that one worker holds for this process; see `object_memory.Source`.

    Args:
        connect: Makes a link to the worker.
        call_soon: Runs a function in a thread that may block; called by finalizers.
    """

    def __init__(self, connect: Callable[[], Channel], call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._connect = connect
        self._call_soon = call_soon
        self._lock = threading.Lock()
        self._link: Channel | None = None
        self._numbers = itertools.count(1)
        self._there: dict[str, int] = {}  # the number of this process's references to each value
        self._noted: dict[int, weakref.finalize[..., Reference]] = {}  # of those references, by their identities
        self._noting = threading.RLock()  # so that a release and what follows reach the worker in this order

    def lacks(self, refs: Sequence[object]) -> bool:
        """Return, without waiting, whether `deliver` has anything to do."""
        wanted = [ref for ref in refs if isinstance(ref, ObjectRef) and not ref.is_inline]
        if not wanted:
            return False
        if not self._lock.acquire(blocking=False):  # another transfer is under way
            return True
        try:
            return not self._link_lives() or not all(self._join(ref) for ref in wanted)
        finally:
            self._lock.release()

    def deliver(self, refs: Sequence[object]) -> None:
        """Transfer the values of the references in `refs` to the worker, unless it has them.

        Raises:
            ObjectLost: Every process that had a value has ended.
            RemoteError: The worker cannot take it: it has no memory left, or cannot be reached.
        """
        for ref in refs:
            if isinstance(ref, ObjectRef) and not (self._is_connected() and self._join(ref)):
                image = ref.image()
                if image is not None:
                    self._bring(ref, image)

    def delivery(
        self, *, has_ended: Callable[[], bool], lost: Callable[[str], Exception], on_ready: Callable[[], None]
    ) -> Delivery:
        """Return the transfers ahead of the calls of one connection to an actor there; see `Delivery`."""
        return Delivery(self, has_ended=has_ended, lost=lost, on_ready=on_ready)

    def _bring(self, ref: ObjectRef[Any], image: Buffer) -> None:
        """Transfer a value to the worker; a broken link does not affect the actor, which has another one."""
        for is_last in (False, True):
            try:
                self._hold(ref, lambda number: StoreObject(number, ref.id), (image,))
                return
            except ChannelClosed as error:
                if is_last:
                    reason = f"the value {ref.id} cannot be brought to its worker: {error}"
                    raise ClusterUnreachable(reason) from error

    def hold(self, ref: Reference, place: ValueAddress) -> None:
        """Hold a value on the worker; if it is gone already, `fetch` reports that. See `object_memory.Source.hold`."""
        with contextlib.suppress(RemoteError):
            self._hold(ref, lambda number: HoldObject(number, ref.id, tuple(place)))

    def _hold(self, ref: Reference, make: Callable[[int], Message], frames: Sequence[Buffer] = ()) -> None:
        """Make the worker hold a value for a reference, which is recorded before that."""
        self._note(ref)
        try:
            self._ask(make, frames)
        except BaseException:
            self._drop(ref.id, id(ref))
            raise
        self._note(ref)  # again, if the link was new

    def fetch(self, object_id: str, timeout_s: float | None) -> memoryview:
        """Return the image of a value, from the node that has it."""
        try:
            return self._ask(lambda number: FetchObject(number, object_id), timeout_s=timeout_s)[1]
        except ResultTimeout:
            raise
        except ChannelClosed as error:
            raise ObjectLost(f"the node that had the value {object_id} is gone: {error}") from error
        except RemoteError as error:
            raise ObjectLost(str(error)) from error

    def _is_connected(self) -> bool:
        """Return whether the worker still holds the transferred values, which it releases when the link closes."""
        with self._lock:
            return self._link_lives()

    def _link_lives(self) -> bool:
        """Return whether the link is there and open; with the lock held."""
        link = self._link
        if link is None:
            return False
        try:
            while True:  # an answer that came too late for its question
                link.receive(0.0)
        except ResultTimeout:
            return True
        except ChannelClosed:
            link.close()
            self._link = None
            return False

    def close(self) -> None:
        """Close the link, so that the worker releases all values; pending requests get no answer."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _join(self, ref: Reference) -> bool:
        """Record that a reference holds its value, if another one does; return whether it does now."""
        with self._noting:
            if ref.id not in self._there:
                return False
            self._note(ref)
            return True

    def _note(self, ref: Reference) -> None:
        """Record that a reference holds its value."""
        with self._noting:
            if id(ref) not in self._noted:
                self._noted[id(ref)] = finalizer = weakref.finalize(ref, self._gone, ref.id, id(ref))
                finalizer.atexit = False
                self._there[ref.id] = self._there.get(ref.id, 0) + 1

    def _drop(self, object_id: str, identity: int) -> None:
        """Undo `_note`: the worker does not have the value."""
        with self._noting:
            finalizer = self._noted.pop(identity, None)
            if finalizer is not None:
                finalizer.detach()
                self._count_down(object_id)

    def _count_down(self, object_id: str) -> bool:
        """Count a reference less; return whether that was the last one."""
        others = self._there.pop(object_id, 1) - 1
        if others > 0:
            self._there[object_id] = others
        return others <= 0

    def _gone(self, object_id: str, identity: int) -> None:
        """Handle the end of a reference; called by a finalizer, which may run at any point."""
        if self._noted.pop(identity, None) is not None:  # at once: another reference may get its identity
            self._call_soon(lambda: self._release(object_id))

    def _release(self, object_id: str) -> None:
        with self._noting:
            link = self._link
            if self._count_down(object_id) and link is not None:
                with contextlib.suppress(ChannelClosed):
                    link.send([encode(ReleaseObject(object_id))])

    def _ask(
        self, make: Callable[[int], Message], frames: Sequence[Buffer] = (), timeout_s: float | None = None
    ) -> list[memoryview]:
        number = next(self._numbers)
        with self._lock:
            link = self._link
            if link is None:
                self._link = link = self._connect()
                with self._noting:
                    self._there.clear()
                    self._noted.clear()
            try:
                link.send([encode(make(number)), *frames], timeout_s)
                while True:
                    answer = link.receive(timeout_s)
                    if request_number(answer[0]) == number:  # else of one that had no time to wait
                        break
            except ChannelClosed:
                link.close()
                self._link = None
                raise
        if type(answer) is CutMessage:
            raise answer.shortage
        message = decode(answer[0])
        if isinstance(message, Failed):
            raise RemoteError(message.reason)
        return answer


class Delivery:
    """Transfers the values that calls to one actor refer to ahead of those calls, without making the caller wait.

    Args:
        objects: The values on the actor's node.
        has_ended: Returns whether the actor has ended; called when its node does not answer, and may wait for the
            report.
        lost: Makes the error for a call of a lost actor; may wait for the cause.
        on_ready: Called when calls can be sent again.

    Attributes:
        is_under_way: Whether values are being transferred.
    """

    def __init__(
        self,
        objects: NodeObjects,
        *,
        has_ended: Callable[[], bool],
        lost: Callable[[str], Exception],
        on_ready: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._has_ended = has_ended
        self._lost = lost
        self._on_ready = on_ready
        self._failed: tuple[object, Exception] | None = None  # the future of the call that a transfer was for
        self.is_under_way = False

    def is_done(self, refs: Sequence[object], future: object) -> bool:
        """Return whether the node has the values; if not, transfer them in a thread of their own.

        Args:
            refs: The references among the arguments of a call, and others.
            future: The call's; it is called again when the transfer is over.

        Raises:
            ChannelClosed: They could not be transferred, since the actor is gone.
            ActorLost: Its node does not take them; a caller may be able to use another actor.
            Exception: They could not be transferred.
        """
        failed, self._failed = self._failed, None
        if failed is not None and failed[0] is future:
            raise failed[1]
        if not self._objects.lacks(refs):
            return True

        def transfer() -> None:
            try:
                self.transfer(refs)
            except ClusterUnreachable as unreachable:
                error = self._lost("")
                if isinstance(error, ActorLost):
                    cause = DeathCause(DeathKind.NODE_LOST, detail=str(unreachable))
                    error = ActorLost(cause, class_name=error.class_name)
                self._failed = future, error
            except Exception as error:
                self._failed = future, error
            self.is_under_way = False
            self._on_ready()

        self.is_under_way = True
        try:
            threading.Thread(target=transfer, name="parl-put", daemon=True).start()
        except RuntimeError:  # no thread can be started any more
            self.is_under_way = False
            self.transfer(refs)
            return True
        return False

    def transfer(self, refs: Sequence[object]) -> None:
        """Transfer the values, and wait for that.

        Raises:
            ChannelClosed: The actor has ended, with its node.
            ClusterUnreachable: Its node cannot be reached, and no end of the actor is known.
        """
        try:
            self._objects.deliver(refs)
        except ClusterUnreachable as error:
            if self._has_ended():
                raise ChannelClosed(str(error)) from error
            raise


class ObjectTransfers:
    """The values that a client has stored on workers, by worker.

    Args:
        connect: Makes a link to a worker, from its id.
        call_soon: See `NodeObjects`.
    """

    def __init__(self, connect: Callable[[str], Channel], call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._connect = connect
        self._call_soon = call_soon
        self._nodes: dict[str, NodeObjects] = {}

    def at(self, node_id: str) -> NodeObjects:
        """Return the values on one worker."""
        node = self._nodes.get(node_id)
        if node is None:
            self._nodes[node_id] = node = NodeObjects(lambda: self._connect(node_id), self._call_soon)
        return node

    def lost(self, node_id: str) -> None:
        """Drop a lost worker and its values; callable from any thread."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            node.close()

    def close(self) -> None:
        """Close the links to all workers."""
        for node in list(self._nodes.values()):  # the loop may learn that one is lost meanwhile
            node.close()

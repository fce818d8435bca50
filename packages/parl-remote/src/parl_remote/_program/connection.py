"""The caller's end of a connection to one actor: sends calls, and matches results to them by number.

    any thread --submit--> channel.send
    waiters    --wait_for--> the first one reads for all (the leader), the others sleep; when the leader has its own
                             result it wakes one waiter, who leads on
    futures with callbacks, wait(), await  --> the background loop reads, while no thread leads

A blocking call therefore writes and reads in its own thread, and no other thread has to wake up for it.

Ctrl-C may interrupt the main thread between any two steps. The leader's lock is re-entrant, so a lock left behind by an
interrupt is released by the main thread's next wait.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from parl_remote._data.answers import read_answer, unreadable
from parl_remote._data.large_frames import TICKETS, Sharing
from parl_remote._data.object_places import reading_from
from parl_remote._data.serialize import loads
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import HEADER_BYTES, Flag, Kind, header_of, pack, payload_of
from parl_remote._links.loop import Loop
from parl_remote._transport import Buffer, Channel
from parl_remote.errors import ChannelClosed, ClusterUnreachable, RemoteError, RemoteProtocolError, ResultTimeout

if TYPE_CHECKING:
    from parl_remote._program.object_transfer import NodeObjects

__all__ = ["Connection", "OwnConnection"]


_EMPTY = int(Flag.EMPTY)
_RESULT = int(Kind.RESULT)
_CREATE = int(Kind.CREATE)
_SHARES = int(Flag.SHARES)
_HANDLES = int(Flag.HANDLES)
_NAMES = int(Flag.NAMES)
_CHANGED = int(Kind.CHANGED)
_STATE = int(Kind.STATE)
_REFUSED = int(Kind.REFUSED)
_MOST_CALLS = 2**32
_weak = weakref.ref


class _Waiter:
    """A thread that waits while another one reads."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # somebody else woke it already
            self._lock.release()


class Connection:
    """The calls of this process to one actor.

    Args:
        channel: The channel to the actor; the connection owns it.
        background: Returns the loop that reads for futures that no thread waits for in `wait_for`.
        lost: Makes the error for a call that will not be answered, from the name of the method that was running when
            the actor was lost, empty for calls that come later; may wait for the cause.
        on_names: Called with the actor's attribute names when it has been made, and when they change.
        objects: Returns the transfers of `put` values to the actor's node; called where memory cannot be shared with
            it.
        ended: Returns whether the actor has ended; called when its node does not answer, and may wait for the report.
        refused: Called with the reason why the actor does not take this connection.

    Attributes:
        gives_back: Whether `submit` raises `ChannelClosed` for what could not be sent, because there may be another
            actor to send it to; if not, the call's future gets the error.
        is_read_out: Set when `read_out` has been called.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        background: Callable[[], Loop],
        lost: Callable[[str], Exception],
        on_names: Callable[[tuple[str, ...]], None],
        objects: Callable[[], NodeObjects] | None = None,
        ended: Callable[[], bool] = bool,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._channel = channel
        self._objects = objects
        self._has_ended = ended
        self._on_refused = refused
        self._sharing = Sharing.through(channel)
        # Pipelined answers come many at a time; a transport that can hand them over so saves a call each.
        self._receive_all: Callable[[float | None], list[list[memoryview]]] = getattr(
            channel, "receive_all", lambda timeout_s: [channel.receive(timeout_s)]
        )
        self._background = background
        self._make_lost = lost
        self._on_names = on_names
        self._numbers = itertools.count(1)
        # Weakly, or a future that nobody keeps would keep its actor for as long as nobody reads its answer.
        self._pending: dict[int, weakref.ref[RemoteFuture[Any]]] = {}
        self._arrived: deque[list[memoryview]] = deque()
        self._reading = threading.RLock()
        self._reader = 0  # the thread that holds it; not yet known, or no longer, for a moment at either end
        self._followers: list[_Waiter] = []
        self._watched: set[RemoteFuture[Any]] = set()
        self._loop: Loop | None = None  # the background loop, while it watches the channel
        self._is_lost = False
        self.gives_back = False
        self.is_read_out = threading.Event()
        self._on_state: Callable[[Sequence[memoryview]], None] | None = None
        self._names_changed = False

    # -- out -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        kind: int,
        flags: int,
        index: int,
        payload: Sequence[Buffer],
        method: str,
        owner: object,
        future: RemoteFuture[Any] | None = None,
    ) -> RemoteFuture[Any]:
        """Send a message that will be answered.

        Args:
            kind: The kind of message.
            flags: How its payload is to be read.
            index: Number of the method.
            payload: The result of `serialize.dumps`, or nothing.
            method: The method's name, for messages.
            owner: Kept alive until the answer is there.
            future: Settled with the answer; a new one if None.

        Raises:
            ChannelClosed: See `gives_back`.
            ClusterUnreachable: A value that the call refers to cannot be transferred to the actor's node.
        """
        is_ours = future is None
        former = None
        if future is None:
            future = RemoteFuture(self, owner)
            future.method = method
        else:
            former = future._carrier
            self._adopt(future, owner)
        future.call_id = call_id = next(self._numbers) % _MOST_CALLS
        self._pending[call_id] = _weak(future)
        try:
            if self._sharing is None:
                if type(owner) is tuple and self._objects is not None:
                    self._deliver(self._objects(), owner)
                self._channel.send(pack(kind, flags, index, call_id, payload))
            else:
                frames = pack(kind, flags | _SHARES if kind == _CREATE else flags, index, call_id, payload)
                self._channel.send(self._sharing.stow(frames) if len(frames) > 1 else frames)
        except ChannelClosed:
            # Answers to earlier calls may still be there to be read; only this one has no hope.
            is_open = self._pending.pop(call_id, None) is not None
            if self.gives_back and (is_open or is_ours):  # who reads may have settled it, and nobody has seen that
                if former is not None:
                    future._carrier = former  # threads that wait for it continue there
                raise
            if is_open:
                self.look()  # the actor may have told why it does not take this connection
                self._settle(future, None, self._make_lost(""))
        except BaseException:
            self._pending.pop(call_id, None)
            raise
        if self._watched and self._channel.pending():  # read ahead while sending; nothing else would wake the loop
            self._watch_soon()
        return future

    def _deliver(self, objects: NodeObjects, refs: tuple[object, ...]) -> None:
        """Transfer the values that a call refers to.

        Raises:
            ChannelClosed: The actor has ended, with its node.
            ClusterUnreachable: Its node cannot be reached, and no end of the actor is known.
        """
        try:
            objects.deliver(refs)
        except ClusterUnreachable as error:
            if self._has_ended():
                raise ChannelClosed(str(error)) from error
            raise

    def keep_states(self, on_state: Callable[[Sequence[memoryview]], None]) -> None:
        """Pass the states that the actor saves to `on_state` as soon as they arrive, also while no call is waiting."""
        self._on_state = on_state
        self.watch(RemoteFuture(self))  # which nobody settles

    def read_out(self, timeout_s: float) -> None:
        """Read what the actor sent before it ended; a restart begins with the last state it saved.

        Args:
            timeout_s: How long to wait for another thread that is reading.
        """
        if self._on_state is not None and self._reader != get_ident() and self._reading.acquire(timeout=timeout_s):
            self._drain_and_release()
            self._hand_over()
        self.is_read_out.set()

    @property
    def channel(self) -> Channel:
        """The channel to the actor."""
        return self._channel

    def _adopt(self, future: RemoteFuture[Any], owner: object) -> None:
        """Take over a future whose call was deferred; threads may be waiting for it already."""
        future._owner = owner
        future._carrier = self
        if future._made_condition is not None:
            self.watch(future)

    def join(self, *, holds: bool) -> None:
        """Announce this caller to an actor that another process has made.

        Args:
            holds: Whether this connection keeps the actor alive.

        Raises:
            ChannelClosed: The actor has ended.
        """
        flags = 0 if self._sharing is None else _SHARES
        self._channel.send(pack(Kind.JOIN, flags, 0 if holds else 1, 0))

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """See `Carrier.cancel`."""
        if self._pending.pop(future.call_id, None) is None:
            self.wait_for(future, None)  # another thread is just settling it
            return future.cancelled()
        self._settle(future, None, cancelled=True)
        with contextlib.suppress(ChannelClosed, ResultTimeout):  # if it cannot be told, its answer finds nobody
            self._channel.send(pack(Kind.CANCEL, 0, 0, future.call_id), 0.0)
        return True

    # -- in ------------------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        me = get_ident()
        leads = self._reader == me  # called by a callback that this same thread runs while it reads
        try:
            while not future.settled:
                if future._carrier is not self and future._carrier is not None:
                    break  # given back by `submit`; it leaves by another connection
                if leads or self._reading.acquire(blocking=False):
                    self._reader = me
                    if not self._lead(future, deadline):
                        return False
                elif not self._follow(future, deadline):
                    return future.settled
        finally:
            if leads:
                self._hand_over()
            else:
                self.leave()
        carrier = future._carrier
        if future.settled or carrier is None:
            return True
        return carrier.wait_for(future, None if deadline is None else max(0.0, deadline - time.monotonic()))

    # -- what `future.wait_any` needs, by which one thread reads several connections ----------------------------

    def is_led_here(self) -> bool:
        """See `future.Readable`."""
        return self._reader == get_ident()

    def lead(self) -> bool:
        """See `future.Readable`."""
        leads = self._reading.acquire(blocking=False)
        if leads:
            self._reader = get_ident()
        return leads

    def leave(self) -> None:
        """See `future.Readable`."""
        if self._reader == get_ident():
            self._reader = 0
        self._release_reading()
        self._hand_over()

    def has_read_ahead(self) -> bool:
        """See `future.Readable`."""
        return bool(self._arrived) or self._channel.pending()

    def _release_reading(self) -> None:
        """Release the leader's lock completely if this thread holds it, however often it was acquired."""
        while self._reading._is_owned():  # type: ignore[attr-defined]  # not in its stub, but Condition asks it, too
            self._reading.release()

    def _lead(self, future: RemoteFuture[Any], deadline: float | None) -> bool:
        """Read for all waiting threads until `future` is settled; return False once the deadline has passed."""
        try:
            while not future.settled:
                self._take(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except ResultTimeout:
            return future.settled
        except (ChannelClosed, RemoteProtocolError):
            self._lose()
        return True

    def _follow(self, future: RemoteFuture[Any], deadline: float | None) -> bool:
        """Sleep until the future is settled or the leader has left; return False once the deadline has passed."""
        waiter = _Waiter()
        if future._blocked is None:
            future._blocked = []
        future._blocked.append(waiter)
        self._followers.append(waiter)
        try:
            # Looked at again now that others can see us: see RemoteFuture.settle and _hand_over.
            if not future.settled and self._reader:
                waiter.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            future._blocked.remove(waiter)
            if waiter in self._followers:
                self._followers.remove(waiter)
        return deadline is None or time.monotonic() < deadline

    def _hand_over(self) -> None:
        """Wake a follower or start background watching, so that somebody reads when this thread stops."""
        if self._followers and not self._reader:
            with contextlib.suppress(IndexError):  # it left by itself
                self._followers[0].wake()
        if self._watched and self._loop is None:
            self._watch_soon()

    def look(self) -> None:
        """See `Carrier.look`."""
        if self._reader != get_ident() and self._reading.acquire(blocking=False):
            self._drain_and_release()
            self._hand_over()

    def _drain_and_release(self) -> None:
        self._reader = get_ident()
        try:
            self.drain()
        finally:
            self._reader = 0
            self._release_reading()

    def drain(self) -> None:
        """See `future.Readable`."""
        try:
            while True:
                self._take(0.0)
        except ResultTimeout:
            pass
        except (ChannelClosed, RemoteProtocolError):
            self._lose()

    def _take(self, timeout_s: float | None) -> None:
        """Wait for answers and settle all that arrive together; after Ctrl-C the rest is left for the next call."""
        arrived = self._arrived
        if not arrived:
            arrived.extend(self._receive_all(timeout_s))
        while arrived:
            self._dispatch(arrived.popleft())

    def _dispatch(self, frames: list[memoryview]) -> None:
        kind, flags, _, call_id = header_of(frames[0])
        if flags & TICKETS and self._sharing is not None:
            frames, flags = self._sharing.unstow(frames), flags & ~TICKETS
        pending = self._pending.pop(call_id, None)
        future = None if pending is None else pending()
        if future is None:
            self._take_unasked(kind, flags, call_id, frames, dropped=pending is not None)
            return
        if kind == _RESULT and flags == _EMPTY:  # None, as most calls for their effect
            self._settle(future, None)
            return
        if kind == _RESULT and not flags:  # a value and nothing else to know, as most others
            try:
                value = loads(frames[0][HEADER_BYTES:], frames[1:])
            except Exception as error:
                self._settle(future, None, unreadable(error, future.method))
            else:
                self._settle(future, value)
            return
        if flags & _HANDLES:
            with reading_from(None if self._sharing is not None or self._objects is None else self._objects()):
                answer = read_answer(frames, future.method)
            self._confirm(call_id)
        else:
            answer = read_answer(frames, future.method)
        if answer.names is not None:
            self._names_changed = False  # this is what it was about
            self._on_names(answer.names)
        self._settle(future, answer.value, answer.error, cancelled=answer.cancelled)

    def _take_unasked(
        self, kind: int, flags: int, call_id: int, frames: list[memoryview], *, dropped: bool = False
    ) -> None:
        """Handle an unexpected message: the answer to a cancelled call or a dropped future, or a notification."""
        if dropped and kind == _RESULT and flags & _NAMES:
            self._names_changed = True  # the names are in the answer, but so is what nobody wants unpickled
        if kind == _CHANGED:
            self._names_changed = True
        elif kind == _STATE:
            if self._on_state is not None:
                self._on_state(frames)
        elif kind == _REFUSED:
            self._on_refused(bytes(payload_of(flags, frames)[0]).decode(errors="replace"))
        elif flags & _HANDLES:
            self._confirm(call_id)

    def _confirm(self, call_id: int) -> None:
        """Confirm that the handles in an answer are connected, so that the actor that sent them may release them."""
        with contextlib.suppress(ChannelClosed, ResultTimeout):  # then it holds them as long as this connection
            self._channel.send(pack(Kind.RECEIVED, 0, 0, call_id), 0.0)

    def names_changed(self) -> bool:
        """See `actor_ref.CallPath.names_changed`."""
        self.look()
        changed, self._names_changed = self._names_changed, False
        return changed

    def _settle(
        self, future: RemoteFuture[Any], value: Any, error: BaseException | None = None, *, cancelled: bool = False
    ) -> None:
        future.settle(value, error, cancelled=cancelled)
        if self._watched:
            self._watched.discard(future)

    def _lose(self) -> None:
        """Fail all pending calls, and all later ones: the actor will not answer any more."""
        self._is_lost = True
        running = ""
        with contextlib.suppress(StopIteration, RuntimeError):  # another thread may be doing the same
            oldest = next(iter(self._pending.values()))()  # calls run in order, so it was the one
            running = oldest.method if oldest is not None else ""
        while self._pending:
            with contextlib.suppress(KeyError):
                future = self._pending.popitem()[1]()
                if future is not None:
                    self._settle(future, None, self._make_lost(running))

    # -- the background ------------------------------------------------------------------------------------------

    def watch(self, future: RemoteFuture[Any]) -> None:
        """See `Carrier.watch`."""
        self._watched.add(future)
        if future.settled:
            self._watched.discard(future)
        elif self._loop is None:
            self._watch_soon()

    def _watch_soon(self) -> None:
        loop = self._background()
        loop.call_soon(lambda: self._start_watching(loop))

    def _start_watching(self, loop: Loop) -> None:
        if self._is_lost:
            self.look()
        elif self._watched and self._loop is None:
            try:
                loop.add(self, self._on_readable)
            except ValueError:  # closed a moment ago by another thread
                self._lose()
            else:
                self._loop = loop

    def _stop_watching(self) -> None:
        if self._loop is not None:
            self._loop.remove(self)
            self._loop = None

    def _on_readable(self) -> None:
        if not self._reading.acquire(blocking=False):
            self._stop_watching()  # another thread leads and will hand over
            if not self._reader:
                self._watch_soon()
            return
        self._drain_and_release()
        if self._is_lost or not self._watched:
            self._stop_watching()
            if self._watched and not self._is_lost:
                self._watch_soon()
        self._hand_over()

    def fileno(self) -> int:
        """Return the channel's descriptor, for the background loop."""
        return self._channel.fileno()

    def pending(self) -> bool:
        """Return whether the channel has data read ahead and no thread leads."""
        return not self._reader and self.has_read_ahead()

    # -- the end -------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """Close the connection: answers that have arrived are handed over, other calls get the error of `lost`.

        The news of an actor's end may come before anybody has read what the actor answered last.
        """
        loop = self._loop
        if loop is not None:
            loop.call_soon(self._stop_watching)
        self.look()  # if another thread reads, it meets the end itself
        self._channel.close()
        self.look()
        if self._sharing is not None:
            self._sharing.close()


class OwnConnection(Connection):
    """A connection whose `wait_for` refuses to wait for a call that cannot start."""

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`.

        Raises:
            RemoteError: The awaited call cannot start before the waiting one has ended.
        """
        in_the_way = threading.current_thread() is threading.main_thread()  # threads of max_concurrency are not
        if in_the_way and timeout_s is None and not future.settled:
            raise RemoteError(
                f"an actor waits in a method for its own {future.method}(), which starts when that method has ended: "
                "call the method of `self`, do not wait for the result, or give the class max_concurrency=2"
            )
        return super().wait_for(future, timeout_s)

"""The caller's end of a connection to one actor: sends calls, and matches results to them by number.

    any thread --send--> channel.post, which does not wait; what the socket does not take goes out from the background
    waiters    --wait_for--> the first one reads for all (the leader), the others sleep; when the leader has its own
                             result it wakes one waiter, who leads on
    await                --> the event loop reads in its own thread, while no other thread leads
    futures with callbacks, wait()  --> the background loop reads, while no thread leads

A blocking call therefore writes and reads in its own thread, and no other thread has to wake up for it. Answers that
no thread waits for are read from time to time, so that the actor never waits until it can write them.

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
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from parl_remote._data.answers import read_answer, unreadable
from parl_remote._data.calls import Call
from parl_remote._data.large_frames import TICKETS, Sharing
from parl_remote._data.object_memory import reading_from
from parl_remote._data.serialize import loads
from parl_remote._future import Carrier, RemoteFuture, Waiter, leave_to_parent
from parl_remote._links.call_messages import HEADER_BYTES, Flag, Kind, header_of, pack, payload_of
from parl_remote._links.loop import EventLoopReader, Loop, Writable
from parl_remote._program.outbox import Outbox
from parl_remote._system.facilities import wait_for_input, waiting_bytes
from parl_remote._transport import Buffer, Channel
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import (
    ActorLost,
    ChannelClosed,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    RemoteError,
    RemoteProtocolError,
    ResultTimeout,
)

if TYPE_CHECKING:
    import asyncio

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
_FULL_POLL_S = 0.002  # between looks at a channel that does not tell when it can be written to
_TURN_S = 0.005  # how long an event loop reads before its tasks have their turn
_TEND_S = 0.05  # a look takes the interpreter from the thread that makes calls, which mostly reads the answers itself
_TEND_AGAIN_S = 0.01  # after a look that found something
_TEND_SOON_S = 0.001  # after one that found many bytes
_MANY_BYTES = 2**15  # an eighth of what a socket takes before its actor has to wait
_LONGEST_TEND_S = 1.0
_UNSENT = "what the channel did not take"  # among what is watched: it reads while it cannot write
_weak = weakref.ref


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
        closed: Called when a call met the loss of the actor; must not wait. See `outbox.CallPath.met_loss`.

    Attributes:
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
        closed: Callable[[], object] = bool,
    ) -> None:
        self._on_closed = closed
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
        # Weakly, or a future without references would keep its actor for as long as its answer is not read.
        self._pending: dict[int, weakref.ref[RemoteFuture[Any]]] = {}
        self._arrived: deque[list[memoryview]] = deque()
        self._reading = threading.RLock()
        self._reader = 0  # the thread that holds it; not yet known, or no longer, for a moment at either end
        self._followers: list[Waiter] = []
        self._watched: set[object] = set()  # futures, and `_UNSENT`
        self._loop: Loop | None = None  # the background loop, while it watches the channel
        self._is_lost = False
        self._sending = threading.RLock()  # a finalizer may call the actor while this thread is in here
        self._outbox: Outbox | None = None
        self._is_writing = False  # from the background
        self._end_writing: Callable[[], None] | None = None
        self._is_full = False  # the channel has the rest of a message; the background writes it
        self._unsent: tuple[Call, RemoteFuture[Any]] | None = None  # the one that it is the rest of
        self._is_delivering = False  # values go to the actor's node, before the call that refers to them
        self._undelivered: tuple[RemoteFuture[Any], Exception] | None = None  # the call that they were for
        self._notices: deque[list[Buffer]] = deque()  # messages without an answer, for when the channel takes them
        self._tended_s = 0.0  # the time between looks at answers that no thread waits for; 0 without such looks
        self._was_read = False  # by a thread, since the last look
        self._event_loop: EventLoopReader | None = None
        self._awaited: set[RemoteFuture[Any]] = set()  # in the event loop
        self.is_read_out = threading.Event()
        self._on_state: Callable[[Sequence[memoryview]], None] | None = None
        self._names_changed = False

    # -- out -----------------------------------------------------------------------------------------------------

    def attach(self, outbox: Outbox) -> None:
        """See `outbox.CallPath`."""
        self._outbox = outbox

    def submit(self, call: Call) -> RemoteFuture[Any]:
        """Send a call that comes before all others: that of the constructor.

        Raises:
            ChannelClosed: The actor is gone.
        """
        future: RemoteFuture[Any] = RemoteFuture(None, call.owner, call.method)
        if self._sharing is None and type(call.owner) is tuple and self._objects is not None:
            self._deliver(self._objects(), call.owner)
        self.send(call, future)
        return future

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        """Send a call; see `outbox.CallPath`.

        Raises:
            ChannelClosed: The actor is gone, and the call did not reach it.
            ClusterUnreachable: A value that the call refers to cannot be transferred to the actor's node.
        """
        if self._is_full or self._is_delivering:
            return False
        kind, flags, index, payload, _, owner = call
        call_id = next(self._numbers) % _MOST_CALLS
        if self._sharing is not None:
            frames = pack(kind, flags | _SHARES if kind == _CREATE else flags, index, call_id, payload)
            if len(frames) > 1:
                frames = self._sharing.stow(frames)
        elif type(owner) is tuple and not self._is_delivered(owner, future):
            return False
        else:
            frames = pack(kind, flags, index, call_id, payload)
        with self._sending:
            if self._is_lost:
                raise ChannelClosed("the connection to the actor is closed")
            former = future._carrier
            future.call_id = call_id
            self._pending[call_id] = _weak(future)
            future._carrier = self
            try:
                if not self._channel.post(frames):
                    self._is_full = True
                    self._unsent = call.frozen(), future
            except BaseException:
                self._pending.pop(call_id, None)  # answers to earlier calls may still be there to be read
                future._carrier = former
                raise
        if self._is_full:
            self._write_soon()
        if self._watched and self._channel.pending():  # read ahead while sending; nothing else would wake the loop
            self._watch_soon()
        return True

    def is_full(self) -> bool:
        """See `outbox.CallPath`."""
        return self._is_full or self._is_delivering

    def met_loss(self) -> None:
        """See `outbox.CallPath`."""
        self._on_closed()
        with contextlib.suppress(RuntimeError):  # no thread can be started any more
            self._background().call_soon(self.look)  # the actor may have told why it does not take this connection

    def _tell(self, frames: list[Buffer]) -> None:
        """Send a message that has no answer, without waiting."""
        with self._sending, contextlib.suppress(ChannelClosed):  # then it is not needed any more
            if self._is_full:
                self._notices.append(frames)
            elif not self._channel.post(frames):
                self._is_full = True
        if self._is_full:
            self._write_soon()

    def write(self) -> None:
        """Write what the channel takes of what it did not take before."""
        with self._sending:
            if not self._is_full:
                return
            try:
                is_full = not self._channel.flush()
                if not is_full:
                    self._unsent = None
                while self._notices and not is_full:
                    is_full = not self._channel.post(self._notices.popleft())
            except ChannelClosed:
                return  # who reads notices it as well
            if is_full:
                return
            self._is_full = False
        if self._outbox is not None:
            self._outbox.on_writable()

    def _write_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread can be started any more: the client writes the rest
            loop = self._background()
            loop.call_soon(lambda: self._start_writing(loop))

    def _start_writing(self, loop: Loop) -> None:
        """Write from the background until the channel takes messages again, and read meanwhile: the actor may wait
        until it can write its answers.
        """
        if not self._is_full or self._is_lost or self._is_writing:
            return
        self._is_writing = True
        self._watched.add(_UNSENT)
        self._start_watching(loop)
        writable: Writable | None = None

        def write() -> None:
            self.write()
            if self._is_full and not self._is_lost:
                if writable is None:
                    loop.call_later(_FULL_POLL_S, write)
                return
            if not self._is_writing:
                return
            if writable is not None:
                loop.remove(writable)
                writable.close()
            self._is_writing = False
            self._watched.discard(_UNSENT)
            if self._is_full and not self._is_lost:  # filled again since
                self._write_soon()

        self._end_writing = write
        if isinstance(self._channel, UnixChannel):
            with contextlib.suppress(OSError, ValueError):  # no descriptor is left, or it is closed
                writable = Writable(self._channel.fileno())
                loop.add(writable, write)
                return
        loop.call_later(_FULL_POLL_S, write)

    def _is_delivered(self, refs: tuple[object, ...], future: RemoteFuture[Any]) -> bool:
        """Return whether the actor's node has the values that a call refers to; if not, transfer them in a thread of
        their own and tell the outbox when they are there.

        Raises:
            ChannelClosed: They could not be transferred, since the actor is gone.
            ActorLost: Its node does not take them; a caller may be able to use another actor.
            Exception: They could not be transferred.
        """
        if self._objects is None:
            return True
        undelivered, self._undelivered = self._undelivered, None
        if undelivered is not None and undelivered[0] is future:
            raise undelivered[1]
        objects = self._objects()
        if not objects.lacks(refs):
            return True

        def deliver() -> None:
            try:
                self._deliver(objects, refs)
            except ClusterUnreachable as unreachable:
                error = self._make_lost("")
                if isinstance(error, ActorLost):
                    cause = DeathCause(DeathKind.NODE_LOST, detail=str(unreachable))
                    error = ActorLost(cause, class_name=error.class_name)
                self._undelivered = future, error
            except Exception as error:
                self._undelivered = future, error
            self._is_delivering = False
            if self._outbox is not None:
                self._outbox.on_writable()

        self._is_delivering = True
        try:
            threading.Thread(target=deliver, name="parl-put", daemon=True).start()
        except RuntimeError:  # no thread can be started any more
            self._is_delivering = False
            self._deliver(objects, refs)
            return True
        return False

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
        self.watch(RemoteFuture(self))  # which is never settled

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
            carrier = self._settling(future)
            return future.cancelled() if carrier is None else carrier.cancel(future)
        self._settle(future, None, cancelled=True)
        self._tell(pack(Kind.CANCEL, 0, 0, future.call_id))
        return True

    def _settling(self, future: RemoteFuture[Any]) -> Carrier | None:
        """Wait until another thread has settled a future, or given it back; return its carrier, None without one."""
        while not future.settled and future._carrier is self:
            self.wait_for(future, None)
        return None if future.settled else future._carrier

    # -- in ------------------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        me = get_ident()
        leads = self._reader == me  # called by a callback that this same thread runs while it reads
        if self._is_full:
            self.write()
        try:
            while not future.settled:
                if future._carrier is not self and future._carrier is not None:
                    break  # given back; it leaves by another connection
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
        return True

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
        while self._reading._is_owned():  # type: ignore[attr-defined]  # see `_release_reading`; in place for speed
            self._reading.release()
        if self._followers or self._watched or self._event_loop is not None:
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
        waiter = Waiter()
        future.block(waiter)
        self._followers.append(waiter)
        try:
            # Looked at again now that others can see us: see RemoteFuture.settle and _hand_over.
            if not future.settled and self._reader:
                waiter.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            future.unblock(waiter)
            if waiter in self._followers:
                self._followers.remove(waiter)
        return deadline is None or time.monotonic() < deadline

    def _hand_over(self) -> None:
        """Wake a follower or start background watching, so that another one reads when this thread stops."""
        if self._followers and not self._reader:
            with contextlib.suppress(IndexError):  # it left by itself
                self._followers[0].wake()
        if self._watched and self._loop is None:
            self._watch_soon()
        event_loop = self._event_loop
        if event_loop is not None and self._awaited:
            with contextlib.suppress(RuntimeError):  # it is closed
                event_loop.loop.call_soon_threadsafe(self._resume, event_loop)

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
            self._was_read = True
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
            future.settle(None)
            if self._watched or self._awaited:
                self._unwatch(future)
            return
        if kind == _RESULT and not flags:  # a value and nothing else to know, as most others
            try:
                value = loads(frames[0][HEADER_BYTES:], frames[1:])
            except Exception as error:
                self._settle(future, None, unreadable(error, future.method))
            else:
                future.settle(value)
                if self._watched or self._awaited:
                    self._unwatch(future)
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
            self._names_changed = True  # the names are in the answer, but so is what must not be unpickled
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
        self._tell(pack(Kind.RECEIVED, 0, 0, call_id))

    def names_changed(self) -> bool:
        """See `actor_ref.CallPath.names_changed`."""
        self.look()
        if self._pending:
            return True  # one of these calls may change them
        changed, self._names_changed = self._names_changed, False
        return changed

    def _settle(
        self, future: RemoteFuture[Any], value: Any, error: BaseException | None = None, *, cancelled: bool = False
    ) -> None:
        future.settle(value, error, cancelled=cancelled)
        self._unwatch(future)

    def _unwatch(self, future: RemoteFuture[Any]) -> None:
        self._watched.discard(future)
        self._awaited.discard(future)

    def _lose(self) -> None:
        """Fail all pending calls, and refuse later ones: the actor will not answer any more."""
        with self._sending:  # what another thread is sending either counts as sent, or meets the loss
            self._is_lost = True
            unsent, self._unsent = self._unsent, None
            if unsent is not None and self._pending.pop(unsent[1].call_id, None) is None:
                unsent = None  # it was cancelled
        pending = self._pending
        if unsent is not None and self._outbox is not None:
            self._unwatch(unsent[1])
            self._outbox.give_back(*unsent)  # the actor has not got it whole
        running = ""
        for call_id in list(pending):
            found = pending.pop(call_id, None)  # another thread may be doing the same
            future = None if found is None else found()
            if future is not None:
                running = running or future.method  # calls run in order, so it was the oldest
                self._settle(future, None, self._make_lost(running))

    # -- the background ------------------------------------------------------------------------------------------

    def watch(self, future: RemoteFuture[Any]) -> None:
        """See `Carrier.watch`."""
        self._watched.add(future)
        if future.settled:
            self._watched.discard(future)
        elif self._loop is None:
            self._watch_soon()

    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """See `Carrier.await_in`."""
        event_loop = self._event_loop
        if event_loop is None and not self._is_lost:
            event_loop = EventLoopReader(loop, self._channel.fileno(), self._read_in_event_loop)
            try:
                event_loop.resume()
            except (OSError, ValueError, NotImplementedError):  # no descriptors, closed, a loop that cannot do it
                event_loop = None
            else:
                self._event_loop = event_loop
        elif event_loop is not None and event_loop.loop is not loop and event_loop.loop.is_closed():
            self._event_loop = None
            return self.await_in(loop, future)
        if event_loop is None or event_loop.loop is not loop:
            return self.watch(future)
        self._awaited.add(future)
        if future.settled:
            self._awaited.discard(future)
        self._resume(event_loop)
        return None

    def _resume(self, event_loop: EventLoopReader) -> None:
        """Have an event loop read, unless another thread does, which then hands over."""
        if self._is_lost:
            self._lose_in_background()
        elif self._awaited and not self._reader:
            event_loop.resume()
            if self.has_read_ahead():
                event_loop.loop.call_soon(self._read_in_event_loop)

    def _read_in_event_loop(self) -> None:
        """Settle answers for a moment, in the thread of an event loop."""
        event_loop = self._event_loop
        if event_loop is None:
            return
        if self._reader or not self._awaited or not self._reading.acquire(blocking=False):
            event_loop.pause()  # another thread leads and will hand over, or the answers are for others
            if self._reader:
                return
            self._resume(event_loop)  # it has just left
            return
        self._reader = get_ident()
        until = time.monotonic() + _TURN_S
        is_more = True
        try:
            while is_more and (self._arrived or self._awaited) and time.monotonic() < until:
                is_more = self._take_one()
        except (ChannelClosed, RemoteProtocolError):
            self._is_lost = True
            event_loop.pause()
            self._lose_in_background()
            is_more = False
        finally:
            self._reader = 0
            self._release_reading()
        if is_more and (self._arrived or self._awaited):
            event_loop.loop.call_soon(self._read_in_event_loop)
        if self._followers:
            self._hand_over()

    def _take_one(self) -> bool:
        """Settle one answer without waiting; return False if there is none."""
        arrived = self._arrived
        if not arrived:
            try:
                arrived.extend(self._receive_all(0.0))
            except ResultTimeout:
                return False
            self._was_read = True
        self._dispatch(arrived.popleft())
        return True

    def _lose_in_background(self) -> None:
        """Fail all calls in the background, because the cause may have to be waited for."""
        self._background().call_soon(self._lose)

    def tend(self) -> None:
        """Read answers from time to time although no thread waits for them, or the actor would wait to write them."""
        if not self._tended_s:
            self._tended_s = _TEND_S
            loop = self._background()
            loop.call_soon(partial(loop.call_later, _TEND_S, self._look_after))

    def _look_after(self) -> None:
        if self._is_lost or not self._pending:
            self._tended_s = 0.0
            if not self._pending or self._is_lost:  # looked at again: `tend` may not have seen it
                return
            self._tended_s = _TEND_S
        self._tended_s = _TEND_S if self._reader or self._was_read else self._until_next_look()
        self._was_read = False
        self._background().call_later(self._tended_s, self._look_after)

    def _until_next_look(self) -> float:
        """Read the answers that have arrived; return when to do so again, sooner the more there were."""
        try:
            descriptor = self._channel.fileno()
            has_input = bool(wait_for_input([descriptor], 0))
            has_many = has_input and waiting_bytes(descriptor) >= _MANY_BYTES
        except (OSError, ValueError):  # closed a moment ago
            has_input = has_many = True
        if has_input:
            self.look()
            return _TEND_SOON_S if has_many else _TEND_AGAIN_S
        return min(2 * self._tended_s, _LONGEST_TEND_S)

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

    def abandon(self, error: Callable[[], BaseException]) -> None:
        """See `known_actors.ActorConnection`."""
        leave_to_parent([future for one in self._pending.values() if (future := one()) is not None], error)

    def hang_up(self) -> None:
        """Close the connection: answers that have arrived are handed over, other calls get the error of `lost`.

        The news of an actor's end may come before the last answers of the actor are read.
        """
        loop, event_loop = self._loop, self._event_loop
        if loop is not None:
            loop.call_soon(self._stop_watching)
        if event_loop is not None:
            event_loop.close()
        self.look()  # if another thread reads, it meets the end itself
        self._channel.close()
        self.look()
        if loop is not None:  # a thread that read during both looks left it to the loop, which stops to watch
            loop.call_soon(self.look)
        if self._is_writing and self._end_writing is not None:
            self._background().call_soon(self._end_writing)
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

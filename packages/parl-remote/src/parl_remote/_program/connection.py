"""The caller's end of a connection to one actor: sends calls, and matches results to them by number.

any thread --send--> channel.post, which does not wait; what the socket does not take goes out from the background
message    --take_message--> the future of its number, in whichever thread reads: see `answer_reader`
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
from parl_remote._data.calls import Call
from parl_remote._data.large_frames import TICKETS, Sharing
from parl_remote._data.object_memory import reading_from
from parl_remote._data.serialize import loads
from parl_remote._future import Carrier, RemoteFuture, leave_to_parent
from parl_remote._links.call_messages import HEADER_BYTES, Flag, Kind, header_of, pack, payload_of
from parl_remote._links.loop import Loop, WritableSource
from parl_remote._program.answer_reader import UNSENT, AnswerReader
from parl_remote._program.outbox import Outbox
from parl_remote._system.interrupts import interruptible, is_by_handler, undisturbed
from parl_remote._system.shortage import is_shortage
from parl_remote._transport import Buffer, Channel, CutMessage
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import (
    ChannelClosed,
    RemoteError,
    RemoteProtocolError,
)

if TYPE_CHECKING:
    from parl_remote._program.object_transfer import Delivery, NodeObjects

__all__ = ["Connection", "OwnConnection"]


_EMPTY = int(Flag.EMPTY)
_RESULT = int(Kind.RESULT)
_CREATE = int(Kind.CREATE)
_SHARES = int(Flag.SHARES)
_HANDLES = int(Flag.HANDLES)
_STATE = int(Kind.STATE)
_REFUSED = int(Kind.REFUSED)
_MOST_CALLS = 2**32
_FULL_POLL_S = 0.002  # between looks at a channel that does not tell when it can be written to
_weak = weakref.ref


class Connection(AnswerReader):
    """The calls of this process to one actor.

    Args:
        channel: The channel to the actor; the connection owns it.
        background: Returns the loop that reads for futures that no thread waits for in `wait_for`.
        lost: Makes the error for a call that will not be answered, from the name of the method that was running when
            the actor was lost, empty for calls that come later; may wait for the cause.
        on_names: Called with the names of the actor's attributes when they have changed.
        objects: Returns the transfers of `put` values to the actor's node; called where memory cannot be shared with
            it.
        ended: Returns whether the actor has ended; called when its node does not answer, and may wait for the report.
        refused: Called with the reason why the actor does not take this connection.
        closed: Called when a call met the loss of the actor; must not wait. See `outbox.CallPath.report_loss`.
        shares_memory: Whether the actor and this process can share memory, for large frames.

    Attributes:
        outbox: See `outbox.CallPath`.
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
        shares_memory: bool = False,
    ) -> None:
        super().__init__(channel, background)
        if isinstance(channel, UnixChannel):
            channel.cut_messages()
        self._on_closed = closed
        self._objects = objects
        self._has_ended = ended
        self._on_refused = refused
        self._shares_memory = shares_memory
        self._sharing: Sharing | None = None  # from the first large frames on: most connections have none
        self._make_lost = lost
        self._on_names = on_names
        self._numbers = itertools.count(1)
        self._sending = threading.RLock()  # a finalizer may call the actor while this thread is in here
        self.outbox: Outbox | None = None
        self._is_writing = False  # from the background
        self._end_writing: Callable[[], None] | None = None
        self._unsent: tuple[Call, RemoteFuture[Any]] | None = None  # the call of which the channel has the rest
        self._is_unfrozen = False  # there is no memory for a copy of that call: the thread that sends it waits
        self._delivery: Delivery | None = None  # of values to the actor's node, ahead of calls that refer to them
        self._notices: deque[list[Buffer]] = deque()  # messages without an answer, for when the channel takes them
        self.is_read_out = threading.Event()
        self._on_state: Callable[[Sequence[memoryview]], None] | None = None

    # -- out -----------------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> RemoteFuture[Any]:
        """Send a call that comes before all others: that of the constructor.

        Raises:
            ChannelClosed: The actor is gone.
        """
        future: RemoteFuture[Any] = RemoteFuture(None, call.owner, call.method)
        if not self._shares_memory and type(call.owner) is tuple and self._objects is not None:
            self._delivery_there().transfer(call.owner)
        self.send(call, future)
        return future

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        """Send a call; see `outbox.CallPath`.

        Raises:
            ChannelClosed: The actor is gone, and the call did not reach it.
            ClusterUnreachable: A value that the call refers to cannot be transferred to the actor's node.
            MemoryError: The actor does not take the call now, and there is no memory to keep it.
        """
        if self._sending._is_owned():  # type: ignore[attr-defined]  # not in its stub
            self._is_full = True  # a finalizer or handler calls in the middle of a send; it leaves after that
        if self._is_full or (self._delivery is not None and self._delivery.is_under_way):
            return False
        kind, flags, index, payload, _, owner, _ = call
        call_id = next(self._numbers) % _MOST_CALLS
        if self._shares_memory:
            frames = pack(kind, flags | _SHARES if kind == _CREATE else flags, index, call_id, payload)
            if len(frames) > 1:
                frames = self._shared().to_shared_memory(frames)
        elif type(owner) is tuple and self._objects is not None and not self._delivery_there().is_done(owner, future):
            return False
        else:
            frames = pack(kind, flags, index, call_id, payload)
        is_kept = True
        try:
            with self._sending:
                if self._is_lost:
                    raise ChannelClosed("the connection to the actor is closed")
                # Since this thread looked above; only one call may wait here.
                if self._is_full or (self._delivery is not None and self._delivery.is_under_way):
                    self._take_back(frames)
                    return False
                former = future._carrier
                future._call_id = call_id
                self._pending[call_id] = _weak(future)
                future._carrier = self
                try:
                    if not self._channel.post(frames):
                        self._is_full = True
                        is_kept = self._keep(call, future, frames)
                except BaseException:
                    self._pending.pop(call_id, None)  # answers to earlier calls may still be there to be read
                    future._carrier = former
                    self._take_back(frames)
                    raise
        finally:
            if self._is_full:
                self._write_soon()
        if not is_kept:
            try:
                self._await_sent(call, future, frames)
            except ChannelClosed:
                future._carrier = former
                raise
        if self._watched and self._channel.pending():  # read ahead while sending; nothing else would wake the loop
            self._background().call_soon(self.look)
        return True

    def _take_back(self, frames: list[Buffer]) -> None:
        """Free the shared memory of a message of which nothing has been sent."""
        if self._sharing is not None:
            self._sharing.take_back(frames)

    def _keep(self, call: Call, future: RemoteFuture[Any], frames: list[Buffer]) -> bool:
        """Freeze a call that the channel has the rest of, or forget it if there is no memory for that.

        Returns:
            False if there is no memory and a part of it has left, so that the caller has to `_await_sent`.

        Raises:
            MemoryError: It is forgotten.
        """
        try:
            self._freeze(call, future, frames)
        except MemoryError:
            if self._channel.withdraw(frames):
                raise
            self._unsent = call, future
            self._is_unfrozen = True
            return False
        return True

    def _freeze(self, call: Call, future: RemoteFuture[Any], frames: list[Buffer]) -> None:
        """Freeze a call in one copy for the channel and for the case that the actor is lost before it has it whole."""
        frozen = call.frozen()
        if frozen is not call:
            if self._shares_memory:  # most of it is there
                self._channel.freeze()
            else:
                buffers = frozen.payload[1:]
                self._channel.freeze([*frames[: len(frames) - len(buffers)], *buffers])
        self._unsent = frozen, future
        self._is_unfrozen = False

    def _await_sent(self, call: Call, future: RemoteFuture[Any], frames: list[Buffer]) -> None:
        """Wait until a call has left, or there is memory for it: its caller may change its arguments from then on.

        Raises:
            ChannelClosed: The actor was lost before it had the call.
        """
        try:
            while True:
                with self._sending, contextlib.suppress(MemoryError):
                    if self._unsent is None or self._unsent[1] is not future:
                        return
                    if self._is_lost:
                        self._unsent, self._is_unfrozen = None, False
                        raise ChannelClosed("the connection to the actor is closed")
                    self._freeze(call, future, frames)
                    return
                with interruptible:
                    time.sleep(_FULL_POLL_S)
                self.write()
                self.look()
        except BaseException:
            if self._is_unfrozen:  # a handler has raised, and nothing can follow half a call
                self._channel.close()
            raise

    def is_sending_here(self) -> bool:
        """Return whether this thread is within `send`, interrupted by a signal handler or a finalizer."""
        return bool(self._sending._is_owned())  # type: ignore[attr-defined]  # as in `send`

    def is_full(self) -> bool:
        """Return whether the channel cannot take a call now."""
        return self._is_full or (self._delivery is not None and self._delivery.is_under_way)

    def report_loss(self) -> None:
        """Report the loss of the connection, and read the actor's last answers in the background."""
        self._on_closed()
        with contextlib.suppress(RuntimeError):  # no thread can be started any more
            self._background().call_soon(self.look)  # the actor may have told why it does not take this connection

    def _tell(self, frames: list[Buffer]) -> None:
        """Send a message that has no answer, without waiting."""
        if self._sending._is_owned():  # type: ignore[attr-defined]  # as in `send`
            self._is_full = True
        with self._sending, contextlib.suppress(ChannelClosed):  # then it is not needed any more
            if self._is_full:
                self._notices.append(frames)
            elif not self._channel.post(frames):
                self._is_full = True
        if self._is_full:
            self._write_soon()

    def write(self) -> None:
        """Write as much as the channel takes of the messages that it did not take before."""
        if self._sending._is_owned():  # type: ignore[attr-defined]  # as in `send`
            return
        with self._sending:
            if not self._is_full:
                return
            try:
                is_full = not self._channel.flush()
                if not is_full:
                    self._unsent, self._is_unfrozen = None, False
                while self._notices and not is_full:
                    is_full = not self._channel.post(self._notices.popleft())
            except ChannelClosed:
                return  # the thread that reads notices this as well
            if is_full:
                return
            self._is_full = False
        if self.outbox is not None:
            self.outbox.on_writable()

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
        self._watched.add(UNSENT)
        if self._loop is None:
            self._start_watching()
        writable: WritableSource | None = None

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
            self._watched.discard(UNSENT)
            if self._is_full and not self._is_lost:  # filled again since
                self._write_soon()

        self._end_writing = write
        if isinstance(self._channel, UnixChannel):
            with contextlib.suppress(OSError, ValueError):  # no descriptor is left, or it is closed
                writable = WritableSource(self._channel.fileno())
                loop.add(writable, write)
                return
        loop.call_later(_FULL_POLL_S, write)

    def _shared(self) -> Sharing:
        """Return the shared memory of this connection, made now if it is the first time."""
        with self._sending:
            if self._sharing is None:
                self._sharing = Sharing()
            return self._sharing

    def _delivery_there(self) -> Delivery:
        """Return the transfers of values to the actor's node, with which no memory is shared."""
        if self._delivery is None:
            assert self._objects is not None  # the callers have checked this
            delivery = self._objects().delivery(
                has_ended=self._has_ended, lost=self._make_lost, on_ready=self._on_delivered
            )
            if self._delivery is None:  # else another thread was quicker
                self._delivery = delivery
        return self._delivery

    def _on_delivered(self) -> None:
        if self.outbox is not None:
            self.outbox.on_writable()

    def keep_states(self, on_state: Callable[[Sequence[memoryview]], None]) -> None:
        """Pass the states that the actor saves to `on_state` as soon as they arrive, also while no call is waiting."""
        self._on_state = on_state
        self.watch(RemoteFuture(self))  # this future is never settled, so the connection stays watched

    def read_out(self, timeout_s: float) -> None:
        """Read the messages that the actor sent before it ended; a restart begins with the last state it saved.

        Args:
            timeout_s: The time to wait for another thread that is reading.
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
        flags = _SHARES if self._shares_memory else 0
        self._channel.send(pack(Kind.JOIN, flags, 0 if holds else 1, 0))

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled unless its result has arrived, and notify the actor."""
        if self._pending.pop(future._call_id, None) is None:
            carrier = self._settling(future)
            return future.cancelled() if carrier is None else carrier.cancel(future)
        self._settle(future, None, cancelled=True)
        self._tell(pack(Kind.CANCEL, 0, 0, future._call_id))
        return True

    def _settling(self, future: RemoteFuture[Any]) -> Carrier | None:
        """Wait until another thread has settled a future, or given it back; return its carrier, None without one."""
        while not future._settled and future._carrier is self:
            self.wait_for(future, None)
        return None if future._settled else future._carrier

    # -- in ------------------------------------------------------------------------------------------------------

    def take_message(self, frames: list[memoryview]) -> None:
        """Settle the future of an answer, or handle another message of the actor."""
        if type(frames) is CutMessage:
            self._take_cut(frames)
            return
        kind, flags, _, call_id = header_of(frames[0])
        pending = self._pending.get(call_id)
        future = None if pending is None else pending()
        if future is not None:
            try:
                del self._pending[call_id]
            except KeyError:  # another thread has just cancelled it
                pending = future = None
        if pending is None or future is None:
            self._pending.pop(call_id, None)
            try:
                frames, flags = self._from_shared_memory(frames, flags)
            except (OSError, MemoryError) as error:  # no call needs this message
                if not is_shortage(error):
                    raise
            self._take_unasked(kind, flags, call_id, frames)
            return
        try:
            if kind == _RESULT and flags == _EMPTY:  # the usual result of a call for its effect: None
                future._settle(None)
            elif kind == _RESULT and not flags:  # the usual result of other calls: a value alone
                try:
                    with undisturbed:
                        value = loads(frames[0][HEADER_BYTES:], frames[1:])
                except BaseException as error:
                    future._settle(None, unreadable(error, future.method))
                    if is_by_handler(error):
                        raise
                else:
                    future._settle(value)
            else:
                self._take_answer(future, flags, call_id, frames)
        except (ChannelClosed, RemoteProtocolError):
            if not future._settled:
                self._pending[call_id] = pending  # it fails with all others
            raise
        except Exception as error:  # no memory, or no descriptor
            if future._settled:  # or of a signal that has insisted
                raise
            future._settle(None, unreadable(error, future.method))
        finally:
            if (self._watched or self._awaited) and future._settled:
                self._unwatch(future)

    def _take_cut(self, message: CutMessage) -> None:
        """Settle the future of an answer for which there is no memory with that error."""
        kind, flags, _, call_id = header_of(message[0])
        if self._shares_memory:
            self._shared().discard(message)
        if kind == _STATE:
            if self._on_state is not None:
                self._on_state(message)
            return
        if flags & _HANDLES:
            self._confirm(call_id, wanted=False)
        pending = self._pending.pop(call_id, None)
        future = None if pending is None else pending()
        if future is not None:
            self._settle(future, None, unreadable(message.shortage, future.method))

    def _from_shared_memory(self, frames: list[memoryview], flags: int) -> tuple[list[memoryview], int]:
        """Return a message and its flags as they were before large frames went into shared memory."""
        if flags & TICKETS and self._shares_memory:
            return self._shared().from_shared_memory(frames), flags & ~TICKETS
        return frames, flags

    def _take_answer(self, future: RemoteFuture[Any], flags: int, call_id: int, frames: list[memoryview]) -> None:
        """Settle a future with an answer that `take_message` does not read itself."""
        if flags & TICKETS:
            frames, flags = self._from_shared_memory(frames, flags)
        try:
            with undisturbed:
                if flags & _HANDLES:
                    with reading_from(None if self._shares_memory or self._objects is None else self._objects()):
                        answer = read_answer(frames, future.method)
                else:
                    answer = read_answer(frames, future.method)
        except RemoteProtocolError:
            raise
        except BaseException as error:  # such as an exit, of a user's class
            if flags & _HANDLES:
                self._confirm(call_id, wanted=False)
            future._settle(None, unreadable(error, future.method))
            if is_by_handler(error):
                raise
            return
        if flags & _HANDLES:
            self._confirm(call_id)
        if answer.names is not None:
            self._on_names(answer.names)
        future._settle(answer.value, answer.error, cancelled=answer.cancelled)

    def _take_unasked(self, kind: int, flags: int, call_id: int, frames: list[memoryview]) -> None:
        """Handle an unexpected message: the answer to a cancelled call or a dropped future, or a notification."""
        if kind == _STATE:
            if self._on_state is not None:
                self._on_state(frames)
        elif kind == _REFUSED:
            self._on_refused(bytes(payload_of(flags, frames)[0]).decode(errors="replace"))
        elif flags & _HANDLES:
            self._confirm(call_id, wanted=False)

    def _confirm(self, call_id: int, *, wanted: bool = True) -> None:
        """Confirm that the handles in an answer are connected, so that the actor that sent them may release them."""
        self._tell(pack(Kind.RECEIVED, 0, 0 if wanted else 1, call_id))

    def lose(self) -> None:
        """Fail all pending calls, and refuse later ones: the actor will not answer any more."""
        with self._sending:  # what another thread is sending either counts as sent, or meets the loss
            self._is_lost = True
            if self._is_unfrozen and self._unsent is not None:  # the thread that sends it sees that
                self._pending.pop(self._unsent[1]._call_id, None)
                unsent = None
            else:
                unsent, self._unsent = self._unsent, None
            if unsent is not None and self._pending.pop(unsent[1]._call_id, None) is None:
                unsent = None  # it was cancelled
        pending = self._pending
        if unsent is not None and self.outbox is not None:
            self._unwatch(unsent[1])
            self.outbox.give_back(*unsent)  # the actor has not got it whole
        running = ""
        for call_id in list(pending):
            found = pending.pop(call_id, None)  # another thread may be doing the same
            future = None if found is None else found()
            if future is not None:
                running = running or future.method  # calls run in order, so it was the oldest
                self._settle(future, None, self._make_lost(running))
        # nothing more comes: waiting for saved states would occupy the background thread for ever
        self._watched.clear()
        if self._loop is not None:
            self._stop_watching()

    # -- the end -------------------------------------------------------------------------------------------------

    def abandon(self, error: Callable[[], BaseException]) -> None:
        """Leave the calls in flight to the parent, in the child of a fork.

        Args:
            error: Returns the error of a call there.
        """
        leave_to_parent([future for one in self._pending.values() if (future := one()) is not None], error)

    def hang_up(self) -> None:
        """Close the connection: answers that have arrived are handed over, other calls get the error of `lost`.

        The news of an actor's end may come before the last answers of the actor are read.
        """
        loop, event_loop = self._loop, self._event_loop
        if loop is not None:
            loop.call_soon(self._stop_watching)
        self.look()  # if another thread reads, it meets the end itself
        self._channel.close()
        self.look()
        if event_loop is not None:  # closed last, so that its tasks learn of an end that both looks have missed
            event_loop.close(then=lambda: self._resume(event_loop))
        if loop is not None:  # a thread that read during both looks leaves the end to this loop, which stops watching
            loop.call_soon(self.look)
        if self._is_writing and self._end_writing is not None:
            self._background().call_soon(self._end_writing)
        if self._shares_memory:
            self._shared().close()  # made if missing: one that a call is just making would stay with this connection


class OwnConnection(Connection):
    """A connection whose `wait_for` refuses to wait for a call that cannot start."""

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Wait until the future is settled, unless its call can never start.

        Raises:
            RemoteError: The awaited call cannot start before the waiting one has ended.
        """
        in_the_way = threading.current_thread() is threading.main_thread()  # threads of max_concurrency are not
        if in_the_way and timeout_s is None and not future._settled:
            raise RemoteError(
                f"an actor waits in a method for its own {future.method}(), which starts when that method has ended: "
                "call the method of `self`, do not wait for the result, or give the class max_concurrency=2"
            )
        super().wait_for(future, timeout_s)

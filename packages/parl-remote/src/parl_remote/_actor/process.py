"""The loop of one actor's process: reads calls from its callers, runs them in order, writes the replies.

    worker  --CONFIGURE (environment, log file, ...)-->+
    caller  --CREATE, CALL, ... ----------------------->| one epoll, one queue, one thread
    caller  <--replies, coalesced ----------------------+

The loop does not wait for a caller. If a caller does not read its answers, a thread writes them, and the caller's
further calls are set aside until then. So an actor that runs one call at a time does not fill its memory with answers.

Once its object has been made, an actor that runs several calls at a time leaves this loop for those of `runners`, which
read and write through the same process.

The process ends when the actor has no more holders (see `state`; calls sent before CLOSE are run first), when the
worker's connection closes, or when it is killed. All its threads belong to the user's code, except those of its own
connection to the cluster, which it opens when it first makes or holds other actors.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import logging
import math
import os
import socket
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from parl_remote import _connect, _current
from parl_remote._actor.host import ActorHost, Concurrency, ConcurrencyMode, HoldingReply, flush_output
from parl_remote._actor.reports import ExitReport, allow_stack_dumps, begin_recording, recording_wanted
from parl_remote._actor.runners import ConcurrentServing, Job, ThreadServing
from parl_remote._actor.state import ActorState, Holders
from parl_remote._data import object_memory
from parl_remote._data.answers import traceback_of
from parl_remote._data.large_frames import TICKETS, Sharing
from parl_remote._links.call_messages import HEADER_BYTES, Flag, Kind, header_of, pack, payload_of, refusal_of
from parl_remote._options import RECORD_VARIABLE
from parl_remote._streams import close_streams, close_unwanted, read_by
from parl_remote._system import processes
from parl_remote._system.facilities import IN, BusyPoll, Waker, is_portable, is_raised_by_handler, new_poller
from parl_remote._system.processes import limit_numeric_threads
from parl_remote._system.shortage import is_shortage, shortage_of, start_daemon
from parl_remote._transport import Buffer, CutMessage, abandoned_in_children, allocate, copied
from parl_remote._transport.sealed import Handover, SealedChannel
from parl_remote._transport.unix import Acceptor, Listening, UnixChannel
from parl_remote.errors import ChannelClosed, DeathKind, RemoteProtocolError

if TYPE_CHECKING:
    import asyncio


__all__ = ["ActorProcess", "FlushTimer", "Outbox", "run_actor"]


_MOMENT_S = 0.002  # seconds for a caller to read its answers; the longest time for which it can delay other callers
_LOOK_AGAIN_S = 1.0  # at a channel that another thread may have closed
_HOLD_S = 0.001  # longer than sixty quick calls take, too short to be noticed


class Outbox:
    """The replies to one caller that are not written yet. Its owner adds; its owner and the flush timer flush.

    No flush waits long: if the caller does not read, a thread writes the replies while the actor serves other callers.
    Nothing is written to a caller that is gone; the thread that reads from it detects that.

    Args:
        channel: The channel to the caller.
        on_caught_up: Called in any thread when a caller has read everything after it had fallen behind.

    Attributes:
        held: The replies that the next `flush` writes.
        guarded: Whether the flush timer will flush it.
        is_full: Whether the caller has not read everything that was sent to it.
    """

    __slots__ = ("_channel", "_lock", "_on_caught_up", "guarded", "held", "is_full")

    def __init__(self, channel: UnixChannel, on_caught_up: Callable[[], None]) -> None:
        self._channel = channel
        self._on_caught_up = on_caught_up
        self.held: deque[list[Buffer]] = deque()
        self.guarded = False
        self.is_full = False
        self._lock = threading.Lock()  # keeps the order of replies if both flush

    def add(self, reply: list[Buffer], *, leaves_now: bool = False) -> None:
        """Buffer a reply; copy it unless a flush comes before the object can change it, or flush it if it must."""
        try:
            self.held.append(reply if leaves_now or len(reply) == 1 else [*map(copied, reply)])
        except MemoryError:
            self.held.append(reply)
            self.flush()

    def flush(self) -> None:
        """Write the buffered replies, or let a thread write them when the caller reads them.

        Without memory for those that the caller does not read now, it waits until the caller reads them.
        """
        while True:
            try:
                return self._flush()
            except MemoryError:
                self.wait()
                time.sleep(_HOLD_S)

    def _flush(self) -> None:
        with self._lock:
            if self.is_full:
                if self.held:  # the last one may be memory that the object is about to change
                    self.held[-1] = [*map(copied, self.held[-1])]
                return
            try:
                if self._post():
                    return
                self.is_full = True
                self.is_full = not self._await_reader()
                self._freeze()
            except ChannelClosed:
                self._drop()
        if not self.is_full:
            self._on_caught_up()
            return
        try:
            start_daemon(self._write_rest, "parl-rest")
        except RuntimeError:  # the limit of threads: others have to wait
            self._write_rest()

    def _post(self) -> bool:
        """Pass the buffered replies to the channel; return whether the caller has read them."""
        held = self.held
        count = len(held)
        if not count:
            return True
        is_read = self._channel.post(held[0], [held[at] for at in range(1, count)] if count > 1 else ())
        for _ in range(count):  # not before: there may be no memory to send them
            held.popleft()
        return is_read

    def _await_reader(self) -> bool:
        """Wait a moment for a caller that is about to read, because that costs less than a thread."""
        until = time.perf_counter() + _MOMENT_S
        while (left_s := until - time.perf_counter()) > 0:
            self._channel.wait_writable(left_s)
            if self._channel.flush():
                return True
        return False

    def _freeze(self) -> None:
        """Copy the rest of the reply that was written last, which the object may change from now on.

        Without memory for a copy, the rest is written first.
        """
        while self.is_full:
            try:
                self._channel.freeze()
                return
            except MemoryError:
                self._channel.wait_writable(_LOOK_AGAIN_S)
                self.is_full = not self._channel.flush()

    def _write_rest(self) -> None:
        """Write until the caller has read everything or is gone; its owner detects the latter."""
        while self.is_full:
            self._channel.wait_writable(_LOOK_AGAIN_S)
            with self._lock:
                try:
                    if self._channel.flush():
                        self.is_full = not self._post()
                        self._freeze()
                except ChannelClosed:
                    self._drop()
                except MemoryError:  # there may be some later, see `flush`
                    time.sleep(_HOLD_S)
        self._on_caught_up()

    def _drop(self) -> None:
        """Drop the buffered replies: the caller is gone."""
        self.is_full = False
        self.held.clear()

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until the caller has read everything or is gone, or until the timeout."""
        until = time.monotonic() + timeout_s
        while self.is_full and time.monotonic() < until:
            time.sleep(_HOLD_S)


class FlushTimer:
    """A timer thread that flushes the outboxes of owners that are busy with a call."""

    def __init__(self) -> None:
        self._posts: deque[Outbox] = deque()
        self._idle = True
        self._started = False

    def guard(self, outbox: Outbox) -> None:
        """Ensure that the replies in `outbox` are flushed within a millisecond."""
        if outbox.guarded:
            return
        outbox.guarded = True
        self._posts.append(outbox)
        if self._idle:
            self._idle = False
            if not self._started:
                self._started = True
                self._bell = threading.Semaphore(0)  # most actors never need it
                start_daemon(self._watch, "parl-replies")
            self._bell.release()

    def _watch(self) -> None:
        while True:
            self._bell.acquire()
            while self._posts:
                time.sleep(_HOLD_S)
                for _ in range(len(self._posts)):
                    outbox = self._posts.popleft()
                    outbox.guarded = False  # before the flush: replies added from now on need another round
                    outbox.flush()
                if not self._posts:
                    self._idle = True  # and look once more: `guard` may not have seen it


_log = logging.getLogger("parl.remote")
_CREATE, _CANCEL, _CLOSE, _CONFIGURE = int(Kind.CREATE), int(Kind.CANCEL), int(Kind.CLOSE), int(Kind.CONFIGURE)
_HOLD, _RELEASE, _JOIN, _RECEIVED = int(Kind.HOLD), int(Kind.RELEASE), int(Kind.JOIN), int(Kind.RECEIVED)
_RECORD = int(Kind.RECORD)
_CALL, _CALLER = int(Kind.CALL), int(Kind.CALLER)
_SHARES = int(Flag.SHARES)
_AT_ONCE = frozenset({_CANCEL, _HOLD, _RELEASE, _JOIN, _RECEIVED, _CALLER, _RECORD})  # the others wait in the queue
_LIFECYCLE = frozenset({_CONFIGURE, _CREATE, _CLOSE})  # the others are for the object
_OF_WORKER = frozenset({_CONFIGURE, _HOLD, _RELEASE, _CALLER, _RECORD})
_MOST_HELD = 64  # replies per write: enough to make the write cheap, few enough to keep the caller busy
_PARTING_S = 1.0  # seconds for a caller that has released the actor to read its last answer
_OWNER_AND_WORKER = 2  # connections; where there are no others, the answer uses the connection that the state used
_SLOW_S = 0.001  # a call that took longer gave its caller time to cancel what is queued behind it


class _Caller:
    """One connection and its buffered replies."""

    __slots__ = (
        "_sent",
        "aside",
        "channel",
        "has_joined",
        "is_gone",
        "on_their_way",
        "outbox",
        "sharing",
        "supervises",
    )

    def __init__(self, channel: UnixChannel, sent: Callable[[_Caller], None], on_caught_up: Callable[[], None]) -> None:
        self.channel = channel
        self._sent = sent
        self.outbox = Outbox(channel, on_caught_up)
        self.aside: deque[list[memoryview]] = deque()  # requests that wait until it takes its answers
        self.sharing: Sharing | None = None
        self.supervises = False
        self.has_joined = False
        # the referents of references in answers to this caller, by call
        self.on_their_way: dict[int, list[object]] = {}
        self.is_gone = False

    def answer(self, reply: list[Buffer], *, leaves_now: bool = False) -> None:
        """Buffer a reply until the next flush; copy it unless the flush comes before the object can change it."""
        if type(reply) is HoldingReply:
            self.on_their_way[reply.call_id] = reply.references
            read_by(self, reply.references)
            if self.is_gone:  # checked after that, because the caller may disconnect at this moment
                self.release()
        if self.is_gone:
            return
        if self.sharing is not None and len(reply) > 1:
            try:
                reply = self.sharing.to_shared_memory(reply)
            except (OSError, MemoryError) as error:  # it goes through the socket as a whole
                if not is_shortage(error):
                    raise
        self.outbox.add(reply, leaves_now=leaves_now)

    def release(self) -> None:
        """Release the references that the caller had or was about to get."""
        self.on_their_way.clear()
        close_streams(self)

    def flush(self) -> None:
        """Trigger the sending of the buffered replies; for runners of several calls."""
        self._sent(self)

    def opened(self, frames: list[memoryview]) -> list[memoryview]:
        """Return a received message with its frames in shared memory resolved."""
        header = frames[0]
        flags = header[1]
        if flags & _SHARES and header[0] == _CREATE:
            self.sharing = Sharing()
        return self.sharing.from_shared_memory(frames) if flags & TICKETS and self.sharing is not None else frames


class ActorProcess:
    """Serves one host to its callers.

    Args:
        listening: The socket that callers connect to.
        host: Runs the calls.
    """

    def __init__(self, listening: Listening, host: ActorHost) -> None:
        self._acceptor = Acceptor(listening, refusal_of)
        self._host = host
        host.construct = self._construct
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._serving: ConcurrentServing | None = None
        self.poller = new_poller()
        self.poller.register(self._acceptor.fileno(), IN)
        self._callers: dict[int, _Caller] = {}
        self._holders = Holders()
        host.on_state = self._send_state
        host.on_early_run = self.flush_all
        self._owner: _Caller | None = None
        self._worker: _Caller | None = None
        self._queue: deque[tuple[_Caller, list[memoryview]]] = deque()
        self._cancelled: set[tuple[_Caller, int]] = set()  # calls in the queue
        # Handles of a lost actor may connect here before the restarting owner has sent the constructor's arguments.
        self._early: list[tuple[_Caller, list[memoryview]]] = []
        self._flush_timer = FlushTimer()
        self._most_held = _MOST_HELD
        self._caught_up: Waker | None = None  # woken when a caller takes answers again
        self._leaving = False  # ends this loop, for good or in favour of another one
        self.over = False
        self.has_time = False
        abandoned_in_children(self)

    def abandon(self) -> None:
        """Stop serving, in a child that the user's code has forked; the channels to callers close themselves."""
        self._acceptor.close()
        self.poller.close()
        self._host.become_copy()
        if self._asyncio is not None:  # the calls that run on it are the parent's: the child's first wait ends it
            for part, end in (("_selector", "close"), ("_ready", "clear")):
                getattr(getattr(self._asyncio, part, None), end, lambda: None)()

    def run(self) -> None:
        """Serve until the process is to end."""
        busy, is_awaited = BusyPoll(self.poller), False
        while not self._leaving:
            try:
                ready = (busy.poll() if is_awaited else ()) or self.poller.poll()
            except Exception as error:
                _survive(error)
                continue
            for fd, _ in ready:
                self._on_readable(fd)
            is_awaited = len(self._queue) == 1  # then its caller probably waits for the answer
            self._work()
        if self._serving is not None:
            self._hand_to_runner()
            self._serving.serve()
            self.flush_all()
        for caller in self._callers.values():
            caller.outbox.wait(_PARTING_S)

    def send_exit_report(self) -> None:
        """Report to the worker that the end is regular, and its cause."""
        for caller in self._callers.values():
            if caller.supervises:
                self._host.exit_report.send(caller.channel)

    def _on_readable(self, fd: int) -> None:
        if fd in self._callers:
            self._read(self._callers[fd])
        elif fd == self._acceptor.fileno():
            self._accept()
        elif self._caught_up is not None:
            self._caught_up.clear()
            for caller in self._callers.values():
                if not caller.outbox.is_full:
                    self._resume(caller)

    def _set_aside(self, caller: _Caller, frames: list[memoryview]) -> bool:
        """Keep a message of a caller that does not read its answers, and return True; return False for other callers.

        So for a stopped or slow caller, the actor keeps only the answers to calls that had begun, or that a runner of
        several calls had taken before; `max_pending_calls` limits their number.
        """
        if caller.is_gone or not (caller.outbox.is_full or caller.aside):
            return False
        if self._caught_up is None:
            self._caught_up = Waker()
            self.poller.register(self._caught_up.fileno(), IN)
        caller.aside.append(frames)
        if not caller.outbox.is_full:  # looked at again now that `_on_caught_up` can wake the poller
            self._caught_up.wake()
        return True

    def _resume(self, caller: _Caller) -> None:
        """Queue the messages that were set aside, before those that the caller has sent since."""
        while caller.aside:
            self._queue.appendleft((caller, caller.aside.pop()))

    def _on_caught_up(self) -> None:
        if self._caught_up is not None:
            self._caught_up.wake()

    def _accept(self) -> None:
        """Accept all connections that are waiting."""
        for connection in self._acceptor.waiting():
            channel = UnixChannel(connection, allocate=allocate)
            if self._worker is None and hasattr(socket, "SCM_RIGHTS"):
                channel.descriptors = deque()  # if it is the worker's, descriptors arrive with its messages
            self._add(channel)

    def _add(self, channel: UnixChannel) -> None:
        channel.cut_messages()
        caller = _Caller(channel, self._sent, self._on_caught_up)
        self._callers[channel.fileno()] = caller
        self._holders.connected(caller)
        self.poller.register(channel.fileno(), IN)

    def _read(self, caller: _Caller) -> None:
        """Queue the messages of a caller."""
        try:
            for frames in caller.channel.receive_ready():
                if type(frames) is CutMessage:
                    if caller.sharing is not None:
                        caller.sharing.discard(frames)
                    self._refuse(caller, frames, frames.shortage)
                    continue
                if len(frames[0]) < HEADER_BYTES:
                    raise RemoteProtocolError(f"a frame of {len(frames[0])} bytes is too short for a call")
                kind = frames[0][0]
                if kind == _CALL and not frames[0][1] & TICKETS:  # the usual case: a plain call
                    self._queue.append((caller, frames))
                    continue
                if kind in _OF_WORKER:
                    self._check_worker(caller, kind)
                if kind in _AT_ONCE:
                    self._do_at_once(caller, frames)
                else:
                    self._take(caller, frames)
        except (ChannelClosed, RemoteProtocolError) as error:
            _log.debug("a caller is gone: %s", error)
            self._forget(caller)

    def _take(self, caller: _Caller, frames: list[memoryview]) -> None:
        """Queue a message; if there is no memory or descriptor for its frames, answer it with that error."""
        try:
            self._queue.append((caller, caller.opened(frames)))
        except (OSError, MemoryError) as error:
            if not is_shortage(error):
                raise
            self._refuse(caller, frames, error)

    def _refuse(self, caller: _Caller, frames: list[memoryview], shortage: BaseException) -> None:
        """Answer a call that cannot be received with the reason; end if it is the constructor's."""
        kind, _, _, number = header_of(frames[0])
        if kind == _CREATE:
            self._end_for_shortage(shortage)
        elif kind in _AT_ONCE or kind in _LIFECYCLE:
            raise RemoteProtocolError(f"a message of kind {kind} cannot be received: {shortage}")
        else:
            caller.outbox.held.append(self._host.refuse(shortage, number))
            caller.outbox.flush()

    def _end_for_shortage(self, error: BaseException) -> None:
        """End before the object is made, because a resource is missing; the worker reports the cause."""
        self._host.exit_report = _could_not_start(error)
        self._end()

    def _check_worker(self, caller: _Caller, kind: int) -> None:
        """Check that a message reserved for the worker comes from the worker.

        Raises:
            RemoteProtocolError: It comes from another caller.
        """
        if self._worker is None:
            self._worker = caller  # no other process knows of this one before the worker has configured it
            for other in self._callers.values():
                if other is not caller:  # it was accepted at the same time; reading in this way costs twice as much
                    other.channel.descriptors = None
        elif self._worker is not caller:
            raise RemoteProtocolError(f"only the worker may send a message of kind {kind}")

    def _disconnect_caller(self, caller: _Caller, error: Exception) -> None:
        """Disconnect a caller that broke the protocol; if it is the owner, end the actor."""
        _log.error("disconnected a caller: %s", error)
        if caller is self._owner or self._owner is None:
            self._end()
        else:
            self._forget(caller)

    def _forget(self, caller: _Caller) -> None:
        if self._callers.pop(caller.channel.fileno(), None) is None:
            return
        self.poller.unregister(caller.channel.fileno())
        caller.channel.close()
        if caller.supervises:
            os._exit(0)  # the worker is gone, and with it every possible caller of this actor
        if self._serving is not None:
            self._serving.runner.forget(caller)
        caller.is_gone = True
        self._resume(caller)
        caller.release()
        self._holders.left(caller, closed=False)
        self._end_if_unneeded()

    def _do_at_once(self, caller: _Caller, frames: list[memoryview]) -> None:
        kind, flags, index, number = header_of(frames[0])
        if kind == _CANCEL:
            self._cancel(caller, frames)
        elif kind == _RECEIVED:
            references = caller.on_their_way.pop(number, ())
            if index:
                close_unwanted(references)
        elif kind == _HOLD:
            self._holders.expect()
        elif kind == _RELEASE:
            self._holders.stop_expecting()
            self._end_if_unneeded()
        elif kind == _CALLER:
            self._take_over(caller, frames)
        elif kind == _RECORD:
            with contextlib.suppress(OSError):
                recording_wanted(self._host, frames)
        else:
            caller.has_joined = True
            if flags & Flag.SHARES:
                caller.sharing = Sharing()
            if index:
                self._holders.exclude(caller)
                self._end_if_unneeded()

    def _take_over(self, worker: _Caller, frames: list[memoryview]) -> None:
        """Serve a caller on another host, whose connection the worker has passed on.

        Raises:
            RemoteProtocolError: The message is malformed.
        """
        if not worker.channel.descriptors:  # the kernel has closed it, and the caller sees that
            _log.error("a caller on another host is refused: there is no descriptor left for its connection")
            return
        connection = socket.socket(fileno=worker.channel.descriptors.popleft())
        try:
            state = Handover.decode(payload_of(header_of(frames[0])[1], frames)[0])
            self._add(SealedChannel(connection, state, allocate=allocate))
        except (OSError, MemoryError) as error:
            if not is_shortage(error):
                raise
            _log.error("a caller on another host is refused: %s", shortage_of(error))
            connection.close()

    def _close(self, caller: _Caller, frames: list[memoryview]) -> None:
        """Release a caller that no longer needs the actor; its calls are done, and no answer to it is pending."""
        if header_of(frames[0])[2] and caller in {self._owner, self._worker}:  # also if others hold a handle
            if caller is self._owner:
                self._host.exit_report = ExitReport(DeathKind.CLIENT_GONE)
            self.has_time = caller is self._worker
            self._end()
            return
        self.flush_all()
        self._holders.left(caller, closed=True)
        self._end_if_unneeded()
        if not self.over:
            self._forget(caller)

    def _end_if_unneeded(self) -> None:
        if self.over or not self._holders.is_abandoned:
            return
        self._accept()  # a connection may be waiting, or be announced by the worker
        for other in list(self._callers.values()):
            if other.supervises:
                self._read(other)
        if self._holders.is_abandoned:
            self._end()

    def _send_state(self, frames: list[Buffer]) -> None:
        """Send a saved state to the owner, before the answer to the caller whose call changed it."""
        owner = self._owner
        if owner is not None and owner.channel.fileno() in self._callers:
            # Not through shared memory, which cannot be opened once this process has died.
            owner.outbox.add(frames)
            if len(self._callers) > _OWNER_AND_WORKER or self._serving is not None:
                owner.outbox.flush()
                owner.outbox.wait()  # answers that this process still buffers are lost with it

    def _cancel(self, caller: _Caller, frames: list[memoryview]) -> None:
        """Drop a call that has not started, or cancel a coroutine; any other call is answered as usual."""
        call_id = header_of(frames[0])[3]
        if self._queue or caller.aside:
            # dropped when its turn comes: searching the queue would take too long
            self._cancelled.add((caller, call_id))
        if self._serving is not None:
            self._serving.runner.cancel(caller, call_id)

    def _drop_if_cancelled(self, caller: _Caller, frames: list[memoryview]) -> bool:
        """Answer a call that was cancelled before it started; return whether it was."""
        call_id = header_of(frames[0])[3]
        if (caller, call_id) not in self._cancelled:
            return False
        self._cancelled.discard((caller, call_id))
        caller.outbox.held.append(pack(Kind.FAILURE, Flag.CANCELLED, 0, call_id))
        return True

    def _forget_cancelled(self) -> None:
        if self._cancelled and not self._queue and not any(caller.aside for caller in self._callers.values()):
            self._cancelled.clear()  # the rest had been answered, or begun, when they were cancelled

    def _work(self) -> None:
        """Run the queued calls; replies of quick calls are sent together."""
        queue = self._queue
        while queue and not self._leaving:
            caller, frames = queue.popleft()
            if (caller.outbox.is_full or caller.aside) and self._set_aside(caller, frames):
                continue
            started = time.perf_counter()
            kind = frames[0][0]
            if self._cancelled and self._drop_if_cancelled(caller, frames):
                pass
            elif kind in _LIFECYCLE:
                self._on_lifecycle(caller, frames, kind)
            elif self._owner is not None:
                try:
                    caller.answer(self._host.handle(frames), leaves_now=not queue)
                except RemoteProtocolError as error:
                    self._disconnect_caller(caller, error)
            elif caller.has_joined:
                self._early.append((caller, frames))
            else:
                self._disconnect_caller(caller, _unexpected(kind))
            del frames  # its memory may belong to the caller, which reuses it
            took_s = time.perf_counter() - started
            if not queue or took_s > _SLOW_S or len(caller.outbox.held) >= self._most_held:
                self.flush_all()
            else:
                self._flush_timer.guard(caller.outbox)
            if took_s > _SLOW_S:
                for other in list(self._callers.values()):
                    self._read(other)
                self._host.meter.waiting(len(queue))
        # Else an asynchronous actor has just been made, and its loop continues with the queue.
        if self._cancelled:
            self._forget_cancelled()
        if self._host.meter.has_waiting:
            self._host.meter.waiting(0)
        if self._leaving:
            self.flush_all()

    def _on_lifecycle(self, caller: _Caller, frames: list[memoryview], kind: int) -> None:
        """Process a message that begins the actor's life or ends a caller's use of it."""
        if kind == _CLOSE:
            self._close(caller, frames)
        elif kind == _CONFIGURE:
            self._configure(caller, frames)
        elif self._owner is None:
            self._create(caller, frames)
        else:
            self._disconnect_caller(caller, _unexpected(kind))

    def _configure(self, worker: _Caller, frames: list[memoryview]) -> None:
        worker.supervises = True
        self._holders.exclude(worker)
        try:
            self._holders.is_kept = configure(frames, self._host)
        except (OSError, MemoryError) as error:
            if not is_shortage(error):
                raise
            self._end_for_shortage(error)

    def _create(self, caller: _Caller, frames: list[memoryview]) -> None:
        self._owner = caller
        self._queue.extendleft(reversed(self._early))
        self._early.clear()
        try:
            caller.answer(self._host.handle(frames), leaves_now=not self._queue)
        except RemoteProtocolError as error:
            self._disconnect_caller(caller, error)
            return
        if self._host.machine.state is ActorState.CLOSED:
            self.send_exit_report()  # before the caller can hear of it and have this process killed
            self._end()
        elif self._host.concurrency.how is not ConcurrencyMode.SERIAL:
            self._leave_for_concurrency()
        elif self._host.sends_at_once:
            self._most_held = 1

    def _end(self) -> None:
        self.over = self._leaving = True

    # -- several calls at a time, see `runners` -----------------------------------------------------------

    def _construct(self, concurrency: Concurrency, make: Callable[[], object]) -> object:
        if concurrency.how is not ConcurrencyMode.LOOP:
            return make()
        from parl_remote._actor.loop_runner import construct_on, new_loop

        self._asyncio = new_loop()
        return construct_on(self._asyncio, make)

    def _leave_for_concurrency(self) -> None:
        if self._asyncio is not None:
            from parl_remote._actor.loop_runner import LoopServing

            self._serving = LoopServing(self, self._host, self._host.concurrency.limit, self._asyncio)
        else:
            self._serving = ThreadServing(self, self._host, self._host.concurrency.limit)
        self._leaving = True

    def take_in(self, timeout_s: float | None) -> None:
        """Read messages that have arrived, waiting up to `timeout_s`, and pass them to the runner."""
        try:
            ready = self.poller.poll(timeout_s)
        except Exception as error:
            _survive(error)
            return
        for fd, _ in ready:
            self._on_readable(fd)
        self._hand_to_runner()

    def _sent(self, caller: _Caller) -> None:
        if self._serving is not None and not self._serving.defers_flush():
            caller.outbox.flush()

    def _hand_to_runner(self) -> None:
        serving, queue = self._serving, self._queue
        while queue and serving is not None and not self.over:
            caller, frames = queue.popleft()
            if self._set_aside(caller, frames):
                continue
            kind = frames[0][0]
            if kind in _LIFECYCLE:
                self._on_lifecycle(caller, frames, kind)
            elif not self._cancelled or not self._drop_if_cancelled(caller, frames):
                try:
                    serving.runner.take(Job(self._host.accept(frames), caller))
                except RemoteProtocolError as error:
                    self._disconnect_caller(caller, error)
        self._forget_cancelled()

    def flush_all(self) -> None:
        """Write all buffered replies that their callers can read now."""
        for caller in tuple(self._callers.values()):
            if caller.outbox.held:
                caller.outbox.flush()  # after that of the flush timer, if there is one


def _survive(error: Exception) -> None:
    """Log what the handler of a signal has raised while no call was running, such as an alarm that came too late."""
    if not is_raised_by_handler(error):
        raise error
    _log.error("a signal's handler raised an exception while no call was running\n%s", traceback_of(error))


def _unexpected(kind: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"no message of kind {kind} may come now")


def configure(frames: list[memoryview], host: ActorHost) -> bool:
    """Configure the process for its lease: log file, environment, directory, thread counts, access to its cluster.

    Returns:
        Whether the actor lives without holders.
    """
    settings = json.loads(bytes(payload_of(header_of(frames[0])[1], frames)[0]))
    processes.redirect_output(settings["log"])
    processes.set_name(f"parl:{settings['class_name']}")
    limit_numeric_threads(settings["threads"])
    os.environ.update(settings["environment"])  # after that, because the program's own thread counts win
    if folder := os.environ.pop(RECORD_VARIABLE, ""):
        from parl_remote._actor import journal

        try:
            journal.begin(host, folder, settings["class_name"], settings.get("lease_id", ""))
        except OSError as error:
            _log.warning("cannot keep a journal in %s: %s", folder, error)
    if settings["working_dir"]:
        try:
            os.chdir(settings["working_dir"])
        except OSError as error:
            _log.warning("cannot change to the directory %s: %s", settings["working_dir"], error)
    if settings["calls"] != host.page:
        try:
            _publish_calls(host, settings["calls"])
        except OSError as error:
            _log.warning("this actor's call statistics are not visible: %s", error)
    if settings.get("record"):
        with contextlib.suppress(OSError):
            begin_recording(host, **settings["record"])
    if settings.get("cluster"):
        reach, lease_id, name = settings["cluster"], settings["lease_id"], settings["class_name"]

        def connect() -> _current.ActorMaker:
            return _connect.open_in_actor(reach, lease_id, name)

        _current.connect_when_needed(connect)
    return bool(settings.get("detached"))


def _publish_calls(host: ActorHost, path: str) -> None:
    host.meter.publish(path)
    allow_stack_dumps(path)
    host.page = path


def _could_not_start(error: BaseException) -> ExitReport:
    return ExitReport(DeathKind.EXIT, f"its host could not start it ({shortage_of(error)})")


def _refuse_worker(listening: Listening, error: BaseException) -> int:
    """Report the cause of this process's end to a worker that has leased it already; return the exit status."""
    listening.setblocking(False)
    try:
        connection, _ = listening.accept()
    except OSError:  # it has none, or there is no descriptor for the connection
        listening.close()  # so that the worker takes another process from now on
        return 1
    _could_not_start(error).send(UnixChannel(connection))
    return 0


_STDERR = 2

# Others may wait for this actor's resources. A drained actor has ten seconds as well.
_CHILDREN_S = 5.0  # seconds for children to finish
_USERS_CODE_S = 5.0  # seconds after that for exit handlers, `__del__` and other code of the user that runs at the end


@contextlib.contextmanager
def _limited(report: Callable[[], None]) -> Iterator[None]:
    """End this process although its children or the user's code, which runs within, do not end in time.

    Args:
        report: Reports that the end is regular.
    """
    process = sys.modules.get("multiprocessing.process")
    children = [] if process is None else process.active_children()
    is_over = threading.Event()

    def end() -> None:
        if is_over.wait(_CHILDREN_S):
            return
        for child in children:  # `multiprocessing` waits for them
            with contextlib.suppress(ValueError, OSError):  # an exit handler has closed it
                child.kill()
        if is_over.wait(_USERS_CODE_S):
            return
        try:
            with contextlib.suppress(OSError):  # not by logging or a stream, whose lock the user's code may hold
                os.write(_STDERR, b"the process is ended, because its exit handlers take too long; they are here:\n")
            faulthandler.dump_traceback(_STDERR)
            report()
        finally:
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # no thread can be had
        start_daemon(end, "parl-end")
    try:
        yield
    finally:
        is_over.set()


def run_actor(listening: Listening, parent: int) -> None:
    """Run as an actor's process, from just after the fork to its end; never returns.

    Args:
        listening: The socket that callers connect to.
        parent: The zygote's process id.
    """
    code = 1
    own = os.getpid()
    try:
        processes.die_with_parent(parent)
        processes.reset_signals()
        os.environ["XPARL"] = "True"
        _current.become_actor()
        if not object_memory.has_directory():  # the zygote has set it for all its actors
            object_memory.set_directory(os.path.dirname(listening.getsockname()))
        sys.modules["__main__"] = types.ModuleType("__main__")  # the zygote's own is meaningless to the user's code
        host = ActorHost()
        if not is_portable():  # nobody waits for this process yet; if it fails, it is tried again in `configure`
            with contextlib.suppress(OSError):
                _publish_calls(host, f"{listening.getsockname().removesuffix('.sock')}.calls")
        try:
            process = ActorProcess(listening, host)
        except (OSError, MemoryError) as error:
            if is_shortage(error):
                code = _refuse_worker(listening, error)
            raise
        _current.when_ending(process.send_exit_report)
        process.run()
        with _limited(process.send_exit_report):
            close_streams()
            host.drop_instance()
        client = _current.clear()
        if client is not None:
            client.close()  # and with it the actors that this one has made; it sends the rest of the calls to others
        with _limited(process.send_exit_report):
            atexit._run_exitfuncs()
            flush_output()  # before the report: a process that has sent it may be killed at once
            process.send_exit_report()
        code = 0
    except BaseException as error:
        if os.getpid() != own:
            error.add_note("(a process that a method has forked cannot await anything in the actor's event loop)")
        sys.excepthook(*sys.exc_info())
    finally:
        flush_output()
        os._exit(code)

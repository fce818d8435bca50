"""The loop of one actor's process: reads calls from its callers, runs them in order, writes the replies.

    worker  --CONFIGURE (environment, log file, ...)-->+
    caller  --CREATE, CALL, ... ----------------------->| one epoll, one queue, one thread
    caller  <--replies, coalesced ----------------------+

It ends when a caller says CLOSE (after everything that was sent before), when the worker's connection closes, and of
course when it is killed. All threads of the process belong to the user's code.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import socket
import sys
import time
import types
from collections import deque

from parl_remote import current, processes
from parl_remote.actor_host import ActorHost
from parl_remote.actor_state import ActorState
from parl_remote.call_messages import Flag, Kind, header_of, pack, payload_of
from parl_remote.errors import ChannelClosed, RemoteProtocolError
from parl_remote.memory import allocate
from parl_remote.replies import Outbox, Watchman
from parl_remote.sharing import TICKETS, Sharing
from parl_remote.thread_counts import limit_numeric_threads
from parl_remote.transport import Buffer
from parl_remote.transport_unix import UnixChannel, peer_uid

__all__ = ["ActorProcess", "run_actor"]

_log = logging.getLogger("parl.remote")
_CREATE, _CANCEL, _CLOSE, _CONFIGURE = int(Kind.CREATE), int(Kind.CANCEL), int(Kind.CLOSE), int(Kind.CONFIGURE)
_MOST_HELD = 64  # replies that leave together: enough to make the write cheap, few enough to keep the caller busy
_SLOW_S = 0.001  # a call that took longer gave its caller time to cancel what is queued behind it


class _Caller:
    """One connection and the replies that are not written yet."""

    __slots__ = ("channel", "outbox", "sharing", "supervises")

    def __init__(self, channel: UnixChannel) -> None:
        self.channel = channel
        self.outbox = Outbox(channel)
        self.sharing: Sharing | None = None
        self.supervises = False

    def answer(self, reply: list[Buffer]) -> None:
        """Keep a reply until the next flush."""
        self.outbox.add(reply if self.sharing is None or len(reply) == 1 else self.sharing.stow(reply))

    def opened(self, frames: list[memoryview]) -> list[memoryview]:
        """A message as it was sent, its large frames found."""
        kind, flags = frames[0][:2]
        if kind == _CREATE and flags & Flag.SHARES:
            self.sharing = Sharing()
        return self.sharing.unstow(frames) if flags & TICKETS and self.sharing is not None else frames


class ActorProcess:
    """Serves one host to its callers.

    Args:
        listening: The socket that callers connect to.
        host: What runs the calls.
    """

    def __init__(self, listening: socket.socket, host: ActorHost) -> None:
        self._listening = listening
        self._listening.setblocking(False)
        self._host = host
        self._poller = select.epoll()
        self._poller.register(listening.fileno(), select.EPOLLIN)
        self._callers: dict[int, _Caller] = {}
        self._queue: deque[tuple[_Caller, list[memoryview]]] = deque()
        self._watchman = Watchman()
        self._over = False

    def run(self) -> None:
        """Serve until the end."""
        listening = self._listening.fileno()
        while not self._over:
            for fd, _ in self._poller.poll():
                if fd == listening:
                    self._accept()
                else:
                    self._read(self._callers[fd])
            self._work()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listening.accept()
            if peer_uid(connection) != os.getuid():
                connection.close()
                return
            caller = _Caller(UnixChannel(connection, allocate=allocate))
            self._callers[caller.channel.fileno()] = caller
            self._poller.register(caller.channel.fileno(), select.EPOLLIN)

    def _read(self, caller: _Caller) -> None:
        """Queue what a caller has sent."""
        try:
            for frames in caller.channel.receive_ready():
                if frames[0][0] == _CANCEL:
                    self._cancel(caller, frames)
                else:
                    self._queue.append((caller, caller.opened(frames)))
        except (ChannelClosed, RemoteProtocolError, IndexError) as error:
            _log.debug("a caller is gone: %s", error)
            self._forget(caller)

    def _forget(self, caller: _Caller) -> None:
        if self._callers.pop(caller.channel.fileno(), None) is None:
            return
        self._poller.unregister(caller.channel.fileno())
        caller.channel.close()
        if caller.supervises:
            os._exit(0)  # the worker is gone, and with it everyone who could use this actor

    def _cancel(self, caller: _Caller, frames: list[memoryview]) -> None:
        """Drop a call that has not started; one that has is answered as usual."""
        call_id = header_of(frames[0])[3]
        for waiting in self._queue:
            if waiting[0] is caller and header_of(waiting[1][0])[3] == call_id:
                self._queue.remove(waiting)
                caller.outbox.add(pack(Kind.FAILURE, Flag.CANCELLED, 0, call_id))
                self._flush()
                return

    def _work(self) -> None:
        """Run what is queued; replies of quick calls go out together."""
        queue = self._queue
        while queue and not self._over:
            caller, frames = queue.popleft()
            started = time.perf_counter()
            self._serve(caller, frames)
            del frames  # its memory may be the caller's, who uses it again
            took_s = time.perf_counter() - started
            if not queue or took_s > _SLOW_S or len(caller.outbox.held) >= _MOST_HELD:
                self._flush()
            else:
                self._watchman.guard(caller.outbox)
            if took_s > _SLOW_S:
                for other in list(self._callers.values()):
                    self._read(other)
        if self._over:
            self._flush()

    def _serve(self, caller: _Caller, frames: list[memoryview]) -> None:
        kind = frames[0][0]
        if kind == _CLOSE:
            self._over = True
        elif kind == _CONFIGURE:
            caller.supervises = True
            configure(frames)
        else:
            try:
                caller.answer(self._host.handle(frames))
            except RemoteProtocolError as error:
                _log.error("%s", error)
                self._over = True
            if self._host.machine.state is ActorState.CLOSED:
                self._over = True

    def _flush(self) -> None:
        for caller in [caller for caller in self._callers.values() if caller.outbox.held]:
            try:
                caller.outbox.flush()
            except ChannelClosed:
                self._forget(caller)
            else:
                if caller.channel.has_read_ahead:
                    self._read(caller)


def configure(frames: list[memoryview]) -> None:
    """Make the process fit the lease: log file, environment, directory, number of threads."""
    settings = json.loads(bytes(payload_of(header_of(frames[0])[1], frames)[0]))
    processes.redirect_output(settings["log"])
    processes.set_name(f"parl:{settings['class_name']}")
    os.environ.update(settings["environment"])
    if settings["working_dir"]:
        try:
            os.chdir(settings["working_dir"])
        except OSError as error:
            _log.warning("cannot work in %s: %s", settings["working_dir"], error)
    limit_numeric_threads(settings["threads"])


def run_actor(listening: socket.socket, parent: int) -> None:
    """Be an actor's process, from just after the fork to its end; never returns.

    Args:
        listening: The socket that callers connect to.
        parent: The zygote's process number.
    """
    code = 1
    try:
        processes.die_with_parent(parent)
        processes.reset_signals()
        os.environ["XPARL"] = "True"
        current.become_actor()
        sys.modules["__main__"] = types.ModuleType("__main__")  # the zygote's own means nothing to the user's code
        host = ActorHost()
        ActorProcess(listening, host).run()
        host.drop_instance()
        atexit._run_exitfuncs()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

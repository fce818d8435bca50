"""Calls that wait for futures among their arguments, and the later calls of the same caller behind them.

    b.g(a.f())    submit --a future is not settled--> HeldCalls.hold
    b.h(1)        submit ------------------------------> behind it, so that the order stays
                                     the future settles --> g is sent, then h; then calls go straight to the actor again

Nobody waits for that: whoever reads the future's answer sends what it was waited for. It stands where the way to the
actor stood (`actor_ref.CallPath`) and, for calls that are held, where it will stand (`future.Carrier`).
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from parl_remote.errors import ResultTimeout
from parl_remote.future import RemoteFuture
from parl_remote.transport import Buffer

if TYPE_CHECKING:
    from parl_remote.program.actor_ref import CallPath

__all__ = ["HeldCalls"]


class _Held:
    """One call; no dataclass, because those cost every program that starts half a millisecond."""

    __slots__ = ("future", "send", "waits_for")

    def __init__(
        self,
        future: RemoteFuture[Any],
        waits_for: list[RemoteFuture[Any]],
        send: Callable[[CallPath, RemoteFuture[Any]], None],
    ) -> None:
        self.future = future
        self.waits_for = waits_for
        self.send = send


class HeldCalls:
    """The calls of this process to one actor that cannot be sent yet.

    Args:
        path: The way to the actor.
        on_empty: Called when nothing is held any more, perhaps more than once.
    """

    def __init__(self, path: CallPath, on_empty: Callable[[HeldCalls], None]) -> None:
        self.path = path
        self._on_empty = on_empty
        self._queue: deque[_Held] = deque()
        self._lock = threading.Condition(threading.Lock())
        self._sending = False  # somebody sends the first of the queue, outside the lock

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._queue

    def hold(
        self,
        method: str,
        futures: Sequence[RemoteFuture[Any]],
        send: Callable[[CallPath, RemoteFuture[Any]], None],
        owner: object,
    ) -> RemoteFuture[Any]:
        """Keep a call until `futures` are settled and those before it are sent.

        Args:
            method: What is called, for messages.
            futures: What it waits for.
            send: Sends it, so that the given future is settled with the answer; may raise what the future gets.
            owner: Kept alive until the answer is there.
        """
        future: RemoteFuture[Any] = RemoteFuture(self, owner)
        future.method = method
        waits_for = list(futures)
        with self._lock:
            self._queue.append(_Held(future, waits_for, send))
        for one in waits_for:
            one.add_done_callback(self._settled)
        self._advance()
        return future

    # -- actor_ref.CallPath --------------------------------------------------------------------------------------

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
        """Send a message after those that are held."""

        def send(path: CallPath, future: RemoteFuture[Any]) -> None:
            path.submit(kind, flags, index, payload, method, owner, future)

        with self._lock:
            if self._queue:
                waiting: RemoteFuture[Any] = RemoteFuture(self, owner) if future is None else future
                waiting.method = method
                self._queue.append(_Held(waiting, [], send))
                return waiting
        return self.path.submit(kind, flags, index, payload, method, owner, future)

    def names_changed(self) -> bool:
        """See `CallPath.names_changed`."""
        return self.path.names_changed()

    # -- future.Carrier ------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """See `Carrier.wait_for`; waits for what the calls before this one wait for, in their order."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not future.settled:
            carrier = future._carrier
            if carrier is not self and carrier is not None:
                return carrier.wait_for(future, _left(deadline))
            with self._lock:
                waits_for = list(self._queue[0].waits_for) if self._queue else []
            try:
                for one in waits_for:
                    one.exception(_left(deadline))
            except ResultTimeout:
                return False
            except concurrent.futures.CancelledError:
                pass
            self._advance()
            with self._lock:
                if self._sending and future._carrier is self:  # by another thread
                    self._lock.wait(_left(deadline))
            if deadline is not None and time.monotonic() >= deadline:
                return future.settled
        return True

    def look(self) -> None:
        """See `Carrier.look`."""
        with self._lock:
            waits_for = list(self._queue[0].waits_for) if self._queue else []
        if all(one.done() for one in waits_for):
            self._advance()

    def watch(self, future: RemoteFuture[Any]) -> None:
        """See `Carrier.watch`; what it waits for is watched, and the connection takes over with the rest."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """See `Carrier.cancel`."""
        with self._lock:
            for held in self._queue:
                if held.future is future and not (self._sending and held is self._queue[0]):
                    self._queue.remove(held)
                    break
            else:
                return False  # it is leaving this moment
        future.settle(None, cancelled=True)
        self._advance()
        return True

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _settled(self, _: object) -> None:
        self._advance()

    def _advance(self) -> None:
        """Send what does not have to wait any more."""
        while True:
            with self._lock:
                if self._sending or not self._queue:
                    break
                held = self._queue[0]
                if not all(one.settled for one in held.waits_for):
                    break
                self._sending = True
            try:
                self._send(held)
            finally:
                with self._lock:
                    self._queue.popleft()
                    self._sending = False
                    self._lock.notify_all()
        if self.is_empty:
            self._on_empty(self)

    def _send(self, held: _Held) -> None:
        """Send one call, or settle it with what went wrong. Outside the lock: settling runs callbacks of users."""
        future = held.future
        try:
            for one in held.waits_for:
                one.result()
            held.send(self.path, future)
        except concurrent.futures.CancelledError:
            future.settle(None, cancelled=True)
        except BaseException as error:
            if not future.settled:
                future.settle(None, error)
            if not isinstance(error, Exception):
                raise


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())

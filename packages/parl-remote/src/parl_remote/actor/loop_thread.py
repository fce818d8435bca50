"""An event loop in a thread of its own, for objects that live in a process with other things to do.

    any thread --take, cancel, forget-->  LoopRunner in the loop's thread  --answers from there-->

Actors' processes run theirs in the main thread instead, see `concurrent_serving`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from parl_remote.actor.host import ActorHost
from parl_remote.actor.loop_runner import LoopRunner, run_forever, wind_up
from parl_remote.actor.runners import Answerer, Job

__all__ = ["LoopThread"]


class LoopThread:
    """Fills `runners.Runner` from any thread; the thread does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: LoopRunner | None = None
        self._closing = False
        threading.Thread(target=self._live, name="parl-loop", daemon=True).start()

    def construct(self, make: Callable[[], object]) -> Any:
        """Run a constructor on the loop and wait for it.

        Raises:
            BaseException: Whatever it raised.
        """

        async def made() -> tuple[object, BaseException | None]:
            try:
                return make(), None
            except BaseException as error:  # SystemExit would end the loop
                return None, error

        instance, error = asyncio.run_coroutine_threadsafe(made(), self._loop).result()
        if error is not None:
            raise error
        return instance

    def serve(self, host: ActorHost, limit: int) -> None:
        """Run calls of this object from now on, at most `limit` at once."""
        self._calls = LoopRunner(host, limit, self._loop)

    def take(self, job: Job) -> None:
        """Start a call soon."""
        self._in_loop(lambda calls: calls.take(job))

    def cancel(self, caller: Answerer, call_id: int) -> None:
        """Drop or cancel a call."""
        self._in_loop(lambda calls: calls.cancel(caller, call_id))

    def forget(self, caller: Answerer) -> None:
        """Drop and cancel all calls of a caller."""
        self._in_loop(lambda calls: calls.forget(caller))

    def close(self) -> None:
        """Cancel what runs and end the thread, without waiting for it."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _in_loop(self, action: Callable[[LoopRunner], None]) -> None:
        calls = self._calls
        if calls is not None and not self._closing:
            self._loop.call_soon_threadsafe(action, calls)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        run_forever(self._loop, lambda: self._closing)
        wind_up(self._loop)

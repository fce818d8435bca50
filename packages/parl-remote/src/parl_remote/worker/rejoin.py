"""A worker that comes back: its link to a master on another host or in another process, made anew when it breaks.

    linked --connection lost--> knocking, every half second --the master answers--> linked, with what still runs
                                    | nothing runs, and nobody has answered for long
                                    v
                                 given up, as when the master says Bye

Actors go on meanwhile. Connecting blocks, so it is done on a thread that hands its result to the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from parl_remote.config import Limits
from parl_remote.links.loop import Loop
from parl_remote.messages import GpuUse, Message, NodeJoin
from parl_remote.transport import Channel
from parl_remote.worker.master_link import MasterLink

__all__ = ["RejoiningLink"]

_log = logging.getLogger("parl.remote")


class RejoiningLink:
    """The connections of a worker to its master, one after the other.

    Args:
        loop: The worker's loop.
        first: A fresh channel to the master.
        connect: Opens another one; called on another thread.
        joined: What the worker offers, with the leases that run now.
        on_message: Takes the master's messages about leases.
        on_end: Called once when the master said goodbye or was given up, with the reason.
        limits: Times.
        gpus: Says how busy the node's GPUs are.
    """

    def __init__(
        self,
        loop: Loop,
        first: Channel,
        *,
        connect: Callable[[], Channel],
        joined: Callable[[], NodeJoin],
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        limits: Limits,
        gpus: Callable[[], tuple[GpuUse, ...]] = tuple,
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._joined = joined
        self._on_message = on_message
        self._on_end = on_end
        self._limits = limits
        self._gpus = gpus
        self._lost_at = 0.0
        self._ended = False
        self._link: MasterLink | None = self._linked(first)

    def tell(self, message: Message) -> None:
        """Send a message; while there is no master it goes nowhere, and the next NodeJoin makes up for it."""
        if self._link is not None:
            self._link.tell(message)

    def close(self) -> None:
        """Say goodbye; `on_end` is not called."""
        self._ended = True
        if self._link is not None:
            self._link.close()

    def _linked(self, channel: Channel) -> MasterLink:
        return MasterLink(
            self._loop,
            channel,
            joined=self._joined,
            on_message=self._on_message,
            on_lost=self._lost,
            on_bye=self._end,
            limits=self._limits,
            gpus=self._gpus,
        )

    def _lost(self, reason: str) -> None:
        self._link = None
        if not self._ended:
            _log.warning("the master is gone: %s; actors go on, trying to reach it again", reason)
            self._lost_at = self._loop.now()
            self._knock_later()

    def _knock_later(self) -> None:
        thread = threading.Thread(target=self._knock, name="parl-rejoin", daemon=True)
        self._loop.call_later(self._limits.rejoin_interval_s, thread.start)

    def _knock(self) -> None:
        """Try once, on a thread of its own."""
        try:
            channel = self._connect()
        except Exception as error:  # a refused key as well: a relay whose target is away looks like one
            reason = str(error)
            self._loop.call_soon(lambda: self._nobody_there(reason))
        else:
            self._loop.call_soon(lambda: self._back(channel))

    def _back(self, channel: Channel) -> None:
        if self._ended:
            channel.close()
            return
        _log.warning("the master is there again")
        self._link = self._linked(channel)

    def _nobody_there(self, reason: str) -> None:
        away_s = self._loop.now() - self._lost_at
        if away_s > self._limits.rejoin_timeout_s and not self._joined().leases:
            self._end(f"the master has not answered for {away_s:.0f} s: {reason}")
        elif not self._ended:
            self._knock_later()

    def _end(self, reason: str) -> None:
        self._link = None
        if not self._ended:
            self._ended = True
            self._on_end(reason)

"""A worker's connection to its master, over any transport: Hello, NodeJoin, heartbeats, and the end.

    worker --Hello-->  master
           <-Welcome-
           --NodeJoin (its resources, its running leases), Heartbeat, LeaseEnded-->
           <-LeaseAssigned, LeaseRevoked, Heartbeat, Bye--

It never blocks, so that master and worker may share one loop. `RejoiningLink` comes back to a master on another host or
in another process when the connection breaks; connecting blocks, so a thread does it and hands its result to the loop:

    linked --connection lost--> trying, every half second --the master answers--> linked, with what still runs
                                    | nothing runs, and there was no answer for long
                                    v
                                 given up, as when the master says Bye
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from parl_remote._config import Limits
from parl_remote._links.identity import versions
from parl_remote._links.loop import Loop, SuspensionDetector, Timer
from parl_remote._messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Bye,
    GpuUse,
    Heartbeat,
    Hello,
    Message,
    NodeJoin,
    Refused,
    Role,
    Welcome,
)
from parl_remote._messages.wire import decode, encode
from parl_remote._system.host import HostLoad, host_memory, load_average
from parl_remote._transport import Channel
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout

__all__ = ["MasterLink", "RejoiningLink", "worker_hello"]


def worker_hello(joined: NodeJoin) -> Hello:
    """Return the Hello of a node's worker to the master."""
    return Hello(
        role=Role.WORKER,
        to=Role.MASTER,
        id=joined.node_id,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        host_id=joined.host_id,
        pid=os.getpid(),
        versions=versions(),
        name=joined.name,
    )


class MasterLink:
    """One connection of a worker to its master, until it is lost or closed.

    Args:
        loop: The worker's loop.
        channel: A fresh channel to the master; the link owns it from now on.
        joined: Returns the worker's resources and running leases.
        on_message: Called with the master's messages about leases.
        on_lost: Called once with the reason when the connection is lost or the master is silent for too long.
        on_bye: Called instead when the master ends the link on purpose; `on_lost` if None.
        limits: Times.
        gpus: Returns the utilization of the node's GPUs.
    """

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        *,
        joined: Callable[[], NodeJoin],
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
        on_bye: Callable[[str], None] | None = None,
        limits: Limits,
        gpus: Callable[[], tuple[GpuUse, ...]] = tuple,
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._joined = joined
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_bye = on_bye or on_lost
        self._limits = limits
        self._gpus = gpus
        self._heard = loop.now()
        self._pulse = SuspensionDetector(limits.heartbeat_interval_s, self._heard)
        self._beats = 0
        self._load = HostLoad()
        self._timer: Timer | None = None
        self._welcome = False
        self._over = False
        loop.add(channel, self._on_readable)
        self._send(worker_hello(joined()))
        self._beat()

    def tell(self, message: Message) -> None:
        """Send a message; before NodeJoin, which has all running leases, and after the end it is discarded."""
        if self._welcome:
            self._send(message)

    def close(self, reason: str = "the worker was stopped") -> None:
        """Close the link with a Bye; neither `on_lost` nor `on_bye` is called."""
        self._send(Bye(reason))
        self._end(None, reason)

    def _send(self, message: Message) -> None:
        if self._over:
            return
        try:
            self._channel.send([encode(message)], self._limits.linger_s)
        except (ChannelClosed, ResultTimeout) as error:
            self._end(self._on_lost, str(error))

    def _on_readable(self) -> None:
        try:
            while not self._over:
                message = decode(self._channel.receive(0.0)[0])
                self._heard = self._loop.now()
                self._take(message)
        except ResultTimeout:
            pass
        except (ChannelClosed, RemoteProtocolError) as error:
            self._end(self._on_lost, str(error))

    def _take(self, message: Message) -> None:
        match message:
            case Welcome():
                self._welcome = True
                self.tell(self._joined())
                self._tell_load()
            case Bye(reason=reason) | Refused(reason=reason):
                self._end(self._on_bye, reason)
            case Heartbeat():
                pass  # a sign of life, with no other effect
            case _:
                self._on_message(message)

    def _beat(self) -> None:
        if self._over:  # already: the Hello could not be sent
            return
        now = self._loop.now()
        if self._pulse.missed_s(now):
            self._heard = now  # the master's messages are still to be read
        silent_s = now - self._heard
        if silent_s > self._limits.liveness_limit_s:
            self._end(self._on_lost, f"the master gave no sign of life for {silent_s:.0f} s")
            return
        # Exactly at the limit, so that the last wait may be a short one.
        left_s = max(0.01, self._heard + self._limits.liveness_limit_s - self._loop.now() + 0.001)
        self._timer = self._loop.call_later(min(self._limits.heartbeat_interval_s, left_s), self._beat)
        if self._welcome:
            self._tell_load()

    def _tell_load(self) -> None:
        self._beats += 1
        memory = host_memory()
        self.tell(
            Heartbeat(
                self._beats,
                load_average(),
                memory.available,
                memory.total,
                cpu_busy=self._load.busy(),
                gpus=self._gpus(),
            )
        )

    def _end(self, tell: Callable[[str], None] | None, reason: str) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove(self._channel)
        self._channel.close()
        if tell is not None:
            tell(reason)


_log = logging.getLogger("parl.remote")


class RejoiningLink:
    """The successive connections of a worker to its master.

    Args:
        loop: The worker's loop.
        first: A fresh channel to the master.
        connect: Opens another channel; called on another thread.
        joined: Returns the worker's resources and running leases.
        on_message: Called with the master's messages about leases.
        on_end: Called once when the master ended the link or was given up, with the reason.
        limits: Times.
        gpus: Returns the utilization of the node's GPUs.
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
        """Send a message; without a master it is discarded, and the next NodeJoin makes up for it."""
        if self._link is not None:
            self._link.tell(message)

    def close(self) -> None:
        """Close the link with a Bye; `on_end` is not called."""
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
            _log.warning("the master is gone: %s; actors continue, trying to reconnect", reason)
            self._lost_at = self._loop.now()
            self._try_later()

    def _try_later(self) -> None:
        self._loop.call_later(self._limits.rejoin_interval_s, self._start_trying)

    def _start_trying(self) -> None:
        try:
            threading.Thread(target=self._try, name="parl-rejoin", daemon=True).start()
        except RuntimeError as error:  # there is no thread left
            self._master_is_away(str(error))

    def _try(self) -> None:
        """Try once to connect, on a thread of its own."""
        try:
            channel = self._connect()
        except Exception as error:  # a refused key as well: a relay whose target is away looks like one
            reason = str(error)
            self._loop.call_soon(lambda: self._master_is_away(reason))
        else:
            self._loop.call_soon(lambda: self._back(channel))

    def _back(self, channel: Channel) -> None:
        if self._ended:
            channel.close()
            return
        _log.warning("the master is back")
        self._link = self._linked(channel)

    def _master_is_away(self, reason: str) -> None:
        away_s = self._loop.now() - self._lost_at
        if away_s > self._limits.rejoin_timeout_s and not self._joined().leases:
            self._end(f"the master has not answered for {away_s:.0f} s: {reason}")
        elif not self._ended:
            self._try_later()

    def _end(self, reason: str) -> None:
        self._link = None
        if not self._ended:
            self._ended = True
            self._on_end(reason)

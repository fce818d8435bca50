"""A client's link to the master: requesting resources, signs of life, and coming back to a master that was restarted.

How resources are requested:

    lease() --LeaseRequest--> master --LeaseGranted | LeaseRefused--> lease() returns or raises

What happens when the connection breaks, on a cluster that may come back:

    linked --connection lost--> retrying, every half second --the master answers--> linked; pending requests are resent
                                    | no answer for long
                                    v
                                 given up: pending requests fail, and the next request tries once more
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from parl_remote._config import Limits
from parl_remote._links.handshake import ClientIdentity, Cluster, greet
from parl_remote._links.loop import Loop, SuspensionDetector
from parl_remote._links.requests import PendingAnswer, Requests, arrived_messages
from parl_remote._messages import (
    Bye,
    Heartbeat,
    LeaseCancel,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRelease,
    LeaseRequest,
    LeasesHeld,
    LeaseWanted,
    Message,
    RefusalCode,
    Role,
)
from parl_remote._messages.overview import ExplainWaiting, LeaseWaiting, NodeDraining
from parl_remote._messages.wire import encode
from parl_remote._options import ActorOptions
from parl_remote._resources import Placement, Resources
from parl_remote._system.interrupts import run_finalizers
from parl_remote._system.shortage import is_shortage
from parl_remote._transport import Channel
from parl_remote.errors import (
    CONNECTION_CLOSED,
    ActorLost,
    ChannelClosed,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    NameTaken,
    NoResources,
    NotConnected,
    RemoteError,
    ResultTimeout,
)

__all__ = ["MasterClient"]

_log = logging.getLogger("parl.remote")

_MASTER = "the master"
_AWAY_LOOK_S = 0.5  # interval in seconds at which a waiter past its deadline checks whether the master is away
_SLOT_WAIT_S = 0.1
_QUIET_WAIT_S = 3.0  # a request that waits longer than this logs the reason


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request for resources and the future that its sender waits for."""

    request: LeaseRequest
    answer: PendingAnswer[LeaseGranted]


class MasterClient:
    """One program's link to its master.

    Args:
        loop: The loop that listens to the master.
        cluster: The way to the master.
        identity: The identity of this program.
        address: The displayed address of the cluster.
        limits: Times.
        on_lost_lease: Called in the loop with each lease that ended and the cause.
        on_wanted_lease: Called in the loop with each lease that another client waits for.
        on_full: Called with the class of an actor that waits for resources, in the thread that makes it; frees some
            that this program can do without.
        when_needed: Whether the link is made on the first request, not now.

    Attributes:
        is_gone: Whether the master has announced its end, or has not returned in time.

    Raises:
        ClusterUnreachable: The master does not answer.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        identity: ClientIdentity,
        *,
        address: str,
        limits: Limits,
        on_lost_lease: Callable[[str, DeathCause], None],
        on_wanted_lease: Callable[[str], None],
        on_full: Callable[[str], None],
        when_needed: bool = False,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._identity = identity
        self._address = address
        self._limits = limits
        self._on_lost_lease = on_lost_lease
        self._on_wanted_lease = on_wanted_lease
        self._on_full = on_full
        self._requests = Requests()
        self._answers: dict[int, _Waiting] = {}
        self._held: dict[str, None] = {}  # leases, those included whose end the master has not told yet
        self._unsent_releases: list[LeaseRelease] = []  # to be sent to a master that is away
        self._lock = threading.RLock()  # a signal handler may make an actor while this thread does
        self._lost = ""
        self._away_since: float | None = None  # while it tries to reach the master again
        self._closed = False
        self.is_gone = False
        self._channel: Channel | None = None
        if when_needed:
            self._lost = "nothing was asked of it yet"
        else:
            self._channel = self._connect()
            self._listen(self._channel)
        self._heard = loop.now()
        self._pulse = SuspensionDetector(limits.heartbeat_interval_s, self._heard)
        self._beats = itertools.count(1)
        loop.call_later(limits.heartbeat_interval_s, self._beat)

    def lease(
        self,
        class_name: str,
        options: ActorOptions,
        timeout_s: float | None,
        *,
        replaces: str = "",
        restarts: int = 0,
    ) -> LeaseGranted:
        """Block until the master grants a lease for one actor.

        Args:
            class_name: Its class, for the status display.
            options: The resources it needs, and its name.
            timeout_s: The time to wait while the cluster is full; None for no limit.
            replaces: The lease of the actor that it restarts.
            restarts: The number of restarts so far.

        Raises:
            NoResources: The resources are not available, at all or within `timeout_s` seconds.
            NameTaken: Another actor has its name.
            ClusterUnreachable: The cluster is gone, or away when `timeout_s` seconds have passed; a restart waits for
                its return.
        """
        began = time.monotonic()
        resources = options.resources
        number = next(self._requests.numbers)
        answer: PendingAnswer[LeaseGranted] = PendingAnswer()
        request = LeaseRequest(
            number,
            resources,
            timeout_s,
            class_name,
            placement=Placement(options.placement),
            actor_name=options.name,
            detached=options.detached,
            replaces=replaces,
            restarts=restarts,
            max_restarts=options.max_restarts,
            node=options.node,
        )
        self._answers[number] = _Waiting(request, answer)
        try:
            try:
                self._tell(request)
            except ClusterUnreachable:
                if not self._cluster.may_return:
                    raise  # else it is sent once the master is back
            if not answer.wait(_SLOT_WAIT_S):
                run_finalizers()
                if self._held:
                    gc.collect()  # garbage may hold actors, in cycles that an exception's traceback closes
                self._on_full(class_name)
                if timeout_s != 0:  # else it waits for the master alone
                    self._explain(number, answer, _waits(class_name, resources, timeout_s))
            if timeout_s is not None and not replaces and not answer.done():
                self._wait_no_longer_than(began + timeout_s, answer)
            return answer.result()
        except BaseException:
            if self._answers.pop(number, None) is not None:  # interrupted: the answer is not wanted any more
                with contextlib.suppress(RemoteError):
                    self._tell(LeaseCancel(number))
            else:
                answer.add_done_callback(self._unwanted)  # interrupted while it came
            raise
        finally:
            del answer  # it holds the error, whose traceback holds this frame and all that its callers have

    def _wait_no_longer_than(self, deadline: float, answer: PendingAnswer[LeaseGranted]) -> None:
        """Wait for an answer. Past the deadline the master refuses the request, unless it is unreachable.

        Raises:
            ClusterUnreachable: It is unreachable then.
        """
        wait_s = max(_AWAY_LOOK_S, deadline - time.monotonic())
        while not answer.wait(wait_s):
            if self._away_since is not None:
                raise self._gone_error(f"{self._lost}, and it has not been started again yet")
            wait_s = _AWAY_LOOK_S

    def ask(self, make: Callable[[int], Message], timeout_s: float | None) -> Message:
        """Send a request to the master and wait for its answer; see `Requests.ask`.

        Raises:
            RemoteError: The request failed; the text is the master's reason.
            ResultTimeout: No answer came in time.
            NotConnected: The cluster is gone.
        """
        return self._requests.ask(_MASTER, make, self._tell, timeout_s)

    def _explain(self, number: int, answer: PendingAnswer[LeaseGranted], waits: str) -> None:
        """Log why a request waits: at once if no node is large enough, else if it waits for long."""
        why = self._why(number)
        if why is None or why.may_pass:
            if answer.wait(_QUIET_WAIT_S):
                return
            why = self._why(number)
        reason = "" if why is None else f": {why.reason}"
        ahead = f"; {why.ahead} asked earlier for the same" if why is not None and why.ahead else ""
        _log.warning("%s%s%s", waits, reason, ahead)

    def _why(self, waiting: int) -> LeaseWaiting | None:
        """Return why a request is not granted yet, as far as the master reports it."""
        with contextlib.suppress(RemoteError):  # it was granted just now, or the master is away
            answer = self.ask(lambda number: ExplainWaiting(number, waiting), self._limits.linger_s)
            if isinstance(answer, LeaseWaiting):
                return answer
        return None

    def _unwanted(self, answer: concurrent.futures.Future[LeaseGranted]) -> None:
        if answer.exception() is None:
            self.release(answer.result().lease_id)

    def release(self, lease_id: str, *, replaces: str = "") -> None:
        """Give a lease back; its worker ends the actor. `replaces` as in `LeaseRelease`."""
        self._held.pop(lease_id, None)
        message = LeaseRelease(lease_id, replaces)
        if self._away_since is not None:
            self._unsent_releases.append(message)
            return
        with contextlib.suppress(RemoteError):  # the master has ended the leases of a client that is gone
            self._tell(message)

    def close(self) -> None:
        """Announce the disconnection; the loop must have stopped, or stop soon."""
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed, ResultTimeout):
                self._channel.send([encode(Bye("the program disconnects"))], self._limits.linger_s)
        self._closed, self._lost = True, self._lost or "disconnected"

    def hang_up(self) -> None:
        """Close the link, once the loop has stopped; pending requests fail."""
        if self._channel is not None:
            self._channel.close()
        self._requests.lose_all(NotConnected(CONNECTION_CLOSED))
        for number in list(self._answers):
            self._answer(number, NotConnected(CONNECTION_CLOSED))

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _connect(self) -> Channel:
        channel = self._cluster.connect_master()
        try:
            # A private cluster's node is only starting, and on a busy machine that takes longer than an answer.
            patience_s = self._limits.connect_timeout_s if self._cluster.may_return else self._limits.start_timeout_s
            greet(channel, self._identity.hello(Role.MASTER), patience_s)
        except (ChannelClosed, ResultTimeout) as error:
            raise self._cluster.unreachable(str(error)) from error
        return channel

    def _tell(self, message: Message) -> None:
        if self._lost:
            self._reconnect()
        channel = self._channel
        assert channel is not None  # `_reconnect` has made one
        try:
            channel.send([encode(message)])
        except ChannelClosed:
            raise ClusterUnreachable(f"the master at {self._address} is gone", address=self._address) from None

    def _reconnect(self) -> None:
        """Reconnect to a restarted master; a private cluster's master does not return."""
        with self._lock:
            reason = self._lost
            if not reason:
                return  # another thread was quicker
            if self._closed:
                raise NotConnected(CONNECTION_CLOSED)
            if self._away_since is not None:
                away = f"the master at {self._address} is away ({reason}); reconnecting"
                raise ClusterUnreachable(away, address=self._address)
            try:
                channel = self._connect()
            except (RemoteError, OSError) as error:
                if self._channel is None or is_shortage(error):
                    raise NotConnected(f"the cluster at {self._address} cannot be reached: {error}") from error
                gone = f"the cluster at {self._address} is gone ({reason}); call parl.disconnect() and parl.connect()"
                raise NotConnected(gone) from error
            self._channel, self._lost, self.is_gone = channel, "", False
            self._heard = self._loop.now()
        self._loop.call_soon(lambda: self._listen(channel))

    def _listen(self, channel: Channel) -> None:
        self._loop.add(channel, lambda: self._on_readable(channel))

    def _beat(self) -> None:
        run_finalizers()
        now, interval_s = self._loop.now(), self._limits.heartbeat_interval_s
        if self._pulse.missed_s(now):
            self._heard = now  # the master's messages are still to be read
        if not self._lost and self._channel is not None:
            if now - self._heard > self._limits.liveness_limit_s:
                self._gone(self._channel, f"no sign of life for {now - self._heard:.0f} s")
            else:
                with contextlib.suppress(ChannelClosed, ResultTimeout):
                    self._channel.send([encode(Heartbeat(next(self._beats)))], 0.0)
        left_s = max(0.01, self._heard + self._limits.liveness_limit_s - now + 0.001)
        self._loop.call_later(min(interval_s, left_s), self._beat)

    def _on_readable(self, channel: Channel) -> None:
        self._heard = self._loop.now()
        for message in arrived_messages(channel):
            match message:
                case LeaseGranted(request_id=number):
                    self._answer(number, message)
                case LeaseRefused(request_id=number):
                    self._answer(number, _refusal(message, self._address))
                case LeaseLost(lease_id=lease_id, cause=cause):
                    self._held.pop(lease_id, None)
                    self._on_lost_lease(lease_id, cause)
                case LeaseWanted(lease_id=lease_id):
                    self._on_wanted_lease(lease_id)
                case Bye(reason=reason):
                    self._gone(channel, reason, for_good=True)
                    return
                case None:
                    self._gone(channel, "the connection closed")
                    return
                case _ if not self._requests.answered(message):  # else it is a sign of life, which is noted already
                    _warn_of_draining(message)

    def _answer(self, number: int, answer: LeaseGranted | RemoteError) -> None:
        waiting = self._answers.pop(number, None)
        if isinstance(answer, RemoteError):
            if waiting is not None:
                waiting.answer.set_exception(answer)
        elif waiting is not None:
            self._held[answer.lease_id] = None
            waiting.answer.set_result(answer)
        else:
            self.release(answer.lease_id)  # it was given up meanwhile

    def _gone(self, channel: Channel, reason: str, *, for_good: bool = False) -> None:
        self._loop.remove(channel)
        channel.close()
        returns = self._cluster.may_return and not (for_good or self._closed)
        self._away_since = self._loop.now() if returns else None  # first: a thread that sees `_lost` reads this next
        self._lost = reason
        self._requests.lost(_MASTER, self._gone_error(reason))
        if returns:
            _log.warning("the master at %s is gone (%s); actors continue, trying to reconnect", self._address, reason)
            self._rejoin_later()
        else:
            self._give_up(reason)

    def _gone_error(self, reason: str) -> ClusterUnreachable:
        return ClusterUnreachable(f"the cluster at {self._address} is gone: {reason}", address=self._address)

    # -- rejoining -----------------------------------------------------------------------------------------------

    def _rejoin_later(self) -> None:
        self._loop.call_later(self._limits.rejoin_interval_s, self._start_rejoining)

    def _start_rejoining(self) -> None:
        try:
            threading.Thread(target=self._rejoin, name="parl-rejoin", daemon=True).start()
        except RuntimeError as error:  # there is no thread left
            self._rejoined(None, str(error))

    def _rejoin(self) -> None:
        """Try once to reach the master, on a thread of its own."""
        channel: Channel | None = None
        reason = ""
        if not self._closed:
            try:
                channel = self._connect()
            except (RemoteError, OSError) as error:
                reason = str(error)
        with contextlib.suppress(OSError, ValueError):  # the loop was closed meanwhile
            self._loop.call_soon(lambda: self._rejoined(channel, reason))

    def _rejoined(self, channel: Channel | None, reason: str) -> None:
        away_s = self._loop.now() - (self._away_since or 0.0)
        if self._closed or (channel is None and away_s > self._limits.rejoin_timeout_s):
            self._away_since = None
            self._give_up(f"{self._lost}, and for {away_s:.0f} s it could not be reached again: {reason}")
            if channel is not None:
                channel.close()
        elif channel is None:
            self._rejoin_later()
        else:
            _log.warning("the master at %s is back", self._address)
            with self._lock:
                self._channel, self._lost, self._away_since = channel, "", None
            self._heard = self._loop.now()
            self._listen(channel)
            self._resend()

    def _resend(self) -> None:
        """Send a reconnected master the messages that it missed; pending lease requests start waiting anew."""
        unsaid, self._unsent_releases = self._unsent_releases, []
        with contextlib.suppress(RemoteError):  # if it is gone again, so is what was waiting for it
            requests = [waiting.request for waiting in list(self._answers.values())]
            for message in (LeasesHeld(tuple(self._held)), *unsaid, *requests):
                self._tell(message)

    def _give_up(self, reason: str) -> None:
        self.is_gone = True
        self._unsent_releases.clear()
        for number in list(self._answers):
            self._answer(number, self._gone_error(reason))


def _warn_of_draining(message: Message) -> None:
    if type(message).__name__ == "NodeDraining":  # by name, because only the first such message imports its module
        assert isinstance(message, NodeDraining)
        _log.warning(
            "node %s is being drained%s: this program's actors there with max_restarts are restarted on other nodes; "
            "the others (%d in all) %s",
            message.node,
            f" ({message.reason})" if message.reason else "",
            len(message.lease_ids),
            "may finish" if message.timeout_s is None else f"are asked to end in {message.timeout_s:g} s",
        )


def _refusal(message: LeaseRefused, address: str) -> RemoteError:
    if message.code is RefusalCode.STOPPING:
        return ClusterUnreachable(message.reason, address=address)
    if message.code is RefusalCode.NAME_TAKEN:
        return NameTaken(message.reason)
    if message.code is RefusalCode.KILLED:
        return ActorLost(DeathCause(DeathKind.KILLED_BY_USER, detail=message.reason))
    may_pass = message.code is RefusalCode.TIMEOUT
    return NoResources(message.reason, asked=message.asked, available=message.available, may_pass=may_pass)


def _waits(class_name: str, resources: Resources, timeout_s: float | None) -> str:
    """Return the beginning of the warning about an actor that waits for resources."""
    until = ", as long as it takes" if timeout_s is None else f", up to {timeout_s:g} s" if timeout_s else ""
    return f"{class_name} waits for {resources.as_request()}{until}"

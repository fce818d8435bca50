"""The master's side of all protocols: passes messages to `ClusterState` and carries out its instructions.

    client --LeaseRequest, ...--> PeerAcceptor --> Master --event--> ClusterState
           <--LeaseGranted, ...-------------------   |  <-instructions--
    worker --NodeJoin, Heartbeat, ...-------------->  |

It schedules and watches; no calls and no user data pass through it, and it never unpickles anything. A peer that breaks
the protocol is refused and dropped by the reception; no message of a peer ends the master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from parl_remote._config import Limits
from parl_remote._links.handshake import Link, Parts, PeerAcceptor
from parl_remote._links.loop import Loop, SuspensionDetector, Timer
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.cluster_tables import DropNode, Instruction, ToClient
from parl_remote._messages import (
    Bye,
    Heartbeat,
    LeaseCancel,
    LeaseEnded,
    LeaseRelease,
    LeaseRequest,
    LeasesHeld,
    Message,
    NodeJoin,
    Role,
    Shutdown,
    StatusRequest,
)
from parl_remote._messages.overview import (
    AcknowledgeNodes,
    DrainNode,
    ExplainWaiting,
    KillActor,
    ListActors,
    ListDeaths,
    ListEvents,
    ListNodes,
    NodeNumbers,
)
from parl_remote._messages.parts import FindActor
from parl_remote._messages.wire import decode
from parl_remote.errors import RemoteProtocolError

__all__ = ["Master"]


_log = logging.getLogger("parl.remote")

_OVERVIEW = (
    "AcknowledgeNodes",
    "DrainNode",
    "FindActor",
    "KillActor",
    "ListActors",
    "ListDeaths",
    "ListEvents",
    "ListNodes",
    "NodeNumbers",
    "ExplainWaiting",
)


class Master:
    """The service that clients and workers of one cluster connect to.

    Args:
        loop: The node's loop.
        reception: Accepts peers; the master registers itself there.
        state: The cluster's bookkeeping.
        limits: Sizes of control messages.
        on_shutdown: Called once when a client asks to end the cluster, after all peers were notified.

    Attributes:
        parts: Its services beside leasing; to be extended before the first peer connects.
    """

    def __init__(
        self,
        loop: Loop,
        reception: PeerAcceptor,
        state: ClusterState,
        *,
        limits: Limits,
        on_shutdown: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._reception = reception
        self._state = state
        self._limits = limits
        self._on_shutdown = on_shutdown
        self._clients: dict[str, Link] = {}
        self._nodes: dict[str, Link] = {}
        self._node_of: dict[Link, str] = {}
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._pulse = SuspensionDetector(limits.heartbeat_interval_s, loop.now())
        self._resumed_at = float("-inf")
        self._stopping = False
        self.parts = Parts()
        self.parts.add(_OVERVIEW, lambda: MasterOverview(state, loop.now, self._carry_out, reception.node_id))
        reception.serve(Role.MASTER, self)
        loop.call_later(limits.heartbeat_interval_s, self._beat)

    # -- handshake.Service ---------------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """Handle a client or worker that has connected."""
        if link.hello.role is Role.CLIENT:
            client_id = link.hello.id
            before = self._clients.get(client_id)
            if before is not None:  # it came back before the end of its old connection was seen here
                self.closed(before, "it connected again")
                before.drop()
            self._state.client_joined(client_id, link.hello.name, link.hello.pid, self._loop.now(), link.hello.host_id)
            self._clients[client_id] = link
            _log.info("client %s (%s, process %d) connected", client_id, link.hello.name, link.hello.pid)

    def received(self, link: Link, frames: list[memoryview]) -> None:
        """Process a peer's message; see `Service.received`."""
        if len(frames) != 1 or len(frames[0]) > self._limits.max_control_bytes:
            raise RemoteProtocolError("a control message is one frame of moderate size")
        message = decode(frames[0])
        if self.parts.take(link, message, frames):
            return
        if link.hello.role is Role.CLIENT:
            self._from_client(link, message)
        else:
            self._from_worker(link, message)

    def closed(self, link: Link, reason: str) -> None:
        """Handle a peer that is gone."""
        self.parts.closed(link)
        client_id = link.hello.id
        if self._clients.get(client_id) is link:
            del self._clients[client_id]
            _log.info("client %s is gone: %s", client_id, reason)
            self._carry_out(self._state.client_away(client_id, self._loop.now()))
        node_id = self._node_of.pop(link, None)
        if node_id is not None and self._nodes.get(node_id) is link:
            del self._nodes[node_id]
            if self._was_suspended_recently():  # the node has taken this process for dead, and is about to join again
                _log.warning("node %s (%s) has broken off: %s", node_id, link.hello.name, reason)
                self._state.node_away(node_id)
            else:
                _log.warning("node %s (%s) is lost: %s", node_id, link.hello.name, reason)
                self._carry_out(self._state.node_lost(node_id, reason, self._loop.now()))

    def _left(self, link: Link, reason: str) -> None:
        """Handle a worker that announces its end."""
        node_id = self._node_of.pop(link, None)
        if node_id is not None and self._nodes.get(node_id) is link:
            del self._nodes[node_id]
            _log.info("node %s (%s) leaves: %s", node_id, link.hello.name, reason)
            self._carry_out(self._state.node_left(node_id, reason, self._loop.now()))
        self.closed(link, reason)

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Notify all peers that the cluster ends; the caller then closes the listeners."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for link in (*self._clients.values(), *self._nodes.values()):
            link.tell(Bye(reason))

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _from_client(self, link: Link, message: Message) -> None:
        client_id, now = link.hello.id, self._loop.now()
        match message:
            case LeaseRequest():
                self._carry_out(self._state.lease_requested(client_id, message, now))
            case LeaseCancel(request_id=request_id):
                self._carry_out(self._state.lease_cancelled(client_id, request_id))
            case LeaseRelease(lease_id=lease_id, replaces=replaces):
                self._carry_out(self._state.lease_released(client_id, lease_id, now, replaces=replaces))
            case StatusRequest(request_id=request_id, detail=detail, nodes=nodes):
                dropped = self._reception.dropped
                link.tell(self._state.status(request_id, now, detail=detail, dropped=dropped, nodes=nodes))
            case Heartbeat(seq=seq):
                link.tell(Heartbeat(seq))
            case Shutdown():
                _log.info("client %s (%s) stops the cluster", client_id, link.hello.name)
                self.stop("the cluster was stopped")
                self._on_shutdown()
            case LeasesHeld(leases=leases):
                self._carry_out(self._state.client_holds(client_id, leases, now))
            case Bye(reason=reason):
                self._carry_out(self._state.client_lost(client_id, now))
                self.closed(link, reason)
                link.drop()
            case _:
                raise RemoteProtocolError(f"a client may not send {type(message).__name__} to the master")

    def _from_worker(self, link: Link, message: Message) -> None:
        node_id = self._node_of.get(link)
        match message:
            case NodeJoin():
                self._join(link, message)
            case Heartbeat(seq=seq) if node_id is not None:
                self._state.node_alive(node_id, message, self._loop.now())
                link.tell(Heartbeat(seq))
            case LeaseEnded(lease_id=lease_id, cause=cause) if node_id is not None:
                self._carry_out(self._state.lease_ended(node_id, lease_id, cause, self._loop.now()))
            case Bye(reason=reason):
                self._left(link, reason)
                link.drop()
            case _:
                joined = "after" if node_id is not None else "before"
                raise RemoteProtocolError(f"a worker may not send {type(message).__name__} {joined} its NodeJoin")

    def _join(self, link: Link, joined: NodeJoin) -> None:
        if joined.node_id != link.hello.id:
            raise RemoteProtocolError(f"a worker that identified itself as {link.hello.id} joins as {joined.node_id}")
        hello = link.hello
        instructions = self._state.node_joined(joined, self._loop.now(), pid=hello.pid, versions=hello.versions)
        before = self._nodes.get(joined.node_id)
        if before is not None and before is not link:  # only now, when its successor is accepted
            self._node_of.pop(before, None)
            before.drop()
        self._nodes[joined.node_id] = link
        self._node_of[link] = joined.node_id
        _log.info("node %s (%s) joined with %s", joined.node_id, joined.name, joined.resources)
        self._carry_out(instructions)

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, DropNode):
                self._drop_node(instruction)
                continue
            peers, name = (
                (self._clients, instruction.client_id)
                if isinstance(instruction, ToClient)
                else (self._nodes, instruction.node_id)
            )
            if link := peers.get(name):
                link.tell(instruction.message)
                if isinstance(instruction.message, Bye):
                    self._let_go(name, instruction.message.reason)
        self._schedule()

    def _let_go(self, node_id: str, reason: str) -> None:
        """Drop a worker that was sent Bye and ends, so that its end does not count as a loss."""
        link = self._nodes.pop(node_id)
        del self._node_of[link]
        _log.info("node %s (%s) leaves: %s", node_id, link.hello.name, reason)
        link.drop()

    def _drop_node(self, instruction: DropNode) -> None:
        link = self._nodes.pop(instruction.node_id, None)
        if link is not None:
            _log.warning("node %s (%s) is lost: %s", instruction.node_id, link.hello.name, instruction.reason)
            del self._node_of[link]
            link.drop()  # without a Bye, which would end the worker: if it still runs, it is to reconnect

    def _beat(self) -> None:
        self._check_suspension()
        if not self._stopping:
            self._loop.call_later(self._limits.heartbeat_interval_s, self._beat)

    def _check_suspension(self) -> None:
        """Restart all liveness periods if this process or its machine was suspended."""
        now = self._loop.now()
        if missed_s := self._pulse.missed_s(now):
            _log.warning("this process was stopped for about %.0f s", missed_s)
            self._state.resumed(now)
            self._resumed_at = now

    def _was_suspended_recently(self) -> bool:
        self._check_suspension()
        return self._loop.now() - self._resumed_at <= self._limits.liveness_limit_s

    def _schedule(self) -> None:
        """Schedule `_tick` for the next deadline; early calls are harmless, so only earlier times matter."""
        due = self._state.next_deadline()
        if due is None or self._stopping or due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._check_suspension()
        self._carry_out(self._state.tick(self._loop.now()))


class MasterOverview:
    """The part of the master for inspection and control, see `messages.overview` and `messages.parts`.

    Args:
        state: The cluster's bookkeeping.
        now: Returns the loop's time.
        carry_out: Carries instructions out.
        own_node_id: The node that the master runs in.
    """

    def __init__(
        self,
        state: ClusterState,
        now: Callable[[], float],
        carry_out: Callable[[Iterable[Instruction]], None],
        own_node_id: str,
    ) -> None:
        self._state = state
        self._now = now
        self._carry_out = carry_out
        self._own_node_id = own_node_id

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Answer a query or carry out a request; see `handshake.Part`."""
        peer = link.hello.id
        if isinstance(message, NodeNumbers):
            if link.hello.role is not Role.WORKER:
                raise RemoteProtocolError("only workers say what their actors do")
            self._state.node_counted(peer, message.actors)
            return
        if link.hello.role is not Role.CLIENT:
            raise RemoteProtocolError(f"a worker may not send {type(message).__name__} to the master")
        now = self._now()
        match message:
            case ListActors():
                link.tell(self._state.view.actors(message, now))
            case ListNodes():
                link.tell(self._state.view.nodes(message, now, self._own_node_id))
            case ListDeaths():
                link.tell(self._state.view.deaths(message))
            case ListEvents():
                link.tell(self._state.view.events(message))
            case AcknowledgeNodes():
                link.tell(self._state.nodes_acknowledged(message, link.hello.name, now))
            case ExplainWaiting():
                link.tell(self._state.view.explain_waiting(peer, message, now))
            case FindActor():
                self._carry_out(self._state.find_requested(peer, message, now))
            case KillActor():
                self._carry_out(self._state.kill_requested(peer, message))
            case DrainNode():
                self._carry_out(self._state.drain_requested(peer, message, now))
            case _:
                raise RemoteProtocolError(f"the master cannot take {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """Do nothing: answers to a peer that is gone are dropped."""

    def close(self) -> None:
        """Do nothing: a part without resources."""

"""The part of the master that others look through and steer with: see `messages.overview`, and `messages.naming`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from parl_remote.errors import RemoteProtocolError
from parl_remote.links.handshake import Link
from parl_remote.master.cluster_state import ClusterState
from parl_remote.master.instructions import Instruction
from parl_remote.messages import Message, Role
from parl_remote.messages.naming import FindActor
from parl_remote.messages.overview import (
    DrainNode,
    KillActor,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeNumbers,
    WhyWaiting,
)

__all__ = ["MasterOverview"]


class MasterOverview:
    """A part, see `parts.Part`.

    Args:
        state: The cluster's bookkeeping.
        now: The loop's clock.
        carry_out: Carries instructions out.
        own_node_id: The node that the master runs in.
    """

    def __init__(
        self,
        state: ClusterState,
        *,
        now: Callable[[], float],
        carry_out: Callable[[Iterable[Instruction]], None],
        own_node_id: str,
    ) -> None:
        self._state = state
        self._now = now
        self._carry_out = carry_out
        self._own_node_id = own_node_id

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Answer a question or do what was asked; see `parts.Part`."""
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
            case WhyWaiting():
                link.tell(self._state.view.why_waiting(peer, message, now))
            case FindActor():
                self._carry_out(self._state.find_requested(peer, message))
            case KillActor():
                self._carry_out(self._state.kill_requested(peer, message))
            case DrainNode():
                self._carry_out(self._state.drain_requested(peer, message, now))
            case _:
                raise RemoteProtocolError(f"the master cannot take {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """Nothing: an answer to a peer that is gone goes nowhere."""

    def close(self) -> None:
        """Nothing is held here."""

"""Messages about what has happened in a cluster: its events, and the acknowledgement of lost nodes.

    client -> master     ListEvents        -> Events             from a position on, or the latest
                         AcknowledgeNodes  -> NodesAcknowledged  lost nodes leave the list of nodes

Times of day are Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from parl_remote._records import Message, Record, record

__all__ = ["AcknowledgeNodes", "ClusterEvent", "EventKind", "Events", "ListEvents", "NodesAcknowledged"]


class EventKind(Enum):
    """The kinds of events.

    NODE_JOINED: a node joined, or one that was lost came back. NODE_LOST: it broke off or fell silent. NODE_LEFT: it
    was stopped. NODE_DRAINING: it takes no more actors. NODE_DRAINED: its last actor has ended. NODE_ACKNOWLEDGED: its
    loss was acknowledged. ACTOR_LOST: an actor ended that nobody had ended. OUT_OF_MEMORY: an actor ended because it
    passed its memory limit, or its host ran out of memory. ACTOR_RESTARTED: a lost actor has got resources again.
    """

    NODE_JOINED = "node_joined"
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    NODE_DRAINING = "node_draining"
    NODE_DRAINED = "node_drained"
    NODE_ACKNOWLEDGED = "node_acknowledged"
    ACTOR_LOST = "actor_lost"
    OUT_OF_MEMORY = "out_of_memory"
    ACTOR_RESTARTED = "actor_restarted"


@record
class ClusterEvent(Record):
    """One event.

    Attributes:
        number: Its number; events count up from 1.
        at: When it happened.
        kind: What happened.
        text: The same in a sentence, with the cause.
        node_id: The node concerned.
        node: That node's displayed name.
        address: That node's address, "host:port"; empty in a private cluster.
        lease_id: The actor concerned; this and the following are empty where none is.
        class_name: Its class.
        actor_name: Its name for `get_actor`.
        owner: The program that made it, for display.
    """

    number: int
    at: float
    kind: EventKind
    text: str
    node_id: str = ""
    node: str = ""
    address: str = ""
    lease_id: str = ""
    class_name: str = ""
    actor_name: str = ""
    owner: str = ""


@record
class ListEvents(Message):
    """Request Events.

    Attributes:
        request_id: The client's number for it.
        after: The number of the last event that is known; below 0 for as many of the latest ones.
        limit: How many at most, 1 to 1,000.
    """

    request_id: int
    after: int = 0
    limit: int = 500


@record
class Events(Message):
    """Events, the oldest first; the master keeps the last 5,000.

    Attributes:
        request_id: The number of the request.
        events: The events.
        latest: The number of the latest event of all, 0 if there was none.
        since: When the master began to count; another master, or one that was restarted, counts anew.
        counts: How many events of each kind there were, including those no longer kept.
    """

    request_id: int
    events: tuple[ClusterEvent, ...]
    latest: int
    since: float
    counts: Mapping[str, int] = field(default_factory=dict)


@record
class AcknowledgeNodes(Message):
    """Remove lost nodes from the list of nodes; answered by NodesAcknowledged.

    Attributes:
        request_id: The client's number for it.
        node_ids: The nodes; empty for all that are lost. One that is not lost (any more) is ignored.
    """

    request_id: int
    node_ids: tuple[str, ...] = ()


@record
class NodesAcknowledged(Message):
    """The nodes that were removed from the list."""

    request_id: int
    node_ids: tuple[str, ...]

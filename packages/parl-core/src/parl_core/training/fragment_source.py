"""Where fragments come from when the actors choose the actions themselves, each with a copy of the agent.

take(version) ── order.due ──> actors: collect(task, version, weights) ──> order.arrived ──> order.take ──> fragments
publish(version): the weights are stored once a host, and an actor gets them with its next call
"""

from collections.abc import Callable
from typing import Any, Protocol

from parl_core.training.crew import Call, Crew
from parl_core.training.fragment import Fragment, Task
from parl_core.training.fragment_order import FragmentOrder

__all__ = ["CollectedByActors", "FragmentSource"]


class FragmentSource(Protocol):
    """What a learner takes its batches from."""

    def publish(self, version: int) -> None:
        """Act with the agent's weights of now from now on."""

    def take(self) -> list[Fragment]:
        """The fragments of the next batch; waits only if they are not there yet."""


class CollectedByActors:
    """Fragments of `CollectingActor`s.

    Args:
        crew: the actors.
        order: which fragments are asked for, and which make up a batch.
        get_weights: gives those of the learner's agent.
        store: returns what to pass in place of a value that many actors get: `ActorSystem.put`.
    """

    def __init__(
        self, crew: Crew, order: FragmentOrder, get_weights: Callable[[], Any], store: Callable[[Any], Any]
    ) -> None:
        self._crew, self._order = crew, order
        self._get_weights, self._store = get_weights, store
        self._version = -1
        self._stored: Any = None
        self._known: dict[tuple[int, int], int] = {}  # by actor, the version of the weights that it was sent last

    def publish(self, version: int) -> None:
        self._stored, self._version = self._store(self._get_weights()), version
        self._ask()

    def take(self) -> list[Fragment]:
        while (fragments := self._order.take(self._version)) is None:
            self._ask()
            self._take_in(None)
        self._take_in(0.0)
        return fragments

    def _ask(self) -> None:
        for task in self._order.due(self._version):
            self._collect(task)

    def _take_in(self, timeout_s: float | None) -> None:
        for call, answer, failed in self._crew.arrivals(timeout_s):
            if failed:
                self._known.pop(self._crew.incarnation(call.group), None)
                self._collect(call.tag)
            else:
                self._crew.succeeded(call.group)
                self._order.arrived(answer)

    def _collect(self, task: Task) -> None:
        actor = self._crew.incarnation(task.group)
        news = None if self._known.get(actor) == self._version else self._stored
        self._known[actor] = self._version
        self._crew.submit(Call(task.group, "collect", (task, self._version, news), task))

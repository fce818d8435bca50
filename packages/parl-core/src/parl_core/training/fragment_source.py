"""Where fragments come from when the actors choose the actions themselves, each with a copy of the agent.

take(version) ── order.due ──> actors: collect(task, version, weights) ──> order.arrived ──> order.take ──> fragments
publish(version): the weights are stored once a host, and an actor gets them with its next call
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from parl_core.nested import Observations
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

    def settle(self) -> None:
        """Wait for all that is under way; in the deterministic mode what is learned from stays the same."""

    def begin_again(self, observations: Sequence[Observations]) -> None:
        """Every group's environments were reset and observe `[size, *obs]`; nothing was under way."""

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds, of a deterministic run that has settled."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""


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

    def settle(self) -> None:
        while self._crew.is_busy:
            self._take_in(None)

    def begin_again(self, observations: Sequence[Observations]) -> None:
        pass  # the actors go on from there

    def get_state(self) -> dict[str, Any]:
        return {"order": self._order.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._order.set_state(state["order"])

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

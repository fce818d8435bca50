"""Which fragment is asked for next, and which ones make up a batch: no actor, no clock, only counting.

    AsTheyCome   whoever is done first is learned from first; an actor has its next call before it has ended the last
    InRounds     fragment i = round * groups + group is learned from in update i // per_batch, whoever made it, with the
                 weights of `max_lag` updates before: the same numbers, however many actors there are

Both keep the policy lag, the updates between acting and learning, within `max_lag`: so many fragments and no more are
under way or wait to be learned from, (max_lag + 1) * per_batch. That is the back-pressure: actors that are faster than
the learner wait. `AsTheyCome` drops what comes from an actor so slow that it is older all the same.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from parl_core.training.fragment import Fragment, Task

__all__ = ["AsTheyCome", "FragmentOrder", "InRounds"]


class FragmentOrder(Protocol):
    """The order in which fragments are made and learned from."""

    dropped: int
    """Fragments that were too old to be learned from."""

    def due(self, version: int) -> list[Task]:
        """What has to be asked for now, with weights that have seen `version` updates; each only once."""

    def arrived(self, fragment: Fragment) -> None:
        """Take in what was asked for."""

    def take(self, version: int) -> list[Fragment] | None:
        """The fragments of the next batch, None as long as some are missing."""

    def begin_at(self, version: int) -> None:
        """Go on after `version` updates, with nothing under way and nothing that waits."""

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds, when all that was asked for has arrived."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""


class AsTheyCome:
    """First come, first learned.

    Args:
        groups_of: the groups of each actor.
        per_batch: fragments of one update.
        max_lag: updates that a fragment's weights may lie behind, at least 0.
        outstanding: fragments that one actor may owe: one that it works on, and others to go on with at once.
    """

    def __init__(
        self, groups_of: Sequence[Sequence[int]], per_batch: int, max_lag: int, *, outstanding: int = 2
    ) -> None:
        self.dropped = 0
        self._groups = [deque(groups) for groups in groups_of]
        self._actor_of = {group: actor for actor, groups in enumerate(groups_of) for group in groups}
        self._owed = [0] * len(groups_of)
        self._rounds = dict.fromkeys(self._actor_of, 0)
        self._ready: deque[Fragment] = deque()
        self._per_batch, self._max_lag = per_batch, max_lag
        self._limit = per_batch * (max_lag + 1)
        self._outstanding = outstanding

    def due(self, version: int) -> list[Task]:  # noqa: ARG002 - the order does not depend on it
        tasks = []
        while sum(self._owed) + len(self._ready) < self._limit:
            actor = min(range(len(self._owed)), key=self._owed.__getitem__)
            if self._owed[actor] >= self._outstanding:
                break
            group = self._groups[actor][0]
            self._groups[actor].rotate(-1)
            self._owed[actor] += 1
            tasks.append(Task(group, self._rounds[group]))
            self._rounds[group] += 1
        return tasks

    def arrived(self, fragment: Fragment) -> None:
        self._owed[self._actor_of[fragment.task.group]] -= 1
        self._ready.append(fragment)

    def take(self, version: int) -> list[Fragment] | None:
        fresh = deque(fragment for fragment in self._ready if version - fragment.version <= self._max_lag)
        self.dropped += len(self._ready) - len(fresh)
        self._ready = fresh
        if len(fresh) < self._per_batch:
            return None
        return [fresh.popleft() for _ in range(self._per_batch)]

    def begin_at(self, version: int) -> None:
        pass  # rounds may begin anew

    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError("who comes first cannot be had again")

    def set_state(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError("who comes first cannot be had again")


class InRounds:
    """Always the same order.

    Args:
        groups: how many.
        per_batch: fragments of one update.
        max_lag: updates between acting and learning, at least 0; reached exactly, once so many were made.
    """

    def __init__(self, groups: int, per_batch: int, max_lag: int) -> None:
        self.dropped = 0
        self._groups, self._per_batch, self._max_lag = groups, per_batch, max_lag
        self._asked = self._taken = 0
        self._ready: dict[Task, Fragment] = {}

    def due(self, version: int) -> list[Task]:
        first, self._asked = self._asked, max(self._asked, (version + self._max_lag + 1) * self._per_batch)
        return [self._task(index) for index in range(first, self._asked)]

    def arrived(self, fragment: Fragment) -> None:
        self._ready[fragment.task] = fragment

    def take(self, version: int) -> list[Fragment] | None:  # noqa: ARG002 - nothing is ever too old
        tasks = [self._task(self._taken + index) for index in range(self._per_batch)]
        if not all(task in self._ready for task in tasks):
            return None
        self._taken += self._per_batch
        return [self._ready.pop(task) for task in tasks]

    def begin_at(self, version: int) -> None:
        self._asked = self._taken = version * self._per_batch

    def get_state(self) -> dict[str, Any]:
        return {
            "asked": self._asked,
            "taken": self._taken,
            "ready": [each.get_state() for each in self._ready.values()],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._asked, self._taken = state["asked"], state["taken"]
        self._ready = {each.task: each for each in map(Fragment.from_state, state["ready"])}

    def _task(self, index: int) -> Task:
        return Task(index % self._groups, index // self._groups)

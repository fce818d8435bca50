"""The environments of all actors, and what is under way there, as checkpoints see them.

    exact     deterministic runs: wait for what is under way, then save fragments, environments and counters
    others    nothing waits; a resumed run begins new episodes, with seeds that no run before has had

Which fragments a checkpoint finds made is a matter of time where the order is that of arrival, so there is nothing that
could be had again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from parl_core.errors import CheckpointError
from parl_core.training.crew import Call, Crew
from parl_core.training.figures import Latest
from parl_core.training.fragment_order import FragmentOrder
from parl_core.training.fragment_source import FragmentSource

__all__ = ["ActorEnvironments", "FragmentCollector", "LooseCollector"]


class ActorEnvironments:
    """Groups of environments in actors, as if they were one vector of environments.

    Args:
        groups: how many.
        size: environments of each.
    """

    def __init__(self, groups: int, size: int) -> None:
        self.num_envs = groups * size
        self.recorded = False
        """Whether actors have to record episodes from their first reset on."""
        self._groups = groups
        self._crew: Crew
        self._source: FragmentSource

    def live_in(self, crew: Crew, source: FragmentSource) -> None:
        """Say which actors have them, and what asks these for fragments."""
        self._crew, self._source = crew, source

    def record_episodes(self) -> None:
        """Have actors that are made from now on record their episodes."""
        self.recorded = True

    def get_state(self) -> dict[str, Any]:
        """Where every group is, once nothing is under way.

        Raises:
            CheckpointError: an environment cannot be saved.
        """
        self._source.settle()
        return {"groups": self._crew.call_all([Call(group, "get_state", (group,)) for group in range(self._groups)])}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Bring every group to where it was; it may have lived in another number of actors.

        Raises:
            CheckpointError: there are other groups, or an environment did not come to the same observation.
        """
        saved = state["groups"]
        sizes = [len(group["environments"]) for group in saved if group["environments"] is not None]
        if len(saved) != self._groups or any(size * self._groups != self.num_envs for size in sizes):
            raise CheckpointError(
                f"the saved run had {len(saved)} groups of {sizes[0] if sizes else '?'} environments, this one has "
                f"{self._groups} of {self.num_envs // self._groups}: make the same, however many actors have them"
            )
        self._crew.call_all([Call(group, "set_state", (group, each)) for group, each in enumerate(saved)])


class FragmentCollector:
    """What a deterministic run has to go on with besides its environments.

    Args:
        source: of the fragments.
        crew: has the environments.
        shape: the settings that decide which fragments there are, by name; a resumed run needs the same.
    """

    def __init__(self, source: FragmentSource, crew: Crew, shape: Mapping[str, Any]) -> None:
        self._source, self._crew, self._shape = source, crew, dict(shape)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        self._source.settle()
        return {"shape": self._shape, "source": self._source.get_state(), **_counts(self._crew)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned.

        Raises:
            CheckpointError: the settings are others.
        """
        changed = {name: was for name, was in state["shape"].items() if self._shape[name] != was}
        if changed:
            told = ", ".join(f"{name} was {was!r} and is {self._shape[name]!r}" for name, was in changed.items())
            raise CheckpointError(f"fragments of the saved run are of another form: {told}; resume it with the same")
        self._crew.go_on(state["lives"])
        _go_on_counting(self._crew, state)
        self._source.set_state(state["source"])

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        groups = len(self._crew.lives)
        size = len(seeds) // groups
        calls = [Call(i, "begin", (i, list(seeds[i * size : (i + 1) * size]))) for i in range(groups)]
        self._source.begin_again(self._crew.call_all(calls))


class LooseCollector:
    """What a run goes on with whose fragments are learned from as they come.

    Args:
        order: of the fragments.
        crew: has the environments.
        version: updates so far; restored before this is.
    """

    def __init__(self, order: FragmentOrder, crew: Crew, version: Latest) -> None:
        self._order, self._crew, self._version = order, crew, version

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"dropped": self._order.dropped, **_counts(self._crew)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned, with new episodes."""
        life = 1 + max(state["lives"])
        self._crew.go_on([life] * len(self._crew.lives))
        _go_on_counting(self._crew, state)
        self._order.dropped = state["dropped"]
        self._order.begin_at(self._version.value)


def _counts(crew: Crew) -> dict[str, Any]:
    return {"lives": crew.lives, "lost": crew.lost, "failed": crew.failed}


def _go_on_counting(crew: Crew, state: Mapping[str, Any]) -> None:
    crew.lost, crew.failed = state["lost"], state["failed"]

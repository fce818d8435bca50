"""What updates return, and episodes that ended, collected between two reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parl_core.training.events import Episode

__all__ = ["EndedEpisodes", "Figures", "Latest", "Losses"]


class Figures:
    """Sums of the named scalars that an algorithm's `learn` returns.

    Args:
        names: of the parts of the result, in order: the algorithm's `FIGURES`.
    """

    def __init__(self, names: tuple[str, ...] = ("loss",)) -> None:
        self._names = names
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, result: Any) -> None:
        """Take in the result of one update: a loss, or a tuple of them; what is no float is left out."""
        for name, part in zip(self._names, result if isinstance(result, tuple) else (result,), strict=False):
            if isinstance(part, float):
                self._sums[name] = self._sums.get(name, 0.0) + part
                self._counts[name] = self._counts.get(name, 0) + 1

    def take_means(self) -> dict[str, float]:
        """The mean of each since the last time."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


class Losses:
    """Sums of losses that have their names with them."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, losses: Mapping[str, float]) -> None:
        """Take in those of one update."""
        for name, loss in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + loss
        self._count += 1

    def take_means(self) -> dict[str, float]:
        """The mean of each over the updates since the last time."""
        means = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"sums": dict(self._sums), "count": self._count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._sums, self._count = dict(state["sums"]), int(state["count"])


class EndedEpisodes:
    """Those that ended since the report before."""

    def __init__(self) -> None:
        self._episodes: list[Episode] = []

    def add(self, episodes: Iterable[Episode]) -> None:
        """Take in some more."""
        self._episodes += episodes

    def take(self) -> list[Episode]:
        """Those since the last time."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def get_state(self) -> list[list[float]]:
        """What a checkpoint holds."""
        return [[episode.episode_return, episode.length] for episode in self._episodes]

    def set_state(self, state: Sequence[Any]) -> None:
        """Go on from what `get_state` returned."""
        self._episodes = [Episode(*episode) for episode in state]


class Latest:
    """A number that a loop remembers from one round to another."""

    def __init__(self, value: int) -> None:
        self.value = value

    def get_state(self) -> int:
        """What a checkpoint holds."""
        return self.value

    def set_state(self, state: int) -> None:
        """Go on from what `get_state` returned."""
        self.value = state

"""What updates return, collected between two reports."""

from typing import Any

__all__ = ["Figures"]


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

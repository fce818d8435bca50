"""Which of a node's GPUs goes to which actor.

Whole GPUs go to one actor each; fractions share the fullest GPU that still has room, so that whole ones stay free. The
master decides, because only it knows all actors of a node before they are there, and sums of fractions say too little:
of two GPUs with 0.4 free each, nobody can have 0.8.
"""

from __future__ import annotations

__all__ = ["GpuShares"]

_THOUSANDTHS = 1000


class GpuShares:
    """What is free of each GPU of a node, in thousandths.

    Args:
        names: The GPUs, as CUDA_VISIBLE_DEVICES names them.
    """

    __slots__ = ("_free",)

    def __init__(self, names: tuple[str, ...]) -> None:
        self._free = dict.fromkeys(names, _THOUSANDTHS)

    @property
    def free(self) -> tuple[float, ...]:
        """The free share of each, 0 to 1, in the order of their names."""
        return tuple(free / _THOUSANDTHS for free in self._free.values())

    def has(self, amount: float) -> bool:
        """Whether `take` would give GPUs; the sum of what is free says nothing about fractions."""
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            return not need or any(free >= need for free in self._free.values())
        return amount == int(amount) <= sum(free == _THOUSANDTHS for free in self._free.values())

    def take(self, amount: float) -> tuple[str, ...]:
        """GPUs for one actor.

        Raises:
            ValueError: There are not enough.
        """
        if not self.has(amount):
            raise ValueError(f"there is no room for {amount:g} GPU, {self.free} are free")
        if not amount:
            return ()
        if amount < 1:
            need = round(amount * _THOUSANDTHS)
            chosen = [min((free, name) for name, free in self._free.items() if free >= need)[1]]
        else:
            chosen = [name for name, free in self._free.items() if free == _THOUSANDTHS][: int(amount)]
        self.claim(tuple(chosen), amount)
        return tuple(chosen)

    def claim(self, names: tuple[str, ...], amount: float) -> None:
        """Take exactly these, for an actor that has them already; those that are not here are ignored."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = max(0, self._free[name] - need)

    def give(self, names: tuple[str, ...], amount: float) -> None:
        """Give back what `take(amount)` gave."""
        need = round(min(amount, 1) * _THOUSANDTHS)
        for name in names:
            if name in self._free:
                self._free[name] = min(_THOUSANDTHS, self._free[name] + need)

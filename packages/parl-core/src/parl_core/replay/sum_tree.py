"""A tree of partial sums: draws leaves in proportion to their value, many at once.

    total
    level 0   [ s0 | s1 | ... ]            at most TOP sums, searched in one sorted pass
    level 1   [ 16 sums ][ 16 sums ] ...   each sum of level 0 covers 16 neighbours here
    leaves    [ 16 values ] ...

Instead of the textbook's two children a node has 16: one step down is then a handful of numpy operations on
`[n, 16]`, and a tree of 200,000 leaves has two such steps, not eighteen. Sums are recomputed from their children,
never adjusted by differences, so that rounding does not build up.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]

FAN_OUT = 16
TOP = 4096  # one running sum over so many numbers costs about as much as one step down


class SumTree:
    """Non-negative values at the slots `0 ... capacity - 1`, with their sums.

    Args:
        capacity: number of leaves, at least 1. All start at 0.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._levels: list[NDArray[np.float64]] = []  # from the leaves up, each padded to whole blocks
        width = capacity
        while True:
            blocks = -(-width // FAN_OUT)
            self._levels.append(np.zeros(blocks * FAN_OUT))
            if width <= TOP:
                break
            width = blocks
        self._blocks = [level.reshape(-1, FAN_OUT) for level in self._levels]

    @property
    def leaves(self) -> NDArray[np.float64]:
        """The values `[capacity]`, as a view; change them with `set` only."""
        return self._levels[0][: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._levels[-1].sum())

    def set(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set the leaves at `slots` `[n]` (of equal slots the last one counts) to `values` `[n]`."""
        self._levels[0][slots] = values
        nodes = slots
        for blocks, above in zip(self._blocks, self._levels[1:], strict=False):
            nodes = nodes // FAN_OUT
            above[nodes] = blocks.take(nodes, 0, mode="clip").sum(axis=1)

    def fill(self, start: int, stop: int, value: float) -> None:
        """Set the leaves `start ... stop - 1` to one value."""
        self._levels[0][start:stop] = value
        for blocks, above in zip(self._blocks, self._levels[1:], strict=False):
            start, stop = start // FAN_OUT, -(-stop // FAN_OUT)
            above[start:stop] = blocks[start:stop].sum(axis=1)

    def find(self, masses: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each mass the slot where the running sum of the leaves first exceeds it.

        Args:
            masses: `[n]` in `[0, total)`; ascending order is fastest. A mass drawn evenly from there finds each slot
                with a probability in proportion to its value.

        Returns:
            Slots `[n]`, none of them with the value 0.
        """
        sums = self._levels[-1].cumsum()
        # Strictly below the last sum, whatever rounding did: the slot that is found then has a value above 0.
        rest = np.minimum(masses, np.nextafter(sums[-1], 0.0))
        nodes: NDArray[np.int64] = sums.searchsorted(rest, "right")
        if len(self._blocks) > 1:
            rest -= sums[nodes] - self._levels[-1][nodes]
        for blocks in self._blocks[-2::-1]:
            sums = blocks.take(nodes, 0, mode="clip").cumsum(axis=1)
            np.minimum(rest, np.nextafter(sums[:, -1], 0.0), out=rest)
            child = (sums > rest[:, None]).argmax(axis=1)
            if blocks is not self._blocks[0]:
                before = np.where(child > 0, np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], 1)[:, 0], 0.0)
                rest -= before
            nodes = nodes * FAN_OUT + child
        return nodes

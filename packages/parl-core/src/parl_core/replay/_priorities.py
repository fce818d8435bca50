"""Prioritised sampling: probabilities of slots, and importance weights.

T. Schaul, J. Quan, I. Antonoglou, D. Silver: Prioritized Experience Replay, ICLR 2016 (arXiv 1511.05952),
the proportional variant of its Algorithm 1:

    p_i = |delta_i| + epsilon,    P(i) = p_i^alpha / sum_k p_k^alpha,    w_i = (N P(i))^-beta / max_j w_j

A transition that was never sampled has the largest priority so far. Differences from the paper: the weights are
normalised by the largest of the batch, not of the memory, so that one very small priority somewhere does not scale all
updates down.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import HyperparameterError

__all__ = ["Prioritized", "PrioritySampler", "SumTree"]


FAN_OUT = 16
TOP = 4096  # a running sum over this many numbers costs about as much as one level of the tree


class SumTree:
    """Non-negative values at the slots `0 ... capacity - 1`, with their sums; draws slots in proportion to them.

        total
        level 0   [ s0 | s1 | ... ]            at most TOP sums, searched in one sorted pass
        level 1   [ 16 sums ][ 16 sums ] ...   each sum of level 0 covers 16 neighbours here
        leaves    [ 16 values ] ...

    Instead of the textbook's two children a node has 16: one step down is then a handful of numpy operations on
    `[n, 16]`, and a tree of 200,000 leaves has two such steps, not eighteen. Sums are recomputed from their children,
    never adjusted by differences, so that rounding does not build up.

    Args:
        capacity: Number of leaves, at least 1. All start at 0.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._levels: list[NDArray[np.float64]] = []  # from the leaves up; each level is padded to whole blocks
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
            Slots `[n]` with values above 0.
        """
        sums = self._levels[-1].cumsum()
        # Strictly below the last sum despite rounding, so that the slot has a value above 0.
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


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Settings of prioritised sampling; the defaults are the paper's for the proportional variant.

    Attributes:
        alpha: Exponent of the priorities, in [0, 1]; 0 is uniform sampling.
        beta: The degree to which importance-sampling weights correct for the priorities, in [0, 1]. The paper raises it
            linearly to 1 at the end of training: pass `beta=` to `sample` for that.
        epsilon: The number added to each |TD error| so that every transition can be drawn again, above 0.

    Raises:
        HyperparameterError: A value is out of its range.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not (0.0 <= self.alpha <= 1.0 and 0.0 <= self.beta <= 1.0):
            raise HyperparameterError(f"alpha and beta must be in [0, 1], got alpha={self.alpha}, beta={self.beta}")
        if not self.epsilon > 0.0:
            raise HyperparameterError(
                f"epsilon must be above 0 (else a transition with no error is never drawn again), got {self.epsilon}"
            )


class PrioritySampler:
    """The priorities of the slots of one ring, which are updated for written and dropped slots before each draw.

    Args:
        settings: Alpha, beta and epsilon.
        capacity: Number of slots.
    """

    def __init__(self, settings: Prioritized, capacity: int) -> None:
        self.settings = settings
        self._capacity = capacity
        self._tree = SumTree(capacity)
        self._largest = 1.0  # the first transitions' priority (paper, Algorithm 1, line 2)
        self._start = 0
        self._end = 0

    def follow(self, start: int, end: int) -> None:
        """Take over that the ring now holds the transitions number `start ... end - 1`, counted since its beginning.

        New slots get the largest priority so far, dropped ones 0.
        """
        if end != self._end:
            self._fill(max(self._end, end - self._capacity), end, self._largest)
            self._end = end
        # A slot that was dropped and written again must keep its new priority.
        gone = max(self._start, end - self._capacity)
        if start > gone:
            self._fill(gone, start, 0.0)
        self._start = start

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw slots `[n]`, one from each of n equal parts of the total priority (paper, appendix B.2.1)."""
        masses = rng.random(n)
        masses += np.arange(n)
        masses *= self._tree.total / n
        return self._tree.find(masses)

    def weights(self, slots: NDArray[np.int64], beta: float | None) -> NDArray[np.float32]:
        """Return the importance-sampling weights `[n]` of drawn slots, with the settings' beta unless one is given."""
        beta = self.settings.beta if beta is None else beta
        if not 0.0 <= beta <= 1.0:
            raise HyperparameterError(f"beta must be in [0, 1], got {beta}")
        # N and the sum of all priorities cancel out when the weights are divided by the largest of them.
        values = self._tree.leaves.take(slots)
        values /= values.min()
        np.power(values, -beta, out=values)
        return values.astype(np.float32)

    def update(self, slots: NDArray[np.int64], td_error: NDArray[Any]) -> None:
        """Set the priorities of slots `[n]` from their new TD errors `[n]`.

        Raises:
            IndexError: There is no such slot.
            ValueError: An error is not finite, or the shapes differ.
        """
        if slots.view(np.uint64).max(initial=0) >= self._capacity:  # -1 as an unsigned number is large
            raise IndexError(
                f"the slots are those from {slots.min()} to {slots.max()}, this memory has 0 to {self._capacity - 1}: "
                "pass the index of a batch that it drew"
            )
        priorities = np.abs(np.asarray(td_error, np.float64).reshape(-1))
        if priorities.shape != slots.shape:
            raise ValueError(f"td_error has {priorities.size} values for {slots.size} slots: pass one per transition")
        priorities += self.settings.epsilon
        largest = float(priorities.max(initial=0.0))
        if not np.isfinite(largest):
            raise ValueError(
                f"td_error must be finite, got {largest}: the network's output or a reward is NaN or infinite"
            )
        np.power(priorities, self.settings.alpha, out=priorities)
        if self._end - self._start < self._capacity:  # slots may have been dropped since they were drawn
            held = self._tree.leaves.take(slots) > 0.0
            slots, priorities = slots[held], priorities[held]
        self._largest = max(self._largest, largest**self.settings.alpha)
        self._tree.set(slots, priorities)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `restore` needs."""
        return {"priority": self._tree.leaves.copy(), "largest_priority": np.array(self._largest)}

    def restore(self, priority: NDArray[np.float64], largest: float, start: int, end: int) -> None:
        """Take over saved priorities `[n]` of the first n slots of a ring that holds `start ... end - 1`."""
        self._tree.fill(0, self._capacity, 0.0)
        self._tree.set(np.arange(len(priority)), priority)
        self._largest = largest
        self._start, self._end = start, end

    def _fill(self, first: int, stop: int, value: float) -> None:
        begin, count = first % self._capacity, stop - first
        head = min(count, self._capacity - begin)
        self._tree.fill(begin, begin + head, value)
        if count > head:
            self._tree.fill(0, count - head, value)

"""Resource amounts of nodes and actors as one frozen vector.

    has.fits(need)    whether the actor fits there
    has - need        the remaining amounts, never below zero
    has + need        the amounts after release

Amounts count in thousandths (a third of a CPU is 0.333), so that sums of fractions come out exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Placement", "Resources"]


_DECIMALS = 3  # finer shares of a CPU are meaningless to a scheduler, and rounding keeps sums exact
_OWN_KINDS = ("cpu", "gpu", "memory")
_LARGEST = 1e15  # beyond it a float cannot represent thousandths


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of all resources that can be allocated.

    Attributes:
        cpu: CPUs, 0 or more, in steps of 0.001.
        gpu: GPUs, 0 or more, in steps of 0.001.
        memory: Bytes, 0 or more. A node that does not state its memory has 0.
        labels: Amounts of anything else that a cluster's owner named, for example `{"license": 2}`.

    Raises:
        ValueError: An amount is negative, not finite, or finer than 0.001.
    """

    cpu: float = 0.0
    gpu: float = 0.0
    memory: int = 0
    labels: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = self.labels
        if not labels and _are_sound(self.cpu, self.gpu, self.memory):
            object.__setattr__(self, "labels", {})
            return
        for name, amount in (("cpu", self.cpu), ("gpu", self.gpu), ("memory", self.memory), *labels.items()):
            _check_amount(name, amount)
        if clash := labels.keys() & set(_OWN_KINDS):
            raise ValueError(f"{min(clash)!r} cannot be the name of a label, because it is an option of its own")
        object.__setattr__(self, "labels", {k: v for k, v in sorted(labels.items()) if v})

    def __hash__(self) -> int:
        return hash((self.cpu, self.gpu, self.memory, tuple(self.labels.items())))

    def amount(self, kind: str) -> float:
        """Return the amount of "cpu", "gpu", "memory" or a label."""
        if kind in _OWN_KINDS:
            own: float = getattr(self, kind)
            return own
        return self.labels.get(kind, 0.0)

    def kinds(self) -> frozenset[str]:
        """Return the names of the nonzero amounts."""
        return frozenset((*(kind for kind in _OWN_KINDS if getattr(self, kind)), *self.labels))

    def only(self, kinds: frozenset[str]) -> Resources:
        """Return the amounts of these kinds, with all others zero."""
        labels = {name: amount for name, amount in self.labels.items() if name in kinds}
        cpu, gpu, memory = (self.amount(kind) if kind in kinds else 0 for kind in _OWN_KINDS)
        return Resources(cpu, gpu, int(memory), labels)

    def fits(self, need: Resources) -> bool:
        """Return whether `need` can be taken from these amounts."""
        return (
            need.cpu <= self.cpu
            and need.gpu <= self.gpu
            and need.memory <= self.memory
            and all(amount <= self.labels.get(name, 0) for name, amount in need.labels.items())
        )

    def __add__(self, other: Resources) -> Resources:
        return self._combined(other, 1)

    def __sub__(self, other: Resources) -> Resources:
        return self._combined(other, -1)

    def _combined(self, other: Resources, sign: int) -> Resources:
        labels = self.labels
        if other.labels:
            names = {*self.labels, *other.labels}
            labels = {n: _exact(self.labels.get(n, 0) + sign * other.labels.get(n, 0)) for n in names}
        cpu, gpu = _exact(self.cpu + sign * other.cpu), _exact(self.gpu + sign * other.gpu)
        memory = self.memory + sign * other.memory
        if labels or cpu < 0 or gpu < 0 or memory < 0 or cpu + gpu + memory > _LARGEST:
            return Resources(cpu, gpu, memory, labels)
        sound = object.__new__(Resources)  # the checks would be a third of the cost of placing an actor
        for name, amount in (("cpu", cpu), ("gpu", gpu), ("memory", memory), ("labels", labels)):
            object.__setattr__(sound, name, amount)
        return sound

    def __str__(self) -> str:
        return ", ".join(self._words()) or "nothing"

    def as_request(self) -> str:
        """Return the amounts as text for the request of an actor; one that needs none of them still needs a node."""
        return str(self) if self.kinds() else "a node"

    def _words(self) -> Iterator[str]:
        if self.cpu:
            yield f"{self.cpu:g} CPU"
        if self.gpu:
            yield f"{self.gpu:g} GPU"
        if self.memory:
            yield f"{self.memory / 2**20:.0f} MiB memory"
        for name, amount in self.labels.items():
            yield f"{amount:g} {name}"


def _are_sound(*amounts: float) -> bool:
    """Return whether all amounts are whole and moderate; most are, others are checked one by one."""
    return all(0 <= amount <= _LARGEST and amount == int(amount) for amount in amounts)


def _exact(amount: float) -> float:
    return round(amount, _DECIMALS)


def _check_amount(name: str, amount: float) -> None:
    if not math.isfinite(amount) or not 0 <= amount <= _LARGEST:
        raise ValueError(f"{name} must be a finite amount of 0 or more, not {amount!r}")
    if _exact(amount) != amount:
        raise ValueError(f"{name} counts in steps of 0.001, {amount!r} is finer")


class Placement(Enum):
    """The policy that selects among the nodes with enough free resources.

    SPREAD: the node with the most left, so that load is spread evenly. PACK: the one with the least left, so that whole
    nodes stay free for large actors.
    """

    SPREAD = "spread"
    PACK = "pack"

"""Which heads learn from which transitions: bootstrap masks beside a replay memory.

    memory.sample(n).index ──> BootstrapMasks.of ──> mask [n, heads] ──> BootstrappedDDPG.learn(..., mask=mask)

A mask belongs to a slot of the memory, so it stays with its transition for as long as that is held. What overwrites the
slot takes over its mask, which is as random for it as a new one: masks are drawn without a look at transitions.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.checks import check_fraction, check_int, check_positive
from parl_core.errors import HyperparameterError
from parl_core.seeding import make_generator

__all__ = ["BootstrapMasks"]

DISTRIBUTIONS = ("bernoulli", "poisson")


class BootstrapMasks:
    """How much each transition counts for each head (Osband et al. 2016, section 3 and appendix on masks).

    Args:
        max_size: slots of the memory.
        heads: how many heads there are.
        share: of `"bernoulli"` the probability that a head learns from a transition, in (0, 1]; of `"poisson"` the mean
            of how often it does, above 0, with 1 for the bootstrap (sampling with replacement) of a stream.
        distribution: `"bernoulli"` or `"poisson"`.
        seed: of the draws; or a generator to share.

    Raises:
        HyperparameterError: an argument is out of its range.
    """

    def __init__(
        self,
        max_size: int,
        heads: int,
        share: float = 0.5,
        distribution: str = "bernoulli",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        size = (check_int("max_size", max_size), check_int("heads", heads))
        rng = make_generator(seed)
        if distribution == "bernoulli":
            if check_fraction("share", share) == 0.0:
                raise HyperparameterError("share must be above 0, else no head learns; usual is 0.5")
            counts: NDArray[np.uint8] = (rng.random(size, np.float32) < share).astype(np.uint8)
        elif distribution == "poisson":
            counts = np.minimum(rng.poisson(check_positive("share", share), size), 255).astype(np.uint8)
        else:
            named = " or ".join(map(repr, DISTRIBUTIONS))
            raise HyperparameterError(f"distribution must be {named}, got {distribution!r}")
        self._counts = counts

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return int(self._counts.shape[1])

    def of(self, index: ArrayLike) -> NDArray[np.float32]:
        """The masks `[n, heads]` of the slots `[n]`, such as `batch.index`.

        Raises:
            IndexError: there is no such slot.
        """
        slots = np.asarray(index, np.int64)
        if slots.size and slots.min() < 0:
            raise IndexError(f"slots are 0 to {len(self._counts) - 1}, got {slots.min()}: pass the index of a batch")
        return self._counts[slots].astype(np.float32)

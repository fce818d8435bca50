"""Augmented random search (Mania, Guy, Recht 2018, arXiv 1803.07055), algorithm 1 in its version V1-t.

    theta <- theta + rate / (b * deviation of their rewards) * sum over the b best directions of (r+ - r-) * z

A direction is a mirrored pair, as good as its better half (line 6). The sum is over integers and exact, everything
after it is elementwise: equal samples give equal bits, in any order and on any machine.

Version V2's normalisation of observations belongs to the policy: see `parallel`.

Differences from the paper: the step goes through the optimizer of the settings (SGD is the paper's); halves of a pair
count alone when their twins did not come; stale samples are chosen and normalised within their own model and weighted
by stale_decay**age.
"""

import numpy as np

from parl_evokit.intake import Group, Intake
from parl_evokit.noise.quantiles import UNITS_PER_ONE
from parl_evokit.openai_es import ES
from parl_evokit.shaping import Utilities, top_directions

__all__ = ["ARS"]


class ARS(ES):
    """ARS: random directions, of which the best `update.top_k` count; the step does not depend on the noise's std.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `optimizer`, `sampling.gaussian_sampling` and `update` but for its `shaping`.
        layout: Names and shapes of the vector's parts.
    """

    def _utilities(self, group: Group) -> Utilities:
        return top_directions(group.rewards, group.keys, self.config.solver.update.top_k)

    def _scale(self, group: Group, intake: Intake) -> float:  # noqa: ARG002
        """Of one unit of noise with utility 1 in the gradient: the deviation is in the utilities already."""
        directions = len(np.unique(group.keys >> np.uint64(1)))
        return -1.0 / UNITS_PER_ONE / min(self.config.solver.update.top_k, directions)

"""`np_softmax` and `np_cross_entropy`, defined in `parl_core._policy_outputs`."""

from parl_core._policy_outputs import np_cross_entropy, np_softmax

__all__ = ["np_cross_entropy", "np_softmax"]

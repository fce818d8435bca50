"""`np_softmax` and `np_cross_entropy`, at home in `parl_core.probabilities`."""

from parl_core.probabilities import np_cross_entropy, np_softmax

__all__ = ["np_cross_entropy", "np_softmax"]

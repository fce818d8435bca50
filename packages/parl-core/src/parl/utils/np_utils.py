"""`np_softmax` and `np_cross_entropy`, at home in `parl_core.returns`."""

from parl_core.returns import np_cross_entropy, np_softmax

__all__ = ["np_cross_entropy", "np_softmax"]

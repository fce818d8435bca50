"""`parl_core.summary` under the name that PARL 2.x has for its tensorboard functions."""

from parl_core.summary import add_histogram, add_scalar, close, flush

__all__ = ["add_histogram", "add_scalar", "close", "flush"]

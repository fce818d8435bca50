"""`deprecated`, defined in `parl_core._deprecation`."""

from parl_core._deprecation import deprecated

__all__ = ["deprecated"]

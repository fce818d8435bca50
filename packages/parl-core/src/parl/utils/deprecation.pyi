"""`deprecated`, at home in `parl_core.deprecation`."""

from parl_core.deprecation import deprecated

__all__ = ["deprecated"]

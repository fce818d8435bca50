"""`TimeStat`, defined in `parl_core.stats`."""

from parl_core.stats import TimeStat

__all__ = ["TimeStat"]

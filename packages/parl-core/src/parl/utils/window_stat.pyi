"""`WindowStat`, defined in `parl_core.stats`."""

from parl_core.stats import WindowStat

__all__ = ["WindowStat"]

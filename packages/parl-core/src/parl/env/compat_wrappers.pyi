"""`CompatWrapper`, defined in `parl_core.env.compat`."""

from parl_core.env.compat import V_GYM_CHANGED, V_NPRANDOM_CHANGED, CompatWrapper, is_gym_version_ge

__all__ = ["V_GYM_CHANGED", "V_NPRANDOM_CHANGED", "CompatWrapper", "is_gym_version_ge"]

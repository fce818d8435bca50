"""`CompatWrapper`, at home in `parl_core.env.compat`."""

from parl_core.env.compat import CompatWrapper, is_gym_version_ge

__all__ = ["CompatWrapper", "is_gym_version_ge"]

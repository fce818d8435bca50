"""`CompatWrapper`, at home in `parl_core.env.wrappers`."""

from parl_core.env.wrappers import CompatWrapper, is_gym_version_ge

__all__ = ["CompatWrapper", "is_gym_version_ge"]

"""`ActionMappingWrapper`, at home in `parl_core.env.continuous`."""

from parl_core.env.continuous import ActionMappingWrapper

__all__ = ["ActionMappingWrapper"]

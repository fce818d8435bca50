"""`ActionMappingWrapper`, defined in `parl_core.env.wrappers`."""

from parl_core.env.wrappers import ActionMappingWrapper

__all__ = ["ActionMappingWrapper"]

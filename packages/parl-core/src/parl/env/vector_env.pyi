"""`VectorEnv`, defined in `parl_core.env.wrappers`."""

from parl_core.env.wrappers import VectorEnv

__all__ = ["VectorEnv"]

"""`VectorEnv`, at home in `parl_core.env.env_list`."""

from parl_core.env.env_list import VectorEnv

__all__ = ["VectorEnv"]

"""What all wrappers of this folder build on."""

from typing import Any, TypeVar

import gymnasium

__all__ = ["AnyEnv", "AnyWrapper", "Step", "get_wrapper_by_cls"]

AnyEnv = gymnasium.Env[Any, Any]
AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
Step = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

W = TypeVar("W", bound=AnyWrapper)


def get_wrapper_by_cls(env: AnyEnv, cls: type[W]) -> W | None:
    """Return the outermost wrapper of a class around an environment, or None where there is none."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, cls):
            return env
        env = env.env
    return None

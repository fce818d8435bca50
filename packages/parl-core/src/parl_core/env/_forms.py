"""The forms that `reset` and `step` of an environment with Gymnasium's API return, checked."""

from typing import Any

__all__ = ["name_of", "start_of", "step_of"]


def start_of(env: Any, answer: Any) -> tuple[Any, dict[str, Any]]:
    """Return the result of `reset` of an environment with Gymnasium's API.

    Raises:
        TypeError: It does not have the form of this API.
    """
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise TypeError(
            f"{name_of(env)}.reset() takes a seed, as in Gymnasium's API, and did not return (obs, info): let it do "
            "so, or give the class the attribute api = 'gym'"
        )
    obs, info = answer
    return obs, info


def step_of(env: Any, result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Return the result of `step` of an environment with Gymnasium's API.

    Raises:
        TypeError: It does not have the form of this API.
    """
    if len(result) != 5:
        raise TypeError(
            f"{name_of(env)}.step() returned {len(result)} values, and Gymnasium's API, which its reset() has, as it "
            "takes a seed, has 5: let it return them, or give the class the attribute api = 'gym', if it has gym's 4"
        )
    obs, reward, terminated, truncated, info = result
    return obs, reward, terminated, truncated, info


def name_of(env: Any) -> str:
    """Return the name of an environment's class, without its wrappers."""
    return type(getattr(env, "unwrapped", env)).__name__

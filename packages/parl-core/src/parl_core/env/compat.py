"""Names of PARL 2.x for programs that had to work with several versions of gym. Here there is one: Gymnasium's."""

import re

import gymnasium

from parl_core.env.wrapping import AnyWrapper

__all__ = ["CompatWrapper", "is_gym_version_ge"]


class CompatWrapper(AnyWrapper):
    """Passes Gymnasium's API through as it is: `reset` gives `(obs, info)`, `step` five values, seeds only when given.

    PARL's wrapper translated to gym's old API and lost `truncated` on the way, so that time limits taught agents
    that the world ends there. Programs that unpacked four values now unpack five.
    """


def is_gym_version_ge(version: str) -> bool:
    """Say whether the installed Gymnasium is at least of a version such as `"0.26.0"` (gym's numbers go on in it)."""
    return _numbers(gymnasium.__version__) >= _numbers(version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]

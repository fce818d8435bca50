"""Numbers that environments give: one that is infinite or NaN ends a loop, before anything is learned from it."""

from typing import Any

from numpy.typing import NDArray

from parl_core.checks import first_not_finite
from parl_core.errors import DivergedError
from parl_core.nested import Observations, leaves

__all__ = ["check_observations", "check_rewards"]

_REMEDY = (
    "in the environment, and go on from the agent as it is or from the last checkpoint; nothing was learned from it"
)


def check_rewards(reward: NDArray[Any], when: str) -> None:
    """Refuse rewards `[..., N]` of N environments that are not finite.

    Args:
        reward: `[N]`, or `[T, N]` over T steps.
        when: ends the first part of the message.

    Raises:
        DivergedError: the message names the environment, the reward and the step.
    """
    if (at := first_not_finite(reward)) is not None:
        raise DivergedError(
            f"environment {at[-1]} gave the reward {reward[at]}{_step(at[:-1])} {when}: "
            f"clip or repair rewards {_REMEDY}"
        )


def check_observations(obs: Observations, when: str, leading: int = 1) -> None:
    """Refuse observations of N environments that are not finite; networks may hide them and their weights rot.

    Args:
        obs: arrays `[N, ...]`, or `[T, N, ...]` over T steps with `leading=2`, or a dictionary of such.
        when: ends the first part of the message.
        leading: number of dimensions before those of an observation.

    Raises:
        DivergedError: the message names the environment, the number and the step.
    """
    for name, array in leaves("obs", obs).items():
        if array.dtype.kind == "f" and (at := first_not_finite(array)) is not None:
            raise DivergedError(
                f"environment {at[leading - 1]} observed {array[at]} in {name}{list(at[leading:])}"
                f"{_step(at[: leading - 1])} {when}: repair observations {_REMEDY}"
            )


def _step(at: tuple[int, ...]) -> str:
    return f" at step {at[0]}" if at else ""

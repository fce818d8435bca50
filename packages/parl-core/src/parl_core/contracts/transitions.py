"""The batch that off-policy algorithms learn from, checked and converted: transitions of a replay memory."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from parl_core.checks import check_rows
from parl_core.contracts.columns import finite_column, flags_column, floats_column, observations
from parl_core.nested import leaves

__all__ = ["transition_columns"]


def transition_columns(
    algorithm: str,
    obs: Any,
    action: Any,
    reward: Any,
    next_obs: Any,
    terminal: Any,
    *,
    to_action: Callable[[str, Any], NDArray[Any]],
    **optional: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Check and convert the arrays of an off-policy algorithm's `learn`.

    Args:
        algorithm: name, for messages.
        obs: `[n, ...]`, or a dictionary of such.
        action: what `to_action` takes.
        reward: `[n]` or `[n, 1]`.
        next_obs: as `obs`.
        terminal: bool or float `[n]` or `[n, 1]`.
        to_action: checks and converts the actions, given their name and the values.
        optional: more columns `[n]` or `[n, 1]` of numbers; None stands for not given.

    Returns:
        The five columns in this order, and those of the optional ones that were given.

    Raises:
        ValueError: shapes or dtypes do not fit, the batch is empty, a reward is not finite, or `terminal` is no flag.
    """
    columns = {
        "obs": observations(obs),
        "action": to_action("action", action),
        "reward": finite_column("reward", reward),
        "next_obs": observations(next_obs),
        "terminal": flags_column("terminal", terminal),
    }
    extra = {name: floats_column(name, values) for name, values in optional.items() if values is not None}
    check_rows(
        f"{algorithm}.learn",
        {path: leaf for name, part in (columns | extra).items() for path, leaf in leaves(name, part).items()},
    )
    return tuple(columns.values()), extra

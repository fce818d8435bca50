"""The batch that off-policy algorithms learn from, checked and converted: transitions of a replay memory."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from parl_core.checks import check_rows
from parl_core.contracts.columns import finite_column, flags_column, observations, weights_column
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
    weights: Any = None,
    discount: Any = None,
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
        weights: numbers of at least 0, `[n]` or `[n, 1]`; None for not given.
        discount: numbers in [0, 1], likewise.

    Returns:
        The five columns in this order, and those of the last two that were given.

    Raises:
        ValueError: shapes or dtypes do not fit, the batch is empty, a reward is not finite, a number is out of its
            range, or `terminal` is no flag.
    """
    columns = {
        "obs": observations(obs),
        "action": to_action("action", action),
        "reward": finite_column("reward", reward),
        "next_obs": observations(next_obs),
        "terminal": flags_column("terminal", terminal),
    }
    extra = {}
    if weights is not None:
        extra["weights"] = weights_column("weights", weights)
    if discount is not None:
        extra["discount"] = weights_column("discount", discount, 1.0)
    check_rows(
        f"{algorithm}.learn",
        {path: leaf for name, part in (columns | extra).items() for path, leaf in leaves(name, part).items()},
    )
    _check_same_shapes(leaves("obs", columns["obs"]), leaves("obs", columns["next_obs"]))
    return tuple(columns.values()), extra


def _check_same_shapes(before: Mapping[str, NDArray[Any]], after: Mapping[str, NDArray[Any]]) -> None:
    """Refuse next observations of another shape, which a layer that takes its shape from the first batch would take."""
    for path in before.keys() & after.keys():
        if before[path].shape != after[path].shape:
            raise ValueError(
                f"next_{path} must have the shape of {path}, {before[path].shape}, got {after[path].shape}"
            )

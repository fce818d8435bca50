"""Batches that algorithms learn from: columns with one entry a row, checked, transitions, and rollouts.

A column has the dtype that an algorithm computes with. The messages of the checks name the argument, the row and the
value.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, leaves, map_nested, rows_of
from parl_core.checks import check_rows

__all__ = [
    "RolloutBatch",
    "actions_column",
    "finite_column",
    "flags_column",
    "floats_column",
    "observations",
    "transition_columns",
    "weights_column",
]


_LARGEST = float(np.finfo(np.float32).max)


def observations(values: Any) -> Observations:
    """Return the observations of a batch as an array, or as a dictionary of arrays; copies only where needed."""
    found: Observations = map_nested(np.asarray, values)
    return found


def actions_column(name: str, values: Any, act_dim: int | None = None) -> NDArray[np.int64]:
    """Return discrete actions as int64 `[n]`, from `[n]` or `[n, 1]`.

    Args:
        name: of the argument, for messages.
        values: action indices.
        act_dim: number of actions; where given, larger indices are refused, which on a GPU would end the process.

    Raises:
        ValueError: another shape, numbers that are not whole, or indices that are no actions.
    """
    given = np.asarray(values)
    if given.ndim == 2 and given.shape[1] > 1:
        raise ValueError(
            f"{name} must have shape [n] or [n, 1], got {given.shape}: these are discrete actions; of vectors of "
            "numbers SAC, TD3, CQL and IQL learn, of several discrete parts PPO and A2C with nvec="
        )
    array = _column(name, given)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers (action indices), got dtype {array.dtype}")
    if array.size and (array.min() < 0 or (act_dim is not None and array.max() >= act_dim)):
        allowed = "at least 0" if act_dim is None else f"in 0..{act_dim - 1}"
        raise ValueError(f"{name} must be {allowed}, got {array.min()}..{array.max()}")
    return array.astype(np.int64, copy=False)


def floats_column(name: str, values: Any) -> NDArray[Any]:
    """Return numbers or flags as floats `[n]`, from `[n]` or `[n, 1]`; float32 and float64 stay what they are.

    Raises:
        ValueError: another shape, or no numbers.
    """
    array = _column(name, np.asarray(values))
    if array.dtype.kind == "f":
        return array
    if array.dtype.kind not in "iub":
        raise ValueError(f"{name} must hold numbers, got dtype {array.dtype}")
    return array.astype(np.float32)


def finite_column(name: str, values: Any) -> NDArray[Any]:
    """Return a column as `floats_column` does, of finite numbers: one that is not spoils all weights.

    Raises:
        ValueError: another shape, no numbers, or one that is NaN, or infinite in single precision; the message has the
            first such row.
    """
    array = floats_column(name, values)
    finite = np.abs(array) <= _LARGEST
    if not finite.all():
        spoiled = np.flatnonzero(~finite)
        raise ValueError(
            f"{name} must be finite, got {array[spoiled[0]]} in row {spoiled[0]}: one such number spoils all weights; "
            "clip or drop it in the environment"
        )
    return array


def weights_column(name: str, values: Any, largest: float = _LARGEST) -> NDArray[Any]:
    """Return a column as `finite_column` does, of numbers from 0 to `largest`.

    Raises:
        ValueError: another shape, no numbers, or one outside; the message has the first such row.
    """
    array = finite_column(name, values)
    if array.size and not (array.min() >= 0 and array.max() <= largest):
        row = int(np.flatnonzero(~((array >= 0) & (array <= largest)))[0])
        allowed = "at least 0" if largest == _LARGEST else f"in [0, {largest:g}]"
        raise ValueError(f"{name} must be {allowed}, got {array[row]} in row {row}")
    return array


def flags_column(name: str, values: Any) -> NDArray[Any]:
    """Return a column of flags as floats: 1 (or True) where an episode ended, 0 where not; probabilities are between.

    Raises:
        ValueError: another shape, no numbers, or one outside of [0, 1]; the message has the first such row.
    """
    flags = np.asarray(values)
    array = floats_column(name, flags)
    if flags.dtype.kind == "b" or not array.size or (array.min() >= 0 and array.max() <= 1):
        return array
    row = int(np.flatnonzero(~((array >= 0) & (array <= 1)))[0])
    raise ValueError(
        f"{name} must be 1 where an episode ended and 0 elsewhere, got {array[row]} in row {row}: pass the flag that "
        "env.step returned"
    )


def _column(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 1:
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    raise ValueError(f"{name} must have shape [n] or [n, 1], got {array.shape}")


def transition_columns(
    algorithm: str,
    obs: Any,
    action: Any,
    reward: Any,
    next_obs: Any,
    terminal: Any,
    *,
    weights: Any = None,
    discount: Any = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Check and convert the arrays of an off-policy algorithm's `learn`.

    Args:
        algorithm: name, for messages.
        obs: `[n, ...]`, or a dictionary of such.
        action: `[n]` or `[n, act_dim]`, checked and converted.
        reward: `[n]` or `[n, 1]`.
        next_obs: as `obs`.
        terminal: bool or float `[n]` or `[n, 1]`.
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
        "action": action,
        "reward": finite_column("reward", reward),
        "next_obs": observations(next_obs),
        "terminal": flags_column("terminal", terminal),
    }
    extra = {}
    if weights is not None:
        extra["weights"] = weights_column("weights", weights)
    if discount is not None:
        extra["discount"] = weights_column("discount", discount, 1.0)
    before, after = leaves("obs", columns["obs"]), leaves("next_obs", columns["next_obs"])
    others = {name: columns[name] for name in ("action", "reward", "terminal")}
    check_rows(f"{algorithm}.learn", before | others | after | extra)
    for name, array in before.items():
        # A layer that takes its shape from the first batch would take next observations of another shape.
        later = after.get(f"next_{name}", array)
        if later.shape != array.shape:
            raise ValueError(f"next_{name} must have the shape of {name}, {array.shape}, got {later.shape}")
    return tuple(columns.values()), extra


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout, flattened over environments and time; one row a step.

    Attributes:
        obs: `[n, ...]`, or a dictionary of such.
        action: int64 `[n]`, or int64 `[n, parts]` when multi-discrete, or float `[n, act_dim]` when continuous.
        value: float `[n]`, estimated by the policy that acted.
        return_: float `[n]`, the value function's target (advantage + value).
        log_prob: float `[n]`, of the action under the policy that acted.
        advantage: float `[n]`.
        action_mask: bool `[n, act_dim]`, True where an action was possible; None where all were, or where the
            observations have it.

    Raises:
        ValueError: the columns differ in length, or one that holds one number a row has another shape.
    """

    obs: Observations
    action: NDArray[Any]
    value: NDArray[Any]
    return_: NDArray[Any]
    log_prob: NDArray[Any]
    advantage: NDArray[Any]
    action_mask: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        columns = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        given = {name: column for name, column in columns.items() if column is not None}
        check_rows("RolloutBatch", leaves("obs", self.obs) | given)
        for name in ("value", "return_", "log_prob", "advantage"):
            if getattr(self, name).ndim != 1:
                raise ValueError(f"RolloutBatch.{name} must have shape [n], got {getattr(self, name).shape}")

    def __len__(self) -> int:
        return rows_of(self.obs)

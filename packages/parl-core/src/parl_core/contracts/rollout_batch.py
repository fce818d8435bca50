"""The rollout that on-policy algorithms learn from."""

from dataclasses import dataclass, fields
from typing import Any

from numpy.typing import NDArray

from parl_core.checks import check_rows
from parl_core.nested import Observations, leaves, rows_of

__all__ = ["RolloutBatch"]


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

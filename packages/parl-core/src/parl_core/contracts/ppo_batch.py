"""The rollout that PPO learns from."""

from dataclasses import dataclass, fields
from typing import Any

from numpy.typing import NDArray

from parl_core.checks import check_rows

__all__ = ["PPOBatch"]


@dataclass(frozen=True)
class PPOBatch:
    """A rollout, flattened over environments and time; one row a step.

    Attributes:
        obs: `[n, ...]`.
        action: int64 `[n]`, or float `[n, act_dim]` when continuous.
        value: float `[n]`, estimated by the policy that acted.
        return_: float `[n]`, the value function's target (advantage + value).
        log_prob: float `[n]`, of the action under the policy that acted.
        advantage: float `[n]`.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    value: NDArray[Any]
    return_: NDArray[Any]
    log_prob: NDArray[Any]
    advantage: NDArray[Any]

    def __post_init__(self) -> None:
        check_rows("PPOBatch", {field.name: getattr(self, field.name) for field in fields(self)})
        for name in ("value", "return_", "log_prob", "advantage"):
            if getattr(self, name).ndim != 1:
                raise ValueError(f"PPOBatch.{name} must have shape [n], got {getattr(self, name).shape}")

    def __len__(self) -> int:
        return len(self.obs)

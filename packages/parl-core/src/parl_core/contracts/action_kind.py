"""What kind of actions a policy chooses: one of several, several at once, or real numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.contracts.columns import actions_column
from parl_core.contracts.masks import check_mask, check_possible, mask_of
from parl_core.errors import HyperparameterError

__all__ = ["ActionKind"]


@dataclass(frozen=True)
class ActionKind:
    """Discrete unless told otherwise.

        kind             the model's policy(obs)                   actions
        discrete         logits `[batch, act_dim]`                 int64 `[batch]`
        multi-discrete   logits `[batch, sum(nvec)]`               int64 `[batch, len(nvec)]`
        continuous       (mean, std), each `[batch, act_dim]`      float `[batch, act_dim]`

    Attributes:
        continuous: actions are real numbers, drawn from a Gaussian.
        nvec: number of choices of each part of a multi-discrete action (`gymnasium.spaces.MultiDiscrete.nvec`).

    Raises:
        HyperparameterError: both are given, or a number of choices is below 1.
    """

    continuous: bool = False
    nvec: tuple[int, ...] | None = None

    @classmethod
    def of(cls, continuous_action: bool | None, nvec: Sequence[int] | None) -> "ActionKind":
        """From the arguments of an algorithm's constructor."""
        if nvec is None:
            return cls(continuous=bool(continuous_action))
        if continuous_action:
            raise HyperparameterError("actions are continuous or multi-discrete: give continuous_action or nvec")
        sizes = tuple(check_int(f"nvec[{i}]", size) for i, size in enumerate(nvec))
        if not sizes:
            raise HyperparameterError("nvec must have at least one number of choices, got none")
        return cls(nvec=sizes)

    def column(self, name: str, values: Any, act_dim: int | None = None) -> NDArray[Any]:
        """Actions of a batch in the shape and dtype that the policy's distribution takes.

        Args:
            name: of the argument, for messages.
            values: the actions.
            act_dim: number of actions if they are discrete; where given, larger indices are refused.

        Raises:
            ValueError: they have another shape or dtype, or are no actions.
        """
        if self.continuous:
            action = np.asarray(values)
            if action.ndim < 2:
                raise ValueError(f"{name} must have shape [n, act_dim] with continuous_action, got {action.shape}")
            if action.dtype.kind not in "fiu":
                raise ValueError(f"{name} must hold numbers, got dtype {action.dtype}")
            return action if action.dtype.kind == "f" else action.astype(np.float32)
        if self.nvec is None:
            return actions_column(name, values, act_dim)
        action = np.asarray(values)
        if action.ndim != 2 or action.shape[1] != len(self.nvec):
            raise ValueError(f"{name} must have shape [n, {len(self.nvec)}] with nvec={self.nvec}, got {action.shape}")
        parts = [actions_column(f"{name}[:, {i}]", action[:, i], size) for i, size in enumerate(self.nvec)]
        return np.stack(parts, axis=1)

    def mask(self, values: Any, obs: Any = None, action: Any = None) -> NDArray[np.bool_] | None:
        """A mask of possible actions as booleans, None where there is none.

        Args:
            values: the mask that was given.
            obs: observations that may bring one.
            action: what `column` returned, where it is known what was done.

        Raises:
            ValueError: the mask does not fit the actions, leaves none of them, or does not allow what was done.
        """
        if self.continuous:
            if values is not None:
                raise ValueError("action_mask is for discrete actions; a Gaussian's cannot be masked")
            return None
        values = mask_of(obs, values)
        if values is None:
            return None
        mask = check_mask(values, self.nvec)
        if action is not None:
            check_possible(action, mask, self.nvec)
        return mask

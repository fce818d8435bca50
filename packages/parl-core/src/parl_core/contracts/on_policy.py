"""The base of on-policy algorithms, and the rollout that they learn from."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_rows
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.columns import observations
from parl_core.contracts.settings import CountingUpdates
from parl_core.errors import HyperparameterError
from parl_core.nested import Observations, leaves, rows_of

__all__ = ["OnPolicy", "RolloutBatch", "refuse_unused"]


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


def refuse_unused(algorithm: str, **given: Any) -> None:
    """Refuse settings of `learn_rollout` that an algorithm has no use for, rather than do something else silently.

    Raises:
        HyperparameterError: one of them is not None.
    """
    unused = {name: value for name, value in given.items() if value is not None}
    if unused:
        listed = ", ".join(f"{name}={value!r}" for name, value in unused.items())
        raise HyperparameterError(
            f"{algorithm} takes one step on each whole rollout and has no use for {listed}; leave it out, or use PPO"
        )


class OnPolicy(CountingUpdates):
    """Base of algorithms that learn from the experience of their own policy."""

    actions: ActionKind

    _outputs: int | None = None

    def explore(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions, with what is needed to learn from them later.

        Args:
            obs: `[batch, ...]`, or a dictionary of such.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.

        Returns:
            (value `[batch]`, action `[batch, ...]`, log-probability of the action `[batch]`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define explore()")

    def learn_rollout(
        self,
        batch: RolloutBatch,
        *,
        epochs: int | None = None,
        minibatch_size: int | None = None,
        rng: np.random.Generator,
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Learn from one rollout.

        Args:
            batch: the rollout.
            epochs: passes over it; default the algorithm's.
            minibatch_size: rows a step; default the algorithm's.
            rng: draws the order of the minibatches.
            lr: learning rate of this call; default the constructor's.
            clip: clip range of this call; default the constructor's.
            entropy_coef: weight of the entropy *bonus* of this call, at least 0; default the constructor's.
            target_kl: end early when the policy has moved this far.

        Returns:
            Losses by name, means over the steps taken; and `steps`.

        Raises:
            HyperparameterError: the algorithm has no use for a value that was given.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define learn_rollout()")

    # Shared

    def _taken(self, name: str, values: Any, policy: str, obs: Any) -> NDArray[Any]:
        """Return the actions of a batch, checked.

        Args:
            name: of the argument, for messages.
            values: the actions.
            policy: method of the model that has one output for each discrete action, which is looked at once.
            obs: of the batch.
        """
        if self._outputs is None and self.actions == ActionKind():
            self._outputs = self._output_size(policy, observations(obs))
        return self.actions.column(name, values, self._outputs)

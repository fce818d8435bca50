"""The contract of PolicyGradient (REINFORCE)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Algorithm
from parl_core.checks import check_positive, check_rows, check_scheduled, first_method
from parl_core.contracts.columns import actions_column, floats_column
from parl_core.contracts.settings import merge
from parl_core.model import Model
from parl_core.optimizer import Optimizer

__all__ = ["PolicyGradient"]


class PolicyGradient(Algorithm):
    """Monte-Carlo policy gradient for discrete actions (Williams 1992, equation 5; Sutton & Barto 2018, section 13.3).

    loss = -mean(log pi(action_t | obs_t) * reward_t), one Adam step a call. `reward_t` is what the caller puts there,
    usually the discounted return, normalised over the episode (`parl.utils.calc_discount_norm_reward`).

    The model's `forward(obs)`, or `policy(obs)` where there is no `forward`, returns action probabilities
    `[batch, act_dim]` (rows sum to 1).

    Args:
        model: the policy.
        lr: learning rate of Adam, above 0; default 1e-3 (PARL's QuickStart).
        hyperparas: PARL 1.x's dictionary of the same settings.
        device: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model implements neither `forward` nor `policy`.
    """

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        lr: float | None = None,
        *,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        settings = merge("PolicyGradient", hyperparas, {"lr": lr}, {"lr": 1e-3})
        self.lr = check_positive("lr", settings["lr"])
        self._policy = first_method(model, ("forward", "policy"), "PolicyGradient")
        super().__init__(model, device=device)
        self.optimizer = self._adam(self.model, lr=self.lr)

    def predict(self, obs: Any) -> Any:
        """Return action probabilities `[batch, act_dim]`."""
        raise NotImplementedError

    def learn(self, obs: Any, action: Any, reward: Any, lr: float | None = None) -> Any:
        """Take one step.

        Args:
            obs: `[batch, ...]`.
            action: int64 `[batch]` or `[batch, 1]`.
            reward: float `[batch]` or `[batch, 1]`, the weight of each log-probability.
            lr: learning rate of this step; default the constructor's.

        Returns:
            The loss, a detached scalar.
        """
        raise NotImplementedError

    def choose(self, output: Any, *, rng: np.random.Generator | None = None, **options: Any) -> NDArray[np.int64]:
        """The most probable action of each row, or with `rng` one drawn from the row's probabilities."""
        super().choose(output, rng=rng, **options)
        if rng is None:
            return np.asarray(output.argmax(axis=1), np.int64)
        cumulated = np.cumsum(output, axis=1, dtype=np.float64)
        drawn = rng.random((len(output), 1)) * cumulated[:, -1:]  # scaled: float32 rows do not sum to 1 exactly
        return np.asarray((cumulated <= drawn).sum(axis=1), np.int64)

    def prepare(
        self, obs: Any, action: Any, reward: Any, lr: float | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check and convert the arrays of `learn`."""
        columns = {
            "obs": np.asarray(obs),
            "action": actions_column("action", action),
            "reward": floats_column("reward", reward),
        }
        check_rows("PolicyGradient.learn", columns)
        return tuple(columns.values()), {"lr": check_scheduled("lr", lr)}

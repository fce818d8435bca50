"""The base of on-policy algorithms."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Rollout, observations
from parl_core.contracts.settings import CountingUpdates
from parl_core.errors import HyperparameterError

__all__ = ["OnPolicy", "refuse_unused"]


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

    NO_ROLLOUTS: ClassVar[str] = ""
    """Of a form of an algorithm without `learn_rollout`: its name and what to do instead, for messages."""

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
        batch: Rollout,
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
            name: the argument's name, for messages.
            values: the actions.
            policy: method of the model that has one output for each discrete action, which is looked at once.
            obs: of the batch.
        """
        if self._outputs is None and self.actions == ActionKind():
            self._outputs = self._output_size(policy, observations(obs))
        return self.actions.column(name, values, self._outputs)

    def _with_checked_actions(self, batch: Rollout, policy: str) -> Rollout:
        """Return a batch of arrays with its actions and its mask checked; `policy` as in `_taken`."""
        action = self._taken("action", batch.action, policy, batch.obs)
        mask = self.actions.mask(batch.action_mask, batch.obs, action)
        return batch.made(**{**batch.__dict__, "action": action, "action_mask": mask})

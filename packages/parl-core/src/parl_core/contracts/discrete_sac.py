"""The contract of discrete SAC."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from parl_core.contracts.actions import ActionKind, check_mask, mask_of
from parl_core.contracts.batches import Transitions, actions_column, learns_from
from parl_core.contracts.sac import SAC

__all__ = ["DiscreteSAC"]

_SHARE = 0.98


class DiscreteSAC(SAC):
    """Soft actor-critic for discrete actions, with exact expectations (Christodoulou 2019, arXiv:1910.07207).

        V(s)             = sum_a pi(a|s) * (min(Q1', Q2')(s, a) - alpha * log pi(a|s))                  (equation 10)
        target           = reward + discount * (1 - terminal) * V(next_obs)
        critic loss      = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2
        actor loss       = mean(sum_a pi(a|obs) * (alpha * log pi(a|obs) - min(Q1, Q2)(obs, a)))        (equation 12)
        temperature loss = -log alpha * mean(target_entropy - entropy of pi(.|obs))                     (equation 11)
        critics'         = (1 - tau) * critics' + tau * critics

    The temperature alpha is learned unless it is given. Deviations from the paper: those of `SAC`.

    Where not every action is always possible, `action_mask` to `predict` and `sample`, and `action_mask` and
    `next_action_mask` to `learn` (or dictionaries of observations with an entry `action_mask`) give the others
    probability 0.

    The model has `policy(obs)`, logits `[batch, act_dim]`; `value(obs)`, the pair (Q1, Q2), each `[batch, act_dim]`;
    `get_actor_params()`; and where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, appendix).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005 (Haarnoja et
            al. 2018; the paper copies it every 8,000 steps).
        alpha: Temperature, at least 0; default: learned, from 1 on.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            appendix).
        critic_lr: The learning rate of the critics' Adam, likewise.
        alpha_lr: The learning rate of a learned temperature's Adam, likewise; default: that of the actor.
        target_entropy: The target entropy of a learned temperature, in nats; default 0.98 * log(number of possible
            actions) (paper, appendix), which keeps actions close to random. Choose a smaller value if the policy should
            become deterministic.
        optimizer: As in `SAC`.
        hyperparas: As in `SAC`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, given twice, or has no effect with a fixed temperature.
        ModelContractError: The model lacks one of its methods.
    """

    CHOOSES: ClassVar[bool] = True
    ACTS_IN_UNIT_BOX: ClassVar[bool] = False
    PAIRS: ClassVar[Mapping[str, str]] = {}
    NAMED: ClassVar[frozenset[str]] = frozenset({"td_error", "entropy", "largest_entropy"})

    _choices: int | None = None

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions, int64 `[batch]`."""
        with self._no_gradients():
            return self._of(self.model.policy(obs), obs, action_mask).mode()

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions, int64 `[batch]`.

        Args:
            obs: `[batch, ...]`, or a dictionary of arrays.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.
        """
        with self._no_gradients():
            return self._of(self.model.policy(obs), obs, action_mask).sample()

    def sample_actions(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the same as `sample`."""
        return self.sample(obs, action_mask)

    @learns_from(
        Transitions,
        keywords=("weights", "discount", "actor_lr", "critic_lr"),
        extra=("action_mask", "next_action_mask"),
    )
    def learn(self, batch: Transitions, *, actor_lr: float | None = None, critic_lr: float | None = None) -> Any:
        """Take one step of the critics, one of the actor and one of the temperature, and move the target.

        Args:
            batch: Tensors; actions int64 `[batch]`. Its extra columns `action_mask` and `next_action_mask`, bool
                `[batch, act_dim]`, are True where an action is possible in `obs` and `next_obs`; default: their entry
                `action_mask`, else all are.
            actor_lr: Learning rate of the actor for this step; default the constructor's.
            critic_lr: Learning rate of the critics for this step; default the constructor's.

        Returns:
            (critic_loss, actor_loss), detached scalars; with `batch.weights` also td_error `[batch]`, target - Q, the
            mean of both critics.
        """
        return super().learn(batch, actor_lr=actor_lr, critic_lr=critic_lr)

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with valid actions, and masks as booleans.

        Raises:
            ValueError: An action is invalid, or a mask allows no action where one is chosen.
        """
        if self._choices is None:
            self._choices = self._output_size("policy", batch.obs)
        columns = {**batch.__dict__, "action": actions_column("action", batch.action, self._choices)}
        extra = dict(batch.extra or {})
        # there is no bootstrapping from terminal rows, where no action may be possible
        over = np.asarray(batch.terminal) != 0
        for name, obs, unless in (("action_mask", batch.obs, None), ("next_action_mask", batch.next_obs, over)):
            mask = mask_of(obs, extra.get(name))
            if mask is not None:
                checked = check_mask(mask, unless=unless)
                extra[name] = checked if unless is None else checked | unless[:, None]
        return batch.made(**{**columns, "extra": extra or None})

    # Shared

    def _of(self, logits: Any, obs: Any, mask: Any) -> Any:
        return self._distribution(logits, ActionKind(), mask_of(obs, mask))

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        alpha = self._of_dtype(self.alpha, batch.reward)
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, alpha, lr=critic_lr)
        actor_loss, of_actor = self._descend(self.actor_optimizer, self.actor_loss, batch, alpha, lr=actor_lr)
        if self._fixed_alpha is None:
            wanted = of_actor["largest_entropy"] * _SHARE if self.target_entropy is None else self.target_entropy
            rate = self._now("alpha_lr", self.alpha_lr)
            self.temperature_optimizer.descend(self._temperature_loss, wanted - of_actor["entropy"], lr=rate)
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

    def _run_model(self, obs: Any, action: Any) -> None:  # noqa: ARG002 - actions are no input here
        self.model.policy(obs)
        self.model.value(obs)

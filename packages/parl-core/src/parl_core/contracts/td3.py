"""The contract of TD3."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from parl_core.checks import check_int, check_non_negative
from parl_core.contracts.batches import Transitions
from parl_core.contracts.continuous import ActorCriticSettings, NoisyActorCritic
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["TD3"]


class TD3(NoisyActorCritic):
    """Twin delayed deep deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477, algorithm 1).

        next action = clip(mu'(next_obs) + clip(N(0, policy_noise), -noise_clip, noise_clip), -1, 1)
        target      = reward + discount * (1 - terminal) * min(Q1', Q2')(next_obs, next action)
        critic loss = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2
        every policy_freq updates:
            actor loss = -mean(Q1(obs, mu(obs)))
            model'     = (1 - tau) * model' + tau * model

    Deviations from the paper: none known.

    The model has `policy(obs)`, actions `[batch, act_dim]` in [-1, 1] (end in tanh); `value(obs, action)`, the pair
    (Q1, Q2), each `[batch]` or `[batch, 1]`; `Q1(obs, action)`, the first of them alone; `get_actor_params()`; and
    where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (authors' code).
        tau: how far the target moves to the model, in (0, 1]; default 0.005 (paper, section 6.1).
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (authors'
            code; the paper has 1e-3).
        critic_lr: the same of the critics; default 3e-4.
        policy_noise: standard deviation of the noise on the target's actions, at least 0; default 0.2 (paper).
        noise_clip: limit of that noise, at least 0; default 0.5 (paper).
        policy_freq: critic steps for one of actor and target, at least 1; default 2 (paper).
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        hyperparas: a dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"value": "the pair (Q1, Q2)"}
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "Q1", "get_actor_params")

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_freq: int = 2,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self.policy_noise = check_non_negative("policy_noise", policy_noise)
        self.noise_clip = check_non_negative("noise_clip", noise_clip)
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, **settings)

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        noise = self._noise(batch.action)
        critic_loss, figures = self.critic_optimizer.descend(self.critic_loss, batch, noise, lr=critic_lr)
        actor_loss = self._when_due(batch, lambda: self._learn_actor(batch, actor_lr))
        return critic_loss, actor_loss, figures["td_error"]

    def _learn_actor(self, batch: Transitions, rate: Any) -> Any:
        actor_loss, _ = self.actor_optimizer.descend(self.actor_loss, batch, lr=rate)
        self.sync_target()
        return actor_loss

"""The contract of AWAC."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from parl_core.checks import check_positive
from parl_core.contracts.batches import Transitions
from parl_core.contracts.continuous import ActorCriticSettings, ContinuousActorCritic
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["AWAC"]


class AWAC(ContinuousActorCritic):
    """Advantage-weighted actor-critic, from logged data and after it online (Nair et al. 2020, arXiv:2006.09359).

        target      = reward + discount * (1 - terminal) * min(Q1', Q2')(next_obs, next action of pi)
        critic loss = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2                       (equation 2)
        A           = min(Q1, Q2)(obs, action) - min(Q1, Q2)(obs, action of pi)
        actor loss  = -mean(min(exp(A / lam), 100) * log pi(action | obs))                                (equation 13)
        model'      = (1 - tau) * model' + tau * model

    Deviations: weights are limited at 100, as those of IQL, and not normalised; the authors' code takes a softmax over
    the batch. The state's value is estimated by one action of the policy.

    The model has `policy(obs)`, the pair (mean, log std) of a Gaussian over actions in [-1, 1], each `[batch,
    act_dim]`; `value(obs, action)`, the pair (Q1, Q2), each `[batch]` or `[batch, 1]`; `get_actor_params()`; and where
    actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99.
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4.
        critic_lr: the same of the critics.
        lam: temperature of the weights, above 0: the smaller, the nearer to the best actions of the data; default 1.
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        hyperparas: a dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)", "value": "the pair (Q1, Q2)"}
    MAX_WEIGHT: ClassVar[float] = 100.0

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        lam: float = 1.0,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self.lam = check_positive("lam", lam)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, **settings)

    def predict(self, obs: Any) -> Any:
        """Return the policy's means `[batch, act_dim]`, kept in [-1, 1]."""
        with self._no_gradients():
            mean, _ = self.model.policy(obs)
            return mean.clip(-1.0, 1.0)

    def sample(self, obs: Any) -> Any:
        """Return draws of the policy `[batch, act_dim]`, kept in [-1, 1]."""
        with self._no_gradients():
            return self._drawn(obs, self._noise(self.model.policy(obs)[0]))

    def _drawn(self, obs: Any, noise: Any) -> Any:
        mean, log_std = self.model.policy(obs)
        return (mean + log_std.exp() * noise).clip(-1.0, 1.0)

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        noise = self._noise(batch.action)
        critic_loss, figures = self.critic_optimizer.descend(self.critic_loss, batch, noise, lr=critic_lr)
        noise = self._noise(batch.action)
        actor_loss, _ = self.actor_optimizer.descend(self.actor_loss, batch, noise, lr=actor_lr)
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

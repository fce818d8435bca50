"""The contract of CQL."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

from parl_core.algorithm import Optimizer
from parl_core.checks import check_int, check_positive
from parl_core.contracts.batches import Transitions
from parl_core.contracts.continuous import ActorCriticSettings
from parl_core.contracts.sac import SAC
from parl_core.contracts.settings import Scheduled
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["CQL"]


class CQL(SAC):
    """Conservative Q-learning from logged data, for continuous actions, on SAC (Kumar et al. 2020, arXiv:2006.04779).

        target        = reward + discount * (1 - terminal) * min(Q1', Q2')(next_obs, next action of pi)
        conservative  = min_q_weight * (mean(log sum_a exp Q(obs, a)) - mean(Q(obs, action)))         (equation 4)
        critic loss   = mean((Q1(obs, action) - target)**2) + conservative of Q1 + the same of Q2
        actor loss    = mean(alpha * log pi - log pi(action | obs)) for the first policy_eval_start updates, then SAC's

    The sum over actions is estimated from `samples` uniform ones and as many of pi at obs and at next_obs. Version 3
    weighs each by its density, CQL(H) (appendix F); version 2 does not and counts the data's own action.
    `with_lagrange` learns the weight so that the difference stays at `lagrange_thresh` (equation 30). As in the
    authors' code the target has no entropy term, the policy imitates the data at first, and squared errors are not
    halved.

    The model is SAC's.

    Args:
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99.
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule; default 3e-5 (paper, appendix F).
        critic_lr: the same of the critics; default 3e-4 (paper, appendix F).
        policy_eval_start: updates in which the actor imitates the data, at least 0.
        with_automatic_entropy_tuning: learn the temperature.
        with_lagrange: learn the weight of the conservative term.
        lagrange_thresh: where it keeps that term, above 0; 10 for MuJoCo (paper, appendix F).
        min_q_version: 3 (CQL(H), importance-weighted) or 2.
        min_q_weight: weight of the conservative term, above 0; 5 for MuJoCo, 10 with Lagrange.
        alpha: the temperature where it is not learned.
        samples: actions of each kind in the estimate; default 10 (paper, appendix F).
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        hyperparas: a dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model lacks one of its methods.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "tau": 0.005, "actor_lr": 3e-5, "critic_lr": 3e-4}

    multiplier: Any
    multiplier_optimizer: Optimizer

    imitation_loss: Callable[..., tuple[Any, dict[str, Any]]]
    """The actor's loss before `policy_eval_start`, and `log_prob`; `critic_loss` has the figure `gap` as well."""

    _candidates: Callable[..., tuple[Any, Any]]
    """Backend hook: actions `[3 * samples, batch, act_dim]` and their log-densities."""

    _multiplier_loss: Callable[..., tuple[Any, dict[str, Any]]]
    """Backend hook: the multiplier's loss of the gap."""

    _factor: Callable[..., Any]
    """Backend hook: the multiplier as it is now."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        policy_eval_start: int = 40_000,
        with_automatic_entropy_tuning: bool = True,
        with_lagrange: bool = False,
        lagrange_thresh: float = 10.0,
        min_q_version: int = 3,
        min_q_weight: float = 5.0,
        alpha: float = 1.0,
        *,
        samples: int = 10,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        if min_q_version not in (2, 3):
            raise HyperparameterError(f"min_q_version must be 2 or 3, got {min_q_version!r}")
        self.policy_eval_start = check_int("policy_eval_start", policy_eval_start, at_least=0)
        self.with_lagrange = bool(with_lagrange)
        self.lagrange_thresh = check_positive("lagrange_thresh", lagrange_thresh)
        self.min_q_version = min_q_version
        self.min_q_weight = check_positive("min_q_weight", min_q_weight)
        self.samples = check_int("samples", samples)
        if not with_automatic_entropy_tuning and alpha is None:
            raise HyperparameterError(
                "with_automatic_entropy_tuning=False keeps the temperature at alpha, got None: give a number, such as "
                "alpha=1.0, or let it be learned"
            )
        fixed = None if with_automatic_entropy_tuning else alpha
        super().__init__(model, gamma, tau, fixed, actor_lr, critic_lr, **settings)
        if self.with_lagrange:
            self.multiplier = self._place(self._new_temperature(), self._device)
            self.multiplier_optimizer = self._adam(
                self.multiplier, lr=self._at_start(self.critic_lr or self.DEFAULTS["critic_lr"])
            )

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        alpha, factor = self._of_dtype(self.alpha, batch.reward), self._of_dtype(self._factor(), batch.reward)
        actor_loss, of_actor = self._learn_actor(batch, alpha, self._noise(batch.action), actor_lr)
        self._learn_temperature(of_actor["log_prob"], batch.action)
        candidates = self._candidates(batch.obs, batch.next_obs, batch.action)
        drawn = (factor, self._noise(batch.action), *candidates)
        critic_loss, figures = self.critic_optimizer.descend(self.critic_loss, batch, *drawn, lr=critic_lr)
        if self.with_lagrange:
            self.multiplier_optimizer.descend(self._multiplier_loss, figures["gap"])
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

    def _learn_actor(self, batch: Transitions, alpha: Any, noise: Any, rate: Any) -> Any:
        step = self.actor_optimizer.descend
        return self._either(
            lambda: self.updates < self.policy_eval_start,
            lambda: step(self.imitation_loss, batch, alpha, noise, lr=rate),
            lambda: step(self.actor_loss, batch, alpha, noise, lr=rate),
        )

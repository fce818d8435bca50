"""The contracts of actor-critics that learn continuous actions from logged data: CQL, IQL and AWAC.

TD3+BC and ReBRAC are in `td3`, Q-learning of discrete actions in `dqn`, and learning by imitation in `imitation`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_int,
    check_positive,
    first_method,
    listed_parameters,
)
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import ActorCriticSettings, ContinuousActorCritic, unit_box
from parl_core.contracts.sac import SAC
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["AWAC", "CQL", "IQL"]


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
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99.
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule; default 3e-5 (paper, appendix F).
        critic_lr: The learning rate of the critics' Adam, likewise; default 3e-4 (paper, appendix F).
        policy_eval_start: Updates in which the actor imitates the data, at least 0.
        with_automatic_entropy_tuning: Whether the temperature is learned.
        with_lagrange: Whether the weight of the conservative term is learned.
        lagrange_thresh: The value at which it keeps that term, above 0; 10 for MuJoCo (paper, appendix F).
        min_q_version: 3 (CQL(H), importance-weighted) or 2.
        min_q_weight: Weight of the conservative term, above 0; 5 for MuJoCo, 10 with Lagrange.
        alpha: The temperature if it is not learned.
        samples: Actions of each kind in the estimate; default 10 (paper, appendix F).
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. Each keeps its own learning rate unless one is given
            here or in a call.
        hyperparas: A dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks one of its methods.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "tau": 0.005, "actor_lr": 3e-5, "critic_lr": 3e-4}
    NAMED: ClassVar[frozenset[str]] = SAC.NAMED | {"gap", "mse"}

    multiplier: Any
    multiplier_optimizer: Optimizer

    imitation_loss: Callable[..., tuple[Any, dict[str, Any]]]
    """The actor's loss before `policy_eval_start`, and `log_prob`; `critic_loss` has the figures `gap` and `mse`,
    the squared error alone."""

    _candidates: Callable[..., tuple[Any, Any]]
    """Backend hook: actions `[3 * samples, batch, act_dim]` and their log-densities."""

    _multiplier_loss: Callable[..., tuple[Any, dict[str, Any]]]
    """Backend hook: the multiplier's loss of the gap."""

    _factor: Callable[..., Any]
    """Backend hook: the present multiplier."""

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

    @property
    def log_alpha(self) -> Any:
        """The logarithm of the temperature, a trained scalar tensor; it exists only if the temperature is learned."""
        return self.temperature.log_alpha

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, ...]:
        alpha, factor = self._of_dtype(self.alpha, batch.reward), self._of_dtype(self._factor(), batch.reward)
        actor_loss, of_actor = self._learn_actor(batch, alpha, self._noise(batch.action), actor_lr)
        self._learn_temperature(of_actor["log_prob"], batch.action)
        candidates = self._candidates(batch.obs, batch.next_obs, batch.action)
        drawn = (factor, self._noise(batch.action), *candidates)
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, *drawn, lr=critic_lr)
        if self.with_lagrange:
            self.multiplier_optimizer.descend(self._multiplier_loss, figures["gap"])
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"], figures.get("mse")

    def _learn_actor(self, batch: Transitions, alpha: Any, noise: Any, rate: Any) -> Any:
        step = self.actor_optimizer.descend
        return self._branch_on(
            lambda: self.updates < self.policy_eval_start,
            lambda: step(self.imitation_loss, batch, alpha, noise, lr=rate),
            lambda: step(self.actor_loss, batch, alpha, noise, lr=rate),
        )


class IQL(CountingUpdates):
    """Implicit Q-learning from logged data, for continuous actions (Kostrikov et al. 2021, arXiv:2110.06169).

        u            = min(Q1', Q2')(obs, action) - V(obs)
        value loss   = mean(|tau - 1(u < 0)| * u**2), an expectile                                    (equation 5)
        actor loss   = -mean(min(exp(beta * u), 100) * log pi(action | obs))                          (equation 7)
        target       = reward + discount * (1 - terminal) * V(next_obs)
        critic loss  = mean((Q1(obs, action) - target)**2) + the same of Q2                           (equation 6)
        critics'     = (1 - alpha) * critics' + alpha * critics

    The steps are taken in this order, each with the networks updated by the previous one, as in the authors' code,
    which also has the limit of 100 and the cosine decay of the actor's learning rate. Only actions of the data are
    evaluated.

    The model has `policy(obs)`, the pair (mean, log std) of a Gaussian over actions in [-1, 1], each `[batch, act_dim]`
    (or a log std that broadcasts to it), or a distribution of the framework with `mean`, `sample` and `log_prob`;
    `value(obs)`, V, `[batch]` or `[batch, 1]`; `q_value(obs, action)` (or `qvalue`, as PARL 2.x calls it), the pair
    (Q1, Q2) of such; and `get_actor_params()`, `get_critic_params()`, `get_value_params()`, which share nothing.

    Args:
        model: All networks; a target model is copied from it.
        max_steps: Updates over which the actor's learning rate goes to 0 along a cosine; None keeps it.
        lr: Learning rate of all three Adams, above 0, or a schedule of the updates taken; default 3e-4 (paper, appendix
            B).
        tau: The expectile, in (0, 1); default 0.7 (paper, MuJoCo; 0.9 for AntMaze).
        beta: Inverse temperature of the weights, above 0; default 3 (paper, MuJoCo; 10 for AntMaze).
        discount: The discount of one step, in [0, 1]; default 0.99.
        alpha: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005.
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ..., "value": ...}`, each
            made from the parameters that the model lists for it; default Adam. Without `lr` each keeps its own learning
            rate, the actor's without the decay of `max_steps`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks one of its methods.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    FIGURES: ClassVar[tuple[str, ...]] = ("value_loss", "critic_loss", "actor_loss")
    METHODS: ClassVar[tuple[str, ...]] = (
        "policy",
        "value",
        "get_actor_params",
        "get_critic_params",
        "get_value_params",
    )
    MAX_WEIGHT: ClassVar[float] = 100.0

    target_model: Any
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer
    value_optimizer: Optimizer

    _target_values: Callable[..., Any]
    """Backend hook: the smaller of the target critics' values `[batch]`, without gradient."""

    _pairs_checked: bool = False

    def __init__(
        self,
        model: Model,
        max_steps: int | None = None,
        lr: Scheduled | None = None,
        tau: float = 0.7,
        beta: float = 3.0,
        discount: float = 0.99,
        alpha: float = 0.005,
        *,
        optimizer: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.max_steps = None if max_steps is None else check_int("max_steps", max_steps)
        self.lr: Any = check_schedule("lr", 3e-4 if lr is None else lr, check_positive)
        self.tau = check_fraction("tau", tau)
        if self.tau in (0.0, 1.0):
            raise HyperparameterError(
                f"tau must lie strictly between 0 and 1, got {tau!r}; usual values are 0.7 and 0.9"
            )
        self.beta = check_positive("beta", beta)
        self.discount = check_fraction("discount", discount)
        self.alpha = check_fraction("alpha", alpha)
        if self.alpha == 0.0:
            raise HyperparameterError("alpha must be above 0, else the target never moves; a usual value is 0.005")
        for method in self.METHODS:
            first_method(model, (method,), type(self).__name__)
        self._q_method = first_method(model, ("q_value", "qvalue"), type(self).__name__)
        super().__init__(model, device=device, compile=compile)
        self.target_model = self._new_target()
        names = ("actor", "critic", "value")
        parts = {name: partial(listed_parameters, self.model, f"get_{name}_params") for name in names}
        rates = dict.fromkeys(parts, self._at_start(self.lr))
        self.actor_optimizer, self.critic_optimizer, self.value_optimizer = self._optimizers_of_parts(
            optimizer, parts, rates
        )
        self._keeps = frozenset(optimizer or {}) if lr is None else frozenset()

    def predict(self, obs: Any) -> Any:
        """Return the policy's means `[batch, act_dim]`, kept in [-1, 1]."""
        with self._no_gradients():
            output = self.model.policy(obs)
            mean = output.mean if hasattr(output, "log_prob") else output[0]
            return mean.clip(-1.0, 1.0)

    def sample(self, obs: Any) -> Any:
        """Return draws of the policy `[batch, act_dim]`, kept in [-1, 1]."""
        raise NotImplementedError

    @learns_from(Transitions, keywords=("discount", "learning_rate"))
    def learn(self, batch: Transitions, *, learning_rate: float | None = None) -> Any:
        """Take one step of V, of the actor, and of the critics, and move the target.

        `learn(batch)`, or the columns one by one, as PARL 2.x does.

        Args:
            batch: Tensors; actions float `[batch, act_dim]` in [-1, 1].
            learning_rate: The learning rate of all three for this step; default: the constructor's, the actor's with
                its decay.

        Returns:
            (value_loss, critic_loss, actor_loss), detached scalars.
        """
        q_t = self._target_values(batch.obs, batch.action)
        rate, actor_rate = (
            self._now("lr", self.lr, learning_rate, given_as="learning_rate"),
            self._actor_rate(learning_rate),
        )
        value_loss, _ = self._descend(
            self.value_optimizer, self.value_loss, batch, q_t, lr=self._kept("value", rate, learning_rate)
        )
        actor_loss, _ = self._descend(
            self.actor_optimizer, self.actor_loss, batch, q_t, lr=self._kept("actor", actor_rate, learning_rate)
        )
        critic_loss, _ = self._descend(
            self.critic_optimizer, self.critic_loss, batch, lr=self._kept("critic", rate, learning_rate)
        )
        self.sync_target()
        self._call_after_update(self._count_update)
        return value_loss, critic_loss, actor_loss

    def value_loss(self, batch: Transitions, q_t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the loss of V of a batch of tensors and the target critics' values `[batch]`, and figures by name."""
        raise NotImplementedError

    def actor_loss(self, batch: Transitions, q_t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the actor's loss, as `value_loss`."""
        raise NotImplementedError

    def critic_loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the critics' loss of a batch of tensors, and figures by name."""
        raise NotImplementedError

    def update(self, observations: Any, actions: Any, rewards: Any, next_observations: Any, terminals: Any) -> Any:
        """Call `learn`, and return (critic_loss, value_loss, actor_loss); names and order are those of PARL 2.x."""
        value_loss, critic_loss, actor_loss = self.learn(observations, actions, rewards, next_observations, terminals)
        return critic_loss, value_loss, actor_loss

    def sync_target(self, alpha: float | None = None) -> None:
        """Move the target towards the model, by `alpha` of the way; by default the constructor's."""
        self.model.sync_weights_to(self.target_model, 1.0 - (self.alpha if alpha is None else alpha))

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions in [-1, 1]; with the first one, check the outputs of the model."""
        action = unit_box("action", batch.action)
        return self._fitted(batch.made(**{**batch.__dict__, "action": action}))

    def _fitted(self, batch: Transitions) -> Transitions:
        if not self._pairs_checked:
            self._require_act_dim("policy", batch.obs, batch.action)
            self._require_pairs({self._q_method: "the pair (Q1, Q2)"}, batch.obs, batch.action)
            self._pairs_checked = True
        return batch

    def _q_values(self, model: Any, obs: Any, action: Any) -> Any:
        """Return the pair (Q1, Q2) of the critics of a model."""
        return getattr(model, self._q_method)(obs, action)

    def _kept(self, part: str, rate: Any, given: Any) -> Any:
        """Return a learning rate, None where the part's optimizer keeps its own."""
        return None if given is None and part in self._keeps else rate

    def _actor_rate(self, given: Any) -> Any:
        steps = self.max_steps
        if given is not None or steps is None:
            return self._now("lr", self.lr, given)
        return self._value_before_update(lambda: self._now("lr", self.lr) * _cosine(self.updates / steps))


def _cosine(progress: float) -> float:
    """Return a factor that falls from 1 at the start to 0 at the end, and stays there."""
    return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


class AWAC(ContinuousActorCritic):
    """Advantage-weighted actor-critic, for logged data and online fine-tuning (Nair et al. 2020, arXiv:2006.09359).

        target      = reward + discount * (1 - terminal) * min(Q1', Q2')(next_obs, next action of pi)
        critic loss = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2                       (equation 2)
        A           = min(Q1, Q2)(obs, action) - min(Q1, Q2)(obs, action of pi)
        actor loss  = -mean(min(exp(A / lam), 100) * log pi(action | obs))                                (equation 13)
        model'      = (1 - tau) * model' + tau * model

    Deviations: weights are limited to 100, as in IQL, and not normalised; the authors' code takes a softmax over the
        batch. The state's value is estimated by one action of the policy.

    The model has `policy(obs)`, the pair (mean, log std) of a Gaussian over actions in [-1, 1], each `[batch,
    act_dim]`; `value(obs, action)`, the pair (Q1, Q2), each `[batch]` or `[batch, 1]`; `get_actor_params()`; and where
    actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99.
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4.
        critic_lr: The learning rate of the critics' Adam, likewise.
        lam: Temperature of the weights, above 0; smaller values follow the best actions of the data more closely;
            default 1.
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. Each keeps its own learning rate unless one is given
            here or in a call.
        hyperparas: A dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
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
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, noise, lr=critic_lr)
        noise = self._noise(batch.action)
        actor_loss, _ = self._descend(self.actor_optimizer, self.actor_loss, batch, noise, lr=actor_lr)
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

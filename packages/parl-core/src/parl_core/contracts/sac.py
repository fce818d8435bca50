"""The contracts of SAC and its variants.

    SAC      the smaller value of two critics; the policy's own noise explores
    OAC      explores where an upper bound of the critics rises
    TQC      critics predict distributions of returns
    REDQ     more critics, and more updates per step; DroQ: dropout and layer normalisation with two critics
    CrossQ   batch normalisation instead of target networks

CQL, which is SAC on logged data, is in `offline`; SAC for discrete actions in `discrete_sac`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from parl_core import logger
from parl_core.algorithm import Optimizer
from parl_core.checks import check_int, check_non_negative, check_positive, check_real
from parl_core.contracts._base import Scheduled, check_schedule
from parl_core.contracts.batches import Transitions
from parl_core.contracts.continuous import ActorCriticSettings, ContinuousActorCritic
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["OAC", "REDQ", "SAC", "TQC", "CrossQ", "DroQ", "SACSettings"]


class SACSettings(ActorCriticSettings, total=False):
    """Keywords of `SAC`."""

    alpha_lr: Scheduled | None
    target_entropy: float | None


class SAC(ContinuousActorCritic):
    """Soft actor-critic for continuous actions (Haarnoja et al. 2018, arXiv:1812.05905, algorithm 1).

        action, log pi   = tanh(mean + std * N(0, 1)) and its log-density           (appendix C)
        target           = reward + discount * (1 - terminal) * (min(Q1', Q2')(next_obs, next action) - alpha * log pi')
        critic loss      = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2            (equation 5)
        actor loss       = mean(alpha * log pi - min(Q1, Q2)(obs, action of pi))                      (equation 9)
        temperature loss = -log alpha * mean(log pi + target_entropy)                                 (equation 18)
        critics'         = (1 - tau) * critics' + tau * critics

    The temperature alpha is learned unless it is given. Deviations from the paper, as in its authors' code: the squared
    errors are not halved, and the temperature's loss is linear in log alpha rather than in alpha.

    The model has `policy(obs)`, the pair (mean, log std) of a Gaussian before the tanh, each `[batch, act_dim]` (limit
    log std, to [-20, 2] for instance); `value(obs, action)`, the pair (Q1, Q2), each `[batch]` or `[batch, 1]`;
    `get_actor_params()`; and where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 1).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005 (paper,
            table 1).
        alpha: Temperature, at least 0; default: learned, from 1 on.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 1).
        critic_lr: The learning rate of the critics' Adam, likewise.
        alpha_lr: The learning rate of a learned temperature's Adam, likewise; default: that of the actor.
        target_entropy: The target entropy of a learned temperature, in nats; default -act_dim (paper, table 1).
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. Each keeps its own learning rate unless one is given
            here or in a call.
        hyperparas: A dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, given twice, or has no effect with a fixed temperature.
        ModelContractError: The model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)", "value": "the pair (Q1, Q2)"}
    NAMED: ClassVar[frozenset[str]] = frozenset({"td_error", "log_prob"})
    BY_MODE: ClassVar[str] = ""
    """Description of layers that a model should have, and of how to make such a model; empty if none are needed.

    A model without layers that depend on training mode causes a warning."""

    temperature: Any
    temperature_optimizer: Optimizer

    _temperature_loss: Callable[..., tuple[Any, ...]]
    """Backend hook: the loss of log alpha, of log pi + target entropy `[batch]`."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        alpha_lr: Scheduled | None = None,
        target_entropy: float | None = None,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self._fixed_alpha = None if alpha is None else check_non_negative("alpha", alpha)
        for name, value in (("alpha_lr", alpha_lr), ("target_entropy", target_entropy)):
            if alpha is not None and value is not None:
                raise HyperparameterError(f"{name} is for a learned temperature; drop it, or drop alpha={alpha}")
        self.target_entropy = None if target_entropy is None else check_real("target_entropy", target_entropy)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, **settings)
        like_actor = self.DEFAULTS["actor_lr"] if self.actor_lr is None else self.actor_lr
        self.alpha_lr = like_actor if alpha_lr is None else check_schedule("alpha_lr", alpha_lr, check_positive)
        if alpha is None:
            self.temperature = self._place(self._new_temperature(), self._device)
            self.temperature_optimizer = self._adam(self.temperature, lr=self._at_start(self.alpha_lr))
        if self.BY_MODE and not model.layers_by_mode():
            logger.warning("%s has no %s", type(model).__name__, self.BY_MODE)

    @property
    def alpha(self) -> Any:
        """The temperature: the given number, or the present learned one as a detached scalar tensor.

        A given number can be set.
        """
        return self.temperature.alpha() if self._fixed_alpha is None else self._fixed_alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if self._fixed_alpha is None:
            raise HyperparameterError(
                f"{type(self).__name__} learns its temperature; pass alpha={alpha} to the constructor for a fixed one"
            )
        self._fixed_alpha = check_non_negative("alpha", alpha)

    def sample(self, obs: Any) -> Any:
        """Draw actions that gradients flow through.

        Returns:
            (action `[batch, act_dim]` in [-1, 1], log-density `[batch, 1]`).
        """
        raise NotImplementedError

    def sample_actions(self, obs: Any) -> Any:
        """Return the actions of `sample`, for exploration."""
        return self.sample(obs)[0]

    def predict(self, obs: Any) -> Any:
        """Return the best actions `[batch, act_dim]`, in [-1, 1]."""
        with self._no_gradients():
            mean, _ = self.model.policy(obs)
            return mean.tanh()

    # Shared

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        alpha = self._of_dtype(self.alpha, batch.reward)
        noise = self._noise(batch.action)
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, alpha, noise, lr=critic_lr)
        actor_loss = self._when_due(batch, lambda: self._learn_policy(batch, alpha, actor_lr))
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

    def _learn_policy(self, batch: Transitions, alpha: Any, rate: Any) -> Any:
        """Take a step of the actor and one of the temperature, and return the actor's loss."""
        noise = self._noise(batch.action)
        actor_loss, figures = self._descend(self.actor_optimizer, self.actor_loss, batch, alpha, noise, lr=rate)
        self._learn_temperature(figures["log_prob"], batch.action)
        return actor_loss

    def _learn_temperature(self, log_prob: Any, action: Any) -> None:
        if self._fixed_alpha is None:
            entropy = -action.shape[-1] if self.target_entropy is None else self.target_entropy
            rate = self._now("alpha_lr", self.alpha_lr)
            self.temperature_optimizer.descend(self._temperature_loss, log_prob + entropy, lr=rate)

    # Backend hooks

    def _of_dtype(self, number: Any, like: Any) -> Any:  # noqa: ARG002
        """Return a number or a float64 scalar in a form that can be multiplied with tensors of the dtype of `like`."""
        return number

    def _new_temperature(self) -> Model:
        """Return a model of the logarithm of the temperature, initially 0, with a method `alpha()`."""
        raise NotImplementedError


class OAC(SAC):
    """Optimistic actor-critic (Ciosek, Vuong, Loftin & Hofmann 2019, arXiv:1910.12807, algorithm 1).

    Learns as `SAC` does, and explores with another Gaussian, shifted to where an upper bound of the critics rises:

        Q_UB = (Q1 + Q2) / 2 + beta * abs(Q1 - Q2) / 2                          (equations 6 and 8)
        g    = gradient of Q_UB(obs, tanh(u)) by u at u = mean
        mean_explore = mean + sqrt(2 * delta) * std**2 * g / sqrt(sum(std**2 * g**2))      (equation 7)

    The exploring policy has the same standard deviation, and a KL divergence of delta from the policy. Deviations from
    the paper, as in its authors' code: the gradient is by the Gaussian's variable, before the tanh, and 1e-5 is added
    to the root in the denominator. The target uses the smaller critic, as SAC's: the paper's lower bound with
    beta_LB = -1.

    Args:
        model: As in `SAC`.
        gamma, tau, alpha, actor_lr, critic_lr: As in `SAC`.
        beta: Weight of the critics' disagreement in the upper bound, at least 0; default 4.66 (paper, appendix).
        delta: KL divergence of the exploring policy, in nats, at least 0; default 23.53 (paper, appendix).
        alpha_lr, target_entropy, optimizer, hyperparas: As in `SAC`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, given twice, or has no effect with a fixed temperature.
        ModelContractError: The model lacks one of its methods.
    """

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        delta: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.beta = 4.66 if beta is None else check_non_negative("beta", beta)
        self.delta = 23.53 if delta is None else check_non_negative("delta", delta)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def get_optimistic_exploration_action(self, obs: Any) -> Any:
        """Draw actions `[batch, act_dim]` in [-1, 1] from the exploring policy."""
        raise NotImplementedError

    def sample_actions(self, obs: Any) -> Any:
        """Return the actions of `get_optimistic_exploration_action`, for exploration."""
        return self.get_optimistic_exploration_action(obs)


class TQC(SAC):
    """Truncated quantile critics: SAC with distributions of returns (Kuznetsov et al. 2020, arXiv:2005.04269).

        theta_n,i(s, a)  the i-th of N quantiles of critic n of M, at tau_i = (2 i - 1) / (2 N)
        z_1 <= z_2 ...   all M * N of theta'(next_obs, next action), sorted; the M * drop largest are left out
        target_j         = reward + discount * (1 - terminal) * (z_j - alpha * log pi')                   (equation 13)
        critic loss      = mean over batch, n, i, j of weights * |tau_i - 1(u < 0)| * L_1(u),
                           u = target_j - theta_n,i(obs, action), L_1 the Huber loss                      (equation 14)
        actor loss       = mean(alpha * log pi - mean_n,i theta_n,i(obs, action of pi))                   (equation 15)

    Temperature and target are SAC's; the TD error of a row is mean_j target_j - mean_n,i theta_n,i. Deviations from
    the paper: none known.

    The model has `policy(obs)` as SAC's; `quantiles(obs, action)`, theta `[batch, M, N]`; `get_actor_params()`; and
    where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005 (paper,
            table 3).
        alpha: Temperature, at least 0; default: learned, from 1 on.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: The learning rate of the critics' Adam, likewise.
        drop: Quantiles per critic that are left out of the target, at least 0 and below N; default 2 (paper; 5 for
            Hopper, 0 for HalfCheetah).
        alpha_lr, target_entropy, optimizer, hyperparas: As in `SAC`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, given twice, or has no effect with a fixed temperature.
        ModelContractError: The model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)"}
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "quantiles", "get_actor_params")

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        drop: int = 2,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.drop = check_int("drop", drop, at_least=0)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        super()._check_model(obs, action)
        found = self._shape_returned("quantiles", "[batch, critics, quantiles]", obs, action)
        if found is not None and self.drop >= found[1]:
            raise HyperparameterError(
                f"drop must be below the {found[1]} quantiles of each critic, so that some are left, got {self.drop}"
            )

    def _run_model(self, obs: Any, action: Any) -> None:
        self.model.policy(obs)
        self.model.quantiles(obs, action)


class REDQ(SAC):
    """Randomised ensembled double Q-learning (Chen et al. 2021, arXiv:2101.05982, algorithm 1).

        subset      of the critics, drawn anew in each update
        target      = reward + discount * (1 - terminal) * (min over the subset of Q'(next_obs, next action)
                      - alpha * log pi')
        critic loss = sum over all critics of mean(weights * (Q(obs, action) - target)**2)
        every policy_freq updates:
            actor loss = mean(alpha * log pi - mean over all critics of Q(obs, action of pi)), and the temperature's
        critics'    = (1 - tau) * critics' + tau * critics

    The paper takes 20 updates per step: set `OffPolicySettings(gradient_steps=20)`; the last of them also updates the
    actor. Deviations from the paper: none known.

    The model has `policy(obs)` as SAC's; `value(obs, action)`, the values of all critics `[batch, critics]`;
    `get_actor_params()`; and where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005 (paper,
            table 3).
        alpha: Temperature, at least 0; default: learned, from 1 on.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: The learning rate of the critics' Adam, likewise.
        subset: Number of critics whose smallest value is used in the target, at least 1; default 2 (paper).
        policy_freq: Critic steps for one of actor and temperature, at least 1; default 20 (paper).
        alpha_lr, target_entropy, optimizer, hyperparas: As in `SAC`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, given twice, or has no effect with a fixed temperature.
        ModelContractError: The model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)"}

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        subset: int = 2,
        policy_freq: int = 20,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.subset = check_int("subset", subset)
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        super()._check_model(obs, action)
        found = self._shape_returned("value", "the values of all critics [batch, critics]", obs, action)
        if found is not None and self.subset > found[0]:
            raise HyperparameterError(f"subset must be at most the number of critics, {found[0]}, got {self.subset}")


class DroQ(REDQ):
    """Dropout Q-functions: REDQ with two critics that have dropout and layer normalisation (Hiraoka et al. 2022).

    arXiv:2110.02034, algorithm 2. The losses are REDQ's with both critics in the target; only the model differs:
    dropout of 0.01 and layer normalisation after each hidden layer of its critics. Dropout is also active in targets,
    as in the paper. Deviations from the paper: none known.

    The model is REDQ's; `parl.networks.for_spaces(..., "ensemble", critics=2, dropout=0.01)` makes one. Without dropout
    there is a warning.

    Args:
        model: As in `REDQ`.
        gamma, tau, alpha, actor_lr, critic_lr, subset, policy_freq: As in `REDQ`.
        alpha_lr, target_entropy, optimizer, hyperparas: As in `SAC`.
        device, compile: See `parl.Algorithm`.
    """

    TARGETS: ClassVar[tuple[str, ...]] = ()
    BY_MODE: ClassVar[str] = (
        "dropout, without which DroQ is REDQ: make it with parl.networks.for_spaces(..., "
        '"ensemble", critics=2, dropout=0.01)'
    )


class CrossQ(SAC):
    """SAC without target networks, with batch normalisation (Bhatt et al. 2024, arXiv:1902.05605, algorithm 1).

        next action      = of pi in evaluation mode, whose statistics are running ones
        Q, Q'            = both halves of Q([obs; next_obs], [action; next action]), one pass in training mode, so that
                           both are normalised by the statistics of their mixture
        target           = reward + discount * (1 - terminal) * (min(Q1', Q2') - alpha * log pi'), without gradient
        critic loss      = mean(weights * (Q1 - target)**2) + the same of Q2
        every policy_freq updates:
            actor loss   = mean(alpha * log pi - min(Q1, Q2)(obs, action of pi)), the critics in evaluation mode,
                           and the temperature's

    Deviations from the authors' code: Adam's beta1 is 0.9, not 0.5, unless `optimizer` differs; batch
    normalisation is the plain one, without renormalisation.

    The model is SAC's, with batch normalisation in actor and critics (`parl.layers.batch_norm`);
    `parl.networks.for_spaces(..., "batch-normalised")` makes one. Without such layers there is a warning. There is no
    `target_model`.

    Args:
        model: Actor and twin critics.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 2).
        alpha: Temperature, at least 0; default: learned, from 1 on.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 1e-3 (paper,
            table 2).
        critic_lr: The learning rate of the critics' Adam, likewise.
        policy_freq: Critic steps for one of actor and temperature, at least 1; default 3 (paper, table 2).
        alpha_lr, target_entropy, optimizer: As in `SAC`.
        device: See `parl.Algorithm`.
        compile: Must be False, because actor and critics switch modes within a loss.

    Raises:
        HyperparameterError: A setting is out of range or has no effect with a fixed temperature, or `compile` is true.
        ModelContractError: The model lacks one of its methods.
    """

    HAS_TARGET: ClassVar[bool] = False
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**SAC.DEFAULTS, "actor_lr": 1e-3, "critic_lr": 1e-3}
    BY_MODE: ClassVar[str] = (
        "batch normalisation, without which CrossQ is SAC without a target: make it with "
        'parl.networks.for_spaces(..., "batch-normalised")'
    )

    _next_actions: Callable[..., tuple[Any, Any]]
    """Backend hook: actions of pi in the next observations, of noise, and their log-densities, without gradient."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        policy_freq: int = 3,
        alpha_lr: Scheduled | None = None,
        target_entropy: float | None = None,
        optimizer: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        if compile:
            raise HyperparameterError(
                "CrossQ switches between training and evaluation mode within a loss, which is not compiled: leave out "
                "compile=True"
            )
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(
            model,
            gamma,
            None,
            alpha,
            actor_lr,
            critic_lr,
            alpha_lr=alpha_lr,
            target_entropy=target_entropy,
            optimizer=optimizer,
            device=device,
        )

    def sync_target(self, decay: float | None = None) -> None:
        """Do nothing: there is no target."""

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        alpha = self._of_dtype(self.alpha, batch.reward)
        with self._evaluating():
            following = self._next_actions(batch.next_obs, self._noise(batch.action))
        critic_loss, figures = self._descend(
            self.critic_optimizer, self.critic_loss, batch, alpha, *following, lr=critic_lr
        )
        actor_loss = self._when_due(batch, lambda: self._learn_policy(batch, alpha, actor_lr))
        return critic_loss, actor_loss, figures["td_error"]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Provide a context in which the model's layers are in evaluation mode."""
        switched = [layer for layer in self._layers_by_mode() if layer.training]
        for layer in switched:
            layer.training = False
        try:
            yield
        finally:
            for layer in switched:
                layer.training = True

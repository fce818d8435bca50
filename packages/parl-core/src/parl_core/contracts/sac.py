"""The contract of SAC."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import check_non_negative, check_positive, check_real
from parl_core.contracts.batches import Transitions
from parl_core.contracts.continuous import ActorCriticSettings, ContinuousActorCritic
from parl_core.contracts.settings import Scheduled, check_schedule
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["SAC"]


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
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 1).
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005 (paper, table 1).
        alpha: temperature, at least 0; default: learned, from 1 on.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 1).
        critic_lr: the same of the critics.
        alpha_lr: the same of a learned temperature; default that of the actor.
        target_entropy: of a learned temperature, in nats; default -act_dim (paper, table 1).
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        hyperparas: a dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, given twice, or of no use with a fixed temperature.
        ModelContractError: the model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)", "value": "the pair (Q1, Q2)"}

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

    @property
    def alpha(self) -> Any:
        """The temperature: the number that was given, or the learned one as it is now, a detached scalar tensor."""
        return self.temperature.alpha() if self._fixed_alpha is None else self._fixed_alpha

    def sample(self, obs: Any) -> Any:
        """Draw actions that gradients flow through.

        Returns:
            (action `[batch, act_dim]` in [-1, 1], log-density `[batch, 1]`).
        """
        raise NotImplementedError

    def sample_actions(self, obs: Any) -> Any:
        """Actions to explore with: those of `sample`."""
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
        critic_loss, figures = self.critic_optimizer.descend(self.critic_loss, batch, alpha, noise, lr=critic_lr)
        actor_loss = self._when_due(batch, lambda: self._learn_policy(batch, alpha, actor_lr))
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

    def _learn_policy(self, batch: Transitions, alpha: Any, rate: Any) -> Any:
        """Take a step of the actor and one of the temperature, and return the actor's loss."""
        noise = self._noise(batch.action)
        actor_loss, figures = self.actor_optimizer.descend(self.actor_loss, batch, alpha, noise, lr=rate)
        self._learn_temperature(figures["log_prob"], batch.action)
        return actor_loss

    def _learn_temperature(self, log_prob: Any, action: Any) -> None:
        if self._fixed_alpha is None:
            entropy = -action.shape[-1] if self.target_entropy is None else self.target_entropy
            rate = self._now("alpha_lr", self.alpha_lr)
            self.temperature_optimizer.descend(self._temperature_loss, log_prob + entropy, lr=rate)

    def _shape_of_critics(self, method: str, wanted: str, obs: Any, action: NDArray[Any]) -> tuple[int, ...] | None:
        """Return the shape of what a method of the model returns for a row; None where it raises.

        Args:
            method: takes observations and actions.
            wanted: what it has to return, in words that end in a shape, `[batch, ...]`.
            obs: of a batch, `[batch, ...]` or a dictionary of such; the first row is tried.
            action: `[batch, act_dim]`.

        Raises:
            ModelContractError: it returns something else.
        """
        with self._trying_out(obs, action) as (rows, actions, count):
            try:
                found = getattr(self.model, method)(rows, actions)
            except Exception:  # any: the update, which is next, raises it again and is explained
                return None
        shape = tuple(found.shape) if hasattr(found, "shape") else ()
        if len(shape) == 1 + wanted.count(",") and shape[0] == count:
            return shape[1:]
        returned = f"{list(shape)} for {count} rows" if shape else f"a {type(found).__name__}"
        raise ModelContractError(
            f"{type(self.model).__name__}.{method} has to return {wanted} for {type(self).__name__}; it returned "
            f"{returned}"
        )

    # Backend hooks

    def _of_dtype(self, number: Any, like: Any) -> Any:  # noqa: ARG002
        """Return a number or a float64 scalar, as the framework multiplies it with tensors of the dtype of `like`."""
        return number

    def _new_temperature(self) -> Model:
        """Return a model that holds the logarithm of the temperature, 0 at first, and has `alpha()`."""
        raise NotImplementedError

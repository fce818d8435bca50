"""The contract of IQL."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_int,
    check_positive,
    first_method,
    listed_parameters,
)
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import unit_box
from parl_core.contracts.settings import CountingUpdates, Scheduled, check_schedule
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["IQL"]


class IQL(CountingUpdates):
    """Implicit Q-learning from logged data, for continuous actions (Kostrikov et al. 2021, arXiv:2110.06169).

        u            = min(Q1', Q2')(obs, action) - V(obs)
        value loss   = mean(|tau - 1(u < 0)| * u**2), an expectile                                    (equation 5)
        actor loss   = -mean(min(exp(beta * u), 100) * log pi(action | obs))                          (equation 7)
        target       = reward + discount * (1 - terminal) * V(next_obs)
        critic loss  = mean((Q1(obs, action) - target)**2) + the same of Q2                           (equation 6)
        critics'     = (1 - alpha) * critics' + alpha * critics

    In this order, each with the networks that the step before has updated, as its authors' code does; from there are
    the limit of 100 and the cosine decay of the actor's learning rate, too. Only actions of the data are ever valued.

    The model has `policy(obs)`, the pair (mean, log std) of a Gaussian over actions in [-1, 1], each `[batch, act_dim]`
    (or a log std that broadcasts to it), or a distribution of the framework with `mean`, `sample` and `log_prob`;
    `value(obs)`, V, `[batch]` or `[batch, 1]`; `q_value(obs, action)` (or `qvalue`, as PARL 2.x calls it), the pair
    (Q1, Q2) of such; and `get_actor_params()`, `get_critic_params()`, `get_value_params()`, which share nothing.

    Args:
        model: all networks; a target model is copied from it.
        max_steps: updates over which the actor's learning rate goes to 0 along a cosine; None keeps it.
        lr: learning rate of all three Adams, above 0, or a schedule of the updates taken; default 3e-4 (paper, appendix
            B).
        tau: the expectile, in (0, 1); default 0.7 (paper, MuJoCo; 0.9 for AntMaze).
        beta: inverse temperature of the weights, above 0; default 3 (paper, MuJoCo; 10 for AntMaze).
        discount: of one step, in [0, 1]; default 0.99.
        alpha: how far the target moves to the model in each step, in (0, 1]; default 0.005.
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ..., "value": ...}`, each
            made from the parameters that the model lists for it; default Adam. Without `lr` each keeps its own learning
            rate, the actor's without the decay of `max_steps`.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model lacks one of its methods.
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
            raise HyperparameterError(f"tau must lie strictly between 0 and 1, got {tau!r}; usual are 0.7 and 0.9")
        self.beta = check_positive("beta", beta)
        self.discount = check_fraction("discount", discount)
        self.alpha = check_fraction("alpha", alpha)
        if self.alpha == 0.0:
            raise HyperparameterError("alpha must be above 0, else the target never moves; usual is 0.005")
        for method in self.METHODS:
            first_method(model, (method,), type(self).__name__)
        self._q_method = first_method(model, ("q_value", "qvalue"), type(self).__name__)
        super().__init__(model, device=device, compile=compile)
        self.target_model = self._new_target()
        parts = {
            name: lambda method=f"get_{name}_params": listed_parameters(self.model, method)
            for name in ("actor", "critic", "value")
        }
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

    @learns_from(Transitions, keywords=("learning_rate",))
    def learn(self, batch: Transitions, *, learning_rate: float | None = None) -> Any:
        """Take one step of V, of the actor, and of the critics, and move the target.

        `learn(batch)`, or the columns one by one, as PARL 2.x does.

        Args:
            batch: tensors; actions float `[batch, act_dim]` in [-1, 1].
            learning_rate: for this step, of all three; default the constructor's, the actor's with its decay.

        Returns:
            (value_loss, critic_loss, actor_loss), detached scalars.
        """
        q_t = self._target_values(batch.obs, batch.action)
        rate, actor_rate = (
            self._now("lr", self.lr, learning_rate, given_as="learning_rate"),
            self._actor_rate(learning_rate),
        )
        value_loss, _ = self.value_optimizer.descend(
            self.value_loss, batch, q_t, lr=self._kept("value", rate, learning_rate)
        )
        actor_loss, _ = self.actor_optimizer.descend(
            self.actor_loss, batch, q_t, lr=self._kept("actor", actor_rate, learning_rate)
        )
        critic_loss, _ = self.critic_optimizer.descend(
            self.critic_loss, batch, lr=self._kept("critic", rate, learning_rate)
        )
        self.sync_target()
        self._after_each_update(self._count_update)
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
        """Call `learn`; the names are those of PARL 2.x."""
        return self.learn(observations, actions, rewards, next_observations, terminals)

    def sync_target(self, alpha: float | None = None) -> None:
        """Move the target towards the model, by `alpha` of the way; by default the constructor's."""
        self.model.sync_weights_to(self.target_model, 1.0 - (self.alpha if alpha is None else alpha))

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions in [-1, 1]; at the first one, the model's pairs are looked at."""
        action = unit_box("action", batch.action)
        if not self._pairs_checked:
            self._require_pairs({self._q_method: "the pair (Q1, Q2)"}, batch.obs, action)
            self._pairs_checked = True
        return batch.made(**{**batch.__dict__, "action": action})

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
        return self._at_each_update(lambda: self._now("lr", self.lr) * _cosine(self.updates / steps))


def _cosine(progress: float) -> float:
    """Return a factor that falls from 1 at the start to 0 at the end, and stays there."""
    return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))

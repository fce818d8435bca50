"""The base of DDPG, TD3, SAC and OAC: actor and critic with a learning rate each, a target that follows slowly.

Actions lie in [-1, 1] in every dimension; the loops and `parl.env.ActionMappingWrapper` map them to the bounds of an
environment, whichever finite ones it has.

    model.policy(obs)               what the algorithm's class says
    model.value(obs, action)        `[batch]` or `[batch, 1]`; of twin critics a pair of such
    model.get_actor_params()        parameters of the actor
    model.get_critic_params()       those of the critic; by default all that are not the actor's
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_non_negative,
    check_positive,
    check_scheduled,
    first_method,
    listed_parameters,
)
from parl_core.contracts.batches import transition_columns
from parl_core.contracts.settings import CountingUpdates, Scheduled, check_schedule, merge
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["ContinuousActorCritic", "noisy", "unit_box"]


class ContinuousActorCritic(CountingUpdates):
    """Base of the off-policy actor-critics; their own classes document the arguments."""

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    FIGURES: ClassVar[tuple[str, ...]] = ("critic_loss", "actor_loss")
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "get_actor_params")
    PAIRS: ClassVar[Mapping[str, str]] = {}
    """Methods of the model that return a pair, and which; looked at before the first update."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "tau": 0.005, "actor_lr": 3e-4, "critic_lr": 3e-4}

    target_model: Any
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer

    _critic_loss: Callable[..., tuple[Any, ...]]
    """Backend hook: (loss, td_error `[batch]`) of the first seven arguments of `learn`."""

    _actor_loss: Callable[..., tuple[Any, ...]]
    """Backend hook: the loss, alone or with more, of observations."""

    _pairs_checked: bool = False

    def __init__(
        self,
        model: Model,
        gamma: float | None,
        tau: float | None,
        actor_lr: Scheduled | None,
        critic_lr: Scheduled | None,
        *,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        name = type(self).__name__
        given = {"gamma": gamma, "tau": tau, "actor_lr": actor_lr, "critic_lr": critic_lr}
        settings = merge(name, hyperparas, given, self.DEFAULTS)
        self.gamma = check_fraction("gamma", settings["gamma"])
        self.tau = check_fraction("tau", settings["tau"])
        if self.tau == 0.0:
            raise HyperparameterError("tau must be above 0, else the target never moves; usual is 0.005")
        self.actor_lr = check_schedule("actor_lr", settings["actor_lr"], check_positive)
        self.critic_lr = check_schedule("critic_lr", settings["critic_lr"], check_positive)
        for method in self.METHODS:
            first_method(model, (method,), name)
        super().__init__(model, device=device, compile=compile)
        self.target_model = self._new_target()
        self.actor_optimizer = self._adam(
            self.model, lr=self._at_start(self.actor_lr), part=lambda: self._listed("get_actor_params")
        )
        self.critic_optimizer = self._adam(
            self.model, lr=self._at_start(self.critic_lr), part=lambda: self._listed("get_critic_params")
        )

    def predict(self, obs: Any) -> Any:
        """Return the best actions `[batch, act_dim]`, in [-1, 1]."""
        with self._no_gradients():
            return self.model.policy(obs)

    def learn(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminal: Any,
        *,
        weights: Any = None,
        discount: Any = None,
        actor_lr: float | None = None,
        critic_lr: float | None = None,
    ) -> Any:
        """Take one step of the critic and one of the actor, and move the target.

        Args:
            obs: `[batch, ...]`, or a dictionary of such.
            action: float `[batch, act_dim]` in [-1, 1].
            reward: float `[batch]` or `[batch, 1]`; with n-step returns their discounted sum.
            next_obs: as `obs`, n steps later with n-step returns.
            terminal: bool or float `[batch]` or `[batch, 1]`; 1 where the episode terminated (truncation is 0: it
                bootstraps).
            weights: float `[batch]`, importance weights of prioritised replay.
            discount: float `[batch]`, `gamma**n` of each sample; default `gamma`.
            actor_lr: learning rate of the actor for this step; default the constructor's.
            critic_lr: learning rate of the critic for this step; default the constructor's.

        Returns:
            (critic_loss, actor_loss), detached scalars; with `weights` also td_error `[batch]`, target - Q (of twin
            critics the mean of both). actor_loss is None where the actor took no step.
        """
        batch = (obs, action, reward, next_obs, terminal, weights, discount)
        actor_lr = self._now("actor_lr", self.actor_lr, actor_lr)
        critic_lr = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, actor_loss, td_error = self._update(batch, actor_lr, critic_lr)
        self._after_each_update(self._count_update)
        return (critic_loss, actor_loss) if weights is None else (critic_loss, actor_loss, td_error)

    def sync_target(self, decay: float | None = None) -> None:
        """Move the target model: target = decay * target + (1 - decay) * model.

        Args:
            decay: in [0, 1]; default 1 - tau.
        """
        self.model.sync_weights_to(self.target_model, 1.0 - self.tau if decay is None else decay)

    def prepare(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminal: Any,
        *,
        weights: Any = None,
        discount: Any = None,
        actor_lr: float | None = None,
        critic_lr: float | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check and convert the arrays of `learn`."""
        columns, extra = transition_columns(
            type(self).__name__,
            obs,
            unit_box("action", action),
            reward,
            next_obs,
            terminal,
            weights=weights,
            discount=discount,
        )
        if not self._pairs_checked:
            self._require_pairs(self.PAIRS, columns[0], columns[1])
            self._pairs_checked = True
        rates = {"actor_lr": actor_lr, "critic_lr": critic_lr}
        return columns, {**extra, **{name: check_scheduled(name, rate) for name, rate in rates.items()}}

    def settle_shapes(self, obs: Any, action: Any) -> None:
        """Run actor and critics once where they have lazily shaped layers."""
        if not self.model._waiting():
            return
        with self._trying_out(obs, action) as (rows, actions, _), suppress(Exception):  # the first update explains it
            self._run_model(rows, actions)

    # Shared

    def _update(self, batch: tuple[Any, ...], actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        """Take the steps of one update and return (critic_loss, actor_loss, td_error)."""
        critic_loss, td_error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=critic_lr)
        (actor_loss,) = self.actor_optimizer.descend(self._actor_loss, batch[0], lr=actor_lr)
        self.sync_target()
        return critic_loss, actor_loss, td_error

    def _run_model(self, obs: Any, action: Any) -> None:
        self.model.policy(obs)
        self.model.value(obs, action)

    def _listed(self, method: str) -> Iterable[Any]:
        """Return the parameters that a method of the model lists; PARL 1.x's models know only the actor's."""
        if self.model.implements(method):
            return listed_parameters(self.model, method)
        actors = {id(parameter) for parameter in listed_parameters(self.model, "get_actor_params")}
        others = [parameter for parameter in self.model._named_parameters().values() if id(parameter) not in actors]
        if not others:
            raise ModelContractError(
                f"get_actor_params() of {type(self.model).__name__} lists all parameters, so that none is left for the "
                "critic: list those of the actor alone"
            )
        return others


def noisy(action: NDArray[Any], noise: float, rng: np.random.Generator) -> NDArray[Any]:
    """Actions `[batch, act_dim]` in [-1, 1] with Gaussian noise of standard deviation `noise`, kept inside.

    Raises:
        HyperparameterError: `noise` is negative.
    """
    drawn = rng.normal(0.0, check_non_negative("noise", noise), action.shape)
    return np.asarray(np.clip(action + drawn, -1.0, 1.0), action.dtype)


def unit_box(name: str, values: Any) -> NDArray[Any]:
    """Continuous actions as floats `[n, act_dim]` in [-1, 1].

    Raises:
        ValueError: another shape, or numbers outside.
    """
    action = np.asarray(values)
    if action.ndim != 2 or action.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must hold numbers of shape [n, act_dim] (continuous actions), got shape {action.shape} and dtype "
            f"{action.dtype}"
        )
    # Rounding is let pass; NaN is not.
    if action.size and not np.abs(action).max() <= 1.0 + 1e-3:
        raise ValueError(
            f"{name} must lie in [-1, 1], got {action.min()}..{action.max()}: store the actions as the agent chose "
            "them, before they are mapped to the environment's bounds"
        )
    return action if action.dtype.kind == "f" else action.astype(np.float32)

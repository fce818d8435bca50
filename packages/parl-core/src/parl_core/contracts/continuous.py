"""The base of DDPG, TD3, SAC and OAC: actor and critic with separate learning rates, and a slowly moving target.

Actions lie in [-1, 1] in every dimension; the loops and `parl.env.ActionMappingWrapper` map them to the finite bounds
of an environment.

    model.policy(obs)               described in the algorithm's class
    model.value(obs, action)        `[batch]` or `[batch, 1]`; for twin critics a pair of these
    model.get_actor_params()        parameters of the actor
    model.get_critic_params()       parameters of the critic; by default all that are not the actor's
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_non_negative,
    check_positive,
    first_method,
    listed_parameters,
)
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule, merge
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["ActorCriticSettings", "ContinuousActorCritic", "NoisyActorCritic", "noisy", "unit_box"]


class ActorCriticSettings(TypedDict, total=False):
    """Keywords of `ContinuousActorCritic`."""

    optimizer: Mapping[str, Any] | None
    hyperparas: Mapping[str, Any] | None
    device: str
    compile: bool


class ContinuousActorCritic(CountingUpdates):
    """Base of the off-policy actor-critics; their own classes document the arguments."""

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    HAS_TARGET: ClassVar[bool] = True
    """True if there is a `target_model`."""
    FIGURES: ClassVar[tuple[str, ...]] = ("critic_loss", "actor_loss")
    NAMED: ClassVar[frozenset[str]] = frozenset({"td_error"})
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "get_actor_params")
    PAIRS: ClassVar[Mapping[str, str]] = {}
    """Methods of the model that return a pair, with descriptions; checked before the first update."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"gamma": 0.99, "tau": 0.005, "actor_lr": 3e-4, "critic_lr": 3e-4}

    target_model: Any
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer

    policy_freq: int = 1
    """Number of updates of the critic per update of the actor."""

    max_grad_norm: float | None = None
    """Limit of the norm of each optimizer's gradients."""

    _model_checked: bool = False

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        optimizer: Mapping[str, Any] | None = None,
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
            raise HyperparameterError("tau must be above 0, else the target never moves; a usual value is 0.005")
        self.actor_lr: Any = check_schedule("actor_lr", settings["actor_lr"], check_positive)
        self.critic_lr: Any = check_schedule("critic_lr", settings["critic_lr"], check_positive)
        for method in self.METHODS:
            first_method(model, (method,), name, self.TEAM)
        super().__init__(model, device=device, compile=compile)
        if self.HAS_TARGET:
            self.target_model = self._new_target()
        # Not lambdas, which would refer to this object in a copy of the algorithm.
        parts = {part: partial(self._listed, f"get_{part}_params") for part in ("actor", "critic")}
        rates = {"actor": self._at_start(self.actor_lr), "critic": self._at_start(self.critic_lr)}
        self.actor_optimizer, self.critic_optimizer = self._optimizers_of_parts(
            optimizer, parts, rates, self.max_grad_norm
        )
        own = optimizer or {}
        asked = {**given, **(gamma if isinstance(gamma, Mapping) else hyperparas or {})}
        self.actor_lr = self._own_rate(own.get("actor"), asked["actor_lr"], self.actor_lr)
        self.critic_lr = self._own_rate(own.get("critic"), asked["critic_lr"], self.critic_lr)

    def predict(self, obs: Any) -> Any:
        """Return the best actions `[batch, act_dim]`, in [-1, 1]."""
        with self._no_gradients():
            return self.model.policy(obs)

    @learns_from(Transitions, keywords=("weights", "discount", "actor_lr", "critic_lr"))
    def learn(self, batch: Transitions, *, actor_lr: float | None = None, critic_lr: float | None = None) -> Any:
        """Take one step of the critic and one of the actor, and move the target.

        `learn(batch)`, or the columns one by one, as PARL 2.x does.

        Args:
            batch: Tensors; actions float `[batch, act_dim]` in [-1, 1].
            actor_lr: Learning rate of the actor for this step; default the constructor's.
            critic_lr: Learning rate of the critic for this step; default the constructor's.

        Returns:
            (critic_loss, actor_loss), detached scalars; with `batch.weights` also td_error `[batch]`, target - Q (of
            twin critics the mean of both). actor_loss is None where the actor took no step.
        """
        critic_loss, actor_loss, td_error, *_ = self._counted_update(batch, actor_lr, critic_lr)
        return (critic_loss, actor_loss) if batch.weights is None else (critic_loss, actor_loss, td_error)

    def critic_loss(self, batch: Transitions, *drawn: Any) -> tuple[Any, dict[str, Any]]:
        """Return the critics' loss of a batch of tensors, and `td_error` `[batch]`.

        Args:
            batch: Tensors.
            drawn: Further values of the algorithm, such as noise, to pass to `super().critic_loss`.
        """
        raise NotImplementedError

    def actor_loss(self, batch: Transitions, *drawn: Any) -> tuple[Any, dict[str, Any]]:
        """Return the actor's loss of a batch of tensors, and figures by name; `drawn` as in `critic_loss`."""
        raise NotImplementedError

    def sync_target(self, decay: float | None = None) -> None:
        """Move the target model: target = decay * target + (1 - decay) * model.

        Args:
            decay: The weight of the target's own values, in [0, 1]; default 1 - tau.
        """
        self.model.sync_weights_to(self.target_model, 1.0 - self.tau if decay is None else decay)

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions in [-1, 1]; with the first batch, check the outputs of the model."""
        action = unit_box("action", batch.action)
        return self._fitted(batch.made(**{**batch.__dict__, "action": action}))

    def settle_shapes(self, obs: Any, action: Any) -> None:
        """Run actor and critics once where they have lazily shaped layers."""
        if self.model._waiting():
            # the first update raises it with an explanation
            with self._trying_out(obs, action) as (rows, actions, _), suppress(Exception):
                self._run_model(rows, actions)
        super().settle_shapes(obs, action)

    # Shared

    def _fitted(self, batch: Transitions) -> Transitions:
        if not self._model_checked:
            if not self.CHOOSES:
                self._require_act_dim("policy", batch.obs, batch.action)
            self._check_model(batch.obs, batch.action)
            self._model_checked = True
        return batch

    def _counted_update(self, batch: Transitions, actor_lr: Any = None, critic_lr: Any = None) -> tuple[Any, ...]:
        """Take the steps of one update at these or the present learning rates, count it, and return its results."""
        actor_lr = self._now("actor_lr", self.actor_lr, actor_lr)
        critic_lr = self._now("critic_lr", self.critic_lr, critic_lr)
        results = self._update(batch, actor_lr, critic_lr)
        self._call_after_update(self._count_update)
        return results

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, ...]:
        """Take the steps of one update and return (critic_loss, actor_loss, td_error), and further figures."""
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, lr=critic_lr)
        actor_loss, _ = self._descend(self.actor_optimizer, self.actor_loss, batch, lr=actor_lr)
        self.sync_target()
        return critic_loss, actor_loss, figures["td_error"]

    def _when_due(self, batch: Transitions, learn: Callable[[], Any]) -> Any:
        """Take a step of the actor if it is due, and return its loss."""
        if self.policy_freq == 1:
            return learn()
        return self._branch_on(self._actor_is_due, learn, lambda: self._missing_metric(batch.reward))

    def _actor_is_due(self) -> bool:
        return (self.updates + 1) % self.policy_freq == 0

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        """Reject a model whose outputs do not fit the algorithm.

        Raises:
            ModelContractError: The outputs of its methods are wrong.
            HyperparameterError: A setting does not fit the outputs.
        """
        self._require_pairs(self.PAIRS, obs, action)

    def _run_model(self, obs: Any, action: Any) -> None:
        self.model.policy(obs)
        self.model.value(obs, action)

    def _listed(self, method: str) -> Iterable[Any]:
        """Return the parameters that a method of the model lists; models of PARL 1.x list only the actor's."""
        if self.model.implements(method):
            return listed_parameters(self.model, method)
        actors = {id(parameter) for parameter in listed_parameters(self.model, "get_actor_params")}
        others = [parameter for parameter in self.model._named_parameters().values() if id(parameter) not in actors]
        if not others:
            raise ModelContractError(
                f"get_actor_params() of {type(self.model).__name__} lists all parameters and leaves none for the "
                "critic: list only those of the actor"
            )
        return others


class NoisyActorCritic(ContinuousActorCritic):
    """Base of the actor-critics that explore by noise on their actions."""

    EXPLORATION: ClassVar[str] = "noise"

    def choose(
        self, output: Any, *, rng: np.random.Generator | None = None, noise: float = 0.1, **options: Any
    ) -> NDArray[Any]:
        """Return the actor's actions; `rng` adds Gaussian noise, and actions are clipped to [-1, 1].

        Args:
            output: Actions `[batch, act_dim]`.
            rng: The generator to explore with.
            noise: Standard deviation, at least 0; default 0.1 (Fujimoto et al. 2018, section 6.1).
            options: Further options of exploration; this algorithm has none.

        Raises:
            HyperparameterError: `noise` is negative.
        """
        super().choose(output, rng=rng, **options)
        return np.asarray(output) if rng is None else noisy(output, noise, rng)


def noisy(action: NDArray[Any], noise: float, rng: np.random.Generator) -> NDArray[Any]:
    """Return actions `[batch, act_dim]` with Gaussian noise of standard deviation `noise`, clipped to [-1, 1].

    Raises:
        HyperparameterError: `noise` is negative.
    """
    drawn = rng.normal(0.0, check_non_negative("noise", noise), action.shape)
    return np.asarray(np.clip(action + drawn, -1.0, 1.0), action.dtype)


def unit_box(name: str, values: Any) -> NDArray[Any]:
    """Return continuous actions as floats `[n, act_dim]` in [-1, 1].

    Raises:
        ValueError: The shape is wrong, or a number lies outside.
    """
    action = np.asarray(values)
    if action.ndim != 2 or action.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must hold numbers of shape [n, act_dim] (continuous actions), got shape {action.shape} and dtype "
            f"{action.dtype}"
        )
    # Rounding errors are allowed; NaN is not.
    if action.size and not np.abs(action).max() <= 1.0 + 1e-3:
        raise ValueError(
            f"{name} must lie in [-1, 1], got {action.min()}..{action.max()}: store the actions as the agent chose "
            "them, before they are mapped to the environment's bounds; OfflineDataset.chosen_in(env.action_space) maps "
            "logged ones back"
        )
    return action if action.dtype.kind == "f" else action.astype(np.float32)

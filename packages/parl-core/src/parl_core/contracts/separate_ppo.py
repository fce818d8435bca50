"""The contract of PPO in the form of PARL 1.x: own optimizers and methods for policy and value, clip or adaptive KL."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from parl_core.algorithm import Algorithm, Optimizer
from parl_core.checks import check_int, check_non_negative, check_positive, first_method
from parl_core.contracts._base import Scheduled, check_schedule, merge
from parl_core.contracts.batches import Rollout
from parl_core.contracts.ppo import PPO
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["SeparatePPO", "adapt_kl_penalty"]


def adapt_kl_penalty(beta: float, kl: float, kl_target: float) -> float:
    """Return the penalty of the next iteration (Schulman et al. 2017, section 4).

    It is halved if the policy moved less than `kl_target / 1.5`, and doubled if it moved more than `kl_target * 1.5`.

    Args:
        beta: Penalty of this iteration, above 0.
        kl: Mean KL divergence after it, in nats.
        kl_target: The wanted divergence, above 0.
    """
    check_positive("beta", beta)
    check_positive("kl_target", kl_target)
    if check_non_negative("kl", max(kl, 0.0)) < kl_target / 1.5:
        return beta / 2
    return beta * 2 if kl > kl_target * 1.5 else beta


class SeparatePPO(PPO):
    """PPO for continuous actions as in PARL 1.x: `PPO(model, policy_lr=..., value_lr=...)` makes one.

    One iteration: `sync_old_policy()`, then several `policy_learn(...)` and `value_learn(...)`.

        CLIP:   loss = -mean(min(ratio * adv, clip(ratio, 1 - epsilon, 1 + epsilon) * adv))
        KLPEN:  loss = -mean(ratio * adv) + beta * mean(KL(old policy || policy))

    (Schulman et al. 2017, arXiv:1707.06347, equations 7 and 8; Heess et al. 2017, arXiv:1707.02286.) `adapt_kl_penalty`
    returns the next `beta`.

    The model has `policy(obs)` returning (means `[batch, act_dim]`, log-variances, broadcastable to it) and
    `value(obs)` returning `[batch]` or `[batch, 1]`. Where it has sub-models `policy_model` and `value_model`, each
    optimizer updates its own; otherwise both update the whole model.

    `policy_lr`, `value_lr` and `epsilon` may be schedules: functions of the steps of the policy taken so far.

    Args:
        model: Policy and value networks.
        hyperparas: PARL 1.x's dictionary of the settings below.
        act_dim: Number of action dimensions; only checked against the model's output.
        policy_lr: Learning rate of the policy's Adam, above 0, or a schedule; required.
        value_lr: Learning rate of the value's Adam, above 0, or a schedule; required.
        epsilon: Clip range, above 0, or a schedule; default 0.2 (paper, table 3).
        device: See `parl.Algorithm`.
        compile, compute_dtype: Options that are not available in this form.

    Raises:
        HyperparameterError: A setting is missing, out of range, given twice or not available in this form.
        ModelContractError: The model lacks `policy` or `value`.
    """

    NO_ROLLOUTS: ClassVar[str] = (
        "PPO in PARL 1.x's form, which has no learn_rollout: make it with PARL 2.x's arguments, PPO(model, "
        "clip_param=..., initial_lr=...), or call its policy_learn and value_learn yourself"
    )

    old_policy_model: Any
    policy_optimizer: Optimizer
    value_optimizer: Optimizer

    _gaussian: Callable[..., Any]
    """Backend hook: the Gaussian of a model's policy, whose width `_require_width` has checked."""

    _policy_loss: Callable[..., tuple[Any, Any]]
    """Backend hook: (loss, KL(old || new) `[batch]`) with a clip range or, where that is None, with a penalty."""

    _value_loss: Callable[..., Any]
    """Backend hook: the mean squared error of the values."""

    def __init__(
        self,
        model: Model,
        *,
        hyperparas: Mapping[str, Any] | None = None,
        act_dim: int | None = None,
        policy_lr: Scheduled | None = None,
        value_lr: Scheduled | None = None,
        epsilon: Scheduled | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        for name, value in (("compile", compile or None), ("compute_dtype", compute_dtype)):
            if value is not None:
                raise HyperparameterError(
                    f"PPO in PARL 1.x's form has no {name}={value!r}: leave it out, or make it with PARL 2.x's "
                    "arguments (clip_param, initial_lr, ...)"
                )
        settings = merge(
            "PPO",
            hyperparas,
            {"act_dim": act_dim, "policy_lr": policy_lr, "value_lr": value_lr, "epsilon": epsilon},
            {"act_dim": None, "policy_lr": None, "value_lr": None, "epsilon": 0.2},
        )
        missing = [name for name in ("policy_lr", "value_lr") if settings[name] is None]
        if missing:
            raise HyperparameterError(f"PPO in PARL 1.x's form needs {' and '.join(missing)}")
        self.act_dim = None if settings["act_dim"] is None else check_int("act_dim", settings["act_dim"])
        self.policy_lr = check_schedule("policy_lr", settings["policy_lr"], check_positive)
        self.value_lr = check_schedule("value_lr", settings["value_lr"], check_positive)
        self.epsilon = check_schedule("epsilon", settings["epsilon"], check_positive)
        for method in ("policy", "value"):
            first_method(model, (method,), "PPO")
        Algorithm.__init__(self, model, device=device)
        self.old_policy_model = copy.deepcopy(self.model)
        rates = self._at_start(self.policy_lr), self._at_start(self.value_lr)
        self.policy_optimizer = self._adam(self.model, lr=rates[0], part=self._part("policy_model"))
        self.value_optimizer = self._adam(self.model, lr=rates[1], part=self._part("value_model"))

    def predict(self, obs: Any) -> Any:  # type: ignore[override]  # real numbers are not masked
        """Return (means `[batch, act_dim]`, log-variances `[batch, act_dim]`) of the actions."""
        with self._no_gradients():
            means, logvars = self.model.policy(obs)
            self._require_width(means.shape[-1])
            return means, logvars.expand_as(means)

    def sample(self, obs: Any) -> Any:  # type: ignore[override]  # as above
        """Draw actions `[batch, act_dim]`."""
        with self._no_gradients():
            return self._gaussian(self.model, obs).sample()

    def policy_learn(
        self,
        obs: Any,
        actions: Any,
        advantages: Any,
        beta: float | None = None,
        *,
        lr: float | None = None,
        epsilon: float | None = None,
    ) -> Any:
        """Take one step of the policy.

        Args:
            obs: `[batch, ...]`.
            actions: float `[batch, act_dim]`.
            advantages: float `[batch]`.
            beta: None for the CLIP loss; a number above 0 for the KLPEN loss with this penalty.
            lr: Learning rate of this step; default the constructor's.
            epsilon: Clip range of this step; default the constructor's.

        Returns:
            (loss, kl), detached scalars; kl is the mean KL divergence from the old policy, before the step.
        """
        clip = None
        if beta is None:
            clip = self._now("epsilon", self.epsilon, self._checked("epsilon", epsilon))
        else:
            beta = self._checked("beta", beta, check_positive)
        loss, kl = self._policy_loss(obs, actions, advantages.reshape([-1]), clip, beta)
        self.policy_optimizer.minimize(loss, self._now("policy_lr", self.policy_lr, self._checked("lr", lr)))
        self._call_after_update(self._count_update)
        return loss.detach(), kl.detach().mean()

    def value_learn(self, obs: Any, val: Any, *, lr: float | None = None) -> Any:
        """Take one step of the value function.

        Args:
            obs: `[batch, ...]`.
            val: The targets of the values, float `[batch]`.
            lr: Learning rate of this step; default the constructor's.

        Returns:
            The mean squared error, a detached scalar.
        """
        loss = self._value_loss(obs, val.reshape([-1]))
        self.value_optimizer.minimize(loss, self._now("value_lr", self.value_lr, self._checked("lr", lr)))
        return loss.detach()

    def value_predict(self, obs: Any) -> Any:
        """Return values `[batch]`."""
        with self._no_gradients():
            return self.model.value(obs).reshape([-1])

    def value(self, obs: Any) -> Any:
        """Return the same as `value_predict`."""
        return self.value_predict(obs)

    def sync_old_policy(self, gpu_id: int | None = None) -> None:  # noqa: ARG002 - the signature in the PARL 1.x manual
        """Make the current policy the old one.

        Args:
            gpu_id: An argument of PARL 1.x, without effect; both policies are on `device`.
        """
        self.model.sync_weights_to(self.old_policy_model)

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: this form has `policy_learn` and `value_learn` instead."""
        raise NotImplementedError(
            "this PPO was made with PARL 1.x's arguments: call policy_learn and value_learn, or make it with PARL "
            "2.x's (clip_param, initial_lr, ...) for learn and learn_rollout"
        )

    def learn_rollout(self, batch: Rollout, **options: Any) -> dict[str, float]:
        """Raise an error: this form has `policy_learn` and `value_learn` instead."""
        return dict(self.learn(batch, **options))

    def choose(self, output: Any, *, rng: np.random.Generator | None = None, **options: Any) -> Any:
        """Return the means from the output of `predict`."""
        return super().choose(output, rng=rng, **options)[0]

    def _require_width(self, width: int) -> None:
        """Reject means whose number of dimensions is not `act_dim`."""
        if self.act_dim not in (None, width):
            raise ModelContractError(
                f"PPO was made with act_dim={self.act_dim}, {type(self.model).__name__}.policy returns means of "
                f"{width} dimensions: make both the same"
            )

    def _checked(self, name: str, value: Any, check: Callable[[str, object], float] = check_non_negative) -> Any:
        """Return a setting of one call if it is a number that `check` accepts, None, or a tensor from a program."""
        return check(name, value) if isinstance(value, (int, float, str, np.generic)) else value

    def _part(self, attribute: str) -> str | None:
        return attribute if hasattr(self.model, attribute) else None

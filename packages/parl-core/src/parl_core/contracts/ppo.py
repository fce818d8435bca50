"""The contract of PPO in the form of PARL 2.x: one optimizer for policy and value, minibatches of a rollout.

The arguments choose between the two documented forms; `separate_ppo` describes that of PARL 1.x.

    PPO(model, clip_param=..., initial_lr=..., ...)   PARL 2.x: learn, learn_rollout, sample, predict, value
    PPO(model, policy_lr=..., value_lr=..., ...)      PARL 1.x: policy_learn, value_learn, value_predict, ...
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core._small_networks import EXPLORE, PREDICT_ALONE, VALUE_ALONE, of_actor_critic
from parl_core.algorithm import Optimizer
from parl_core.checks import check_int, check_limit, check_non_negative, check_positive, check_scheduled, first_method
from parl_core.contracts._base import OnPolicy, Scheduled, check_schedule, merge
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Rollout, learns_from
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["PPO"]


_DEFAULTS: dict[str, Any] = {
    "clip_param": 0.1,
    "value_loss_coef": 0.5,
    "entropy_coef": 0.01,
    "initial_lr": 2.5e-4,
    "eps": 1e-5,
    "max_grad_norm": 0.5,
    "use_clipped_value_loss": True,
    "norm_adv": True,
    "continuous_action": False,
    "nvec": None,
}
FIGURES = ("value_loss", "policy_loss", "entropy", "approx_kl", "clip_fraction")
_SEPARATE_FORM = ("hyperparas", "act_dim", "policy_lr", "value_lr", "epsilon")


def _asks_for_separate_form(positional: int, given: Mapping[str, Any]) -> bool:
    """Return True if the arguments of `PPO` are those of PARL 1.x.

    Args:
        positional: Number of positional arguments after the model.
        given: Keyword arguments.

    Raises:
        HyperparameterError: Names of both forms are mixed.
    """
    old = [name for name in _SEPARATE_FORM if given.get(name) is not None]
    new = [name for name in _DEFAULTS if given.get(name) is not None] or list(_DEFAULTS)[:positional]
    if old and new:
        raise HyperparameterError(
            f"PPO got {', '.join(old)} of PARL 1.x's form together with {', '.join(new)} of PARL 2.x's; "
            f"use one set: {', '.join(_SEPARATE_FORM)}; or: {', '.join(_DEFAULTS)}"
        )
    return bool(old)


class _SeparateMethods:
    """Methods of PARL 1.x's form on an algorithm of PARL 2.x's form, which raise an explanatory error."""

    def policy_learn(
        self,
        obs: Any,  # noqa: ARG002 - the other form's arguments, here as below
        actions: Any,  # noqa: ARG002
        advantages: Any,  # noqa: ARG002
        beta: float | None = None,  # noqa: ARG002
        *,
        lr: float | None = None,  # noqa: ARG002
        epsilon: float | None = None,  # noqa: ARG002
    ) -> Any:
        """Raise an error: the method is of PARL 1.x's form, see `SeparatePPO.policy_learn`."""
        raise _of_the_other_form("policy_learn")

    def value_learn(self, obs: Any, val: Any, *, lr: float | None = None) -> Any:  # noqa: ARG002
        """Raise an error: the method is of PARL 1.x's form, see `SeparatePPO.value_learn`."""
        raise _of_the_other_form("value_learn")

    def value_predict(self, obs: Any) -> Any:  # noqa: ARG002
        """Raise an error: the method is of PARL 1.x's form, see `SeparatePPO.value_predict`."""
        raise _of_the_other_form("value_predict")

    def sync_old_policy(self, gpu_id: int | None = None) -> None:  # noqa: ARG002 - the signature in the PARL 1.x manual
        """Raise an error: the method is of PARL 1.x's form, see `SeparatePPO.sync_old_policy`."""
        raise _of_the_other_form("sync_old_policy")


def _of_the_other_form(method: str) -> NotImplementedError:
    return NotImplementedError(
        f"{method} belongs to PARL 1.x's form of PPO; this one was made with PARL 2.x's arguments: call learn or "
        "learn_rollout, or make it with policy_lr and value_lr"
    )


EPOCHS, MINIBATCH_SIZE = 10, 64  # Schulman et al. 2017, table 3


def _sampled(policy: Any, value: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    action = policy.sample()
    return value, action, policy.logp(action), policy.entropy()


class PPO(_SeparateMethods, OnPolicy):
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347, equations 7 and 9).

        ratio = exp(log pi(a|s) - log pi_old(a|s))
        policy loss = -mean(min(ratio * adv, clip(ratio, 1 - clip, 1 + clip) * adv))
        value loss = 0.5 * mean(max((v - return)**2, (v_old + clip(v - v_old, -clip, clip) - return)**2))
        loss = policy loss + value_loss_coef * value loss - entropy_coef * entropy

    Deviations from the paper, as in OpenAI's baselines and PARL: value clipping, advantages normalised in each
    minibatch (by the standard deviation with divisor n), global gradient norm clipped, Adam's eps.

    The model has `policy(obs)` and `value(obs)`: values `[batch, 1]` or `[batch]`; policy logits `[batch, act_dim]`,
    with `nvec` those of all parts side by side `[batch, sum(nvec)]`, or with `continuous_action` the pair (mean, std)
    of a Gaussian, each broadcastable to `[batch, act_dim]`. Where it also has `policy_and_value(obs)`, returning the
    pair of both, one pass serves both heads.

    Impossible actions are masked with `action_mask` of `sample`, `predict` and `learn`, or by observations that are a
    dictionary with this key (Huang & Ontanon 2022, arXiv:2006.14171): their logits become the smallest possible number.

    `clip_param`, `entropy_coef` and `initial_lr` may be schedules: functions of the updates taken so far.

    Args:
        model: Policy and value networks.
        clip_param: Clip range of ratio and value, above 0; default 0.1 (Atari in the paper and PARL; 0.2 for MuJoCo).
        value_loss_coef: The weight of the value loss; default 0.5 (baselines).
        entropy_coef: The weight of the entropy bonus, which is subtracted from the loss, at least 0; default 0.01
            (paper, table 5).
        initial_lr: Learning rate of Adam; default 2.5e-4 (paper, table 5).
        eps: Adam's epsilon; default 1e-5 (baselines).
        max_grad_norm: Limit of the gradients' global norm, `math.inf` for none; default 0.5 (baselines).
        use_clipped_value_loss: Whether the value's step is clipped, in units of returns; default True (baselines). It
            suits scaled rewards: where returns are far larger than the clip range, values hardly learn, and False is
            better.
        norm_adv: Whether advantages are normalised in each minibatch; default True.
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        nvec: The number of choices of each part of a multi-discrete action; None if actions are not multi-discrete.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        device, compile, compute_dtype: See `parl.Algorithm`.
        hyperparas, act_dim, policy_lr, value_lr, epsilon: PARL 1.x's form, see `separate_ppo.SeparatePPO`.

    Raises:
        HyperparameterError: A setting is out of range, or both forms are mixed.
        ModelContractError: The model lacks `policy` or `value`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    DEFAULTS: ClassVar[Mapping[str, Any]] = _DEFAULTS
    LEARNS_SEQUENCES: ClassVar[bool] = True
    NAMED: ClassVar[frozenset[str]] = frozenset(FIGURES)
    REPLACED_IN_LOOPS: ClassVar[Mapping[str, str]] = {"learn": "learn_minibatch"}

    SEPARATE_FORM: "ClassVar[type[PPO] | None]" = None
    """The class of PARL 1.x's form, which the constructor of this class (but not of subclasses) may return."""

    optimizer: Optimizer

    def __new__(cls, *args: Any, **kwargs: Any) -> "PPO":
        form: type[PPO] | None = vars(cls).get("SEPARATE_FORM")
        if form is not None and _asks_for_separate_form(len(args) - 1, kwargs):
            return super().__new__(form)
        return super().__new__(cls)

    def __init__(
        self,
        model: Model,
        clip_param: Scheduled | None = None,
        value_loss_coef: float | None = None,
        entropy_coef: Scheduled | None = None,
        initial_lr: Scheduled | None = None,
        eps: float | None = None,
        max_grad_norm: float | None = None,
        use_clipped_value_loss: bool | None = None,
        norm_adv: bool | None = None,
        continuous_action: bool | None = None,
        *,
        nvec: Sequence[int] | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        act_dim: int | None = None,
        policy_lr: Scheduled | None = None,
        value_lr: Scheduled | None = None,
        epsilon: Scheduled | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        given = {
            "clip_param": clip_param,
            "value_loss_coef": value_loss_coef,
            "entropy_coef": entropy_coef,
            "initial_lr": initial_lr,
            "eps": eps,
            "max_grad_norm": max_grad_norm,
            "use_clipped_value_loss": use_clipped_value_loss,
            "norm_adv": norm_adv,
            "continuous_action": continuous_action,
            "nvec": nvec,
        }
        old = {
            "hyperparas": hyperparas,
            "act_dim": act_dim,
            "policy_lr": policy_lr,
            "value_lr": value_lr,
            "epsilon": epsilon,
        }
        if _asks_for_separate_form(0, {**given, **old}):
            raise HyperparameterError("a subclass of PPO has PARL 2.x's form; derive from SeparatePPO for PARL 1.x's")
        settings = merge(type(self).__name__, None, given, self.DEFAULTS)
        self.clip_param = check_schedule("clip_param", settings["clip_param"], check_positive)
        self.value_loss_coef = check_non_negative("value_loss_coef", settings["value_loss_coef"])
        self.entropy_coef = check_schedule("entropy_coef", settings["entropy_coef"], check_non_negative)
        self.lr = check_schedule("initial_lr", settings["initial_lr"], check_positive)
        self.use_clipped_value_loss = bool(settings["use_clipped_value_loss"])
        self.norm_adv = bool(settings["norm_adv"])
        self.actions = ActionKind.of(settings["continuous_action"], settings["nvec"], model)
        self.continuous_action = self.actions.continuous
        for method in ("policy", "value"):
            first_method(model, (method,), type(self).__name__, self.TEAM)
        self._one_pass = model.implements("policy_and_value")
        self.max_grad_norm = check_limit("max_grad_norm", settings["max_grad_norm"])
        super().__init__(model, device=device, compile=compile, compute_dtype=compute_dtype)
        self.optimizer = self._given_or_adam(
            optimizer,
            self._at_start(self.lr),
            eps=check_positive("eps", settings["eps"]),
            max_grad_norm=self.max_grad_norm,
        )
        self.lr = self._own_rate(optimizer, initial_lr, self.lr)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions: int64 `[batch]` or `[batch, parts]`, or means `[batch, act_dim]`."""
        with self._no_gradients():
            return self._policy(self._run(self.model.policy, obs), obs, action_mask).mode()

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions.

        Args:
            obs: `[batch, ...]`, or a dictionary of arrays.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.

        Returns:
            (value `[batch]`, action as in `predict`, log-probability `[batch]`, entropy `[batch]`).
        """
        with self._no_gradients():
            output, value = self._policy_and_value(obs)
            policy = self._policy(output, obs, action_mask)
            action = policy.sample()
            return value, action, policy.logp(action), policy.entropy()

    def explore(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the first three of the result of `sample`."""
        return self.sample(obs, action_mask)[:3]

    def value(self, obs: Any) -> Any:
        """Return values `[batch]`."""
        with self._no_gradients():
            return self._run(self.model.value, obs).reshape([-1])

    ON_HOST: ClassVar = {
        explore: EXPLORE,
        predict: PREDICT_ALONE,
        OnPolicy.sample_actions: of_actor_critic(_sampled, takes_mask=True),
        value: VALUE_ALONE,
    }

    @learns_from(
        Rollout,
        names={
            "batch_obs": "obs",
            "batch_action": "action",
            "batch_value": "value",
            "batch_return": "return_",
            "batch_logprob": "log_prob",
            "batch_adv": "advantage",
        },
        settings=("lr",),
        keywords=("clip", "entropy_coef", "action_mask"),
    )
    def learn(
        self, batch: Rollout, lr: float | None = None, *, clip: float | None = None, entropy_coef: float | None = None
    ) -> Any:
        """Take one step on a minibatch: `learn(batch)`, or its columns one by one, as PARL 2.x does.

        Args:
            batch: Tensors.
            lr: Learning rate of this step; default the constructor's.
            clip: Clip range of this step; default the constructor's.
            entropy_coef: The weight of the entropy bonus in this step; default: the constructor's.

        Returns:
            (value_loss, action_loss, entropy_loss), detached scalars; entropy_loss is the mean entropy.
        """
        figures = self.learn_minibatch(batch, lr, clip, entropy_coef)
        return figures["value_loss"], figures["policy_loss"], figures["entropy"]

    def loss(
        self, batch: Rollout, clip: float | None = None, entropy_coef: float | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a minibatch of tensors, and figures by name.

        Add your own loss in a subclass: `loss, figures = super().loss(batch, clip, entropy_coef)`.

        Args:
            batch: Tensors, with final advantages.
            clip: Clip range; default the constructor's.
            entropy_coef: The weight of the entropy bonus; default: the constructor's.

        Returns:
            The loss, and value_loss, policy_loss, entropy, approx_kl, clip_fraction: scalars without gradient.
            approx_kl is the mean of `ratio - 1 - log ratio` (Schulman 2020), clip_fraction the share of ratios outside
            the clip range.
        """
        raise NotImplementedError

    def learn_minibatch(
        self, batch: Rollout, lr: float | None = None, clip: float | None = None, entropy_coef: float | None = None
    ) -> dict[str, Any]:
        """Take one step on a minibatch of tensors, as `learn`, and return the figures of `loss`, detached."""
        if self.norm_adv:
            batch = batch.made(**{**batch.__dict__, "advantage": self._normalised(batch.advantage)})
        lr = self._now("initial_lr", self.lr, lr, given_as="lr")
        clip = self._now("clip_param", self.clip_param, clip, given_as="clip")
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        _, figures = self._descend(self.optimizer, self.loss, batch, clip, entropy_coef, lr=lr)
        self._call_after_update(self._count_update)
        found: dict[str, Any] = figures
        return found

    def learn_rollout(
        self,
        batch: Rollout,
        *,
        epochs: int | None = None,
        minibatch_size: int | None = None,
        rng: np.random.Generator,
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Learn several epochs from one rollout.

        The rollout goes to the device once and is permuted once per epoch. Minibatches are slices; the last one is
        smaller if the size does not divide the rollout. For a model with a memory, minibatches are whole sequences,
        with at most `minibatch_size` rows, but at least one sequence. Nothing is read from the device before the end of
        an epoch (with `target_kl`) or of the call.

        Args:
            batch: The rollout.
            epochs: The passes over the rollout; default 10 (paper, table 3).
            minibatch_size: Rows per step; default 64 (paper, table 3). With `norm_adv`, a last minibatch of one row
                trains the value, but not the policy.
            rng: The generator that draws the permutations.
            lr: Learning rate of this call; default the constructor's.
            clip: Clip range of this call; default the constructor's.
            entropy_coef: The weight of the entropy bonus in this call; default: the constructor's.
            target_kl: Limit of the KL divergence: learning stops after an epoch whose mean approx_kl exceeds 1.5 times
                this number (as in OpenAI's Spinning Up); default: no limit.

        Returns:
            Means over all steps taken of value_loss, policy_loss, entropy, approx_kl, clip_fraction; and `steps`.

        Raises:
            HyperparameterError: A value is out of range, or minibatches or a rollout of a single row are normalised.
        """
        epochs = check_int("epochs", EPOCHS if epochs is None else epochs)
        size = check_int("minibatch_size", MINIBATCH_SIZE if minibatch_size is None else minibatch_size)
        lr = check_scheduled("lr", lr)
        if target_kl is not None:
            check_positive("target_kl", target_kl)
        clip = check_scheduled("clip", clip)
        entropy_coef = check_scheduled("entropy_coef", entropy_coef)
        count = len(batch)
        tensors = self._on_device(self._checked_batch(batch))
        taken = Rollout.rows
        if self.remembers:
            sequences = tensors.sequence_count
            count, size, taken = sequences, max(1, size * sequences // count), Rollout.sequences
        if self.norm_adv and min(size, count) == 1 and count == len(batch):
            too_small = "the rollout" if count == 1 else "minibatch_size"
            raise HyperparameterError(
                f"{type(self).__name__} normalises the advantages of each minibatch, and that of a single row is 0, so "
                f"the policy would not learn: make {too_small} larger, or make the algorithm with norm_adv=False"
            )
        steps: list[tuple[Any, ...]] = []
        for _ in range(epochs):
            # The loss does not depend on the order within a minibatch, so a single minibatch is not shuffled.
            shuffled = taken(tensors, self._tensor(rng.permutation(count))) if size < count else tensors
            first = len(steps)
            for start in range(0, count, size):
                minibatch = taken(shuffled, slice(start, start + size)) if size < count else shuffled
                figures = self.learn_minibatch(minibatch, lr, clip, entropy_coef)
                steps.append(tuple(figures[name] for name in FIGURES))
            if target_kl is not None and self._means(steps[first:])[3] > 1.5 * target_kl:
                break
        return {**dict(zip(FIGURES, self._means(steps), strict=True)), "steps": float(len(steps))}

    def check_batch(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with actions, and a mask of them, that fit the policy.

        Raises:
            ValueError: Actions or the mask do not fit, or a column is missing.
        """
        return self._with_checked_actions(batch)

    def _fitted(self, batch: Rollout) -> Rollout:
        missing = [name for name in ("return_", "log_prob", "advantage") if getattr(batch, name) is None]
        if missing:
            raise ValueError(f"{type(self).__name__} learns from return_, log_prob and advantage; got no {missing[0]}")
        return super()._fitted(batch)

    def _policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        if self._one_pass:
            output, value = self._run(self.model.policy_and_value, obs)
        else:
            output, value = self._run(self.model.policy, obs), self._run(self.model.value, obs)
        return output, value.reshape([-1])

    def _policy(self, output: Any, obs: Any, mask: Any) -> Any:
        return self._distribution(output, self.actions, mask_of(obs, mask))

"""The contract of IMPALA: an actor-critic that learns with V-trace from experience of slightly older policies."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parl_core import logger
from parl_core._nested import leaves, rows_of
from parl_core._small_networks import VALUE, of_actor_critic
from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_int,
    check_limit,
    check_non_negative,
    check_positive,
    check_real,
    check_rows,
    first_method,
)
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule, merge
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Fragment, actions_column, learns_from, observations
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["IMPALA", "VTraceLoss", "VTraceReturns", "from_importance_weights"]

_DEFAULTS: dict[str, Any] = {
    "sample_batch_steps": None,
    "gamma": 0.99,
    "vf_loss_coeff": 0.5,
    "clip_rho_threshold": 1.0,
    "clip_pg_rho_threshold": 1.0,
    "max_grad_norm": 40.0,
}


class VTraceLoss(NamedTuple):
    """The parts of IMPALA's loss, sums over the batch, scalars."""

    total_loss: Any
    pi_loss: Any
    vf_loss: Any
    entropy: Any


class IMPALA(CountingUpdates):
    """Importance-weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561, section 4).

        rho = min(clip_rho_threshold, pi(a|s) / mu(a|s)),  c = min(1, the same)
        vs  = V(s) + sum over later steps of gamma^k (product of c) rho (r + gamma V(s') - V(s))       (equation 1)
        policy loss = -sum(log pi(a|s) * min(clip_pg_rho_threshold, pi/mu) * (r + gamma vs' - V(s)))
        value loss  = 0.5 * sum((V(s) - vs)**2)
        loss = policy loss + vf_loss_coeff * value loss + entropy_coeff * sum(entropy)

    Deviations from the paper, as in PARL: Adam instead of RMSProp, gradients clipped at the global norm 40.
    `entropy_coeff` keeps PARL's sign: it multiplies the entropy in the loss, so a bonus is *negative*.

    A batch holds concatenated fragments of `sample_batch_steps` steps: the rows of one environment's fragment are
    consecutive. The last step of each fragment is only bootstrapped from, as in PARL, unless `last_obs` is given.

    The model has `policy(obs)`, logits `[batch, act_dim]` or with `continuous_action` the pair (mean, std) of a
    Gaussian, and `value(obs)`, `[batch]` or `[batch, 1]`; or `policy_and_value(obs)` with the pair of both in one pass.
    Observations that are dictionaries may contain a mask of actions under the key `action_mask`; logits of impossible
    actions are huge and negative. Learning uses the actions drawn from a Gaussian; loops clip them to [-1, 1] and map
    them to the bounds of the environment.

    Args:
        model: Policy and value networks.
        sample_batch_steps: Steps of each fragment, at least 1; required. PARL 1.x's `hyperparas` may be passed in its
            place.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table D.3).
        vf_loss_coeff: Weight of the value loss, at least 0; default 0.5 (paper, table D.3).
        clip_rho_threshold: Bound of rho, above 0, `math.inf` for none; default 1 (paper).
        clip_pg_rho_threshold: Bound of the policy gradient's weights, likewise; default 1 (paper).
        learning_rate: The learning rate of Adam, above 0; default 1e-3 (PARL).
        entropy_coeff: Weight of the entropy in the loss, at most 0 for a bonus; default -0.01 (PARL; paper 0.01 with
            the other sign).
        max_grad_norm: Limit of the gradients' global norm, `math.inf` for none; default 40 (paper, table D.3).
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        sample_probabilities: Whether `sample` returns the probabilities of all actions instead of drawn actions, as in
            PARL 2.x on paddle. Default: True on paddle if the call has the arguments of PARL 2.x, which are the first
            six and no others, and the class has no `sample` of its own; else False. Agents draw actions in either
            case.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        hyperparas: PARL 1.x's dictionary of the first five settings.
        device, compile, compute_dtype: See `parl.Algorithm`.

    `learning_rate` and `entropy_coeff` may be schedules: functions of the updates taken so far.

    Raises:
        HyperparameterError: A setting is missing, out of range, unknown or given twice.
        ModelContractError: The model lacks `policy` or `value`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    DEFAULTS: ClassVar[Mapping[str, Any]] = _DEFAULTS
    LEARNS_SEQUENCES: ClassVar[bool] = True
    NAMED: ClassVar[frozenset[str]] = frozenset({*VTraceLoss._fields, "kl"})
    UNUSED: ClassVar[frozenset[str]] = frozenset({"gamma", "gae_lambda", "epochs", "minibatch_size"})

    PARL2_SAMPLED_PROBABILITIES: ClassVar[bool] = False
    """True if PARL 2.x had IMPALA on this backend; its `sample` returned probabilities."""

    optimizer: Optimizer

    _behaviour: Callable[..., Any]
    """Backend hook: return the distribution of logits, or of concatenated mean and log std."""

    _side_by_side: Callable[..., Any]
    """Backend hook: concatenate two tensors `[batch, act_dim]` to `[batch, 2 * act_dim]`."""

    def __init__(
        self,
        model: Model,
        sample_batch_steps: int | Mapping[str, Any] | None = None,
        gamma: float | None = None,
        vf_loss_coeff: float | None = None,
        clip_rho_threshold: float | None = None,
        clip_pg_rho_threshold: float | None = None,
        *,
        learning_rate: Scheduled | None = None,
        entropy_coeff: Scheduled | None = None,
        max_grad_norm: float | None = None,
        continuous_action: bool | None = None,
        sample_probabilities: bool | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        if isinstance(sample_batch_steps, Mapping):
            if hyperparas is not None:
                raise HyperparameterError("IMPALA got two dictionaries of settings; put all into hyperparas")
            sample_batch_steps, hyperparas = None, sample_batch_steps
        given = {
            "sample_batch_steps": sample_batch_steps,
            "gamma": gamma,
            "vf_loss_coeff": vf_loss_coeff,
            "clip_rho_threshold": clip_rho_threshold,
            "clip_pg_rho_threshold": clip_pg_rho_threshold,
            "max_grad_norm": max_grad_norm,
        }
        others = (learning_rate, entropy_coeff, max_grad_norm, continuous_action, optimizer, hyperparas, compute_dtype)
        has_parl2_arguments = (
            None not in (sample_batch_steps, gamma, vf_loss_coeff, clip_rho_threshold, clip_pg_rho_threshold)
            and all(value is None for value in others)
            and device == "auto"
            and not compile
        )
        settings = merge("IMPALA", hyperparas, given, _DEFAULTS)
        if settings["sample_batch_steps"] is None:
            raise HyperparameterError(
                "IMPALA needs sample_batch_steps, the number of consecutive steps of one environment in a "
                "batch: IMPALA(model, sample_batch_steps=50)"
            )
        self.sample_batch_steps = check_int("sample_batch_steps", settings["sample_batch_steps"])
        self.gamma = check_fraction("gamma", settings["gamma"])
        self.vf_loss_coeff = check_non_negative("vf_loss_coeff", settings["vf_loss_coeff"])
        self.clip_rho_threshold = _bound("clip_rho_threshold", settings["clip_rho_threshold"])
        self.clip_pg_rho_threshold = _bound("clip_pg_rho_threshold", settings["clip_pg_rho_threshold"])
        self.lr = check_schedule("learning_rate", 1e-3 if learning_rate is None else learning_rate, check_positive)
        self.entropy_coeff = check_schedule(
            "entropy_coeff", -0.01 if entropy_coeff is None else entropy_coeff, check_real
        )
        limit = check_limit("max_grad_norm", settings["max_grad_norm"])
        self._one_pass = first_method(model, ("policy_and_value", "policy"), "IMPALA") == "policy_and_value"
        self._policy_alone = model.implements("policy")
        if not self._one_pass:
            first_method(model, ("value",), "IMPALA")
        self.actions = ActionKind.of(continuous_action, None, model)
        if self.actions.nvec is not None:
            raise HyperparameterError(
                "IMPALA chooses one action, or numbers; PPO and A2C learn actions in several parts; got "
                f"{len(self.actions.nvec)} choices"
            )
        if sample_probabilities and self.actions.continuous:
            raise HyperparameterError(
                "sample_probabilities=True is for discrete actions: a Gaussian has no probabilities of actions"
            )
        self.sample_probabilities = bool(sample_probabilities)
        is_own = type(self).sample is not IMPALA.sample or type(self).sample_actions is not IMPALA.sample_actions
        if sample_probabilities is None and has_parl2_arguments and not self.actions.continuous and not is_own:
            self.sample_probabilities = self.PARL2_SAMPLED_PROBABILITIES
        if self.sample_probabilities and sample_probabilities is None:
            logger.warning(
                "IMPALA has the arguments of PARL 2.x, so sample(obs) returns (probabilities, logits) as there; "
                "sample_probabilities=False returns (actions, logits), and True keeps the probabilities"
            )
        super().__init__(model, device=device, compile=compile, compute_dtype=compute_dtype)
        self.optimizer = self._given_or_adam(optimizer, self._at_start(self.lr), max_grad_norm=limit)
        self.lr = self._own_rate(optimizer, learning_rate, self.lr)

    def predict(self, obs: Any) -> Any:
        """Return the most likely actions, int64 `[batch]`, or means `[batch, act_dim]`."""
        with self._no_gradients():
            return self._policy_and_value(obs)[0].mode()

    def sample(self, obs: Any) -> Any:
        """Draw actions: (action int64 `[batch]`, logits `[batch, act_dim]`, the `behaviour_logits` of `learn`).

        With `continuous_action` these are float `[batch, act_dim]`, and concatenated mean and log std. With
        `sample_probabilities`, the first value is the probabilities of all actions, `[batch, act_dim]`.
        """
        with self._no_gradients():
            policy, _ = self._policy_and_value(obs)
            chosen = policy.log_probabilities.exp() if self._returns_probabilities() else policy.sample()
            return chosen, self._numbers_of(policy)

    def sample_actions(self, *args: Any, **kwargs: Any) -> Any:
        """Return drawn actions and logits; what `sample` returns, if a subclass has one of its own."""
        found = self.sample(*args, **kwargs)
        if not self._returns_probabilities() or type(self).sample is not IMPALA.sample:
            return found
        return self._behaviour(found[1]).sample(), found[1]

    def _returns_probabilities(self) -> bool:
        return self.sample_probabilities and not self._is_recording()  # programs of PARL 1.x draw actions in the graph

    def logits(self, obs: Any) -> Any:
        """Return the policy's logits `[batch, act_dim]`, without a pass through the value network if possible.

        With `continuous_action`, they are concatenated mean and log std, `[batch, 2 * act_dim]`.
        """
        with self._no_gradients():
            if not self._policy_alone:
                return self._numbers_of(self._policy_and_value(obs)[0])
            return self._numbers_of(self._policy_of(self._run(self.model.policy, obs), obs))

    def value(self, obs: Any) -> Any:
        """Return values `[batch]`."""
        with self._no_gradients():
            return self._policy_and_value(obs)[1]

    ON_HOST: ClassVar = {
        logits: of_actor_critic(
            lambda policy, _: policy.numbers, "policy", in_one_pass=lambda algorithm: not algorithm._policy_alone
        ),
        predict: of_actor_critic(lambda policy, _: policy.mode()),  # with the values, whose layers also need shapes
        sample_actions: of_actor_critic(lambda policy, _: (policy.sample(), policy.numbers)),
        value: VALUE,
    }

    @learns_from(
        Fragment,
        names={
            "obs": "obs",
            "actions": "action",
            "behaviour_logits": "behaviour_logits",
            "rewards": "reward",
            "dones": "done",
        },
        settings=("learning_rate", "entropy_coeff"),
        keywords=("last_obs", "final_rows", "final_obs"),
    )
    def learn(self, batch: Fragment, learning_rate: float | None = None, entropy_coeff: float | None = None) -> Any:
        """Take one step on n concatenated fragments of T = `sample_batch_steps` steps.

        `learn(batch)`, or its columns one by one, as PARL 1.x and 2.x do.

        Args:
            batch: Tensors. Steps that ended an episode (`done`) do not bootstrap, except the rows in `final_rows` (time
                limits), which bootstrap from the values of `final_obs`; with `last_obs` all steps are learned from.
            learning_rate: The learning rate of this step; default: the constructor's.
            entropy_coeff: The weight of the entropy in the loss of this step, negative for a bonus; default: the
                constructor's.

        Returns:
            (`VTraceLoss`, mean KL divergence of the policy that acted from the one that learns), detached.
        """
        lr = self._now("learning_rate", self.lr, learning_rate)
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        _, figures = self._descend(self.optimizer, self.loss, batch, coeff, lr=lr)
        self._call_after_update(self._count_update)
        return VTraceLoss(*(figures[name] for name in VTraceLoss._fields)), figures["kl"]

    def loss(self, batch: Fragment, entropy_coeff: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name: those of `VTraceLoss`, and `kl`.

        Add your own loss in a subclass: `loss, figures = super().loss(batch, entropy_coeff)`.
        """
        raise NotImplementedError

    def check_batch(self, batch: Fragment) -> Fragment:
        """Return a batch of arrays with lengths that fit each other and `sample_batch_steps`.

        Raises:
            ValueError: The lengths do not fit, or a dtype or an action is wrong.
        """
        logits = np.asarray(batch.behaviour_logits)
        if logits.ndim != 2 or logits.dtype.kind != "f":
            raise ValueError(
                f"behaviour_logits must be floats of shape [n, act_dim], got {logits.dtype} of shape {logits.shape}"
            )
        self._fitted(batch)
        rows = len(logits)
        columns = {
            **batch.__dict__,
            "action": self._checked_actions(batch.action, logits.shape[1]),
            "behaviour_logits": logits,
        }
        ActionKind().mask(None, batch.obs, columns["action"])
        for name in ("last_obs", "state", "last_state", "final_state"):
            if getattr(batch, name) is not None:
                columns[name] = observations(getattr(batch, name))
        if batch.final_rows is not None and not len(batch.final_rows):
            columns["final_rows"] = columns["final_obs"] = None
        elif batch.final_rows is not None:
            columns["final_rows"] = actions_column("final_rows", batch.final_rows, rows)
            columns["final_obs"] = observations(batch.final_obs)
            named = {"final_rows": columns["final_rows"], **leaves("final_obs", columns["final_obs"])}
            check_rows("IMPALA.learn", named)
        return batch.made(**columns)

    def _fitted(self, batch: Fragment) -> Fragment:
        rows, steps = rows_of(batch.obs), self.sample_batch_steps
        if self.actions.continuous:
            self._require_gaussians("policy_and_value" if self._one_pass else "policy", batch.obs)
        if rows % steps:
            raise ValueError(f"IMPALA.learn needs fragments of sample_batch_steps={steps} steps each, got {rows} rows")
        if steps == 1 and batch.last_obs is None:
            raise ValueError("fragments of one step need last_obs, because the last step of a fragment is not learned")
        if batch.last_obs is not None and rows_of(batch.last_obs) * steps != rows:
            raise ValueError(f"last_obs must have one row per fragment, {rows // steps}, got {rows_of(batch.last_obs)}")
        if (batch.final_rows is None) != (batch.final_obs is None):
            raise ValueError("final_rows and final_obs belong together: give both or none")
        return batch

    def _checked_actions(self, values: Any, columns: int) -> Any:
        if not self.actions.continuous:
            return actions_column("actions", values, columns)
        action = self.actions.column("actions", values)
        if 2 * action.shape[1] != columns:
            raise ValueError(
                f"behaviour_logits must hold concatenated mean and log std, {2 * action.shape[1]} columns for actions "
                f"of {action.shape[1]} numbers, got {columns}: pass the result of sample() or logits()"
            )
        return action

    def _policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        if self._one_pass:
            logits, value = self._run(self.model.policy_and_value, obs)
        else:
            logits, value = self._run(self.model.policy, obs), self._run(self.model.value, obs)
        return self._policy_of(logits, obs), value.reshape([-1])

    def _policy_of(self, output: Any, obs: Any) -> Any:
        return self._distribution(output, self.actions, None if self.actions.continuous else mask_of(obs))

    def _numbers_of(self, policy: Any) -> Any:
        """Return the parameters of a distribution to send: logits, or concatenated mean and log std."""
        return self._side_by_side(policy.mean, policy.logstd) if self.actions.continuous else policy.logits


def _bound(name: str, value: Any) -> float:
    return math.inf if value == math.inf else check_positive(name, value)


class VTraceReturns(NamedTuple):
    """Value targets and policy-gradient advantages, both `[T, n]`, without gradients."""

    vs: Any
    pg_advantages: Any


def from_importance_weights(
    behaviour_actions_log_probs: Any,
    target_actions_log_probs: Any,
    discounts: Any,
    rewards: Any,
    values: Any,
    bootstrap_value: Any,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
    *,
    vtrace: Callable[..., VTraceReturns],
    joined: Callable[[Sequence[Any]], Any],
    ones_like: Callable[[Any], Any],
) -> VTraceReturns:
    """Return the targets of V-trace from the arguments of PARL 2.x.

    Args:
        behaviour_actions_log_probs: log mu(a|s), `[T, n]`.
        target_actions_log_probs: log pi(a|s), `[T, n]`.
        discounts: Discounts, `[T, n]`; 0 where an episode ended.
        rewards: Rewards, `[T, n]`.
        values: Values of the states before the steps, `[T, n]`.
        bootstrap_value: Value of the state after the last step, `[n]`.
        clip_rho_threshold: Upper bound of the importance weights of the temporal differences.
        clip_pg_rho_threshold: Upper bound of the importance weights of the advantages.
        vtrace: The backend's function of that name.
        joined: The framework's function that joins tensors along the first axis.
        ones_like: The framework's function of that name.
    """
    return vtrace(
        target_actions_log_probs - behaviour_actions_log_probs,
        rewards,
        discounts,
        values,
        joined([values[1:], bootstrap_value.unsqueeze(0)]),
        ones_like(rewards),
        clip_rho_threshold,
        clip_pg_rho_threshold,
    )

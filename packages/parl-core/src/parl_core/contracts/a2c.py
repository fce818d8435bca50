"""The contract of A2C and A3C: a policy gradient with the advantages of a value function, one step per batch."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from parl_core._small_networks import EXPLORE, PREDICT, VALUE, of_actor_critic
from parl_core.algorithm import Optimizer
from parl_core.checks import check_limit, check_non_negative, check_positive, check_real, check_scheduled, first_method
from parl_core.contracts._base import OnPolicy, Scheduled, check_schedule, merge, refuse_unused
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Rollout, learns_from
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["A2C", "A3C"]

_DEFAULTS: dict[str, Any] = {
    "vf_loss_coeff": 0.5,
    "learning_rate": 1e-3,
    "entropy_coeff": -0.01,
    "max_grad_norm": 40.0,
    "continuous_action": False,
    "nvec": None,
}


class A2C(OnPolicy):
    """Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3, with synchronous actors).

        policy loss = -sum(log pi(a|s) * advantage)
        value loss  = 0.5 * sum((v - target)**2)
        loss = policy loss + vf_loss_coeff * value loss + entropy_coeff * sum(entropy)

    Deviations from the paper, as in PARL: Adam instead of RMSProp, and the gradients' global norm is clipped. Losses
    are sums, as in the paper, so `max_grad_norm` depends on the batch size. `entropy_coeff` keeps PARL's sign:
    it multiplies the entropy in the loss, so a bonus is *negative*.

    The model has `policy(obs)` and `value(obs)`, or `policy_and_value(obs)` with the pair of both in one pass: values
    `[batch, 1]` or `[batch]`; policy logits `[batch, act_dim]`, with `nvec` those of all parts side by side, or with
    `continuous_action` the pair (mean, std) of a Gaussian. Masks of actions are as in PPO.

    Documented forms: PARL 1.x's `A3C(model, hyperparas=None, vf_loss_coeff=None)`; PARL 2.x's `A2C(model, config)`, a
    dictionary of which `vf_loss_coeff`, `learning_rate`, `entropy_coeff` and `max_grad_norm` are used, and `A2C(model,
    vf_loss_coeff=0.5)`. All have the same methods.

    Args:
        model: Policy and value networks.
        vf_loss_coeff: Weight of the value loss, at least 0; default 0.5. PARL 2.x's `config` may be passed in its
            place.
        learning_rate: The learning rate of Adam, above 0; default 1e-3 (PARL).
        entropy_coeff: Weight of the entropy in the loss, at most 0 for a bonus; default -0.01.
        max_grad_norm: Limit of the gradients' global norm, `math.inf` for none; default 40 (PARL).
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        nvec: The number of choices of each part of a multi-discrete action; None if actions are not multi-discrete.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        config: PARL 2.x's dictionary of an experiment; entries other than the settings above are ignored.
        hyperparas: PARL 1.x's dictionary of `vf_loss_coeff`; not together with settings that PARL 1.x does not have.
        device, compile, compute_dtype: See `parl.Algorithm`.

    `learning_rate` and `entropy_coeff` may be schedules: functions of the updates taken so far.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice, or both forms are mixed.
        ModelContractError: The model lacks `policy` or `value`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    DEFAULTS: ClassVar[Mapping[str, Any]] = _DEFAULTS
    LEARNS_SEQUENCES: ClassVar[bool] = True
    NAMED: ClassVar[frozenset[str]] = frozenset({"total_loss", "pi_loss", "vf_loss", "entropy"})
    UNUSED: ClassVar[frozenset[str]] = frozenset({"epochs", "minibatch_size", "clip", "target_kl"})

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        vf_loss_coeff: float | Mapping[str, Any] | None = None,
        *,
        learning_rate: Scheduled | None = None,
        entropy_coeff: Scheduled | None = None,
        max_grad_norm: float | None = None,
        continuous_action: bool | None = None,
        nvec: Sequence[int] | None = None,
        optimizer: Any = None,
        config: Mapping[str, Any] | None = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(vf_loss_coeff, Mapping):
            if config is not None:
                raise HyperparameterError(f"{name} got two dictionaries of settings; put all into config")
            vf_loss_coeff, config = None, vf_loss_coeff
        given = {
            "vf_loss_coeff": vf_loss_coeff,
            "learning_rate": learning_rate,
            "entropy_coeff": entropy_coeff,
            "max_grad_norm": max_grad_norm,
            "continuous_action": continuous_action,
            "nvec": nvec,
        }
        settings = merge(name, _one_dictionary(name, given, config, hyperparas), given, _DEFAULTS)
        self.vf_loss_coeff = check_non_negative("vf_loss_coeff", settings["vf_loss_coeff"])
        self.lr = check_schedule("learning_rate", settings["learning_rate"], check_positive)
        self.entropy_coeff = check_schedule("entropy_coeff", settings["entropy_coeff"], check_real)
        self.actions = ActionKind.of(settings["continuous_action"], settings["nvec"], model)
        self._one_pass = first_method(model, ("policy_and_value", "policy"), name) == "policy_and_value"
        if self._one_pass:
            self._acts_with = "policy_and_value"
        else:
            first_method(model, ("value",), name)
        super().__init__(model, device=device, compile=compile, compute_dtype=compute_dtype)
        self.optimizer = self._given_or_adam(
            optimizer,
            self._at_start(self.lr),
            max_grad_norm=check_limit("max_grad_norm", settings["max_grad_norm"]),
        )
        self.lr = self._own_rate(optimizer, (config or {}).get("learning_rate", learning_rate), self.lr)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions: int64 `[batch]` or `[batch, parts]`, or means `[batch, act_dim]`."""
        with self._no_gradients():
            output = (
                self._run(self.model.policy_and_value, obs)[0] if self._one_pass else self._run(self.model.policy, obs)
            )
            return self._distribution(output, self.actions, mask_of(obs, action_mask)).mode()

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions.

        Args:
            obs: `[batch, ...]`, or a dictionary of arrays.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.

        Returns:
            (action as in `predict`, value `[batch]`).
        """
        with self._no_gradients():
            policy, value = self._policy_and_value(obs, action_mask)
            return policy.sample(), value

    def explore(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions and return (value `[batch]`, action as in `predict`, log-probability `[batch]`)."""
        with self._no_gradients():
            policy, value = self._policy_and_value(obs, action_mask)
            action = policy.sample()
            return value, action, policy.logp(action)

    def prob_and_value(self, obs: Any, action_mask: Any = None) -> Any:
        """Return (probabilities `[batch, act_dim]` of discrete actions, values `[batch]`)."""
        if self.actions != ActionKind():
            raise TypeError("prob_and_value is for discrete actions; for others, sample gives actions and values")
        with self._no_gradients():
            policy, value = self._policy_and_value(obs, action_mask)
            return policy.log_probabilities.exp(), value

    def value(self, obs: Any) -> Any:
        """Return values `[batch]`."""
        with self._no_gradients():
            value = (
                self._run(self.model.policy_and_value, obs)[1] if self._one_pass else self._run(self.model.value, obs)
            )
            return value.reshape([-1])

    ON_HOST: ClassVar = {
        explore: EXPLORE,
        predict: PREDICT,
        OnPolicy.sample_actions: of_actor_critic(lambda policy, value: (policy.sample(), value), takes_mask=True),
        value: VALUE,
    }

    @learns_from(
        Rollout,
        names={"obs": "obs", "actions": "action", "advantages": "advantage", "target_values": "return_"},
        settings=("learning_rate", "entropy_coeff"),
        keywords=("action_mask",),
    )
    def learn(self, batch: Rollout, learning_rate: float | None = None, entropy_coeff: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or `learn(obs, actions, advantages, target_values)` as PARL 1.x and 2.x do.

        Args:
            batch: Tensors; `advantage`, and `return_`, the targets of the value function.
            learning_rate: The learning rate of this step; default: the constructor's.
            entropy_coeff: The weight of the entropy in the loss of this step, negative for a bonus; default: the
                constructor's.

        Returns:
            (total_loss, pi_loss, vf_loss, entropy), detached scalars, sums over the batch.
        """
        lr = self._now("learning_rate", self.lr, learning_rate)
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        _, figures = self._descend(self.optimizer, self.loss, batch, coeff, lr=lr)
        self._call_after_update(self._count_update)
        return tuple(figures[name] for name in ("total_loss", "pi_loss", "vf_loss", "entropy"))

    def loss(self, batch: Rollout, entropy_coeff: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name: total_loss, pi_loss, vf_loss, entropy.

        Add your own loss in a subclass: `loss, figures = super().loss(batch, entropy_coeff)`.
        """
        raise NotImplementedError

    def learn_rollout(
        self,
        batch: Rollout,
        *,
        epochs: int | None = None,
        minibatch_size: int | None = None,
        rng: np.random.Generator,  # noqa: ARG002 - there is one batch
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Take one step on a whole rollout.

        Args:
            batch: The rollout.
            epochs: 1 or None.
            minibatch_size: None, or the rollout's size.
            rng: The generator; not needed here.
            lr: Learning rate of this call; default the constructor's.
            clip: None.
            entropy_coef: Weight of the entropy *bonus* of this call, at least 0: -`entropy_coeff`.
            target_kl: None.

        Returns:
            Means over the rows of `value_loss`, `policy_loss` and `entropy`; and `steps`, 1.
        """
        refuse_unused(
            self,
            epochs=None if epochs == 1 else epochs,
            minibatch_size=None if minibatch_size == len(batch) else minibatch_size,
            clip=clip,
            target_kl=target_kl,
        )
        coeff = None if entropy_coef is None else -check_non_negative("entropy_coef", entropy_coef)
        tensors = self._on_device(self._checked_batch(batch))
        figures = self.learn(tensors, lr if lr is None else check_scheduled("lr", lr), coeff)
        _, policy_loss, value_loss, entropy = (figure / len(batch) for figure in figures)
        names = ("value_loss", "policy_loss", "entropy")
        return {
            **dict(zip(names, self._means([(value_loss, policy_loss, entropy)]), strict=True)),
            "steps": 1.0,
        }

    def check_batch(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with actions, and a mask of them, that fit the policy."""
        return self._with_checked_actions(batch)

    def _policy_and_value(self, obs: Any, mask: Any) -> tuple[Any, Any]:
        if self._one_pass:
            output, value = self._run(self.model.policy_and_value, obs)
        else:
            output, value = self._run(self.model.policy, obs), self._run(self.model.value, obs)
        return self._distribution(output, self.actions, mask_of(obs, mask)), value.reshape([-1])


class A3C(A2C):
    """Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3): the learner's part.

    It has the step, the arguments and the methods of `A2C`. Only the collection of batches is asynchronous: each actor
    acts with the weights that it received last, and the learner takes batches as they arrive. PARL 1.x's form is
    `A3C(model, vf_loss_coeff=0.5)`.
    """

    ON_HOST: ClassVar = A2C.ON_HOST


def _one_dictionary(
    name: str, given: Mapping[str, Any], config: Mapping[str, Any] | None, hyperparas: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the dictionary of settings of the form that was used."""
    if hyperparas is None:
        return None if config is None else {key: config[key] for key in _DEFAULTS if key in config}
    new = [key for key, value in given.items() if value is not None and key != "vf_loss_coeff"]
    if config is not None:
        new.append("config")
    if new:
        raise HyperparameterError(
            f"{name} got `hyperparas` of PARL 1.x's form together with {', '.join(new)} of PARL 2.x's; "
            "give all settings as arguments"
        )
    unknown = sorted(set(hyperparas) - {"vf_loss_coeff"})
    if unknown:
        raise HyperparameterError(f"{name} has no hyper-parameter {', '.join(unknown)}; PARL 1.x's has vf_loss_coeff")
    return hyperparas

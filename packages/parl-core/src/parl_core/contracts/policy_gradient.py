"""The contract of PolicyGradient (REINFORCE)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import check_positive, check_scheduled, first_method
from parl_core.contracts._base import OnPolicy, Scheduled, check_schedule, merge, refuse_unused
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Rollout, learns_from
from parl_core.errors import DivergedError, ModelContractError
from parl_core.model import Model

__all__ = ["PolicyGradient"]

_ROUNDING = 0.01  # bfloat16 rounds each probability by less than half a percent


class PolicyGradient(OnPolicy):
    """Monte-Carlo policy gradient (Williams 1992, equation 5; Sutton & Barto 2018, section 13.3).

    loss = -mean(log pi(action_t | obs_t) * reward_t), one Adam step per call. The caller passes `reward_t`, usually the
    discounted return, normalised over the episode (`parl.utils.calc_discount_norm_reward`).

    The model's `forward(obs)`, or `policy(obs)` where there is no `forward`, returns action probabilities
    `[batch, act_dim]` (rows sum to 1), with `nvec` those of all parts side by side `[batch, sum(nvec)]` (each part sums
    to 1), or with `continuous_action` the pair (mean, std) of a Gaussian, each broadcastable to `[batch, act_dim]`.

    If not every action is always possible, `action_mask` (or an entry of that name in observations that are
    dictionaries) excludes the impossible ones; the probabilities of the others are divided by their sum.

    In the on-policy loop the value of every state counts as 0: pass `gae_lambda=1.0`, so that advantages are discounted
    returns. Rewards after the end of a rollout, or after a truncation, count as 0; use `train_by_episodes` to play
    whole episodes.

    Args:
        model: The policy.
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 1e-3 (PARL's QuickStart).
        continuous_action: Whether the policy is a Gaussian; default: that of the model (`action_kind`), else False.
        nvec: The number of choices of each part of a multi-discrete action; None if actions are not multi-discrete.
        optimizer: One of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        hyperparas: PARL 1.x's dictionary of the same settings.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model implements neither `forward` nor `policy`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    UNUSED: ClassVar[frozenset[str]] = frozenset({"epochs", "minibatch_size", "clip", "entropy_coef", "target_kl"})

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        lr: Scheduled | None = None,
        *,
        continuous_action: bool = False,
        nvec: Sequence[int] | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        settings = merge("PolicyGradient", hyperparas, {"lr": lr}, {"lr": 1e-3})
        self.lr = check_schedule("lr", settings["lr"], check_positive)
        self.actions = ActionKind.of(continuous_action, nvec, model)
        self._acts_with = first_method(model, ("forward", "policy"), "PolicyGradient")
        super().__init__(model, device=device, compile=compile)
        self.optimizer = self._given_or_adam(optimizer, self._at_start(self.lr))
        self.lr = self._own_rate(optimizer, None if lr is None and not hyperparas else self.lr, self.lr)

    def predict(self, obs: Any) -> Any:
        """Return the model's action probabilities, without masks, or (mean, std), each `[batch, act_dim]`."""
        output = getattr(self.model, self._acts_with)(obs)
        if self.actions.continuous:
            mean, std = output
            return mean, std.expand_as(mean)
        return output

    @learns_from(
        Rollout,
        names={"obs": "obs", "action": "action", "reward": "advantage"},
        settings=("lr",),
        keywords=("action_mask",),
    )
    def learn(self, batch: Rollout, lr: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or `learn(obs, action, reward)` as PARL 1.x and 2.x do.

        Args:
            batch: Tensors; `advantage` is the weight of each log-probability.
            lr: Learning rate of this step; default the constructor's.

        Returns:
            The loss, a detached scalar.
        """
        loss, _ = self._descend(self.optimizer, self.loss, batch, lr=self._now("lr", self.lr, lr))
        self._call_after_update(self._count_update)
        return loss

    def loss(self, batch: Rollout) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name; a subclass adds its own to `super().loss`."""
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
        """Take one step on a whole rollout, weighted by its advantages, shifted and scaled to mean 0 and deviation 1.

        Args:
            batch: The rollout; without values, its advantages are discounted returns.
            epochs: 1 or None.
            minibatch_size: None.
            rng: The generator; not needed here.
            lr: Learning rate of this call; default the constructor's.
            clip: None.
            entropy_coef: None or 0.
            target_kl: None.

        Returns:
            `policy_loss`; and `steps`, 1.
        """
        refuse_unused(
            self,
            epochs=None if epochs == 1 else epochs,
            minibatch_size=minibatch_size,
            clip=clip,
            entropy_coef=entropy_coef or None,
            target_kl=target_kl,
        )
        tensors = self._on_device(self._checked_batch(batch))
        columns = {**tensors.__dict__, "advantage": self._normalised(tensors.advantage)}
        loss = self.learn(tensors.made(**columns), lr if lr is None else check_scheduled("lr", lr))
        return {"policy_loss": self._means([(loss,)])[0], "steps": 1.0}

    def choose(
        self, output: Any, *, rng: np.random.Generator | None = None, action_mask: Any = None, **options: Any
    ) -> NDArray[Any]:
        """Return the most probable action of each row, or with `rng` one drawn from the row's distribution.

        Args:
            output: The result of `predict`.
            rng: The generator to draw with.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.
            options: Further options of exploration; this algorithm has none.

        Raises:
            ValueError: The mask has another shape, or allows no action.
            ModelContractError: The model's output has another shape than the actions need, or is not probabilities.
            DivergedError: It is NaN or infinite.
        """
        super().choose(output, rng=rng, **options)
        mask = self.actions.mask(action_mask)
        if self.actions.continuous:
            mean, std = output
            return np.asarray(mean if rng is None else mean + std * rng.standard_normal(mean.shape, mean.dtype))
        sizes = self.actions.nvec
        if output.ndim != 2 or (sizes is not None and output.shape[1] != sum(sizes)):
            wanted = "act_dim" if sizes is None else sum(sizes)
            raise ModelContractError(f"PolicyGradient's model must return [batch, {wanted}], got {output.shape}")
        sums = np.add.reduceat(output, np.cumsum((0, *(sizes or ())[:-1])), axis=1)
        if not (output.min(initial=0.0) >= 0.0 and (np.abs(sums - 1.0) < _ROUNDING).all()):
            raise _no_probabilities(output, sums)
        if mask is not None:
            if mask.shape != output.shape:
                raise ValueError(f"action_mask must have shape {output.shape}, got {mask.shape}")
            # If all possible actions have probability 0, they are equally likely.
            output = np.where(mask, np.maximum(output, np.finfo(output.dtype).tiny), 0.0)
        if sizes is None:
            return _chosen(output, rng)
        return np.stack([_chosen(part, rng) for part in np.split(output, np.cumsum(sizes)[:-1], axis=1)], axis=1)

    def check_batch(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with actions, and a mask of them, that fit the policy."""
        return self._with_checked_actions(batch)


def _no_probabilities(output: NDArray[Any], sums: NDArray[Any]) -> Exception:
    """Return the error for an output of a model that is not a distribution."""
    if not np.isfinite(output).all():
        return DivergedError(
            "the policy's probabilities are NaN or infinite; go back to the last checkpoint, lower the learning rate, "
            "and look for NaN or huge values in observations and rewards"
        )
    return ModelContractError(
        f"PolicyGradient's model must return probabilities, got numbers from {output.min():.4g} with sums from "
        f"{sums.min():.4g} to {sums.max():.4g}: let it end with a softmax"
    )


def _chosen(weights: NDArray[Any], rng: np.random.Generator | None) -> NDArray[np.int64]:
    """Return the column with the largest weight in each row, or with `rng` one drawn in proportion to the weights."""
    if rng is None:
        return np.asarray(weights.argmax(axis=1), np.int64)
    cumulated = np.cumsum(weights, axis=1, dtype=np.float64)
    drawn = rng.random((len(weights), 1)) * cumulated[:, -1:]  # scaled, because float32 rows do not sum to 1 exactly
    return np.asarray((cumulated <= drawn).sum(axis=1), np.int64)

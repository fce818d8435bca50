"""The contract of BC (behaviour cloning)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from parl_core.algorithm import Optimizer
from parl_core.checks import check_positive, first_method
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Transitions, learns_from, observations
from parl_core.contracts.continuous import unit_box
from parl_core.contracts.settings import CountingUpdates, Scheduled, check_schedule
from parl_core.model import Model

__all__ = ["BC"]


class BC(CountingUpdates):
    """Behaviour cloning: supervised learning of the actions in logged data (Pomerleau 1991, section 2).

        loss = -mean(log pi(action | obs))

    One Adam step a call. It does not use rewards, so it is the baseline for every algorithm of logged data on the
    same log. Deviations from the paper: none known; its network regresses one steering angle, ours is a distribution.

    The model's `policy(obs)` returns logits `[batch, act_dim]`, with `nvec` those of all parts side by side
    `[batch, sum(nvec)]`, or with `continuous_action` the pair (mean, std) of a Gaussian over actions in [-1, 1], each
    broadcastable to `[batch, act_dim]`.

    Args:
        model: the policy.
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 1e-3 (Kingma & Ba 2015).
        continuous_action: the policy is a Gaussian; default: what the model says (`action_kind`), else False.
        nvec: actions are multi-discrete, with this number of choices in each part.
        optimizer: one of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model has no `policy`.
    """

    ACTS_IN_UNIT_BOX: ClassVar[bool] = True
    FIGURES: ClassVar[tuple[str, ...]] = ("loss",)

    optimizer: Optimizer

    _outputs: int | None = None

    def __init__(
        self,
        model: Model,
        lr: Scheduled | None = None,
        *,
        continuous_action: bool = False,
        nvec: Sequence[int] | None = None,
        optimizer: Any = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.lr = check_schedule("lr", 1e-3 if lr is None else lr, check_positive)
        self.actions = ActionKind.of(continuous_action, nvec, model)
        first_method(model, ("policy",), "BC")
        super().__init__(model, device=device, compile=compile)
        self.optimizer = self._given_or_adam(optimizer, self._at_start(self.lr))
        self.lr = self._own_rate(optimizer, lr, self.lr)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions: int64 `[batch]` or `[batch, parts]`, or means `[batch, act_dim]`."""
        with self._no_gradients():
            return self._kept_inside(self._policy(obs, action_mask).mode())

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions of the policy, shaped as those of `predict`."""
        with self._no_gradients():
            return self._kept_inside(self._policy(obs, action_mask).sample())

    @learns_from(Transitions, settings=("learning_rate",))
    def learn(self, batch: Transitions, learning_rate: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or the columns of transitions one by one.

        Args:
            batch: tensors; only observations and actions count.
            learning_rate: for this step; default the constructor's.

        Returns:
            The loss, a detached scalar.
        """
        loss, _ = self.optimizer.descend(self.loss, batch, lr=self._now("lr", self.lr, learning_rate))
        self._after_each_update(self._count_update)
        return loss

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name; a subclass adds its own to `super().loss`."""
        return -self._policy(batch.obs).logp(batch.action).mean(), {}

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions that the policy has, continuous ones in [-1, 1]."""
        if self._outputs is None and self.actions == ActionKind():
            self._outputs = self._output_size("policy", observations(batch.obs))
        action = self.actions.column("action", batch.action, self._outputs)
        if self.actions.continuous:
            action = unit_box("action", action)
        return batch.made(**{**batch.__dict__, "action": action})

    def _policy(self, obs: Any, mask: Any = None) -> Any:
        return self._distribution(self.model.policy(obs), self.actions, mask_of(obs, mask))

    def _kept_inside(self, action: Any) -> Any:
        if not self.actions.continuous:
            return action
        inside = action.clip(-1.0, 1.0)
        if self.actions.nvec is not None:  # choices stand before the numbers
            inside[:, : len(self.actions.nvec)] = action[:, : len(self.actions.nvec)]
        return inside

"""The contract of RND: the novelty of observations."""

from collections.abc import Iterable
from typing import Any, ClassVar

from parl_core.algorithm import Optimizer
from parl_core.checks import check_non_negative, check_positive, first_method, listed_parameters
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule
from parl_core.contracts.batches import Rollout, learns_from
from parl_core.model import Model

__all__ = ["RND"]


class RND(CountingUpdates):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894, section 2.2).

        novelty(obs)  = mean((predicted(obs) - random(obs))**2)
        loss          = mean(novelty(obs)) + value_loss_coef * mean((value(obs) - return)**2)

    The random network is never trained, so the predictor fails on observations that it was not trained on. RND is not a
    policy: `parl_core.training.novelty.NoveltyReward` passes the novelty to PPO or A2C as a second reward, and `value`
        estimates its returns. Deviations from the paper: the second value has its own network.

    The model has `predicted(obs)` and `random(obs)`, each `[batch, features]`; `value(obs)`, `[batch]` or `[batch, 1]`;
    and `get_learned_params()`, all parameters but those of the random network. Ready-made:
    `parl.networks.NoveltyNetwork`.

    Args:
        model: The model of both networks and the value.
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 1e-4 (paper, table 5).
        value_loss_coef: Weight of the value's loss, at least 0; default 0.5 (paper's code).
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks one of its methods.
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("loss",)
    METHODS: ClassVar[tuple[str, ...]] = ("predicted", "random", "value", "get_learned_params")

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        lr: Scheduled | None = None,
        *,
        value_loss_coef: float = 0.5,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.lr = check_schedule("lr", 1e-4 if lr is None else lr, check_positive)
        self.value_loss_coef = check_non_negative("value_loss_coef", value_loss_coef)
        for method in self.METHODS:
            first_method(model, (method,), "RND")
        super().__init__(model, device=device, compile=compile)
        self.optimizer = self._given_or_adam(None, self._at_start(self.lr), part=self._learned)

    def predict(self, obs: Any) -> Any:
        """Return the novelty `[batch]` of observations, at least 0."""
        with self._no_gradients():
            return self._novelty(obs)

    def value(self, obs: Any) -> Any:
        """Return the predicted returns of novelty `[batch]`."""
        with self._no_gradients():
            return self.model.value(obs).reshape([-1])

    @learns_from(Rollout, names={"obs": "obs", "action": "action", "return_": "return_"}, settings=("learning_rate",))
    def learn(self, batch: Rollout, learning_rate: float | None = None) -> Any:
        """Take one step: `learn(batch)`, or its columns one by one.

        Args:
            batch: Tensors; only observations and `return_`, the returns of novelty, are used.
            learning_rate: The learning rate of this step; default: the constructor's.

        Returns:
            The loss, a detached scalar.
        """
        loss, _ = self._descend(self.optimizer, self.loss, batch, lr=self._now("lr", self.lr, learning_rate))
        self._call_after_update(self._count_update)
        return loss

    def loss(self, batch: Rollout) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and figures by name; a subclass adds its own to `super().loss`."""
        error = self.model.value(batch.obs).reshape([-1]) - batch.return_
        return self._novelty(batch.obs).mean() + self.value_loss_coef * error.square().mean(), {}

    # Shared

    def _novelty(self, obs: Any) -> Any:
        with self._no_gradients():
            wanted = self.model.random(obs)
        return (self.model.predicted(obs) - wanted).square().mean(-1)

    def _learned(self) -> Iterable[Any]:
        return listed_parameters(self.model, "get_learned_params")

"""The contract of Q-learning on logged data."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from parl_core.checks import check_int, check_positive
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.dqn import DQN
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["OfflineQ"]


class OfflineQ(DQN):
    """Q-learning on logged data, with several heads a random ensemble mixture (Agarwal et al. 2020, arXiv:1907.04543).

        Q_w(s, a)  = sum_k w_k * Q_k(s, a),  w drawn uniformly, at least 0, divided by their sum, anew for every update
        target     = reward + discount * (1 - terminal) * max_a Q_w'(next_obs, a)                    (equation 3)
        loss       = mean(weights * huber(target - Q_w(obs, action)))                                 (equation 4)

    With one head it is DQN with the Huber loss (Mnih et al. 2015), on whatever the log holds. Deviation from the paper:
    none but the default learning rate.

    The model's `value(obs)`, or `forward(obs)` where there is no `value`, returns Q values `[batch, act_dim]`, or those
    of several heads `[batch, heads, act_dim]`; heads may share all layers but the last. The agent acts by their mean.

    Args:
        model: the Q network; a target network is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 2).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 5e-5 (paper, table 2).
        heads: number of heads of the model, at least 1; the paper's mixture has 200.
        act_dim: number of actions; only checked against the model's output.
        double: pick the next action by the trained network.
        sync_every: copy the weights into the target network after every so many updates; default 2000 (paper, table 2).
        huber: error from which the loss grows linearly, above 0.
        tau: how far each of these moves goes, in (0, 1]; default 1, a copy.
        eps: epsilon of Adam, above 0; default 1e-8.
        max_grad_norm: clip the gradients' global norm; by default they are not.
        optimizer: one of `parl.optim` or the framework, made from this model's parameters; default Adam. It keeps its
            own learning rate unless one is given here or in a call.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model implements neither `value` nor `forward`.
    """

    LEARNS_SEQUENCES: ClassVar[bool] = False

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 5e-5}

    _mixture: Callable[..., Any]
    """Backend hook: shares of the heads `[heads, 1]` that sum to 1, of the dtype of a tensor."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        heads: int = 1,
        act_dim: int | None = None,
        double: bool = False,
        sync_every: int = 2000,
        tau: float | None = None,
        huber: float = 1.0,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.heads = check_int("heads", heads)
        self._value_dims = 2 if self.heads == 1 else 3
        super().__init__(
            model,
            gamma,
            lr,
            act_dim=act_dim,
            double=double,
            sync_every=sync_every,
            tau=tau,
            huber=check_positive("huber", huber),
            eps=eps,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            hyperparas=hyperparas,
            device=device,
            compile=compile,
        )

    def predict(self, obs: Any) -> Any:
        """Return Q values `[batch, act_dim]`, the mean of all heads'."""
        values = self._values(self.model, obs)
        return values if self.heads == 1 else values.mean(1)

    def loss(self, batch: Transitions, share: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch, and `td_error`, as `DQN.loss`.

        Args:
            batch: tensors.
            share: of the heads `[heads, 1]`; None draws them.
        """
        raise NotImplementedError

    @learns_from(
        Transitions,
        settings=("learning_rate",),
        keywords=("weights", "discount"),
        extra=("next_action_mask",),
    )
    def learn(self, batch: Transitions, learning_rate: float | None = None) -> Any:
        """Take one step: see `DQN.learn`."""
        share = None if self.heads == 1 else self._mixture(batch.reward)
        rate = self._now("lr", self.lr, learning_rate, given_as="learning_rate")
        loss, figures = self.optimizer.descend(self.loss, batch, share, lr=rate)
        self._after_each_update(self._count_update)
        return loss if batch.weights is None else (loss, figures["td_error"])

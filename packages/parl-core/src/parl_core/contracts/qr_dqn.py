"""The contract of QR-DQN: the distribution of returns as quantiles."""

from collections.abc import Mapping
from typing import Any, ClassVar

from parl_core.checks import check_positive
from parl_core.contracts.batches import Transitions
from parl_core.contracts.dqn import DQN, SyncEvery
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["QRDQN"]


class QRDQN(DQN):
    """Quantile regression DQN (Dabney et al. 2018, arXiv:1710.10044, algorithm 1).

        theta_i(s, a)   the i-th of N quantiles of the return, at tau_i = (2 i - 1) / (2 N)                 (lemma 2)
        Q(s, a)         = mean_i theta_i(s, a)
        target_j        = reward + discount * (1 - terminal) * theta'_j(next_obs, argmax_a Q'(next_obs, a))
        loss            = mean over the batch of weights * sum_i mean_j |tau_i - 1(u_ij < 0)| * L_kappa(u_ij),
                          u_ij = target_j - theta_i(obs, action), L_kappa the Huber loss              (equation 10)

    It acts by Q as DQN does: exploration, masks, n-step returns, prioritised replay and targets are those of `DQN`; the
    TD error of a row is mean_j target_j - Q(obs, action). Deviations from the paper: none but when the target moves.

    The model's `quantiles(obs)` returns `[batch, N, act_dim]`; `parl.networks.for_spaces(..., "quantile")` makes one.

    Args:
        model: the network; a target network is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 5e-5 (paper, section 5.1).
        act_dim: number of actions; only checked against the model's output.
        double: pick the next action by the trained network.
        sync_every: as of `DQN` (paper 10,000).
        tau: as of `DQN`.
        kappa: error from which the loss grows linearly, above 0; default 1 (paper, QR-DQN-1).
        eps: epsilon of Adam, above 0; default 0.01 / 32 (paper).
        max_grad_norm: clip the gradients' global norm, above 0; by default they are not.
        optimizer: as of `DQN`.
        device, compile, compute_dtype: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model has no `quantiles`.
    """

    LEARNS_SEQUENCES: ClassVar[bool] = False

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 5e-5}
    METHODS: ClassVar[tuple[str, ...]] = ("quantiles",)

    _value_dims = 3

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        act_dim: int | None = None,
        double: bool = False,
        sync_every: SyncEvery = "loop",
        tau: float | None = None,
        kappa: float = 1.0,
        eps: float = 0.01 / 32,
        max_grad_norm: float | None = None,
        optimizer: Any = None,
        hyperparas: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
        compute_dtype: str | None = None,
    ) -> None:
        self.kappa = check_positive("kappa", kappa)
        super().__init__(
            model,
            gamma,
            lr,
            act_dim=act_dim,
            double=double,
            sync_every=sync_every,
            tau=tau,
            eps=eps,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            hyperparas=hyperparas,
            device=device,
            compile=compile,
            compute_dtype=compute_dtype,
        )

    def predict(self, obs: Any) -> Any:
        """Return Q values `[batch, act_dim]`, the means of the quantiles."""
        return self._values(self.model, obs).mean(1)

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and `td_error` `[batch]`, as `DQN.loss`."""
        raise NotImplementedError

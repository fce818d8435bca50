"""The contract of QR-DQN: the distribution of returns as quantiles."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from parl_core.checks import check_positive
from parl_core.contracts.dqn import DistributionalDQN, DistributionSettings
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["QRDQN"]


class QRDQN(DistributionalDQN):
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
        sync_every: as in `DQN` (paper 10,000).
        tau: as in `DQN`.
        kappa: error from which the loss grows linearly, above 0; default 1 (paper, QR-DQN-1).
        eps: epsilon of Adam, above 0; default 0.01 / 32 (paper).
        max_grad_norm: clip the gradients' global norm, above 0; by default they are not.
        optimizer: as in `DQN`.
        device, compile, compute_dtype: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model has no `quantiles`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DistributionalDQN.DEFAULTS, "lr": 5e-5}
    METHODS: ClassVar[tuple[str, ...]] = ("quantiles",)

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        kappa: float = 1.0,
        **settings: Unpack[DistributionSettings],
    ) -> None:
        self.kappa = check_positive("kappa", kappa)
        super().__init__(model, gamma, lr, **settings)

    def _means_of(self, distribution: Any) -> Any:
        return distribution.mean(1)

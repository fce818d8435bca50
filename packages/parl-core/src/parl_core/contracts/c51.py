"""The contract of C51: the distribution of returns over fixed values."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from parl_core.checks import check_real
from parl_core.contracts.batches import Transitions
from parl_core.contracts.dqn import DistributionalDQN, DistributionSettings
from parl_core.contracts.settings import Scheduled
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["C51"]


class C51(DistributionalDQN):
    """Categorical DQN (Bellemare, Dabney & Munos 2017, arXiv:1707.06887, algorithm 1).

        z_i             = v_min + i * (v_max - v_min) / (N - 1), i = 0 ... N - 1: the values of returns
        p_i(s, a)       = softmax_i(logits(s, a)): their probabilities;   Q(s, a) = sum_i z_i p_i(s, a)
        target_j        = reward + discount * (1 - terminal) * z_j, kept in [v_min, v_max]
        m_i             = sum_j max(0, 1 - |target_j - z_i| / (z_1 - z_0)) * p'_j(next_obs, argmax_a Q')    (equation 7)
        loss            = mean over the batch of weights * -sum_i m_i log p_i(obs, action)

    It acts by Q as DQN does: exploration, masks, n-step returns and targets are those of `DQN`. With `weights`, `learn`
    returns KL(m || p) of each row instead of a TD error, by which Rainbow draws (Hessel et al. 2018, section 3).
    Deviations from the paper: none but when the target moves.

    The model's `atoms(obs)` returns logits `[batch, N, act_dim]`; `parl.networks.for_spaces(..., "categorical")` makes
    one.

    Args:
        model: the network; a target network is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 2.5e-4 (paper, section 5).
        v_min: the smallest return that is told apart; default -10 (paper, of rewards in [-1, 1]).
        v_max: the largest one, above `v_min`; default 10. Returns beyond count as these.
        act_dim: number of actions; only checked against the model's output.
        double: pick the next action by the trained network.
        sync_every: as in `DQN` (paper 10,000).
        tau: as in `DQN`.
        eps: epsilon of Adam, above 0; default 0.01 / 32 (paper).
        max_grad_norm: clip the gradients' global norm, above 0; by default they are not.
        optimizer: as in `DQN`.
        hyperparas: as in `DQN`.
        device, compile, compute_dtype: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model has no `atoms`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DistributionalDQN.DEFAULTS, "lr": 2.5e-4}
    METHODS: ClassVar[tuple[str, ...]] = ("atoms",)

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        v_min: float = -10.0,
        v_max: float = 10.0,
        **settings: Unpack[DistributionSettings],
    ) -> None:
        self.v_min, self.v_max = check_real("v_min", v_min), check_real("v_max", v_max)
        if not self.v_min < self.v_max:
            raise HyperparameterError(
                f"v_min must be below v_max, got {v_min} and {v_max}: give the range of discounted returns"
            )
        super().__init__(model, gamma, lr, **settings)

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and `td_error` `[batch]`, KL(m || p) of each row."""
        raise NotImplementedError

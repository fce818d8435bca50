"""The contracts of DQN with distributions of returns: C51, QR-DQN and Rainbow."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core import logger
from parl_core.checks import check_positive, check_real
from parl_core.contracts._base import Scheduled
from parl_core.contracts.batches import Transitions
from parl_core.contracts.dqn import DQN, DQNSettings
from parl_core.errors import HyperparameterError
from parl_core.layers import NoisyFc
from parl_core.model import Model

__all__ = ["C51", "QRDQN", "DistributionSettings", "DistributionalDQN", "Rainbow"]


class DistributionSettings(DQNSettings, total=False):
    """Keywords of `DistributionalDQN`."""

    double: bool
    eps: float
    max_grad_norm: float | None


class DistributionalDQN(DQN):
    """Base of C51 and QR-DQN, whose models return a distribution of returns `[batch, N, act_dim]` for each action."""

    LEARNS_SEQUENCES: ClassVar[bool] = False

    _value_shape = "[batch, N, act_dim]"

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        double: bool = False,
        eps: float = 0.01 / 32,
        max_grad_norm: float | None = None,
        **settings: Unpack[DQNSettings],
    ) -> None:
        super().__init__(model, gamma, lr, double=double, eps=eps, max_grad_norm=max_grad_norm, **settings)

    def predict(self, obs: Any) -> Any:
        """Return Q values `[batch, act_dim]`, the means of the distributions."""
        return self._means_of(self._distributions(obs))

    def loss(self, batch: Transitions) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch of tensors, and `td_error` `[batch]`, the basis of priorities."""
        raise NotImplementedError

    # Backend hooks

    def _means_of(self, distribution: Any) -> Any:
        """Return the mean values `[batch, act_dim]` of the model's output."""
        raise NotImplementedError


class C51(DistributionalDQN):
    """Categorical DQN (Bellemare, Dabney & Munos 2017, arXiv:1707.06887, algorithm 1).

        z_i             = v_min + i * (v_max - v_min) / (N - 1), i = 0 ... N - 1: the values of returns
        p_i(s, a)       = softmax_i(logits(s, a)): their probabilities;   Q(s, a) = sum_i z_i p_i(s, a)
        target_j        = reward + discount * (1 - terminal) * z_j, kept in [v_min, v_max]
        m_i             = sum_j max(0, 1 - |target_j - z_i| / (z_1 - z_0)) * p'_j(next_obs, argmax_a Q')    (equation 7)
        loss            = mean over the batch of weights * -sum_i m_i log p_i(obs, action)

    It acts on Q values like DQN: exploration, masks, n-step returns and targets are those of `DQN`. With `weights`,
    `learn` returns KL(m || p) of each row instead of a TD error, by which Rainbow draws (Hessel et al. 2018, section
    3). Deviations from the paper: only the time of the target's updates.

    The model's `atoms(obs)` returns logits `[batch, N, act_dim]`; `parl.networks.for_spaces(..., "categorical")` makes
    one.

    Args:
        model: The network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 2.5e-4 (paper, section 5).
        v_min: The smallest value of a return; default -10 (paper, for rewards in [-1, 1]).
        v_max: The largest value of a return, above `v_min`; default 10. Returns outside of the range are clipped.
        act_dim: Number of actions; only checked against the model's output.
        double: True to select the next action by the trained network.
        sync_every: As in `DQN` (paper 10,000).
        tau: As in `DQN`.
        eps: Epsilon of Adam, above 0; default 0.01 / 32 (paper).
        max_grad_norm: Limit of the gradients' global norm, above 0; default: no limit.
        optimizer: As in `DQN`.
        hyperparas: As in `DQN`.
        device, compile, compute_dtype: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model has no `atoms`.
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


class QRDQN(DistributionalDQN):
    """Quantile regression DQN (Dabney et al. 2018, arXiv:1710.10044, algorithm 1).

        theta_i(s, a)   the i-th of N quantiles of the return, at tau_i = (2 i - 1) / (2 N)                 (lemma 2)
        Q(s, a)         = mean_i theta_i(s, a)
        target_j        = reward + discount * (1 - terminal) * theta'_j(next_obs, argmax_a Q'(next_obs, a))
        loss            = mean over the batch of weights * sum_i mean_j |tau_i - 1(u_ij < 0)| * L_kappa(u_ij),
                          u_ij = target_j - theta_i(obs, action), L_kappa the Huber loss              (equation 10)

    It acts on Q values like DQN: exploration, masks, n-step returns, prioritised replay and targets are those of `DQN`;
    the TD error of a row is mean_j target_j - Q(obs, action). Deviations from the paper: only the time of the target's
    updates.

    The model's `quantiles(obs)` returns `[batch, N, act_dim]`; `parl.networks.for_spaces(..., "quantile")` makes one.

    Args:
        model: The network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 5e-5 (paper, section 5.1).
        act_dim: Number of actions; only checked against the model's output.
        double: True to select the next action by the trained network.
        sync_every: As in `DQN` (paper 10,000).
        tau: As in `DQN`.
        kappa: Error from which the loss grows linearly, above 0; default 1 (paper, QR-DQN-1).
        eps: Epsilon of Adam, above 0; default 0.01 / 32 (paper).
        max_grad_norm: Limit of the gradients' global norm, above 0; default: no limit.
        optimizer: As in `DQN`.
        device, compile, compute_dtype: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model has no `quantiles`.
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


class Rainbow(C51):
    """Rainbow (Hessel et al. 2018, arXiv:1710.02298): six parts, each of which is also available separately.

        part                      location
        double Q-learning         `double=True`, the default here
        prioritised replay        of the loop: `OffPolicySettings(prioritized=Prioritized(alpha=0.5))`
        n-step returns            of the loop: `n_step=3`
        distributions             the loss of `C51`; priorities are KL(m || p)
        dueling networks          of the model: `parl.networks.CategoricalNetwork(..., dueling=True)`
        noisy networks            of the model: `noisy=0.5`; they explore, and `epsilon` is 0

    The recipes of `parl train rainbow` use all of them. The loss is that of `C51` with these defaults; to leave out a
    part, change its setting, for example `double=False`, or a model without noise and an `epsilon`.

    The model's `atoms(obs)` returns logits `[batch, N, act_dim]`.

    Args:
        model: The network; a target network is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 1).
        lr: Learning rate of Adam, above 0, or a schedule of the updates taken; default 6.25e-5 (paper, table 1).
        v_min: As in `C51`; default -10 (paper, table 1).
        v_max: As in `C51`; default 10.
        act_dim: Number of actions; only checked against the model's output.
        double: Whether the next action is picked by the trained network; default True.
        sync_every: As in `DQN` (paper 32,000 frames, which are 2,000 updates).
        tau: As in `DQN`.
        eps: Epsilon of Adam, above 0; default 1.5e-4 (paper, table 1).
        max_grad_norm: Limit of the gradients' global norm, above 0; default: no limit.
        optimizer: As in `DQN`.
        hyperparas: As in `DQN`.
        device, compile, compute_dtype: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model has no `atoms`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**C51.DEFAULTS, "lr": 6.25e-5}

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        v_min: float = -10.0,
        v_max: float = 10.0,
        double: bool = True,
        eps: float = 1.5e-4,
        max_grad_norm: float | None = None,
        **settings: Unpack[DQNSettings],
    ) -> None:
        super().__init__(
            model,
            gamma,
            lr,
            v_min=v_min,
            v_max=v_max,
            double=double,
            eps=eps,
            max_grad_norm=max_grad_norm,
            **settings,
        )
        if not any(isinstance(layer, NoisyFc) for layer in model._all_layers().values()):
            logger.warning(
                "%s has no noisy layers, which Rainbow uses to explore: make it with noisy=0.5, or pass an epsilon",
                type(model).__name__,
            )

    def choose(
        self,
        output: Any,
        *,
        rng: np.random.Generator | None = None,
        epsilon: float = 0.0,
        action_mask: Any = None,
        **options: Any,
    ) -> NDArray[np.int64]:
        """Return the best action of each row, as `DQN.choose`; `epsilon` is 0 by default: the network explores."""
        return super().choose(output, rng=rng, epsilon=epsilon, action_mask=action_mask, **options)

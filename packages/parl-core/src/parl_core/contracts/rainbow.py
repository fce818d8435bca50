"""The contract of Rainbow: C51 with the other improvements of DQN."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core import logger
from parl_core.contracts.c51 import C51
from parl_core.contracts.dqn import DQNSettings
from parl_core.contracts.settings import Scheduled
from parl_core.layers import NoisyFc
from parl_core.model import Model

__all__ = ["Rainbow"]


class Rainbow(C51):
    """Rainbow (Hessel et al. 2018, arXiv:1710.02298): six parts, each of which exists here under its own name.

        part                      where it is
        double Q-learning         `double=True`, the default here
        prioritised replay        of the loop: `OffPolicySettings(prioritized=Prioritized(alpha=0.5))`
        n-step returns            of the loop: `n_step=3`
        distributions             the loss of `C51`; priorities are KL(m || p)
        dueling networks          of the model: `parl.networks.CategoricalNetwork(..., dueling=True)`
        noisy networks            of the model: `noisy=0.5`; it explores by them, and `epsilon` is 0

    The recipes of `parl train rainbow` have all of them. The loss is that of `C51` with these defaults; one part less
    is another setting of the same, such as `double=False` or a model without noise (with an `epsilon` then).

    The model's `atoms(obs)` returns logits `[batch, N, act_dim]`.

    Args:
        model: the network; a target network is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 1).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 6.25e-5 (paper, table 1).
        v_min: as in `C51`; default -10 (paper, table 1).
        v_max: as in `C51`; default 10.
        act_dim: number of actions; only checked against the model's output.
        double: pick the next action by the trained network; default True.
        sync_every: as in `DQN` (paper 32,000 frames, which are 2,000 updates).
        tau: as in `DQN`.
        eps: epsilon of Adam, above 0; default 1.5e-4 (paper, table 1).
        max_grad_norm: clip the gradients' global norm, above 0; by default they are not.
        optimizer: as in `DQN`.
        hyperparas: as in `DQN`.
        device, compile, compute_dtype: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model has no `atoms`.
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
                "%s has no noisy layers, by which Rainbow explores: make it with noisy=0.5, or give sample an epsilon",
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
        """Return the best action of each row, as `DQN.choose`; `epsilon` is 0 by default, the network explores."""
        return super().choose(output, rng=rng, epsilon=epsilon, action_mask=action_mask, **options)

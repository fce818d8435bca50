"""The contract of Ape-X's learner."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from parl_core.contracts.dqn import DQN, DQNSettings
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["ApeX"]


class ApeX(DQN):
    """The learner of Ape-X DQN (Horgan et al. 2018, arXiv:1803.00933): double Q-learning from prioritised replay.

        part                                   where it is
        many actors, an epsilon each           of the loop, `parl_core.training.apex.train_apex`
        priorities that actors compute         likewise
        prioritised replay, n-step returns     likewise, `ApexSettings(prioritized=..., n_step=3)`
        double Q-learning                      `double=True`, the default here
        dueling networks                       of the model: `parl.networks.QNetwork(act_dim, dueling=True)`

    It is `DQN` with these defaults; `train_apex` trains `DQN`, `QRDQN`, `C51` and `Rainbow` as well. Deviations from
    the paper: Adam instead of RMSProp, and the squared error of DQN is not halved.

    Args:
        model: the Q network; a target network is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, appendix).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 2.5e-4 / 4 (paper, appendix).
        act_dim: number of actions; only checked against the model's output.
        double: double Q-learning; default True.
        sync_every: as in `DQN` (paper 2,500).
        tau: as in `DQN`.
        huber: as in `DQN`.
        eps: epsilon of Adam, above 0; default 1.5e-7 (paper, of RMSProp).
        max_grad_norm: clip the gradients' global norm, above 0; default 40 (paper).
        optimizer: as in `DQN`.
        hyperparas: as in `DQN`.
        device, compile, compute_dtype: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model implements neither `value` nor `forward`.
    """

    LEARNS_SEQUENCES: ClassVar[bool] = False
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 6.25e-5}

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        *,
        double: bool = True,
        huber: float | None = None,
        eps: float = 1.5e-7,
        max_grad_norm: float | None = 40.0,
        **settings: Unpack[DQNSettings],
    ) -> None:
        super().__init__(model, gamma, lr, double=double, huber=huber, eps=eps, max_grad_norm=max_grad_norm, **settings)

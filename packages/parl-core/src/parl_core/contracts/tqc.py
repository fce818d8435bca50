"""The contract of TQC."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.contracts.sac import SAC, SACSettings
from parl_core.contracts.settings import Scheduled
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["TQC"]


class TQC(SAC):
    """Truncated quantile critics: SAC with distributions of returns (Kuznetsov et al. 2020, arXiv:2005.04269).

        theta_n,i(s, a)  the i-th of N quantiles of critic n of M, at tau_i = (2 i - 1) / (2 N)
        z_1 <= z_2 ...   all M * N of theta'(next_obs, next action), sorted; the M * drop largest are left out
        target_j         = reward + discount * (1 - terminal) * (z_j - alpha * log pi')                   (equation 13)
        critic loss      = mean over batch, n, i, j of weights * |tau_i - 1(u < 0)| * L_1(u),
                           u = target_j - theta_n,i(obs, action), L_1 the Huber loss                      (equation 14)
        actor loss       = mean(alpha * log pi - mean_n,i theta_n,i(obs, action of pi))                   (equation 15)

    Temperature and target are SAC's; the TD error of a row is mean_j target_j - mean_n,i theta_n,i. Deviations from
    the paper: none known.

    The model has `policy(obs)` as SAC's; `quantiles(obs, action)`, theta `[batch, M, N]`; `get_actor_params()`; and
    where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: actor and critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005 (paper, table 3).
        alpha: temperature, at least 0; default: learned, from 1 on.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: the same of the critics.
        drop: quantiles a critic that are left out of the target, at least 0 and below N; default 2 (paper; 5 for
            Hopper, 0 for HalfCheetah).
        alpha_lr, target_entropy, optimizer, hyperparas: as SAC's.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, given twice, or of no use with a fixed temperature.
        ModelContractError: the model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)"}
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "quantiles", "get_actor_params")

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        drop: int = 2,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.drop = check_int("drop", drop, at_least=0)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        super()._check_model(obs, action)
        found = self._shape_of_critics("quantiles", "[batch, critics, quantiles]", obs, action)
        if found is not None and self.drop >= found[1]:
            raise HyperparameterError(
                f"drop must be below the {found[1]} quantiles of each critic, else none is left, got {self.drop}"
            )

    def _run_model(self, obs: Any, action: Any) -> None:
        self.model.policy(obs)
        self.model.quantiles(obs, action)

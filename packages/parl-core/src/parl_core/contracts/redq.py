"""The contracts of REDQ and DroQ: many updates a step, and critics that do not overfit on them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.contracts.sac import SAC, SACSettings
from parl_core.contracts.settings import Scheduled
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["REDQ", "DroQ"]


class REDQ(SAC):
    """Randomised ensembled double Q-learning (Chen et al. 2021, arXiv:2101.05982, algorithm 1).

        subset      of the critics, drawn anew in each update
        target      = reward + discount * (1 - terminal) * (min over the subset of Q'(next_obs, next action)
                      - alpha * log pi')
        critic loss = sum over all critics of mean(weights * (Q(obs, action) - target)**2)
        every policy_freq updates:
            actor loss = mean(alpha * log pi - mean over all critics of Q(obs, action of pi)), and the temperature's
        critics'    = (1 - tau) * critics' + tau * critics

    The paper takes 20 updates a step: let the loop do so, `OffPolicySettings(gradient_steps=20)`, of which the last one
    is the actor's. Deviations from the paper: none known.

    The model has `policy(obs)` as SAC's; `value(obs, action)`, the values of all critics `[batch, critics]`;
    `get_actor_params()`; and where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: actor and critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: how far the target moves to the model in each step, in (0, 1]; default 0.005 (paper, table 3).
        alpha: temperature, at least 0; default: learned, from 1 on.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: the same of the critics.
        subset: critics of which the smallest value counts in the target, at least 1; default 2 (paper).
        policy_freq: critic steps for one of actor and temperature, at least 1; default 20 (paper).
        alpha_lr, target_entropy, optimizer, hyperparas: as SAC's.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, given twice, or of no use with a fixed temperature.
        ModelContractError: the model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"policy": "the pair (mean, log std)"}

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        subset: int = 2,
        policy_freq: int = 20,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.subset = check_int("subset", subset)
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        super()._check_model(obs, action)
        found = self._shape_of_critics("value", "the values of all critics [batch, critics]", obs, action)
        if found is not None and self.subset > found[0]:
            raise HyperparameterError(f"subset must be at most the number of critics, {found[0]}, got {self.subset}")


class DroQ(REDQ):
    """Dropout Q-functions: REDQ with two critics that have dropout and layer normalisation (Hiraoka et al. 2022).

    arXiv:2110.02034, algorithm 2. The losses are REDQ's with both critics in the target; what differs is the model:
    dropout of 0.01 and layer normalisation behind each hidden layer of its critics. It is active in targets, too, as in
    the paper. Deviations from the paper: none known.

    The model is REDQ's; `parl.networks.for_spaces(..., "ensemble", critics=2, dropout=0.01)` makes one.

    Args:
        model: as in REDQ, like the others.
        gamma, tau, alpha, actor_lr, critic_lr, subset, policy_freq: likewise.
        alpha_lr, target_entropy, optimizer, hyperparas: as SAC's.
        device, compile: see `parl.Algorithm`.
    """

    TARGETS: ClassVar[tuple[str, ...]] = ()

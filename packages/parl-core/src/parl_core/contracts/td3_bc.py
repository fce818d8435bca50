"""The contract of TD3+BC."""

from typing import Unpack

from parl_core.checks import check_positive
from parl_core.contracts.continuous import ActorCriticSettings
from parl_core.contracts.settings import Scheduled
from parl_core.contracts.td3 import TD3
from parl_core.model import Model

__all__ = ["TD3BC"]


class TD3BC(TD3):
    """TD3 with behaviour cloning, from logged data (Fujimoto & Gu 2021, arXiv:2106.06860).

        critic loss, target  as TD3
        lambda      = alpha / mean(|Q1(obs, mu(obs))|)                                                     (equation 5)
        actor loss  = -lambda * mean(Q1(obs, mu(obs))) + mean((mu(obs) - action)**2)                       (equation 3)

    Deviations from the paper: observations are not normalised here; `OfflineDataset` has them as they were logged.

    The model is TD3's.

    Args:
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: how far the target moves to the model, in (0, 1]; default 0.005 (paper, table 3).
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: the same of the critics; default 3e-4.
        policy_noise: standard deviation of the noise on the target's actions, at least 0; default 0.2.
        noise_clip: limit of that noise, at least 0; default 0.5.
        policy_freq: critic steps for one of actor and target, at least 1; default 2.
        alpha: weight of the values against the imitation, above 0; default 2.5 (paper).
        optimizer, hyperparas, device, compile: as TD3's.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model lacks one of its methods.
    """

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_freq: int = 2,
        *,
        alpha: float = 2.5,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self.alpha = check_positive("alpha", alpha)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, policy_noise, noise_clip, policy_freq, **settings)

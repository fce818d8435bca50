"""The contract of OAC."""

from typing import Any, Unpack

from parl_core.checks import check_non_negative
from parl_core.contracts.sac import SAC, SACSettings
from parl_core.contracts.settings import Scheduled
from parl_core.model import Model

__all__ = ["OAC"]


class OAC(SAC):
    """Optimistic actor-critic (Ciosek, Vuong, Loftin & Hofmann 2019, arXiv:1910.12807, algorithm 1).

    Learns as `SAC` does, and explores with another Gaussian, shifted to where an upper bound of the critics rises:

        Q_UB = (Q1 + Q2) / 2 + beta * abs(Q1 - Q2) / 2                          (equations 6 and 8)
        g    = gradient of Q_UB(obs, tanh(u)) by u at u = mean
        mean_explore = mean + sqrt(2 * delta) * std**2 * g / sqrt(sum(std**2 * g**2))      (equation 7)

    The exploring policy has the same standard deviation, and a KL divergence of delta from the policy. Deviations from
    the paper, as in its authors' code: the gradient is by the Gaussian's variable, before the tanh, and 1e-5 is added
    to the root in the denominator. The target uses the smaller critic, as SAC's: the paper's lower bound with
    beta_LB = -1.

    Args:
        model: as SAC's.
        gamma, tau, alpha, actor_lr, critic_lr: as SAC's.
        beta: how much the critics' disagreement counts as a chance, at least 0; default 4.66 (paper, appendix).
        delta: KL divergence of the exploring policy, in nats, at least 0; default 23.53 (paper, appendix).
        optimizer: optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. One keeps its own learning rate unless that is given
            here or in a call.
        alpha_lr, target_entropy, hyperparas: as SAC's.
        device, compile: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range, unknown, given twice, or of no use with a fixed temperature.
        ModelContractError: the model lacks one of its methods.
    """

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        delta: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        **settings: Unpack[SACSettings],
    ) -> None:
        self.beta = 4.66 if beta is None else check_non_negative("beta", beta)
        self.delta = 23.53 if delta is None else check_non_negative("delta", delta)
        super().__init__(model, gamma, tau, alpha, actor_lr, critic_lr, **settings)

    def get_optimistic_exploration_action(self, obs: Any) -> Any:
        """Draw actions `[batch, act_dim]` in [-1, 1] from the exploring policy."""
        raise NotImplementedError

    def sample_actions(self, obs: Any) -> Any:
        """Actions to explore with: those of `get_optimistic_exploration_action`."""
        return self.get_optimistic_exploration_action(obs)

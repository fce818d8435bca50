"""The contract of CrossQ."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from parl_core.checks import check_int
from parl_core.contracts.batches import Transitions
from parl_core.contracts.sac import SAC
from parl_core.contracts.settings import Scheduled
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["CrossQ"]


class CrossQ(SAC):
    """SAC without target networks, with batch normalisation (Bhatt et al. 2024, arXiv:1902.05605, algorithm 1).

        next action      = of pi in evaluation mode, whose statistics are running ones
        Q, Q'            = both halves of Q([obs; next_obs], [action; next action]), one pass in training mode, so that
                           both are normalised by the statistics of their mixture
        target           = reward + discount * (1 - terminal) * (min(Q1', Q2') - alpha * log pi'), without gradient
        critic loss      = mean(weights * (Q1 - target)**2) + the same of Q2
        every policy_freq updates:
            actor loss   = mean(alpha * log pi - min(Q1, Q2)(obs, action of pi)), the critics in evaluation mode,
                           and the temperature's

    Deviations from the authors' code: Adam's beta1 is 0.9, not 0.5, unless `optimizer` says otherwise; batch
    normalisation is the plain one, without renormalisation.

    The model is SAC's, with batch normalisation in actor and critics (`parl.layers.batch_norm`);
    `parl.networks.for_spaces(..., "batch-normalised")` makes one. There is no `target_model`.

    Args:
        model: actor and twin critics.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 2).
        alpha: temperature, at least 0; default: learned, from 1 on.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 1e-3 (paper,
            table 2).
        critic_lr: the same of the critics.
        policy_freq: critic steps for one of actor and temperature, at least 1; default 3 (paper, table 2).
        alpha_lr, target_entropy, optimizer: as SAC's.
        device: see `parl.Algorithm`.
        compile: refused, because actor and critics switch modes within a loss.

    Raises:
        HyperparameterError: a setting is out of range or of no use with a fixed temperature, or `compile` is true.
        ModelContractError: the model lacks one of its methods.
    """

    HAS_TARGET: ClassVar[bool] = False
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**SAC.DEFAULTS, "actor_lr": 1e-3, "critic_lr": 1e-3}

    _next_actions: Callable[..., tuple[Any, Any]]
    """Backend hook: actions of pi in the next observations, of noise, and their log-densities, without gradient."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        alpha: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        policy_freq: int = 3,
        alpha_lr: Scheduled | None = None,
        target_entropy: float | None = None,
        optimizer: Mapping[str, Any] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        if compile:
            raise HyperparameterError(
                "CrossQ switches between training and evaluation mode within a loss, which is not compiled: leave out "
                "compile=True"
            )
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(
            model,
            gamma,
            None,
            alpha,
            actor_lr,
            critic_lr,
            alpha_lr=alpha_lr,
            target_entropy=target_entropy,
            optimizer=optimizer,
            device=device,
        )

    def sync_target(self, decay: float | None = None) -> None:
        """Do nothing: there is no target."""

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        alpha = self._of_dtype(self.alpha, batch.reward)
        with self._evaluating():
            following = self._next_actions(batch.next_obs, self._noise(batch.action))
        critic_loss, figures = self.critic_optimizer.descend(self.critic_loss, batch, alpha, *following, lr=critic_lr)
        actor_loss = self._when_due(batch, lambda: self._learn_policy(batch, alpha, actor_lr))
        return critic_loss, actor_loss, figures["td_error"]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Provide a context in which the model's layers are in evaluation mode."""
        switched = [layer for layer in self._layers_by_mode() if layer.training]
        for layer in switched:
            layer.training = False
        try:
            yield
        finally:
            for layer in switched:
                layer.training = True

"""The contracts of DDPG and of its ensemble with several heads."""

from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core._small_networks import of_method
from parl_core.checks import check_non_negative
from parl_core.contracts._base import Scheduled
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import ActorCriticSettings, ContinuousActorCritic, NoisyActorCritic
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model

__all__ = ["DDPG", "BootstrappedDDPG"]

ENSEMBLES = ("mean", "vote")


class DDPG(NoisyActorCritic):
    """Deep deterministic policy gradient for continuous actions (Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1).

        target      = reward + discount * (1 - terminal) * Q'(next_obs, mu'(next_obs))
        critic loss = mean(weights * (Q(obs, action) - target)**2)
        actor loss  = -mean(Q(obs, mu(obs)))                                   (its gradient is the paper's equation 6)
        model'      = (1 - tau) * model' + tau * model

    Deviations from the paper, as in its successors: Gaussian noise explores instead of an Ornstein-Uhlenbeck process,
    and there is neither weight decay nor batch normalisation unless the model has it.

    The model has `policy(obs)`, actions `[batch, act_dim]` in [-1, 1] (end in tanh); `value(obs, action)`, `[batch]` or
    `[batch, 1]`; `get_actor_params()`; and where actor and critic share no parameters, `get_critic_params()` is
    optional.

    Args:
        model: Actor and critic; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, section 7).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005 (TD3's; the
            paper has 0.001).
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4
            (Fujimoto's later code; the paper has 1e-4).
        critic_lr: The learning rate of the critic's Adam, likewise; default 3e-4 (the paper has 1e-3).
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. Each keeps its own learning rate unless one is given
            here or in a call.
        hyperparas: PARL 1.x's dictionary of these settings.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
    """

    ON_HOST: ClassVar = {NoisyActorCritic.predict: of_method(lambda _: "policy")}

    def _check_model(self, obs: Any, action: NDArray[Any]) -> None:
        with self._trying_out(obs, action) as (rows, actions, count):
            try:
                found = self.model.value(rows, actions)
            except Exception:  # any exception: the next update raises it again with an explanation
                return
        if list(getattr(found, "shape", ())) not in ([count], [count, 1]):
            raise self._other_shape("value", "[batch] or [batch, 1]", found, count)


class BootstrappedDDPG(ContinuousActorCritic):
    """DDPG with several heads, each of which learns from its own sample of the transitions.

    Deterministic policy gradients (Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1) with the heads and masks of
    bootstrapped DQN (Osband et al. 2016, arXiv:1602.04621, algorithm 1), as in the winning solution of the NeurIPS 2018
    challenge AI for Prosthetics (Kidzinski et al. 2019, arXiv:1902.02441). For each head k, with means over the batch:

        target_k      = reward + discount * (1 - terminal) * Q'_k(next_obs, mu'_k(next_obs))
        critic loss_k = mean(weights * mask_k * (Q_k(obs, action) - target_k)**2)
        actor loss_k  = -mean(mask_k * Q_k(obs, mu_k(obs)))
        model'        = (1 - tau) * model' + tau * model

    Losses are means over the heads, so shared features receive the mean of the heads' gradients. One head acts for a
    whole episode, which explores more deeply than noise in each step; without exploration, all heads act:

        "mean"   the mean of the heads' actions
        "vote"   the head's action that the critics value most: argmax_k of mean_j Q_j(obs, mu_k(obs))

    Deviations from Osband et al.: the mask also weights the actors' losses, which DQN does not have; those of `DDPG`
    apply as well.

    The model has `policy(obs)`, actions `[batch, heads, act_dim]` in [-1, 1] (end in tanh); `value(obs, action)`,
    `[batch, heads]`, of actions `[batch, heads, act_dim]`, one for each head; `get_actor_params()`; and where actors
    and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actors and critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99.
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.005.
        actor_lr: Learning rate of the actors' Adam, above 0, or a schedule of the updates taken; default 3e-4.
        critic_lr: The learning rate of the critics' Adam, likewise; default 3e-4.
        ensemble: How `predict` combines the heads' actions: `"mean"` or `"vote"`; the latter needs a pass through all
            critics for each head.
        optimizer, hyperparas: As in `DDPG`.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
    """

    _heads: int = 0
    """The number of heads, known from the first update."""

    def __init__(
        self,
        model: Model,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        ensemble: str = "mean",
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        if ensemble not in ENSEMBLES:
            raise HyperparameterError(f"ensemble must be one of {', '.join(map(repr, ENSEMBLES))}, got {ensemble!r}")
        self.ensemble = ensemble
        super().__init__(model, gamma, tau, actor_lr, critic_lr, **settings)

    def sample(self, obs: Any, *, head: Any = None, noise: float = 0.1) -> Any:
        """Return the actions of one head, with Gaussian noise, clipped to [-1, 1].

        Args:
            obs: `[batch, ...]`, or a dictionary of arrays.
            head: The index of the head, from 0, for all rows or `[batch]`; default: drawn for each row. Keep one for an
                episode.
            noise: Standard deviation, at least 0; default 0.1.

        Returns:
            Actions `[batch, act_dim]`.

        Raises:
            HyperparameterError: There is no such head, or `noise` is negative.
        """
        raise NotImplementedError

    @learns_from(Transitions, keywords=("weights", "discount", "actor_lr", "critic_lr"), extra=("mask",))
    def learn(self, batch: Transitions, *, actor_lr: float | None = None, critic_lr: float | None = None) -> Any:
        """Take one step of all critics and one of all actors, and move the target.

        Args:
            batch: As in `DDPG`; its extra column `mask`, float `[batch, heads]`, at least 0, is the weight of each
                transition for each head, the same whenever it is drawn (`parl_core.replay.BootstrapMasks`); default:
                each transition counts for every head.
            actor_lr: The actor's learning rate of this step; default: the constructor's.
            critic_lr: The critics' learning rate of this step; default: the constructor's.

        Returns:
            (critic_loss, actor_loss), detached scalars; with `batch.weights` also td_error `[batch]`, target - Q, mean
            over the heads.
        """
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, lr=rate)
        rate = self._now("actor_lr", self.actor_lr, actor_lr)
        actor_loss, _ = self._descend(self.actor_optimizer, self.actor_loss, batch, lr=rate)
        self.sync_target()
        self._call_after_update(self._count_update)
        if batch.weights is None:
            return critic_loss, actor_loss
        return critic_loss, actor_loss, figures["td_error"]

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with a mask for each head; with the first batch, count the heads."""
        batch = super().check_batch(batch)
        if not self._heads:
            self._heads = self._count_heads(batch.obs, batch.action)
        extra = batch.extra or {}
        if extra.get("mask") is None:
            return batch
        extra = {**extra, "mask": self._checked_mask(extra["mask"], len(batch.reward))}
        return batch.made(**{**batch.__dict__, "extra": extra})

    # Shared

    def _count_heads(self, obs: Any, action: NDArray[Any]) -> int:
        """Return the number of heads of the model; 0 if it raises, as the next update does.

        Raises:
            ModelContractError: The outputs of its methods do not have the shapes of heads.
        """
        with self._trying_out(obs, action) as (rows, _, count):
            try:
                actions = self.model.policy(rows)
                found = tuple(actions.shape)
                if len(found) != 3 or (found[0], found[2]) != (count, action.shape[1]):
                    raise self._misshapen("policy", "[batch, heads, act_dim]", found, (count, "heads", action.shape[1]))
                values = tuple(self.model.value(rows, actions).shape)
                if values != found[:2]:
                    raise self._misshapen("value", "[batch, heads]", values, found[:2])
            except ModelContractError:
                raise
            except Exception:  # any exception of the model
                return 0
        return int(found[1])

    def _run_model(self, obs: Any, action: Any) -> None:
        del action  # an action of one head
        self.model.value(obs, self.model.policy(obs))

    def _misshapen(self, method: str, wanted: str, found: Any, expected: Any) -> ModelContractError:
        return ModelContractError(
            f"{type(self.model).__name__}.{method} has to return {wanted} for BootstrappedDDPG, here "
            f"[{', '.join(map(str, expected))}]; it returned {list(found)}: reshape or join the outputs of its heads"
        )

    def _checked_mask(self, mask: Any, rows: int) -> NDArray[Any]:
        array = np.asarray(mask)
        if self._heads and array.shape != (rows, self._heads):
            raise ValueError(
                f"mask must have shape {[rows, self._heads]} (batch, heads), got {list(array.shape)}: pass "
                "BootstrapMasks.of(batch.index) of the memory that the batch comes from"
            )
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all() or (array.size and array.min() < 0):
            raise ValueError("mask must hold finite numbers of at least 0, the weights of transitions for each head")
        return array if array.dtype.kind == "f" else array.astype(np.float32)

    def _checked_heads(self, head: Any, rows: int, heads: int) -> NDArray[np.int64]:
        """Return heads `[rows]` from one for all or one per row."""
        chosen = np.asarray(self._array(head))
        if chosen.dtype.kind not in "iu" or chosen.shape not in ((), (rows,)):
            raise HyperparameterError(f"head must be a whole number, or one for each of the {rows} rows, got {head!r}")
        if chosen.size and (chosen.min() < 0 or chosen.max() >= heads):
            raise HyperparameterError(f"head must be in 0..{heads - 1}, got {chosen.min()}..{chosen.max()}")
        return np.broadcast_to(chosen, (rows,)).astype(np.int64)

    def _checked_noise(self, noise: float) -> float:
        return check_non_negative("noise", noise)

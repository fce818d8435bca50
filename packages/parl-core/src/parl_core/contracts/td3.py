"""The contracts of TD3, and of TD3 with behaviour cloning on logged data: TD3+BC and ReBRAC."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core._small_networks import of_method
from parl_core.checks import check_int, check_non_negative, check_positive
from parl_core.contracts._base import Scheduled
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import ActorCriticSettings, NoisyActorCritic, unit_box
from parl_core.errors import HyperparameterError
from parl_core.model import Model
from parl_core.offline import OfflineDataset

__all__ = ["TD3", "TD3BC", "ReBRAC"]


class TD3(NoisyActorCritic):
    """Twin delayed deep deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477, algorithm 1).

        next action = clip(mu'(next_obs) + clip(N(0, policy_noise), -noise_clip, noise_clip), -1, 1)
        target      = reward + discount * (1 - terminal) * min(Q1', Q2')(next_obs, next action)
        critic loss = mean(weights * (Q1(obs, action) - target)**2) + the same of Q2
        every policy_freq updates:
            actor loss = -mean(Q1(obs, mu(obs)))
            model'     = (1 - tau) * model' + tau * model

    Deviations from the paper: none known.

    The model has `policy(obs)`, actions `[batch, act_dim]` in [-1, 1] (end in tanh); `value(obs, action)`, the pair
    (Q1, Q2), each `[batch]` or `[batch, 1]`; `Q1(obs, action)`, the first of them alone; `get_actor_params()`; and
    where actor and critics share no parameters, `get_critic_params()` is optional.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (authors' code).
        tau: The share of the way that the target moves to the model, in (0, 1]; default 0.005 (paper, section 6.1).
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (authors'
            code; the paper has 1e-3).
        critic_lr: The learning rate of the critics' Adam, likewise; default 3e-4.
        policy_noise: Standard deviation of the noise on the target's actions, at least 0; default 0.2 (paper).
        noise_clip: Limit of that noise, at least 0; default 0.5 (paper).
        policy_freq: Critic steps for one of actor and target, at least 1; default 2 (paper).
        optimizer: Optimizers of `parl.optim` or of the framework, `{"actor": ..., "critic": ...}`, each made of the
            parameters that the model lists for it; default Adam. Each keeps its own learning rate unless one is given
            here or in a call.
        hyperparas: A dictionary of gamma, tau, actor_lr and critic_lr.
        device, compile: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
    """

    PAIRS: ClassVar[Mapping[str, str]] = {"value": "the pair (Q1, Q2)"}
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "Q1", "get_actor_params")
    ON_HOST: ClassVar = {NoisyActorCritic.predict: of_method(lambda _: "policy")}

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
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self.policy_noise = check_non_negative("policy_noise", policy_noise)
        self.noise_clip = check_non_negative("noise_clip", noise_clip)
        self.policy_freq = check_int("policy_freq", policy_freq)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, **settings)

    @property
    def total_it(self) -> int:
        """Number of gradient steps taken; PARL 2.x's name for `updates`."""
        return self.updates

    def _update(self, batch: Transitions, actor_lr: Any, critic_lr: Any) -> tuple[Any, Any, Any]:
        noise = self._noise(batch.action)
        critic_loss, figures = self._descend(self.critic_optimizer, self.critic_loss, batch, noise, lr=critic_lr)
        actor_loss = self._when_due(batch, lambda: self._learn_actor(batch, actor_lr))
        return critic_loss, actor_loss, figures["td_error"]

    def _learn_actor(self, batch: Transitions, rate: Any) -> Any:
        actor_loss, _ = self._descend(self.actor_optimizer, self.actor_loss, batch, lr=rate)
        self.sync_target()
        return actor_loss


class TD3BC(TD3):
    """TD3 with behaviour cloning, from logged data (Fujimoto & Gu 2021, arXiv:2106.06860).

        critic loss, target  as TD3
        lambda      = alpha / mean(|Q1(obs, mu(obs))|)                                                     (equation 5)
        actor loss  = -lambda * mean(Q1(obs, mu(obs))) + mean((mu(obs) - action)**2)                       (equation 3)

    Deviations from the paper: observations are not normalised; `OfflineDataset` has them as they were logged.

    The model is TD3's.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 3).
        tau: The share of the way that the target moves to the model, in (0, 1]; default 0.005 (paper, table 3).
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 3e-4 (paper,
            table 3).
        critic_lr: The learning rate of the critics' Adam, likewise; default 3e-4.
        policy_noise: Standard deviation of the noise on the target's actions, at least 0; default 0.2.
        noise_clip: Limit of that noise, at least 0; default 0.5.
        policy_freq: Critic steps for one of actor and target, at least 1; default 2.
        alpha: Weight of the values relative to the imitation, above 0; default 2.5 (paper).
        optimizer, hyperparas, device, compile: As in `TD3`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
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


class ReBRAC(TD3):
    """Revisited behaviour-regularised actor-critic, from logged data (Tarasov et al. 2023, arXiv:2305.09836).

        next action = clip(mu'(next_obs) + clip(N(0, policy_noise), -noise_clip, noise_clip), -1, 1)
        penalty'    = sum over dimensions of (next action - next action of the data)**2
        target      = reward + discount * (1 - terminal) * (min(Q1', Q2')(next_obs, next action) - critic_bc * penalty')
        critic loss = mean((Q1(obs, action) - target)**2) + the same of Q2                                 (equation 5)
        lambda      = 1 / mean(|min(Q1, Q2)(obs, mu(obs))|)
        actor loss  = mean(actor_bc * sum((mu(obs) - action)**2) - lambda * min(Q1, Q2)(obs, mu(obs)))      (equation 4)

    TD3+BC with separate penalties for actor and critics. The paper adds critics with layer normalisation and three
    hidden layers, which the model decides, and batches of 1,024, a setting of the loop. Deviations: none known.

    The model is TD3's; `Q1` is not used.

    Args:
        model: Actor and twin critics; a target model is copied from it.
        gamma: Discount of one step, in [0, 1]; default 0.99 (paper, table 6; 0.999 for AntMaze).
        tau: The share of the way that the target moves to the model, in (0, 1]; default 0.005.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 1e-3 (paper).
        critic_lr: The learning rate of the critics' Adam, likewise; default 1e-3 (paper).
        policy_noise: Standard deviation of the noise on the target's actions, at least 0; default 0.2.
        noise_clip: Limit of that noise, at least 0; default 0.5.
        policy_freq: Critic steps for one of actor and target, at least 1; default 2.
        actor_bc: Weight of the actor's penalty, at least 0; default 0.01. The paper chooses it for each data set, among
            0.001 ... 0.1.
        critic_bc: Weight of the critics' penalty, at least 0; default 0.01 (paper: likewise, among 0 ... 0.5).
        optimizer, hyperparas, device, compile: As in `TD3`.

    Raises:
        HyperparameterError: A setting is out of range, unknown, or given twice.
        ModelContractError: The model lacks one of its methods.
    """

    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "get_actor_params")
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**TD3.DEFAULTS, "actor_lr": 1e-3, "critic_lr": 1e-3}

    _followed: tuple[OfflineDataset, NDArray[np.int64]] | None = None

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
        actor_bc: float = 0.01,
        critic_bc: float = 0.01,
        **settings: Unpack[ActorCriticSettings],
    ) -> None:
        self.actor_bc = check_non_negative("actor_bc", actor_bc)
        self.critic_bc = check_non_negative("critic_bc", critic_bc)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, policy_noise, noise_clip, policy_freq, **settings)

    @learns_from(Transitions, keywords=("weights", "discount", "actor_lr", "critic_lr"), extra=("next_action",))
    def learn(self, batch: Transitions, *, actor_lr: float | None = None, critic_lr: float | None = None) -> Any:
        """Take one step of the critics and, when it is due, one of the actor: see `TD3.learn`.

        Args:
            batch: Tensors; its extra column `next_action`, `[batch, act_dim]`, has the logged actions in `next_obs`,
                and any values in [-1, 1] where the episode terminated.
            actor_lr: Learning rate of the actor for this step; default the constructor's.
            critic_lr: Learning rate of the critics for this step; default the constructor's.

        Returns:
            As of TD3.
        """
        return super().learn(batch, actor_lr=actor_lr, critic_lr=critic_lr)

    def draw_batch(self, dataset: OfflineDataset, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Draw `n` transitions of a dataset with the actions that followed: the columns of a batch, by name.

        The last step of a truncated episode is left out, because the next action is not known.

        Raises:
            HyperparameterError: No step has a next action.
        """
        if self._followed is None or self._followed[0] is not dataset:
            last = np.array([stop - 1 for _, stop in dataset.episodes])
            known = np.ones(len(dataset), np.bool_)
            known[last[~dataset.terminal[last]]] = False
            if not known.any():
                raise HyperparameterError(
                    f"{dataset.source} has episodes of one step that were cut: ReBRAC needs steps whose next action is "
                    "known; leave out `truncated` where rows follow each other"
                )
            self._followed = dataset, np.flatnonzero(known)
        rows = self._followed[1][rng.integers(len(self._followed[1]), size=n)]
        columns = {name: column[rows] for name, column in dataset.whole().items()}
        following = np.minimum(rows + 1, len(dataset) - 1)  # after a terminal step, any action will do
        return {**columns, "extra": {"next_action": dataset.action[following]}}

    def whole_log(self, dataset: OfflineDataset) -> dict[str, Any]:
        """Return the columns of a batch of all transitions with the actions that followed, for a check."""
        return {**dataset.whole(), "extra": {"next_action": dataset.action}}

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions and next actions in [-1, 1].

        Raises:
            ValueError: `next_action` is missing, or does not fit the batch.
        """
        checked = super().check_batch(batch)
        following = unit_box("next_action", checked.next_action)
        return checked.made(**{**checked.__dict__, "extra": {**checked.extra, "next_action": following}})

    def _fitted(self, batch: Transitions) -> Transitions:
        following = (batch.extra or {}).get("next_action")
        if following is None:
            raise ValueError(
                "ReBRAC also learns from next_action, the logged action in next_obs [batch, act_dim]: pass "
                "learn(..., next_action=...); train_offline does so by itself"
            )
        if tuple(following.shape) != tuple(batch.action.shape):
            raise ValueError(f"next_action must have the shape of action, {tuple(batch.action.shape)}")
        return super()._fitted(batch)

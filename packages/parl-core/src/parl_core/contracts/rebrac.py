"""The contract of ReBRAC."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_non_negative
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import ActorCriticSettings, unit_box
from parl_core.contracts.settings import Scheduled
from parl_core.contracts.td3 import TD3
from parl_core.errors import HyperparameterError
from parl_core.model import Model
from parl_core.offline import OfflineDataset

__all__ = ["ReBRAC"]


class ReBRAC(TD3):
    """Revisited behaviour-regularised actor-critic, from logged data (Tarasov et al. 2023, arXiv:2305.09836).

        next action = clip(mu'(next_obs) + clip(N(0, policy_noise), -noise_clip, noise_clip), -1, 1)
        penalty'    = sum over dimensions of (next action - next action of the data)**2
        target      = reward + discount * (1 - terminal) * (min(Q1', Q2')(next_obs, next action) - critic_bc * penalty')
        critic loss = mean((Q1(obs, action) - target)**2) + the same of Q2                                 (equation 5)
        lambda      = 1 / mean(|min(Q1, Q2)(obs, mu(obs))|)
        actor loss  = mean(actor_bc * sum((mu(obs) - action)**2) - lambda * min(Q1, Q2)(obs, mu(obs)))      (equation 4)

    TD3+BC with a penalty of its own weight for actor and critic each. The paper adds critics with layer normalisation,
    three hidden layers and batches of 1,024: give the model the one and the loop the other. Deviations: none known.

    The model is TD3's, of which `Q1` is not used.

    Args:
        model: actor and twin critics; a target model is copied from it.
        gamma: discount of one step, in [0, 1]; default 0.99 (paper, table 6; 0.999 for AntMaze).
        tau: how far the target moves to the model, in (0, 1]; default 0.005.
        actor_lr: learning rate of the actor's Adam, above 0, or a schedule of the updates taken; default 1e-3 (paper).
        critic_lr: the same of the critics; default 1e-3 (paper).
        policy_noise: standard deviation of the noise on the target's actions, at least 0; default 0.2.
        noise_clip: limit of that noise, at least 0; default 0.5.
        policy_freq: critic steps for one of actor and target, at least 1; default 2.
        actor_bc: weight of the actor's penalty, at least 0; default 0.01. The paper chooses it for each data set, among
            0.001 ... 0.1.
        critic_bc: weight of the critics' penalty, at least 0; default 0.01 (paper: likewise, among 0 ... 0.5).
        optimizer, hyperparas, device, compile: as TD3's.

    Raises:
        HyperparameterError: a setting is out of range, unknown, or given twice.
        ModelContractError: the model lacks one of its methods.
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
        """Take one step of the critics and, where it is due, one of the actor: see `TD3.learn`.

        Args:
            batch: tensors; its extra column `next_action`, `[batch, act_dim]`, is what the data did in `next_obs`, and
                anything in [-1, 1] where the episode terminated.
            actor_lr: learning rate of the actor for this step; default the constructor's.
            critic_lr: learning rate of the critics for this step; default the constructor's.

        Returns:
            As of TD3.
        """
        return super().learn(batch, actor_lr=actor_lr, critic_lr=critic_lr)

    def draw_batch(self, dataset: OfflineDataset, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Draw `n` transitions of a dataset with the action that followed: the columns of a batch, by name.

        The last step of an episode that was cut is left out, because what followed is not known.

        Raises:
            HyperparameterError: no step is followed by another one.
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
        columns = {name: getattr(dataset, name)[rows] for name in ("obs", "action", "reward", "next_obs", "terminal")}
        following = np.minimum(rows + 1, len(dataset) - 1)  # behind a terminal step any action does
        return {**columns, "extra": {"next_action": dataset.action[following]}}

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with actions and next actions in [-1, 1].

        Raises:
            ValueError: there is no `next_action`, or it is none of the batch's.
        """
        extra = batch.extra or {}
        if extra.get("next_action") is None:
            raise ValueError(
                "ReBRAC also learns from next_action, the logged action in next_obs [batch, act_dim]: pass "
                "learn(..., next_action=...); train_offline does so by itself"
            )
        following = unit_box("next_action", extra["next_action"])
        checked = super().check_batch(batch)
        if following.shape != np.shape(checked.action):
            raise ValueError(f"next_action must have the shape of action, {np.shape(checked.action)}")
        return checked.made(**{**checked.__dict__, "extra": {**extra, "next_action": following}})

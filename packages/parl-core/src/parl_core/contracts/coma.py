"""The contract of COMA: actors with counterfactual advantages, which vary one agent's action at a time."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from parl_core.algorithm import Optimizer
from parl_core.checks import (
    check_fraction,
    check_int,
    check_limit,
    check_non_negative,
    check_positive,
    first_method,
    listed_parameters,
)
from parl_core.contracts._base import OnPolicy, Scheduled, check_schedule, merge, refuse_unused
from parl_core.contracts.actions import ActionKind, check_mask, check_possible, mask_of
from parl_core.contracts.batches import Rollout, TeamRollout, learns_from
from parl_core.model import Model

__all__ = ["COMA"]

FIGURES = ("critic_loss", "policy_loss", "entropy", "advantage")


class COMA(OnPolicy):
    """Counterfactual multi-agent policy gradients (Foerster et al. 2018, arXiv:1705.08926).

        Q(s, (u^-a, .)) of each agent a: the values of its actions while the other agents' actions stay fixed
        A^a = Q(s, u) - sum_u'a pi^a(u'a | o^a) Q(s, (u^-a, u'a))                               (equation 4)
        policy loss = -mean(A^a log pi^a(u^a | o^a)) - entropy_coef * entropy
        critic loss = mean((Q(s, u) - y)**2),   y = TD(lambda) of the target critic              (section 4)

    with means over agents that acted; critics see zeros for the actions of the others. Each rollout is used once:
    `critic_updates` steps of the critic, then one step of the actors with the new critic.

    Deviations from the paper: each step of the critic takes the whole rollout, not single time steps from the last to
    the first; rollouts have a fixed number of steps and may cut episodes, which are then bootstrapped; actors have a
    memory only if the model has one; an optional entropy bonus keeps policies stochastic, instead of a mixture with
    uniform actions; rewards are each agent's, which in a team with common rewards are the same.

    It acts on joint observations (`parl_core.env.joint.JointEnv`). The model has `policy(obs)`, logits `[batch, agents,
    n_actions]`; `values(obs, action)`, with actions one-hot `[batch, agents, n_actions]`, Q of each agent's actions
    `[batch, agents, n_actions]`, where an agent's row must not depend on its own action; and `get_actor_params()` and
    `get_critic_params()`. `parl.networks.for_team(..., "counterfactual")` makes one, with `memory=` one whose
    `remember` returns joint observations with features of the policies; critics get the global state, and have no
    memory.

    `gamma` and `td_lambda` belong to the targets, which the loop computes: `gamma` of `OnPolicySettings` must be the
    same, and so must its `gae_lambda` if it is given.

    Args:
        model: actors and critic.
        n_actions: largest number of actions of an agent.
        n_agents: number of agents.
        grad_norm_clip: limit of the gradients' global norm, of actors and of the critic, `math.inf` or None for none;
            default 10 (PyMARL).
        actor_lr: learning rate of the actors' Adam, above 0, or a schedule of the updates taken; default 5e-4 (PyMARL).
        critic_lr: the learning rate of the critic's Adam, likewise.
        gamma: discount of the next step, in [0, 1]; default 0.99.
        td_lambda: lambda of the critic's targets, in [0, 1]; default 0.8 (paper).
        entropy_coef: weight of the entropy bonus, at least 0, or a schedule of the updates taken; default 0.
        target_update_interval: steps of the critic after which the next call copies it to the target; default 200
            (PyMARL).
        critic_updates: steps of the critic per step of the actors; default 1 (PyMARL: the number of steps of an
            episode).
        optimizer: an optimizer for each part, `{"actor": ..., "critic": ...}`, of `parl.optim` or of the framework;
            default Adam. Each keeps its own learning rate unless one is given here.
        device: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: the model lacks a method.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"actor_lr": 5e-4, "critic_lr": 5e-4}
    TEAM: ClassVar[str | None] = "counterfactual"
    COUNTERS: ClassVar[tuple[str, ...]] = ("updates", "_until_sync")
    LEARNS_SEQUENCES: ClassVar[bool] = True
    REPLACED_IN_LOOPS: ClassVar[Mapping[str, str]] = {}
    NAMED: ClassVar[frozenset[str]] = frozenset(FIGURES)
    UNUSED: ClassVar[frozenset[str]] = frozenset({"epochs", "minibatch_size", "lr", "clip", "decay", "target_kl"})

    actor_optimizer: Optimizer
    critic_optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        n_actions: int,
        n_agents: int,
        grad_norm_clip: float | None = 10.0,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        gamma: float = 0.99,
        td_lambda: float = 0.8,
        *,
        entropy_coef: Scheduled = 0.0,
        target_update_interval: int = 200,
        critic_updates: int = 1,
        optimizer: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        self.n_actions, self.n_agents = check_int("n_actions", n_actions), check_int("n_agents", n_agents)
        self.grad_norm_clip = check_limit("grad_norm_clip", grad_norm_clip)
        rates = merge(type(self).__name__, None, {"actor_lr": actor_lr, "critic_lr": critic_lr}, self.DEFAULTS)
        self.actor_lr: Any = check_schedule("actor_lr", rates["actor_lr"], check_positive)
        self.critic_lr: Any = check_schedule("critic_lr", rates["critic_lr"], check_positive)
        self.gamma, self.td_lambda = check_fraction("gamma", gamma), check_fraction("td_lambda", td_lambda)
        self.entropy_coef = check_schedule("entropy_coef", entropy_coef, check_non_negative)
        self.target_update_interval = check_int("target_update_interval", target_update_interval)
        self.critic_updates = check_int("critic_updates", critic_updates)
        self.actions = ActionKind()
        for method in ("policy", "values", "get_actor_params", "get_critic_params"):
            first_method(model, (method,), "COMA", self.TEAM)
        super().__init__(model, device=device)
        self.target_model = self._new_target()
        self._until_sync = self.target_update_interval
        self.actor_optimizer, self.critic_optimizer = self._optimizers_of_parts(
            optimizer,
            {"actor": self._actor_params, "critic": self._critic_params},
            {"actor": self._at_start(self.actor_lr), "critic": self._at_start(self.critic_lr)},
            self.grad_norm_clip,
        )
        own = optimizer or {}
        self.actor_lr = self._own_rate(own.get("actor"), actor_lr, self.actor_lr)
        self.critic_lr = self._own_rate(own.get("critic"), critic_lr, self.critic_lr)

    def _actor_params(self) -> Iterable[Any]:
        return listed_parameters(self.model, "get_actor_params")

    def _critic_params(self) -> Iterable[Any]:
        return listed_parameters(self.model, "get_critic_params")

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the most likely actions, int64 `[batch, agents]`."""
        with self._no_gradients():
            policy = self._policy(obs, action_mask)
            return policy.mode().reshape([-1, self.n_agents])

    def sample(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions.

        Args:
            obs: joint observations.
            action_mask: bool `[batch, agents, n_actions]`, True where an action is possible.

        Returns:
            (Q of the drawn actions by the target critic, action int64, log-probability, entropy), each `[batch,
            agents]`.
        """
        with self._no_gradients():
            policy = self._policy(obs, action_mask)
            rows = policy.sample()
            action = rows.reshape([-1, self.n_agents])
            value = self._of_actions(self._values(self.target_model, obs, action), action)
            if self.model._waiting() or self.target_model._waiting():  # to set the shapes of layers that did not run
                self._values(self.model, obs, action)
                first = self._initial_state(int(action.shape[0]))
                self.target_model.policy(self._features(obs, first, None, model=self.target_model))
            parts = (policy.logp(rows), policy.entropy())
            return value, action, *(part.reshape([-1, self.n_agents]) for part in parts)

    def explore(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the first three of the result of `sample`."""
        return self.sample(obs, action_mask)[:3]

    def value(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions and return their Q by the target critic, `[batch, agents]`, to bootstrap from."""
        return self.sample(obs, action_mask)[0]

    @learns_from(
        TeamRollout,
        names=("obs", "action", "return_"),
        keywords=("entropy_coef", "action_mask", "active"),
    )
    def learn(self, batch: Rollout, *, entropy_coef: float | None = None) -> Any:
        """Take `critic_updates` steps of the critic and one of the actors.

        Args:
            batch: tensors: obs, action, return_ (the critic's targets) and active.
            entropy_coef: Weight of the entropy for this step; default the constructor's.

        Returns:
            (critic_loss, policy_loss, entropy, advantage), detached scalars: the loss of the critic's last step, and
            the mean absolute advantage.
        """
        actor_lr, critic_lr = self._now("actor_lr", self.actor_lr), self._now("critic_lr", self.critic_lr)
        for _ in range(self.critic_updates):
            critic_loss, _ = self._descend(self.critic_optimizer, self.critic_loss, batch, lr=critic_lr)
        _, figures = self._descend(self.actor_optimizer, self.actor_loss, batch, entropy_coef, lr=actor_lr)
        self._count_update()
        self._until_sync -= self.critic_updates
        if self._until_sync <= 0:
            self.sync_target()
        return critic_loss, figures["policy_loss"], figures["entropy"], figures["advantage"]

    def learn_rollout(
        self,
        batch: Rollout,
        *,
        epochs: int | None = None,
        minibatch_size: int | None = None,
        rng: np.random.Generator,  # noqa: ARG002 - all of the rollout is taken at once
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Learn once from a rollout: see `learn`.

        Args:
            batch: the rollout, a `TeamRollout` of arrays.
            epochs: must be None, because COMA takes one step; likewise minibatch_size, lr, clip and target_kl.
            minibatch_size: must be None.
            rng: not used.
            lr: must be None.
            clip: must be None.
            entropy_coef: weight of the entropy for this call; default the constructor's.
            target_kl: must be None.

        Returns:
            critic_loss, policy_loss, entropy, advantage, and `steps`, 1.
        """
        refuse_unused(self, epochs=epochs, minibatch_size=minibatch_size, lr=lr, clip=clip, target_kl=target_kl)
        figures = self.learn(self._on_device(self.check_batch(batch)), entropy_coef=entropy_coef)
        return {**dict(zip(FIGURES, self._means([figures]), strict=True)), "steps": 1.0}

    def critic_loss(self, batch: Rollout) -> tuple[Any, dict[str, Any]]:
        """Return the critic's loss, and no figures."""
        raise NotImplementedError

    def actor_loss(self, batch: Rollout, entropy_coef: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the actors' loss; and policy_loss, entropy, advantage: scalars without gradient."""
        raise NotImplementedError

    def sync_target(self, decay: float = 0.0) -> None:
        """Move the target to the critic: target = decay * target + (1 - decay) * critic."""
        self.model.sync_weights_to(self.target_model, decay)
        self._until_sync = self.target_update_interval

    def check_batch(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with valid actions and masks, and with `active` if it was left out.

        Raises:
            ValueError: actions or masks do not fit.
        """
        batch = self._fitted(batch)
        action = np.asarray(batch.action)
        if action.ndim != 2 or action.shape[1] != self.n_agents or action.dtype.kind not in "iu":
            raise ValueError(
                f"action must have shape [n, {self.n_agents}] of whole numbers, got {action.dtype} {action.shape}"
            )
        if action.size and (action.min() < 0 or action.max() >= self.n_actions):
            raise ValueError(f"action must be in 0..{self.n_actions - 1}, got {action.min()}..{action.max()}")
        mask = mask_of(batch.obs, batch.action_mask)
        if mask is not None:
            mask = check_mask(mask)
            check_possible(action.reshape(-1), mask.reshape(-1, mask.shape[-1]))
        return batch.made(**{**batch.__dict__, "action": action, "action_mask": mask})

    def _fitted(self, batch: Rollout) -> TeamRollout:
        return TeamRollout.of(batch, batch.return_)

    def _policy(self, obs: Any, mask: Any) -> Any:
        """Return the distribution of the actions of all agents, one row each."""
        logits, mask = self._run(self.model.policy, obs), mask_of(obs, mask)
        rows = None if mask is None else mask.reshape([-1, mask.shape[-1]])
        return self._distribution(logits.reshape([-1, logits.shape[-1]]), self.actions, rows)

    def _values(self, model: Any, obs: Any, action: Any) -> Any:
        """Return a critic's values of each agent's actions, given the others' actions, `[batch, agents, n_actions]`."""
        raise NotImplementedError

    def _of_actions(self, values: Any, action: Any) -> Any:
        """Return the values of actions `[batch, agents]`."""
        raise NotImplementedError

"""The contract of MADDPG: each agent acts on its own observation; its critic gets all observations and actions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Optimizer
from parl_core.checks import check_fraction, check_int, check_limit, check_non_negative, check_positive, first_method
from parl_core.contracts._base import CountingUpdates, Scheduled, check_schedule
from parl_core.contracts.actions import ActionKind, check_mask
from parl_core.contracts.batches import Transitions, learns_from
from parl_core.contracts.continuous import ContinuousActorCritic, noisy
from parl_core.errors import HyperparameterError
from parl_core.model import Model

__all__ = ["MADDPG", "OneAgentMADDPG"]

_CLIP = 0.5  # limit of the gradients' norm, as in the authors' code


class MADDPG(ContinuousActorCritic):
    """Multi-agent deep deterministic policy gradient (Lowe et al. 2017, arXiv:1706.02275, algorithm 1).

        target_i     = reward_i + gamma * (1 - terminated_i) * Q'_i(next obs of all, mu'(next obs) of all)
        critic loss  = sum_i mean over steps in which i acted of (Q_i(obs of all, actions of all) - target_i)^2
        actor loss_i = -mean of Q_i(obs of all, actions of all with mu_i(o_i) in the place of a_i)
                       + policy_decay * mean(policy_i^2)
        model'       = (1 - tau) * model' + tau * model

    It learns from transitions of joint observations (`parl_core.env.joint`), each agent from its own rewards. Actions
    are numbers in [-1, 1], or choices. Choices are one-hot for the critics, and actors learn by the straight-through
    Gumbel-softmax relaxation (Jang, Gu & Poole 2017): the forward pass uses the one-hot draw, the backward pass the
    softmax. Agents that are not in the episode have zeros for actions and do not learn; a truncated agent is
    bootstrapped from its last observation, with the actions of all agents that did not terminate. For agents that go on
    without it, it is not in the episode any more.

    Deviations from the paper: a Gaussian instead of an Ornstein-Uhlenbeck process explores with numbers; the decay of
    the policy's outputs and the limit of the gradients are from the authors' code, which limits each variable's norm,
    not that of all actors or critics; there are neither ensembles of policies nor inferred policies of other agents.

    The model has `policy(obs)`, logits `[batch, agents, act_dim]` or actions in [-1, 1] of joint observations;
    `value(obs, action, agent)`, one agent's values `[batch]` or `[batch, 1]` of joint observations and actions
    `[batch, agents, act_dim]`; `get_actor_params()` and `get_critic_params()`. `parl.networks.for_team` makes such
    models of the kind "actor-critic". A class that defines `values(obs, action)` beside `value` computes the values of
    all agents there, `[batch, agents]`, of one joint action, or of one for each critic, `[agents, batch, agents,
    act_dim]`.

    Given `agent_index`, it is PARL 2.x's form, one algorithm per agent: `OneAgentMADDPG`.

    Args:
        model: Actors and critics of all agents; a target model is copied from it.
        agent_index: The agent's number in the lists, in PARL 2.x's form only.
        act_space: The action spaces of all agents, in PARL 2.x's form only.
        gamma: Discount of one step, in [0, 1]; default 0.95 (authors' code).
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.01 (authors'
            code).
        actor_lr: Learning rate of the actors' Adam, above 0, or a schedule; default 1e-2 (paper, appendix A).
        critic_lr: The learning rate of the critics' Adam, likewise; default 1e-2 (paper).
        continuous: Whether actions are numbers; default: that of the model (`action_kind`), else False.
        temperature: The temperature of the Gumbel-softmax, above 0; default 1 (authors' code).
        policy_decay: Weight of the mean square of each policy's outputs, at least 0; default 1e-3 (authors' code).
        max_grad_norm: Limit of the norm of all actors' gradients, and of all critics', `math.inf` or None for none;
            default 0.5 (authors' code).
        optimizer: `{"actor": ..., "critic": ...}`, see `DDPG`; default Adam.
        device: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks one of its methods.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"gamma": 0.95, "tau": 0.01, "actor_lr": 1e-2, "critic_lr": 1e-2}
    METHODS: ClassVar[tuple[str, ...]] = ("policy", "value", "get_actor_params", "get_critic_params")
    TEAM: ClassVar[str | None] = "actor-critic"
    ONE_AGENT_FORM: "ClassVar[type[Any] | None]" = None
    """The class of PARL 2.x's form, which the constructor of this class (but not of subclasses) may return."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        form = vars(cls).get("ONE_AGENT_FORM")
        if form is not None and (len(args) > 1 or kwargs.get("agent_index") is not None):
            return form(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        model: Model,
        agent_index: int | None = None,
        act_space: Sequence[Any] | None = None,
        gamma: float | None = None,
        tau: float | None = None,
        actor_lr: Scheduled | None = None,
        critic_lr: Scheduled | None = None,
        *,
        continuous: bool | None = None,
        temperature: float = 1.0,
        policy_decay: float = 1e-3,
        max_grad_norm: float | None = _CLIP,
        optimizer: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        if agent_index is not None or act_space is not None:
            form = self.ONE_AGENT_FORM or OneAgentMADDPG
            raise HyperparameterError(
                "agent_index and act_space belong to PARL 2.x's form, one algorithm per agent; a subclass of MADDPG "
                f"learns for all agents: derive it from {form.__module__}.{form.__name__}, or leave them out"
            )
        self.temperature = check_positive("temperature", temperature)
        self.policy_decay = check_non_negative("policy_decay", policy_decay)
        self.max_grad_norm = check_limit("max_grad_norm", max_grad_norm)
        kind = getattr(model, "action_kind", None)
        kind = kind if isinstance(kind, ActionKind) else ActionKind()
        own = kind.continuous and kind.nvec is None
        used = kind.used_array()
        self._shares = None if used is None else used / used.sum(axis=2, keepdims=True)
        self.continuous = bool(own if continuous is None else continuous)
        super().__init__(model, gamma, tau, actor_lr, critic_lr, optimizer=optimizer, device=device)

    @property
    def ACTS_IN_UNIT_BOX(self) -> bool:  # type: ignore[override]  # noqa: N802 - a class's constant elsewhere
        """True if actions are numbers in [-1, 1]."""
        return self.continuous

    @learns_from(Transitions, keywords=("weights", "discount", "actor_lr", "critic_lr"))
    def learn(self, batch: Transitions, *, actor_lr: float | None = None, critic_lr: float | None = None) -> Any:
        """Take one step of all critics and one of all actors, and move the target.

        Args:
            batch: Tensors, with joint observations. `reward` and `discount` are not used: each agent's own rewards are
                in the observations. Where `terminal` is 1, the step ends the episode of all agents.
            actor_lr: Learning rate of the actors for this step; default the constructor's.
            critic_lr: Learning rate of the critics for this step; default the constructor's.

        Returns:
            (critic_loss, actor_loss), detached scalars, sums over the agents.
        """
        actor_lr = self._now("actor_lr", self.actor_lr, actor_lr)
        critic_lr = self._now("critic_lr", self.critic_lr, critic_lr)
        noise = None if self.continuous else (self._gumbel(batch), self._gumbel(batch))
        of_critics, of_actors = noise or (None, None)
        critic_loss, _ = self._descend(self.critic_optimizer, self.critic_loss, batch, of_critics, lr=critic_lr)
        actor_loss, _ = self._descend(self.actor_optimizer, self.actor_loss, batch, of_actors, lr=actor_lr)
        self.sync_target()
        self._call_after_update(self._count_update)
        return critic_loss, actor_loss

    def check_batch(self, batch: Transitions) -> Transitions:
        """Return a batch of arrays with joint observations.

        Raises:
            ValueError: Its observations are not joint ones, or actions do not fit.
        """
        self._require_joint(batch)
        n, agents = batch.obs["alive"].shape
        action = np.asarray(batch.action)
        if self.continuous:
            width = action.size // max(n * agents, 1)
            if action.dtype.kind != "f" or action.shape not in ((n, agents, width), (n, agents * width)):
                raise ValueError(
                    f"action must hold numbers [{n}, {agents} * act_dim], got {action.dtype} {action.shape}"
                )
            return batch.made(**{**batch.__dict__, "action": action.reshape(n, agents, width)})
        if action.dtype.kind not in "iu" or action.shape != (n, agents):
            raise ValueError(f"action must hold choices [{n}, {agents}], got {action.dtype} {action.shape}")
        choices = batch.obs["action_mask"].shape[2]
        if action.size and (action.min() < 0 or action.max() >= choices):
            raise ValueError(f"action must be in 0..{choices - 1}, got {action.min()}..{action.max()}")
        return batch.made(**{**batch.__dict__, "action": action.astype(np.int64)})

    def choose(
        self,
        output: Any,
        *,
        rng: np.random.Generator | None = None,
        noise: float = 0.1,
        action_mask: Any = None,
        **options: Any,
    ) -> NDArray[Any]:
        """Return the actors' actions; with `rng`, numbers have Gaussian noise, and choices are drawn.

        Args:
            output: `[batch, agents, act_dim]`, logits or actions.
            rng: The generator to explore with.
            noise: Standard deviation for numbers, at least 0; default 0.1.
            action_mask: bool `[batch, agents, act_dim]`, True where a choice is possible.
            options: Further options of exploration; this algorithm has none.

        Returns:
            choices int64 `[batch, agents]`, or numbers `[batch, agents, act_dim]`.

        Raises:
            HyperparameterError: `noise` is negative.
        """
        super().choose(output, rng=rng, **options)
        if self.continuous:
            return np.asarray(output) if rng is None else noisy(output, noise, rng)
        logits = np.asarray(output, np.float64)
        if rng is not None:
            logits = logits + rng.gumbel(size=logits.shape)
        if action_mask is not None:
            logits = np.where(check_mask(action_mask), logits, -np.inf)
        return np.asarray(logits.argmax(axis=-1), np.int64)

    def settle_shapes(self, obs: Any, action: Any) -> None:
        """Run the critics once where they have lazily shaped layers."""
        if self.model._waiting():
            with self._trying_out(obs, np.zeros((len(action), 1), np.float32)) as (rows, _, _):
                acts = self.model.policy(rows)
                for agent in range(int(acts.shape[1])):
                    self.model.value(rows, acts, agent)
        super().settle_shapes(obs, action)

    def _fitted(self, batch: Transitions) -> Transitions:
        self._require_joint(batch)
        return super()._fitted(batch) if self.continuous else batch  # choices are not outputs of the policy

    def _require_joint(self, batch: Transitions) -> None:
        """Reject observations that lack a part of joint observations, or the mask if actions are choices."""
        parts = ("obs", "alive", "rewards", "terminated", *(() if self.continuous else ("action_mask",)))
        for name, obs in (("obs", batch.obs), ("next_obs", batch.next_obs)):
            if not isinstance(obs, Mapping) or not set(parts) <= set(obs):
                raise ValueError(
                    f"{name} must be joint observations, dictionaries with {', '.join(parts)}, as parl.env.JointEnv "
                    "gives them"
                )

    def _values(self, model: Any, obs: Any, action: Any) -> Any:
        """Return all agents' values `[batch, agents]` of one joint action, or of a joint action for each critic."""
        if _defines_values(type(model)):
            return model.values(obs, action)
        agents = int(action.shape[-2])
        each = [action] * agents if len(action.shape) == 3 else action
        return self._side_by_side([model.value(obs, each[agent], agent) for agent in range(agents)])

    def _mean_square(self, policy: Any) -> Any:
        """Return the mean square `[batch, agents]` of the policies' outputs, without padding."""
        squares = policy.square()
        return squares.mean(2) if self._shares is None else (squares * self._tensor(self._shares)).sum(2)

    def _side_by_side(self, columns: list[Any]) -> Any:
        """Backend hook: return `[batch, columns]` of columns `[batch]` or `[batch, 1]`."""
        raise NotImplementedError

    def _gumbel(self, batch: Transitions) -> Any:
        """Backend hook: return Gumbel noise, of the shape of the policy's logits."""
        raise NotImplementedError


def _defines_values(model: type) -> bool:
    """Return whether the class that defines `value` also defines `values`, because a subclass may override only one."""
    defines = next(vars(kind) for kind in model.__mro__ if "value" in vars(kind))
    return "values" in defines


class OneAgentMADDPG(CountingUpdates):
    """MADDPG of one agent, as in PARL 2.x: `MADDPG(model, agent_index, act_space, gamma, tau, ...)` makes one.

    The program asks every agent for its next action, `sample(obs, use_target_model=True)`, computes
    `reward + gamma * (1 - terminal) * Q(next_obs_n, next_act_n, use_target_model=True)` and passes it to `learn`.

        critic loss = mean((Q(obs_n, act_n) - target_q)^2)
        actor loss  = -mean(Q(obs_n, act_n with the policy's action)) + 1e-3 * mean(policy(obs)^2)

    Gradients' norms are clipped at 0.5. The model has `policy(obs)`, logits, or (mean, logarithm of the standard
    deviation) of continuous actions; `value(obs_n, act_n)` of lists with one tensor per agent; `get_actor_params()` and
    `get_critic_params()`.

    Args:
        model: Actor and critic of this agent; a target model is copied from it.
        agent_index: The agent's number in the lists, counted from 0.
        act_space: Action spaces of all agents; actions are continuous if the first space is a Box.
        gamma: Discount of one step, in [0, 1]; default 0.95; only the program uses it.
        tau: The share of the way that the target moves to the model in each step, in (0, 1]; default 0.01.
        actor_lr: Learning rate of the actor's Adam, above 0, or a schedule; default 1e-2.
        critic_lr: The learning rate of the critic's Adam, likewise; default 1e-2.
        device: See `parl.Algorithm`.

    Raises:
        HyperparameterError: A setting is out of range.
        ModelContractError: The model lacks one of its methods.
    """

    target_model: Any
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        agent_index: int,
        act_space: Sequence[Any] | None = None,
        gamma: float = 0.95,
        tau: float = 0.01,
        actor_lr: Scheduled = 1e-2,
        critic_lr: Scheduled = 1e-2,
        *,
        device: str = "auto",
    ) -> None:
        self.agent_index = check_int("agent_index", agent_index, at_least=0)
        self.act_space = list(act_space or [])
        self.continuous_actions = bool(self.act_space) and hasattr(self.act_space[0], "high")
        self.gamma, self.tau = check_fraction("gamma", gamma), check_fraction("tau", tau)
        if self.tau == 0.0:
            raise HyperparameterError("tau must be above 0, else the target never moves; a usual value is 0.01")
        self.actor_lr = check_schedule("actor_lr", actor_lr, check_positive)
        self.critic_lr = check_schedule("critic_lr", critic_lr, check_positive)
        for method in MADDPG.METHODS:
            first_method(model, (method,), "MADDPG")
        super().__init__(model, device=device)
        self.target_model = self._new_target()
        self.actor_optimizer = self._adam(
            self.model, lr=self._at_start(self.actor_lr), max_grad_norm=_CLIP, part=self._actors
        )
        self.critic_optimizer = self._adam(
            self.model, lr=self._at_start(self.critic_lr), max_grad_norm=_CLIP, part=self._critics
        )

    def predict(self, obs: Any) -> Any:
        """Return the action without noise: probabilities `[batch, act_dim]`, or numbers in [-1, 1]."""
        with self._no_gradients():
            return self._action(self.model.policy(obs), drawn=False)

    def sample(self, obs: Any, use_target_model: bool = False) -> Any:
        """Return an action with noise: a point on the simplex `[batch, act_dim]`, or numbers in [-1, 1].

        Args:
            obs: The observations of this agent, `[batch, ...]`.
            use_target_model: True to act with the target's policy.
        """
        return self._action((self.target_model if use_target_model else self.model).policy(obs), drawn=True)

    def Q(self, obs_n: Sequence[Any], act_n: Sequence[Any], use_target_model: bool = False) -> Any:  # noqa: N802 - PARL's
        """Return this agent's values of the observations and actions of all agents.

        Args:
            obs_n: One tensor `[batch, ...]` per agent.
            act_n: One tensor of actions `[batch, ...]` per agent.
            use_target_model: Whether to use the target's critic.
        """
        return (self.target_model if use_target_model else self.model).value(list(obs_n), list(act_n))

    def learn(self, obs_n: Sequence[Any], act_n: Sequence[Any], target_q: Any) -> Any:
        """Take one step of the actor and one of the critic, move the target, and return the critic's loss.

        Args:
            obs_n: One tensor `[batch, ...]` per agent.
            act_n: One tensor of actions `[batch, ...]` per agent; discrete actions as points on the simplex.
            target_q: The target values of this agent, `[batch]` or `[batch, 1]`.

        Raises:
            ValueError: `target_q` has another shape.
        """
        shape, batch = tuple(target_q.shape), int(obs_n[0].shape[0])
        if shape not in ((batch,), (batch, 1)):
            raise ValueError(
                f"target_q must be [{batch}] or [{batch}, 1], got {list(shape)}; rewards [batch] and values [batch, 1] "
                "make a matrix of all pairs: give both one shape, for instance by q.reshape(reward.shape)"
            )
        actor_lr, critic_lr = self._now("actor_lr", self.actor_lr), self._now("critic_lr", self.critic_lr)
        self.actor_optimizer.minimize(self._actor_loss(list(obs_n), list(act_n)), actor_lr)
        q = self.Q(obs_n, act_n)
        loss = ((q - target_q.detach().reshape(q.shape)) ** 2).mean()
        self.critic_optimizer.minimize(loss, critic_lr)
        self.sync_target()
        self._count_update()
        return loss.detach()

    def sync_target(self, decay: float | None = None) -> None:
        """Move the target model: target = decay * target + (1 - decay) * model; default 1 - tau."""
        self.model.sync_weights_to(self.target_model, 1.0 - self.tau if decay is None else decay)

    def _actor_loss(self, obs_n: list[Any], act_n: list[Any]) -> Any:
        output = self.model.policy(obs_n[self.agent_index])
        acts = list(act_n)
        acts[self.agent_index] = self._action(output, drawn=True)
        outputs = output if isinstance(output, tuple) else (output,)
        square = sum((part**2).sum() for part in outputs) / sum(int(np.prod(part.shape)) for part in outputs)
        return -self.Q(obs_n, acts).mean() + 1e-3 * square

    def _actors(self) -> Iterable[Any]:
        return self.model.get_actor_params()  # type: ignore[no-any-return]

    def _critics(self) -> Iterable[Any]:
        return self.model.get_critic_params()  # type: ignore[no-any-return]

    def _action(self, output: Any, *, drawn: bool) -> Any:
        """Backend hook: return the action of a policy's output, with noise if it is drawn."""
        raise NotImplementedError

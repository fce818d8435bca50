"""The contract of QMIX and VDN: decentralised agents that learn from the value of joint actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_fraction, first_method
from parl_core.contracts._base import Scheduled
from parl_core.contracts.batches import Batch, Sequences, learns_from
from parl_core.contracts.dqn import DQN, SyncEvery
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Model
from parl_core.recurrent import State, has_memory

__all__ = ["QMIX", "VDN", "Team", "TeamEpisodes"]


@dataclass(frozen=True)
class TeamEpisodes(Batch):
    """A batch of episodes of a team, padded to T steps, as in PARL 2.x's QMIX.

    Attributes:
        global_state: `[n, T, state_dim]`.
        action: int64 `[n, T, agents]`.
        reward: rewards of the team, `[n, T]` or `[n, T, 1]`.
        terminated: 1 where a step terminated its episode, likewise.
        obs: `[n, T, agents, obs_dim]`.
        action_mask: 1 where an action is possible, `[n, T, agents, act_dim]`.
        filled: 1 for padding and 0 for steps, as in PARL 2.x.
    """

    global_state: Any
    action: Any
    reward: Any
    terminated: Any
    obs: Any
    action_mask: Any
    filled: Any

    ELSEWHERE = frozenset({"extra"})

    def sequences(self, gamma: float) -> Sequences:  # type: ignore[override]  # this kind has no rows to pick
        """Return the episodes as `Sequences` of joint observations.

        The last row of an episode is learned from if it terminates the episode; otherwise it only serves to bootstrap
        from.
        """
        count, steps, agents = self.action.shape[:3]
        rows = count * steps
        flags = {
            name: np.asarray(getattr(self, name), np.float32).reshape(count, steps)
            for name in ("reward", "terminated", "filled")
        }
        padded_next = np.append(flags["filled"][:, 1:], np.ones((count, 1), np.float32), axis=1)
        learned = (1.0 - flags["filled"]) * np.maximum(flags["terminated"], 1.0 - padded_next)
        places = np.arange(rows).reshape(count, steps)
        ahead = np.minimum(places + 1, places[:, -1:]).reshape(-1)
        return Sequences.made(
            obs={
                "obs": np.asarray(self.obs).reshape(rows, agents, -1),
                "state": np.asarray(self.global_state).reshape(rows, -1),
                "action_mask": np.asarray(self.action_mask).reshape(rows, agents, -1),
            },
            action=np.asarray(self.action).reshape(rows, agents).astype(np.int64),
            reward=flags["reward"].reshape(-1),
            discount=(gamma * (1.0 - flags["terminated"])).reshape(-1).astype(np.float32),
            ahead=ahead,
            weights=(learned * (learned.size / max(learned.sum(), 1.0))).reshape(-1).astype(np.float32),
            begins=np.zeros(rows, np.bool_),
            state={},
        )


class Team(Model):
    """The agents' network and the mixing network as one model, which is updated, copied and saved as a unit.

    An agents' network of PARL 2.x, `forward(obs, hidden)` with `init_hidden()`, becomes a model with a memory.
    """

    def __init__(self, agents: Any, mixer: Any) -> None:
        super().__init__()
        self.agents = agents
        self.mixer = mixer
        self.obs_ndim = getattr(agents, "obs_ndim", None)
        self._old = agents.implements("init_hidden")
        self._count = int(getattr(mixer, "n_agents", None) or 0)

    @property
    def remembers(self) -> bool:
        """Return whether the agents have a memory."""
        return self._old or has_memory(self.agents)

    def initial_state(self, rows: int) -> dict[str, Any]:
        """Return the state before the first step of an episode, `[rows, agents, ...]` by name."""
        if not self._old:
            found: dict[str, Any] = self.agents.initial_state(rows)
            return found
        size = int(self.agents.init_hidden().shape[-1])
        return {"hidden": np.zeros((rows, self._count, size), np.float32)}

    def remember(self, obs: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return joint observations with features instead of the agents' observations, and the state after them."""
        if not self._old:
            found: tuple[Any, dict[str, Any]] = self.agents.remember(obs, state, begins)
            return found
        seen, hidden = obs["obs"], state["hidden"]
        rows, agents = hidden.shape[0], hidden.shape[1]
        steps = seen.reshape([rows, -1, agents, seen.shape[-1]])
        values = []
        for step in range(steps.shape[1]):
            if begins is not None:
                began = begins.reshape([rows, -1])[:, step].reshape([rows, 1, 1])
                hidden = hidden * (1.0 - self._as_numbers(began, hidden))
            inputs = steps[:, step].reshape([rows * agents, seen.shape[-1]])
            q, after = self.agents.forward(inputs, hidden.reshape([rows * agents, -1]))
            hidden = after.reshape([rows, agents, -1])
            values.append(q.reshape([rows, agents, -1]))
        return {**obs, "obs": self._side_by_side(values)}, {"hidden": hidden}

    def value(self, features: Any) -> Any:
        """Return each agent's action values `[batch, agents, act_dim]`."""
        return features["obs"] if self._old else self.agents.value(features)

    def mixed(self, values: Any, state: Any) -> Any:
        """Return the team's values `[batch]`.

        Args:
            values: values of the agents, `[batch, agents]`.
            state: `[batch, state_dim]`.
        """
        rows = values.shape[0]
        total = self.mixer.forward(values.reshape([rows, 1, -1]), state.reshape([rows, 1, -1]))
        return total.reshape([rows])

    def _as_numbers(self, flags: Any, like: Any) -> Any:
        """Backend hook: return flags as numbers of the dtype of a tensor."""
        raise NotImplementedError

    def _side_by_side(self, steps: Any) -> Any:
        """Backend hook: concatenate tensors `[rows, ...]` of T steps to `[rows * T, ...]`."""
        raise NotImplementedError


class QMIX(DQN):
    """Monotonic value factorisation for teams with discrete actions (Rashid et al. 2018, arXiv:1803.11485).

        team value = mixer(Q_1(o_1, a_1), ..., Q_n(o_n, a_n); state)
        target     = reward + discount * target mixer(max_a Q'_i(next o_i, a); next state)
        loss       = mean over steps that are not padding of (team value - target)**2

    It learns from `Sequences` of joint observations (`parl_core.env.joint`): whole episodes, padded, as
    `parl_core.replay.EpisodeReplayMemory` draws them, or pieces of a fixed length. The value of an agent that is not in
    the episode is 0; an agent that was truncated is bootstrapped from its last observation, one that has terminated
    is not. Impossible actions are neither chosen nor bootstrapped from.

    A monotonic mixer underestimates the best joint action where a single agent that departs from it is punished. With
    `overestimate_weight` below 1, the optimistic weighting of Weighted QMIX (Rashid et al. 2020, arXiv:2006.10800),
    rows whose team value is above the target count less, and the best joint action can win:

        loss = mean of w * (team value - target)**2, w = 1 where team value < target, else overestimate_weight

    Unlike there, targets do not come from an unrestricted central critic. In games of one step they are the rewards,
    and the loss is the paper's; in longer ones with deterministic rewards and transitions, the greatest team value
    tends to that of the best joint action as the weight goes to 0. In stochastic games, team values tend to the
    luckiest outcome, and so do the targets that bootstrap from them, which the paper's critic prevents.

    Deviations from the paper: double Q-learning (as in Samvelyan et al. 2019, section 2.3), Adam instead of RMSProp,
    and agents that have left count as 0. Unlike in PARL 2.x, the step that ends an episode is learned from.

    The agents' network has `value(obs)`, `[batch, agents, act_dim]` of joint observations, and where it has a memory
    `initial_state` and `remember`, as those of `parl.networks.for_team`; or PARL 2.x's `forward(obs, hidden)` and
    `init_hidden()`. The mixing network is called with `[batch, T, agents]` and `[batch, T, state_dim]`, and has, for
    PARL 2.x's agents, `n_agents`.

    Args:
        agent_model: the agents' network.
        qmixer_model: the mixing network, such as `parl.networks.QMixer`.
        double_q: double Q-learning; default True (PARL's).
        gamma: discount of one step, in [0, 1]; default 0.99 (paper).
        lr: learning rate of Adam, above 0, or a schedule of the updates taken; default 5e-4 (paper).
        clip_grad_norm: limit of the gradients' global norm, above 0; default: no limit (PyMARL: 10).
        sync_every: updates between two copies of the target; default 200 (paper: 200 episodes). None: only
            `sync_target()` moves it, as in PARL 2.x.
        tau: step size of each of these moves, in (0, 1]; default 1, a copy.
        overestimate_weight: weight of rows whose team value is above the target, in (0, 1]; default 1, QMIX itself
            (Weighted QMIX: 0.5 in SMAC, 0.1 where agents that act alone are punished).
        eps: epsilon of Adam; default 1e-8.
        optimizer: one of `parl.optim` or of the framework, made from the parameters of both networks; default Adam.
        device: see `parl.Algorithm`.

    Raises:
        HyperparameterError: a setting is out of range.
        ModelContractError: a network lacks one of its methods.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {**DQN.DEFAULTS, "lr": 5e-4}
    FIGURES: ClassVar[tuple[str, ...]] = ("loss", "mean_td_error")
    NAMED: ClassVar[frozenset[str]] = frozenset({"mean_td_error"})
    TEAM: ClassVar[str | None] = "q"
    NEEDS_SEQUENCES: ClassVar[bool] = True
    CHOOSES: ClassVar[bool] = False

    def __init__(
        self,
        agent_model: Model,
        qmixer_model: Model,
        double_q: bool = True,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        clip_grad_norm: float | None = None,
        *,
        sync_every: SyncEvery = 200,
        tau: float | None = None,
        overestimate_weight: float = 1.0,
        eps: float = 1e-8,
        optimizer: Any = None,
        device: str = "auto",
    ) -> None:
        name = type(self).__name__
        if not agent_model.implements("init_hidden"):
            first_method(agent_model, ("value",), name, self.TEAM)
        elif not isinstance(getattr(qmixer_model, "n_agents", None), int):
            raise ModelContractError(
                f"{name} needs the number of agents for their hidden states: give {type(qmixer_model).__name__} the "
                "attribute n_agents, for instance by self.n_agents = n_agents in its __init__"
            )
        first_method(qmixer_model, ("forward",), f"{name} (qmixer_model)")
        self.overestimate_weight = check_fraction("overestimate_weight", overestimate_weight)
        if self.overestimate_weight == 0.0:
            raise HyperparameterError(
                "overestimate_weight must be above 0, otherwise team values only grow; a usual value is 0.1"
            )
        super().__init__(
            self._team(agent_model, qmixer_model),
            gamma,
            lr,
            double=double_q,
            sync_every=sync_every,
            tau=tau,
            eps=eps,
            max_grad_norm=clip_grad_norm,
            optimizer=optimizer,
            device=device,
        )
        self._clip_grad_norm = clip_grad_norm

    @property
    def agent_model(self) -> Any:
        """The agents' network."""
        return self.model.agents

    @property
    def qmixer_model(self) -> Any:
        """The mixing network."""
        return self.model.mixer

    @property
    def n_agents(self) -> int | None:
        """The number of agents of the mixing network; None if it does not have one."""
        found: int | None = getattr(self.qmixer_model, "n_agents", None)
        return found

    @property
    def double_q(self) -> bool:
        """True if it learns by double Q-learning; PARL 2.x's name for `double`."""
        return self.double

    @property
    def clip_grad_norm(self) -> float | None:
        """The limit of the gradients' global norm, as passed to the constructor."""
        return self._clip_grad_norm

    @property
    def params(self) -> list[Any]:
        """The trainable tensors of both networks, as PARL 2.x lists them."""
        return [*self.agent_model.parameters(), *self.qmixer_model.parameters()]

    @property
    def target_agent_model(self) -> Any:
        """The agents' network of the target."""
        return self.target_model.agents

    @property
    def target_qmixer_model(self) -> Any:
        """The mixing network of the target."""
        return self.target_model.mixer

    def _init_hidden_states(self, batch_size: int) -> None:
        """Set `hidden_states` to those before an episode, `[batch_size, agents, size]`, for agents of PARL 2.x."""
        self.hidden_states = self._tensor(self.model.initial_state(batch_size)["hidden"])

    def predict_local_q(self, obs: Any, hidden: Any) -> Any:
        """Return the outputs of an agents' network of PARL 2.x: action values `[n, act_dim]`, and the next hidden
        state.

        Args:
            obs: `[n, obs_dim]`.
            hidden: `[n, size]`.

        Raises:
            ModelContractError: the network has no `init_hidden`; `Agent.predict` acts with it.
        """
        if not self.agent_model.implements("init_hidden"):
            raise ModelContractError(
                f"predict_local_q is for networks with forward(obs, hidden) and init_hidden(), "
                f"{type(self.agent_model).__name__} is not one: act with agent.predict(obs) and agent.sample(obs)"
            )
        with self._no_gradients():
            return self.agent_model.forward(obs, hidden)

    def predict(self, obs: Any) -> Any:
        """Return each agent's action values `[batch, agents, act_dim]`."""
        return self.model.value(obs)

    @learns_from(
        TeamEpisodes,
        names={
            "state": "global_state",
            "actions": "action",
            "reward": "reward",
            "terminated": "terminated",
            "obs": "obs",
            "available_actions": "action_mask",
            "filled": "filled",
        },
        settings=("learning_rate",),
    )
    def learn(self, batch: Any, learning_rate: float | None = None) -> Any:
        """Take one step on sequences, `learn(batch, learning_rate=None)`, or on episodes as PARL 2.x does.

        Args:
            batch: `Sequences` of joint observations; the state before them may be empty for zeros.
            learning_rate: learning rate for this step; default the constructor's.

        Returns:
            (loss, mean of target - team value), detached scalars.
        """
        if isinstance(batch, TeamEpisodes):
            batch = self._on_device(self.check_batch(batch.map(self._array)))
        rate = self.lr
        if learning_rate is not None or callable(rate):
            rate = self._now("lr", rate, learning_rate, given_as="learning_rate")
        loss, figures = self._descend(self.optimizer, self.loss, batch, lr=rate)
        self._call_after_update(self._count_update)
        return loss, figures["mean_td_error"]

    def check_batch(self, batch: Any) -> Sequences:
        """Return sequences of arrays, with the state before them.

        Raises:
            ValueError: they are not sequences, or the numbers of actions and agents differ.
        """
        given = batch.sequences(self.gamma) if isinstance(batch, TeamEpisodes) else batch
        found: Sequences = self._fitted(given)
        if self.remembers and not found.state:
            # A sequence ends with its first row that has no rows ahead.
            steps = int(np.argmax(found.ahead <= np.arange(len(found.ahead)))) + 1
            return found.made(**{**found.__dict__, "state": self.model.initial_state(len(found.action) // steps)})
        return found

    def _fitted(self, batch: Any) -> Any:
        if isinstance(batch, TeamEpisodes):
            return batch  # `learn` converts it to sequences
        if not isinstance(batch, Sequences):
            raise ValueError(f"{type(self).__name__} learns from Sequences or episodes, got {type(batch).__name__}")
        obs = batch.obs
        if not isinstance(obs, Mapping) or "obs" not in obs or "state" not in obs:
            raise ValueError(
                f"{type(self).__name__} learns from joint observations, dictionaries with obs and state, as "
                "parl.env.JointEnv gives them"
            )
        if tuple(batch.action.shape) != tuple(obs["obs"].shape[:2]):
            raise ValueError(
                f"action must have shape {list(obs['obs'].shape[:2])}, one per agent, got {list(batch.action.shape)}"
            )
        return batch

    def choose(
        self,
        output: Any,
        *,
        rng: np.random.Generator | None = None,
        epsilon: float = 0.1,
        action_mask: Any = None,
        **options: Any,
    ) -> NDArray[np.int64]:
        """Return the best action of each agent; with `rng` a random one with probability `epsilon` (default 0.1).

        Args:
            output: action values `[batch, agents, act_dim]`.
            rng: the generator to explore with; each agent explores independently.
            epsilon: probability of random actions in this call, in [0, 1].
            action_mask: bool `[batch, agents, act_dim]`, True where an action is possible.
            options: none.

        Raises:
            HyperparameterError: `epsilon` lies outside [0, 1].
        """
        batch, agents, act_dim = output.shape
        mask = None if action_mask is None else np.asarray(action_mask).reshape(-1, act_dim)
        flat = super().choose(output.reshape(-1, act_dim), rng=rng, epsilon=epsilon, action_mask=mask, **options)
        return flat.reshape(batch, agents)

    def settle_shapes(self, obs: Any, action: Any) -> None:
        """Run the mixing network once where it has lazily shaped layers."""
        if self.model._waiting():
            with self._trying_out(obs, np.zeros((len(action), 1), np.float32)) as (rows, _, _):
                self.model.mixed(self.model.value(rows)[:, :, 0], rows["state"])
        super().settle_shapes(obs, action)

    def _weighted(self, weights: Any, td_error: Any) -> Any:
        """Return the weights of rows in the loss, smaller where the team value is above the target."""
        if self.overestimate_weight == 1.0:
            return weights
        above = self.model._as_numbers(td_error < 0.0, td_error)
        return weights * (1.0 - (1.0 - self.overestimate_weight) * above)

    def _learns_with_memory(self, model: Any) -> bool:
        return bool(model.remembers)

    def _team(self, agents: Any, mixer: Any) -> Any:
        """Backend hook: return both networks as one model of the framework, a `Team`."""
        raise NotImplementedError


class VDN(QMIX):
    """Value decomposition (Sunehag et al. 2017, arXiv:1706.05296): `QMIX` whose mixing network is the sum.

    Args:
        agent_model: the agents' network; this and the following as in `QMIX`.
        double_q: double Q-learning.
        gamma: discount of one step.
        lr: learning rate.
        clip_grad_norm: limit of the gradients' global norm.
        sync_every: updates between two copies of the target.
        tau: step size of each of these moves.
        overestimate_weight: weight of rows whose team value is above the target.
        eps: epsilon of Adam.
        optimizer: the optimizer in place of Adam.
        device: see `parl.Algorithm`.
    """

    def __init__(
        self,
        agent_model: Model,
        double_q: bool = True,
        gamma: float | None = None,
        lr: Scheduled | None = None,
        clip_grad_norm: float | None = None,
        *,
        sync_every: SyncEvery = 200,
        tau: float | None = None,
        overestimate_weight: float = 1.0,
        eps: float = 1e-8,
        optimizer: Any = None,
        device: str = "auto",
    ) -> None:
        super().__init__(
            agent_model,
            self._sum(),
            double_q,
            gamma,
            lr,
            clip_grad_norm,
            sync_every=sync_every,
            tau=tau,
            overestimate_weight=overestimate_weight,
            eps=eps,
            optimizer=optimizer,
            device=device,
        )

    def _sum(self) -> Any:
        """Backend hook: return a `VDNMixer` of the framework."""
        raise NotImplementedError

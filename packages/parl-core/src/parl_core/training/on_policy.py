"""The on-policy loop: collect a rollout, estimate advantages, learn from it, discard it.

    envs <──── actions ──── RolloutCollector ───> RolloutSteps ──> gae ──> agent.learn_rollout
         ─── observations ──>                                              │
    callbacks <── Update, Evaluation, Ended ── Session <───────────────────┘

A vector may return tensors of a framework, as simulators on a GPU do. Observations and actions then stay tensors from
the environments to the update, and only numbers that exist once per step are copied to the host, once per rollout.

An array `x[t, i]` of a rollout belongs to step t of environment i; with several agents `x[t, i, k]` belongs to agent k,
whose episode ends when it leaves, and whose later rows are ignored. `next_value[t, i]` is the value of the
observation after the step: after a truncation that of the episode's last observation, not that of the next
episode's first one. This module does not depend on a framework, on the location of environments, or on files.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from parl_core._deprecation import class_of_old_name
from parl_core._nested import Observations, holds_tensors, map_nested
from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.contracts import batches
from parl_core.contracts._base import check_stages
from parl_core.env._steps import ArraySpaces
from parl_core.env.autoreset import SameStep, in_same_step, require_vector
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.returns import gae
from parl_core.schedules import Scheduled
from parl_core.seeding import make_generator
from parl_core.spaces import with_named_parts
from parl_core.training._requirements import (
    RewardWatch,
    TargetWatch,
    check_outputs,
    require_agents,
    require_kinds,
    require_on_policy,
)
from parl_core.training.acting import (
    Acting,
    ExploringAgent,
    OnPolicyAgent,
    acts_in_unit_box,
    check_masks,
    check_observations,
    check_rewards,
    first_reset,
    into_space,
    last_observations,
    reset_with,
    tell_dimensions,
    tensors_into_space,
)
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode, RunningEpisodes
from parl_core.training.novelty import NoveltyReward
from parl_core.training.session import Session

__all__ = ["OnPolicySettings", "RolloutCollector", "RolloutSteps", "train_on_policy"]


Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RolloutSteps:
    """`T` steps of `N` environments; with several agents `[T, N]` is `[T, N, agents]` below, except for observations.

    Attributes:
        obs: `[T, N, *obs]`, or a dictionary of such: the observations for which actions were chosen; tensors if the
            environments return tensors.
        action: `[T, N, *act]`, as the policy drew it, before it was made valid in the action space; tensors likewise.
        log_prob: `[T, N]`, of the action under the policy that drew it.
        reward: `[T, N]`.
        value: `[T, N]`, of `obs`.
        next_value: `[T, N]`, of the observation that the step led to.
        terminated: `[T, N]`: the episode terminated.
        truncated: `[T, N]`: the episode was cut short, by a time limit for instance; `next_value` stands for the rest.
        episodes: The episodes that ended within the rollout.
        state: The state of a model with a memory before the first step of each sequence, `[sequences of one
            environment, N, ...]` by name; empty without a memory.
        active: Flags of the agents that acted; None with one agent.
    """

    obs: Observations
    action: npt.NDArray[Any]
    log_prob: Floats
    reward: Floats
    value: Floats
    next_value: Floats
    terminated: Bools
    truncated: Bools
    episodes: tuple[Episode, ...]
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    active: Bools | None = None


class RolloutCollector:
    """Steps a vector environment with an agent, and keeps its state between calls.

    Args:
        agent: The agent that chooses the actions.
        envs: A vector environment, such as that of `make_vector_env`; any autoreset mode is accepted.
        n_steps: Steps of every environment in one rollout.
        seed: The seed that the environments' seeds are derived from; None takes it from the system.
        sequence_length: Steps of the sequences for a model with a memory; None for a whole rollout.

    Raises:
        TypeError: The agent has no `explore`.
        HyperparameterError: The environments do not state their autoreset mode, their observations are neither arrays
            nor dictionaries of arrays, or they have one agent where the algorithm is for several.
        ModelContractError: The agent's policy has another number of outputs than the action space has choices.
    """

    def __init__(
        self,
        agent: ExploringAgent,
        envs: Any,
        n_steps: int,
        seed: int | None = None,
        *,
        sequence_length: int | None = None,
    ) -> None:
        if not hasattr(agent, "explore"):
            raise TypeError(
                "rollouts need an agent whose explore(obs) gives (value, action, log_prob), as parl.Agent has with PPO "
                f"or A2C; {type(agent).__name__} has none"
            )
        envs = with_named_parts(in_same_step(envs))
        if not _holds_arrays(envs.single_observation_space):
            raise HyperparameterError(
                f"rollouts hold observations that are an array or a dictionary of arrays, got "
                f"{envs.single_observation_space}; wrap the environment in gymnasium.wrappers.FlattenObservation"
            )
        tell_dimensions(agent, envs.single_observation_space)
        self._envs, self._n_steps, self._sequence = envs, n_steps, sequence_length or n_steps
        self._running = RunningEpisodes(envs.num_envs)
        self._into_space = into_space(envs.single_action_space, unit_box=acts_in_unit_box(agent))
        self._obs = first_reset(envs, seed)
        self._agents = require_agents(agent, envs.single_observation_space)
        self._watch = RewardWatch(agent)
        check_outputs(agent, self._obs, envs.single_action_space)
        self._acting = Acting(agent, envs.num_envs)
        self._alg: Any = None
        if holds_tensors(self._obs):
            self._take_tensors(agent)
        if sequence_length is not None and not self._acting.has_memory:
            raise HyperparameterError(
                f"sequence_length={sequence_length} is for models with a memory, and this agent's has none: leave it "
                f"out, or make the model with parl.networks.{'for_spaces' if self._agents is None else 'for_team'}"
                '(..., memory="gru")'
            )

    def collect(self) -> RolloutSteps:
        """Take `n_steps` steps in every environment.

        Raises:
            DivergedError: A reward or an observation is infinite or NaN; the message names its environment.
            EnvironmentContractError: A mask allows no action; the message names its environment.
            ModelContractError: The number of values differs from that of observations.
        """
        if self._alg is not None:
            return self._collect_tensors()
        each = (self._n_steps, self._envs.num_envs)
        shape = each if self._agents is None else (*each, self._agents)
        obs = map_nested(lambda first: np.empty((self._n_steps, *first.shape), first.dtype), self._obs)
        log_prob, reward, value = (np.empty(shape, np.float32) for _ in range(3))
        terminated, truncated = (np.empty(shape, np.bool_) for _ in range(2))
        active = None if self._agents is None else np.empty(shape, np.bool_)
        of_team = np.empty(each)
        actions: list[NDArray[Any]] = []
        episodes: list[Episode] = []
        # last observations of truncated episodes or agents, by step and environment
        last_seen: dict[tuple[int, int], Any] = {}
        acting, states = self._acting, []
        has_one_choice = isinstance(self._envs.single_action_space, gymnasium.spaces.Discrete)
        explore = acting.steady("explore", self._obs)
        for t in range(self._n_steps):
            if t % self._sequence == 0:
                states.append(acting.state)
            map_nested(lambda kept, now, t=t: np.copyto(kept[t], now), obs, self._obs)
            values, action, log_probs = explore(self._obs)
            if not t:
                _check_one_each(values, log_probs, shape[1:])
            value[t], log_prob[t] = values, log_probs
            actions.append(action)
            self._obs, rewards, over, cut, infos = self._envs.step(self._into_space(action))
            over, cut = np.asarray(over, np.bool_), np.asarray(cut, np.bool_)  # some vectors have 0 and 1
            if has_one_choice:
                check_masks(self._obs, True, "after the step just taken")
            ended = np.flatnonzero(over | cut)
            episodes += self._running.step(rewards, ended, infos)
            if active is None:
                reward[t], terminated[t], truncated[t] = rewards, over, cut
            else:
                check_rewards(rewards, "of the team in the rollout")
                of_team[t] = rewards
                active[t] = obs["alive"][t] != 0
                after = _parts_after(self._obs, ended, infos)
                reward[t], terminated[t], truncated[t] = _of_agents(active[t], after, over, cut)
            cut_short = ended[~over[ended]] if active is None else np.flatnonzero(truncated[t].any(axis=1))
            for i in cut_short.tolist():
                last = last_observations(infos)[i] if over[i] or cut[i] else _row(self._obs, i)
                last_seen[t, i] = acting.seen(last if active is None else _as_continued(last, active[t, i]), i)
            if ended.size:
                acting.begin(ended)
        check_rewards(reward, "of the rollout")
        if active is not None:
            self._watch.compare(of_team, reward, active)
        check_observations(obs, "of the rollout", leading=2)
        check_observations(self._obs, "after the rollout")
        next_value = np.empty_like(value)
        next_value[:-1] = value[1:]
        next_value[-1] = acting.value(acting.seen(self._obs))
        if last_seen:  # all truncations of the rollout in one call of the network
            rows, columns = zip(*last_seen, strict=True)
            stacked = map_nested(lambda *observations: np.stack(observations), *last_seen.values())
            last = stacked["obs"] if acting.has_memory else stacked
            check_observations(last, "at the end of an episode that was truncated", environments=columns)
            found = acting.value(stacked)
            if active is not None:  # the others' values are those of an episode that goes on without it
                found = np.where(truncated[rows, columns], found, next_value[rows, columns])
            next_value[rows, columns] = found
        state = map_nested(lambda *parts: np.stack(parts), *states)
        return RolloutSteps(
            obs,
            np.stack(actions),
            log_prob,
            reward,
            value,
            next_value,
            terminated,
            truncated,
            tuple(episodes),
            state,
            active,
        )

    @property
    def observations(self) -> Observations:
        """The newest observations `[N, *obs]`, after the last step."""
        return self._obs

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        self._obs = reset_with(self._envs, seeds)
        self._acting.begin()
        self._running.begin_again()

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; the environments' own state is not in it."""
        obs = self._obs if self._alg is None else map_nested(self._alg._array, self._obs)
        return {"obs": obs, **self._acting.get_state(), **self._running.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned, with environments that were brought to where they were."""
        self._obs = state["obs"] if self._alg is None else map_nested(self._alg._tensor, state["obs"])
        self._acting.set_state(state)
        self._running.set_state(state)

    def _take_tensors(self, agent: Any) -> None:
        """Prepare for environments that give tensors.

        Raises:
            HyperparameterError: They do not reset in the step that ends an episode, the model has a memory, or the
                action space does not support tensors.
        """
        if isinstance(self._envs, SameStep):
            raise HyperparameterError(
                f"{type(self._envs.unwrapped).__name__} gives tensors and resets in another step than the one that "
                "ends an episode: let it reset there, and set metadata['autoreset_mode'] to AutoresetMode.SAME_STEP"
            )
        if self._acting.has_memory:
            raise HyperparameterError(
                "models with a memory learn from environments that give arrays, these give tensors: wrap them so that "
                "they give arrays, or use a model without a memory"
            )
        self._alg, space = agent.alg, self._envs.single_action_space
        self._into_space = tensors_into_space(space, agent.alg, unit_box=acts_in_unit_box(agent))

    def _collect_tensors(self) -> RolloutSteps:
        agent, alg, shape = self._acting, self._alg, (self._n_steps, self._envs.num_envs)

        def kept(tensor: Any) -> Any:  # environments may go on to use its memory
            return alg._tensor(tensor).clone()

        def stacked(name: str) -> NDArray[Any]:
            array: NDArray[Any] = alg._array(alg._stacked(columns[name])).reshape(shape)
            return array

        columns: dict[str, list[Any]] = {
            name: [] for name in ("obs", "action", "log_prob", "value", "reward", "terminated", "truncated")
        }
        after: dict[int, tuple[Any, Any]] = {}  # of steps that ended episodes, where it is known: rows, and values
        for t in range(self._n_steps):
            obs = map_nested(kept, self._obs)
            value, action, log_prob = agent.explore(obs)
            self._obs, *outcome, infos = self._envs.step(self._into_space(action))
            if infos.get("final_obs") is not None:
                after[t] = self._values_of(infos["final_obs"])
            for name, column in zip(columns, (obs, action, log_prob, value, *map(kept, outcome)), strict=True):
                columns[name].append(column)
        all_obs = map_nested(lambda *parts: alg._stacked(parts), *columns["obs"])
        reward, log_prob, value = (stacked(name).astype(np.float32) for name in ("reward", "log_prob", "value"))
        terminated, truncated = (stacked(name).astype(np.bool_) for name in ("terminated", "truncated"))
        check_rewards(reward, "of the rollout")
        for part in (all_obs, self._obs):
            self._check_tensors(part, 2 if part is all_obs else 1)
        # Where a simulator does not tell an episode's last observation, the value of the one before stands for it.
        next_value = np.append(value[1:], alg._array(agent.value(self._obs)).reshape(1, -1), axis=0)
        next_value[truncated] = value[truncated]
        for t, (rows, values) in after.items():
            known = np.zeros(shape[1], np.float32)
            known[rows] = alg._array(values)
            next_value[t] = np.where(truncated[t], known, next_value[t])
        episodes: list[Episode] = []
        for rewards, over in zip(reward, terminated | truncated, strict=True):
            episodes += self._running.step(rewards, np.flatnonzero(over), {})
        action = alg._stacked(columns["action"])
        return RolloutSteps(
            all_obs, action, log_prob, reward, value, next_value, terminated, truncated, tuple(episodes)
        )

    def _values_of(self, final_obs: Any) -> tuple[Any, Any]:
        """Return the rows of the last observations in a step, and their values as a tensor.

        Args:
            final_obs: `[N, *obs]`, or a dictionary of such, where all rows are looked at; or a sequence of N, None
                where no episode ended, as Gymnasium's vectors have it.
        """
        if holds_tensors(final_obs):
            return slice(None), self._acting.value(final_obs)
        rows = [i for i, last in enumerate(final_obs) if last is not None]
        each = [map_nested(self._alg._tensor, final_obs[i]) for i in rows]
        return rows, self._acting.value(map_nested(lambda *parts: self._alg._stacked(parts), *each))

    def _check_tensors(self, obs: Observations, leading: int) -> None:
        """Reject observations that are not finite, and bring them to the host only then."""
        sums: list[float] = []

        def watched(tensor: Any) -> None:
            if tensor.is_floating_point():
                sums.append(float(self._alg._array((tensor - tensor).sum())))

        map_nested(watched, obs)
        if any(map(np.isnan, sums)):
            when = "of the rollout" if leading > 1 else "after the rollout"
            check_observations(map_nested(self._alg._array, obs), when, leading=leading)


def _check_one_each(values: Any, log_probs: Any, shape: tuple[int, ...]) -> None:
    """Reject values or log-probabilities that are not one for each observation; numpy would repeat a single one.

    Raises:
        ModelContractError: It names both shapes, and what usually leads to them.
    """
    for name, found in (("values", values), ("log-probabilities", log_probs)):
        if np.shape(found) not in ((), shape):
            raise ModelContractError(
                f"explore gave {name} {list(np.shape(found))} for observations of {list(shape)}: the model's "
                "value(obs) has to return one number per row, [batch] or [batch, 1], and its policy(obs) one row each"
            )


def _parts_after(obs: Mapping[str, Any], ended: NDArray[np.int64], infos: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the joint observations to which a step led: the last ones where episodes ended, not those after resets."""
    parts = {name: np.array(obs[name]) for name in ("alive", "rewards", "terminated")}
    for i in ended.tolist():
        for name, array in parts.items():
            array[i] = last_observations(infos)[i][name]
    return parts


def _row(obs: Observations, i: int) -> Observations:
    """Return a copy of the observation of environment `i`; vectors may go on in the same arrays."""
    return map_nested(lambda now: np.array(now[i]), obs)


def _as_continued(last: Mapping[str, Any], active: Bools) -> Mapping[str, Any]:
    """Return the last joint observation of agents that were truncated, with those `alive` that would have acted next.

    These are the agents that acted, `active` `[agents]`, and have not terminated: the values of agents that see each
    other's actions are bootstrapped from an episode that goes on.
    """
    return {**last, "alive": np.maximum(last["alive"], active & (last["terminated"] == 0))}


def _of_agents(active: Bools, after: Mapping[str, Any], over: Bools, cut: Bools) -> tuple[Floats, Bools, Bools]:
    """Return the rewards of a step, and which agents terminated and which were truncated by it, each `[N, agents]`.

    An agent that is not in the episode counts as terminated: nothing flows through its rows. One that joins by the step
    does not, because the episode goes on for it.

    Args:
        active: A mask of the steps in which agents acted.
        after: The arrays `alive`, `rewards` and `terminated` after the step.
        over: `[N]`, environments that terminated.
        cut: `[N]`, those that were truncated.
    """
    gone = after["alive"] == 0
    ended = (~active & gone) | (after["terminated"] != 0) | over[:, None]
    left = ~ended & (gone | cut[:, None])
    return np.where(active, after["rewards"], 0.0).astype(np.float32), ended, left


def _holds_arrays(space: Any) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return bool(space.spaces) and all(_holds_arrays(part) for part in space.spaces.values())
    return isinstance(space, ArraySpaces)


@dataclass(frozen=True)
class OnPolicySettings:
    """Hyper-parameters of the loop; defaults are those of the PPO paper for MuJoCo (arXiv:1707.06347, table 3).

    Settings that are None keep the algorithm's own values. Learning rate, clip range and entropy coefficient
    may be schedules here: functions of the environment steps taken, such as `parl_core.schedules.linear(3e-4, 0, 1e6)`.

    Attributes:
        total_steps: Environment steps, over all environments; the last rollout is always completed.
        n_steps: Steps of every environment in one rollout.
        epochs: The passes over each rollout, by default 10 for PPO; A2C, PolicyGradient and COMA always take one.
        minibatch_size: Samples of one gradient step, by default 64 for PPO, the whole rollout for MAPPO and IPPO; it
            need not divide the rollout.
        gamma: Discount of the next step, in [0, 1].
        gae_lambda: The lambda of the advantages, in [0, 1]; 0 looks one step ahead, 1 to the end of the rollout.
            Default: for COMA its `td_lambda`, else 0.95 (Schulman et al. 2017, table 3).
        lr: Learning rate, or its initial value.
        clip: Clip range of PPO, or its initial value.
        decay: Whether learning rate and clip range go linearly to 0 over `total_steps`; schedules are not changed.
        entropy_coef: Weight of the entropy bonus, at least 0.
        target_kl: The KL divergence at which PPO's passes over a rollout end early; None for no limit.
        sequence_length: The steps of the sequences that a model with a memory learns from, each from the state that
            acted; it divides `n_steps`. Default: a whole rollout.
        bootstrap_truncated: Whether the value of the last observation stands for the rest of an episode that a time
            limit ended, as for tasks that continue (Pardo et al. 2018, arXiv:1712.00378). False: the limit is a
            termination, as for tasks of which it is a part.
    """

    total_steps: int = 1_000_000
    n_steps: int = 2048
    epochs: int | None = None
    minibatch_size: int | None = None
    gamma: float = 0.99
    gae_lambda: float | None = None
    lr: Scheduled | None = None
    clip: Scheduled | None = None
    decay: bool = False
    entropy_coef: Scheduled | None = None
    target_kl: float | None = None
    sequence_length: int | None = None
    bootstrap_truncated: bool = True

    def __post_init__(self) -> None:
        for name in ("total_steps", "n_steps"):
            check_int(name, getattr(self, name))
        for name in ("epochs", "minibatch_size", "sequence_length"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        if self.sequence_length is not None and self.n_steps % self.sequence_length:
            raise HyperparameterError(
                f"sequence_length must divide n_steps={self.n_steps}, got {self.sequence_length}: rollouts are cut "
                "into sequences of equal length"
            )
        check_fraction("gamma", self.gamma)
        if self.gae_lambda is not None:
            check_fraction("gae_lambda", self.gae_lambda)
        for name in ("lr", "clip", "entropy_coef"):
            if getattr(self, name) is not None:
                check = check_non_negative if name == "entropy_coef" else check_positive
                check_stages(name, getattr(self, name), check)
        if self.target_kl is not None:
            check_positive("target_kl", self.target_kl)
        if self.decay and self.lr is None:
            raise HyperparameterError("decay=True lets the number lr go to 0, got lr=None: give it, or decay=False")

    def with_total_steps(self, total_steps: int) -> "OnPolicySettings":
        """Return the same with another budget of environment steps."""
        return replace(self, total_steps=total_steps)

    def scheduled(self, step: int) -> dict[str, float]:
        """Return the given ones of learning rate, clip range and entropy coefficient after `step` environment steps.

        Raises:
            HyperparameterError: A schedule does not return a number of at least 0.
        """
        left = max(0.0, 1.0 - step / self.total_steps) if self.decay else 1.0
        values = {"lr": (self.lr, left), "clip": (self.clip, left), "entropy_coef": (self.entropy_coef, 1.0)}
        return {
            name: check_non_negative(name, value(step)) if callable(value) else value * factor
            for name, (value, factor) in values.items()
            if value is not None
        }


def train_on_policy(
    agent: OnPolicyAgent,
    envs: Any,
    settings: OnPolicySettings,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 2048,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    novelty: NoveltyReward | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on the experience of its own policy until the budget is used up or a callback stops it.

        agent = parl.Agent(parl.algorithms.PPO(parl.networks.ActorCritic(act_dim=2)), seed=0)
        settings = training.OnPolicySettings(total_steps=1_024, n_steps=128, lr=1e-3)
        with training.make_vector_env("CartPole-v1", num_envs=4) as envs:
            ended = training.train_on_policy(agent, envs, settings, seed=0)

    Args:
        agent: The agent that acts and learns; `parl.Agent` around PPO, A2C or PolicyGradient is one.
        envs: A vector environment, such as that of `make_vector_env`; the caller closes it.
        settings: Hyper-parameters of the loop.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Environment steps between evaluations, rounded up to whole rollouts.
        callbacks: The callbacks, called for every update and evaluation, and once at the end, however the loop ends.
        checkpoints: The object that writes checkpoints, and lets a resumed run continue from its newest one; None for
            neither.
        seed: The seed of the environments and of the order of minibatches. (The agent's own sampling is the backend's.)
        novelty: A second reward, for observations that are new.
        clock: The function that returns seconds from an arbitrary zero.

    Returns:
        how the loop ended.

    Raises:
        HyperparameterError: The algorithm does not learn on-policy, its targets differ from those of the settings, or a
            schedule leaves its range.
        CheckpointError: A checkpoint cannot be written, or the run's cannot be used.
        DivergedError: A loss or a weight is not finite; callbacks that save have not saved since.
        KeyboardInterrupt: Ctrl-C was pressed; raised after the callbacks were called.
        Exception: One of an environment, the agent or a callback, raised after the callbacks were called.
    """
    require_kinds("train_on_policy", agent, settings, OnPolicySettings)
    require_vector(envs)
    require_on_policy(agent)
    settings = _with_targets(agent, settings)
    rng = make_generator(seed)
    with Session(settings.total_steps, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as session:
        session.watch(envs, seed)
        collector = RolloutCollector(agent, envs, settings.n_steps, seed, sequence_length=settings.sequence_length)
        others = {"rng": rng} if novelty is None else {"rng": rng, "novelty": novelty}
        session.keep(LoopParts(cast("SavedAgent", agent), collector, others=others))
        target = TargetWatch(agent)
        while session.is_running:
            schedules = settings.scheduled(session.step)
            rollout = collector.collect()
            losses = agent.learn_rollout(
                _learnable(rollout, settings, novelty, collector.observations),
                epochs=settings.epochs,
                minibatch_size=settings.minibatch_size,
                rng=rng,
                target_kl=settings.target_kl,
                **schedules,
            )
            target.after_update()
            if novelty is not None:
                losses = {**losses, **novelty.learn(rng)}
            session.advance(settings.n_steps * envs.num_envs)
            session.report(losses, rollout.episodes, schedules)
            session.evaluate_when_due()
            session.checkpoint_when_due()
    return session.ended


def _with_targets(agent: Any, settings: OnPolicySettings) -> OnPolicySettings:
    """Return the settings with the lambda of an algorithm that has one, by which targets are estimated here.

    Raises:
        HyperparameterError: Targets would be others than the algorithm was made with; it names both.
    """
    algorithm = getattr(agent, "alg", None)
    own_lambda = getattr(algorithm, "td_lambda", None)
    if settings.gae_lambda is None:
        settings = replace(settings, gae_lambda=0.95 if own_lambda is None else own_lambda)
    for setting, own in (("gamma", "gamma"), ("gae_lambda", "td_lambda")):
        if own_lambda is not None and getattr(settings, setting) != getattr(algorithm, own):
            raise HyperparameterError(
                f"OnPolicySettings has {setting}={getattr(settings, setting)}, by which targets are estimated, and "
                f"{type(algorithm).__name__} was made with {own}={getattr(algorithm, own)}: give both the same"
            )
    return settings


def _learnable(
    rollout: RolloutSteps, settings: OnPolicySettings, novelty: NoveltyReward | None = None, last_obs: Any = None
) -> batches.Rollout:
    assert settings.gae_lambda is not None, "the loop has settled it"
    terminated, truncated = rollout.terminated, rollout.truncated
    if not settings.bootstrap_truncated:
        terminated, truncated = terminated | truncated, np.zeros_like(truncated)
    advantage = gae(
        rollout.reward,
        rollout.value,
        rollout.next_value,
        terminated,
        truncated,
        gamma=settings.gamma,
        lam=settings.gae_lambda,
    )
    returns = advantage + rollout.value
    if novelty is not None:
        advantage = novelty.advantage(advantage, rollout, last_obs)

    def rows(array: Any) -> Any:
        return array.reshape([array.shape[0] * array.shape[1], *array.shape[2:]])

    def sequences(array: Any) -> Any:
        """Return `[T, N, ...]` as rows, those of one environment one after another."""
        return rows(array.swapaxes(0, 1))

    ordered, memory = rows, {}
    if rollout.state:
        ended = rollout.terminated | rollout.truncated
        if rollout.active is not None:  # the state is reset with the team's episode, after all agents have left
            ended = np.asarray(ended.all(axis=2))
        ordered = sequences
        memory = {
            "begins": sequences(np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])),
            "state": {name: sequences(array) for name, array in rollout.state.items()},
        }
    kind: type[batches.Rollout] = batches.Rollout
    if rollout.active is not None:
        kind = batches.TeamRollout
        memory["active"] = ordered(rollout.active.astype(np.float32))
    return kind.made(
        obs=map_nested(ordered, rollout.obs),
        action=ordered(rollout.action),
        value=ordered(rollout.value),
        return_=ordered(returns),
        log_prob=ordered(rollout.log_prob),
        advantage=ordered(advantage),
        **memory,
    )


def __getattr__(name: str) -> type:
    return class_of_old_name(__name__, name, {"Rollout": RolloutSteps})

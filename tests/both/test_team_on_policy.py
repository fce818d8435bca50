"""The on-policy loop with several agents: targets of agents that leave, remote actors, resuming, and games that it
solves.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformReward

import parl
from parl_core.actors import InProcessActors, open_actors
from parl_core.contracts.batches import TeamRollout
from parl_core.env.joint import JointEnv, make_joint_env
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.seeding import seed_everything
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import evaluate
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, RolloutCollector, _learnable, train_on_policy
from parl_core.training.run import Run


class Leaving:
    """Two agents that see the step number. The first terminates in step 2, the second is truncated in step 4.

    Rewards are 1 and 10 times the number of the step, counted from 1.
    """

    possible_agents: tuple[str, ...] = ("first", "second")
    metadata: Mapping[str, Any] = {}
    render_mode = None
    ends = (2, 4)

    def __init__(self, joins_end: bool = True) -> None:
        self.agents: list[str] = []
        self._cuts_last = joins_end

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.at = list(self.possible_agents), 0
        return self._seen(), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.at += 1
        assert set(actions) == set(self.agents)
        names = list(self.agents)
        rewards = {name: float(self.at * 10 ** self.possible_agents.index(name)) for name in names}
        ended = {name: name == "first" and self.at == self.ends[0] for name in names}
        cut = {name: name == "second" and self.at == self.ends[1] for name in names}
        seen = self._seen()
        self.agents = [name for name in names if not (ended[name] or cut[name])]
        return seen, rewards, ended, cut, {name: {} for name in names}

    def _seen(self) -> dict[str, Any]:
        return {name: np.full(1, self.at, np.float32) for name in self.agents}

    def close(self) -> None:
        pass


class StepAgent:
    """Values are 100 times what is seen, plus 1 for the second agent; log-probabilities are 0."""

    class alg:  # noqa: N801 - an attribute of agents
        TEAM = "central"

    def explore(self, obs: Any) -> tuple[Any, Any, Any]:
        value = self.value(obs)
        return value, np.zeros(value.shape, np.int64), np.zeros_like(value)

    def value(self, obs: Any) -> Any:
        return 100.0 * obs["obs"][:, :, 0] + np.array([0.0, 1.0], np.float32)


class Relay(Leaving):
    """The first agent terminates in step 2, in which the second one joins; that one terminates in step 4."""

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.at = ["first"], 0
        return self._seen(), {"first": {}}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.at += 1
        (name,) = self.agents
        over = self.at in self.ends
        self.agents = [] if self.at == self.ends[1] else ["second"] if self.at >= self.ends[0] else ["first"]
        seen = {one: np.full(1, self.at, np.float32) for one in self.possible_agents}
        return seen, {name: 1.0}, {name: over}, {name: False}, {name: {}}


def test_nothing_ends_for_an_agent_that_joins() -> None:
    agent: Any = StepAgent()
    with make_vector_env(lambda: JointEnv(Relay()), 1) as envs:
        rollout = RolloutCollector(agent, envs, 5, seed=0).collect()
    assert rollout.active is not None
    assert rollout.active[:, 0].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [1, 0]]
    assert rollout.terminated[:, 0].tolist() == [[0, 1], [1, 0], [1, 0], [1, 1], [0, 1]]


def test_a_vector_that_continues_in_the_same_arrays_gives_the_same_rollout() -> None:
    agent: Any = StepAgent()
    rollouts = []
    for copy in (True, False):
        make = [lambda: JointEnv(Leaving())]
        with closing(SyncVectorEnv(make, copy=copy, autoreset_mode=AutoresetMode.SAME_STEP)) as envs:
            rollouts.append(RolloutCollector(agent, envs, 6, seed=0).collect())
    for name in ("active", "reward", "terminated", "truncated", "value", "next_value"):
        np.testing.assert_array_equal(*(getattr(rollout, name) for rollout in rollouts))


def test_targets_of_agents_that_leave_are_those_by_hand() -> None:
    agent: Any = StepAgent()
    with make_vector_env(lambda: JointEnv(Leaving()), 1) as envs:
        rollout = RolloutCollector(agent, envs, 6, seed=0).collect()
    assert rollout.active is not None
    assert rollout.active[:, 0].tolist() == [[1, 1], [1, 1], [0, 1], [0, 1], [1, 1], [1, 1]]
    assert rollout.reward[:, 0].tolist() == [[1, 10], [2, 20], [0, 30], [0, 40], [1, 10], [2, 20]]
    # The first one terminates in its second step; the second one is truncated in its fourth.
    assert rollout.terminated[:, 0].tolist() == [[0, 0], [1, 0], [1, 0], [1, 0], [0, 0], [1, 0]]
    assert rollout.truncated[:, 0].tolist() == [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    # What a step led to: of the second agent's fourth step its last observation, 4, not the 0 after the reset.
    assert rollout.next_value[:, 0, 1].tolist() == [101, 201, 301, 401, 101, 201]
    assert [episode.length for episode in rollout.episodes] == [4]

    gamma, lam = 0.5, 0.5
    batch = _learnable(rollout, OnPolicySettings(n_steps=6, gamma=gamma, gae_lambda=lam))
    assert isinstance(batch, TeamRollout)
    by_hand = np.zeros((6, 2))
    value = rollout.value[:, 0]
    # Second agent, backwards from where it was cut: delta = r + gamma v' - v.
    by_hand[3, 1] = 40 + gamma * 401 - 301
    for t in (2, 1, 0):
        delta = 10 * (t + 1) + gamma * value[t + 1, 1] - value[t, 1]
        by_hand[t, 1] = delta + gamma * lam * by_hand[t + 1, 1]
    # First agent: nothing follows its second step.
    by_hand[1, 0] = 2 - 100
    by_hand[0, 0] = 1 + gamma * 100 - 0 + gamma * lam * by_hand[1, 0]
    # The episode after: cut by the end of the rollout.
    by_hand[5] = [2 - 100, 20 + gamma * 201 - 101]
    by_hand[4] = [1 + gamma * 100 - 0, 10 + gamma * 101 - 1]
    by_hand[4] += gamma * lam * by_hand[5]
    active = batch.active != 0
    np.testing.assert_allclose(batch.advantage[active], by_hand[active])
    np.testing.assert_allclose(batch.return_[active], (by_hand + value)[active])


def test_a_time_limit_around_a_team_truncates_those_that_are_left() -> None:
    agent: Any = StepAgent()
    with make_vector_env(lambda: TimeLimit(JointEnv(Leaving()), 3), 2) as envs:
        rollout = RolloutCollector(agent, envs, 3, seed=0).collect()
    assert rollout.terminated[2].tolist() == [[True, False]] * 2
    assert rollout.truncated[2].tolist() == [[False, True]] * 2
    assert rollout.next_value[2, :, 1].tolist() == [301, 301]  # of the last observation, before the reset


def make_agent(make: Callable[[], Any], name: str, memory: Any = None, **settings: Any) -> Any:
    env = make()
    seed_everything(0)
    kind: Any = {"MAPPO": "central", "IPPO": "independent", "COMA": "counterfactual"}[name]
    model = parl.networks.for_team(env.observation_space, env.action_space, kind, hidden=(32,), memory=memory)
    if name == "COMA":
        options = {"n_actions": int(env.action_space.nvec.max()), "n_agents": len(env.agents), **settings}
        return parl.Agent(parl.algorithms.COMA(model, **options))
    return parl.Agent(getattr(parl.algorithms, name)(model, **settings))


SMALL = OnPolicySettings(total_steps=128, n_steps=8, gae_lambda=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPPO", "IPPO", "COMA"])
def test_weights_are_the_same_wherever_environments_live_and_with_the_same_seed(name: str) -> None:
    make = partial(make_joint_env, "cued_two_step")
    weights = []
    for remote in (False, False, True):
        agent = make_agent(make, name)
        if remote:
            with open_actors("remote", cpu_num=2) as actors, make_vector_env(make, 4, actors=actors) as envs:
                train_on_policy(agent, envs, SMALL, seed=3)
        else:
            with make_vector_env(make, 4) as envs:
                train_on_policy(agent, envs, SMALL, seed=3)
        weights.append(agent.get_weights())
    for other in weights[1:]:
        assert all((array == other[key]).all() for key, array in weights[0].items())


@pytest.mark.parametrize(
    ("name", "memory"), [("MAPPO", None), ("IPPO", "gru"), ("MAPPO", "lstm"), ("COMA", None), ("COMA", "gru")]
)
def test_a_run_that_stopped_goes_on_as_if_it_had_not(name: str, memory: Any, tmp_path: Any) -> None:
    make = partial(make_joint_env, "cued_two_step")

    def train(agent: Any, run: Run, steps: int) -> dict[str, Any]:
        settings = SMALL.with_total_steps(steps)
        with make_vector_env(make, 4) as envs:
            train_on_policy(agent, envs, settings, seed=3, checkpoints=Checkpoints(run, every=32))
        found: dict[str, Any] = agent.get_weights()
        return found

    with Run("whole", tmp_path) as run:
        whole = train(make_agent(make, name, memory), run, 128)
    with Run("parts", tmp_path) as run:
        train(make_agent(make, name, memory), run, 64)
    with Run.resume(run.path) as run:
        parts = train(make_agent(make, name, memory), run, 128)
    assert all((array == parts[key]).all() for key, array in whole.items())


class Parting(Leaving):
    """Five agents with a single choice. In step 2 one terminates and two are truncated; in step 4 the others are."""

    possible_agents = ("ended", "cut", "cut_too", "stayed", "stayed_too")

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(1)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.at += 1
        names, seen = list(self.agents), self._seen()
        self.agents = list(self.possible_agents[(0, 0, 3, 3, 5)[self.at] :])
        gone = set(names) - set(self.agents)
        ended = {name: name in gone and name == "ended" for name in names}
        cut = {name: name in gone and name != "ended" for name in names}
        return seen, dict.fromkeys(names, 1.0), ended, cut, {name: {} for name in names}


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize(
    ("step", "agents", "there"),
    [
        (2, [1, 2], [0, 1, 1, 1, 1]),  # as if they had gone on, together with those that do
        (2, [3, 4], [0, 0, 0, 1, 1]),  # of those that do go on, without them
        (4, [3, 4], [0, 0, 0, 1, 1]),
    ],
)
@pytest.mark.parametrize("n_steps", [2, 4])
def test_an_agent_is_bootstrapped_from_the_actions_of_all_that_go_on_with_it(
    step: int, agents: list[int], there: list[int], n_steps: int, memory: Any
) -> None:
    agent = make_agent(lambda: JointEnv(Parting()), "COMA", memory)
    with make_vector_env(lambda: JointEnv(Parting()), 2) as envs:
        collector = RolloutCollector(agent, envs, n_steps, seed=0)
        rollouts = [collector.collect() for _ in range(4 // n_steps)]
    truncated, next_value = (
        np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ("truncated", "next_value")
    )
    assert truncated[:, 0].astype(int).tolist() == [[0] * 5, [0, 1, 1, 0, 0], [0] * 5, [0, 0, 0, 1, 1]]
    env = JointEnv(Parting())
    env.reset(seed=0)
    for _ in range(step):
        last = env.step([0] * 5)[0]
    obs = {name: agent.alg._tensor(np.asarray(array)[None]) for name, array in last.items()}
    taken = agent.alg._tensor(np.array(there, np.float32).reshape(1, 5, 1))
    by_hand = agent.alg._array(agent.alg.target_model.values(obs, taken))[0, agents, 0]
    for row in range(2):
        np.testing.assert_allclose(next_value[step - 1, row, agents], by_hand, rtol=1e-5)


def test_agents_that_leave_are_learned_from_with_every_algorithm() -> None:
    def make() -> Any:
        return JointEnv(Leaving())

    for name, memory in (("MAPPO", None), ("MAPPO", "gru"), ("IPPO", "lstm"), ("COMA", None), ("COMA", "lstm")):
        agent = make_agent(make, name, memory)
        with make_vector_env(make, 3) as envs:
            train_on_policy(agent, envs, OnPolicySettings(total_steps=48, n_steps=8, gae_lambda=0.8), seed=0)
        assert evaluate(agent, make, 3).returns == [5.5 + 11 + 30 + 40] * 3  # means of those that acted


@pytest.mark.parametrize("name", ["MAPPO", "MADDPG", "QMIX"])
def test_a_wrapper_that_changes_rewards_in_vain_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """QMIX learns from the team's reward; the others from those of each agent."""

    def make(factor: float = 0.1) -> Any:
        return TransformReward(JointEnv(Leaving()), lambda reward: factor * float(reward))

    for factor, told in ((1.0, 0), (0.1, int(name != "QMIX"))):
        with make_vector_env(partial(make, factor), 2) as envs, caplog.at_level(logging.WARNING, "parl"):
            if name == "MAPPO":
                train_on_policy(make_agent(make, name), envs, OnPolicySettings(total_steps=16, n_steps=8), seed=0)
            else:
                settings = OffPolicySettings(total_steps=16, learning_starts=8, batch_size=2, memory_size=40)
                train_off_policy(made_off_policy(make, name), envs, settings, seed=0)
        messages = [record.getMessage() for record in caplog.records if "JointEnv" in record.getMessage()]
        assert len(messages) == told
        assert all(f"{name} learns from those of each agent" in message for message in messages)


def made_off_policy(make: Callable[[], Any], name: str) -> Any:
    env = make()
    kind: Any = "q" if name == "QMIX" else "actor-critic"
    model = parl.networks.for_team(env.observation_space, env.action_space, kind, hidden=(8,))
    mixer = (parl.networks.QMixer(2, 4),) if name == "QMIX" else ()
    return parl.Agent(getattr(parl.algorithms, name)(model, *mixer), seed=0)


@pytest.mark.parametrize("name", ["MAPPO", "IPPO"])
def test_a_learner_of_actors_names_the_loop_of_teams(name: str) -> None:
    def make() -> Any:
        return JointEnv(Leaving())

    agent = make_agent(make, name, None)
    settings = ActorLearnerSettings(total_steps=16, n_steps=4)
    with pytest.raises(TypeError, match=f"{name} learns in another way: see train_on_policy"):
        train_actor_learner(agent, lambda: agent, make, settings, actors=InProcessActors())


def test_continuous_agents_and_those_that_share_nothing_learn() -> None:
    class Continuous(Leaving):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(-2.0, 2.0, (2,), np.float32)

    def make() -> Any:
        return JointEnv(Continuous())

    env = make()
    for groups in ("independent", (0, 0)):
        model = parl.networks.for_team(env.observation_space, env.action_space, "central", groups=groups)
        agent = parl.Agent(parl.algorithms.MAPPO(model))
        with make_vector_env(make, 2) as envs:
            train_on_policy(agent, envs, OnPolicySettings(total_steps=32, n_steps=8), seed=0)
        observation, _ = env.reset(seed=0)
        agent.obs_ndim = model.obs_ndim
        assert np.shape(agent.predict(observation)) == (2, 2)


def test_sequences_of_a_team_without_a_memory_are_refused_with_the_networks_of_teams() -> None:
    agent = make_agent(partial(make_joint_env, "two_step"), "MAPPO")
    with (
        make_vector_env(partial(make_joint_env, "two_step"), 1) as envs,
        pytest.raises(HyperparameterError, match=r'this agent\'s has none: .*for_team\(\.\.\., memory="gru"\)'),
    ):
        train_on_policy(agent, envs, OnPolicySettings(total_steps=16, n_steps=8, sequence_length=4))


def test_a_loop_without_a_lambda_has_that_of_coma() -> None:
    make, weights = partial(make_joint_env, "two_step"), []
    for gae_lambda in (None, 0.8):
        agent = make_agent(make, "COMA")
        with make_vector_env(make, 1) as envs:
            settings = OnPolicySettings(total_steps=16, n_steps=8, gae_lambda=gae_lambda)
            train_on_policy(agent, envs, settings, seed=0)
        weights.append(agent.get_weights())
    np.testing.assert_equal(*weights)


def test_a_loop_with_other_targets_than_coma_was_made_with_is_refused() -> None:
    agent = make_agent(partial(make_joint_env, "two_step"), "COMA", td_lambda=0.6)
    with (
        make_vector_env(partial(make_joint_env, "two_step"), 1) as envs,
        pytest.raises(HyperparameterError, match=r"gae_lambda=0.8.*td_lambda=0.6"),
    ):
        train_on_policy(agent, envs, SMALL)


class Shown(gymnasium.Env):  # type: ignore[type-arg]
    """Each of two agents is shown which of three actions earns the team one half."""

    def __init__(self) -> None:
        joint = make_joint_env("climbing")
        self.agents = joint.agents
        self.action_space = joint.action_space
        space: Any = joint.observation_space
        parts = dict(space.spaces)
        parts["obs"] = spaces.Box(0.0, 1.0, (2, 3), np.float32)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.right = self.np_random.integers(3, size=2)
        return self._joint(0.0, 0), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward = float(np.mean(np.asarray(action) == self.right))
        return self._joint(reward, 1), reward, True, False, {}

    def _joint(self, reward: float, over: int) -> dict[str, Any]:
        return {
            "obs": np.eye(3, dtype=np.float32)[self.right],
            "state": np.ones(1, np.float32),
            "alive": np.full(2, 1 - over, np.int8),
            "rewards": np.full(2, reward, np.float32),
            "terminated": np.full(2, over, np.int8),
            "action_mask": np.ones((2, 3), np.int8),
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPPO", "IPPO", "COMA"])
def test_the_identity_of_a_team_is_learned(name: str) -> None:
    rates: dict[str, Any] = {"actor_lr": 1e-2, "critic_lr": 1e-2} if name == "COMA" else {"initial_lr": 3e-3}
    agent = make_agent(Shown, name, **rates)
    settings = OnPolicySettings(total_steps=4096, n_steps=1 if name == "COMA" else 8, gae_lambda=0.8)
    with make_vector_env(Shown, 16) as envs:
        train_on_policy(agent, envs, settings, seed=0)
    assert evaluate(agent, Shown, 50).mean > 0.95


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_memory_solves_what_needs_one() -> None:
    make = partial(make_joint_env, "cued_two_step")
    agent = make_agent(make, "MAPPO", "gru", initial_lr=2e-3)
    with make_vector_env(make, 16) as envs:
        train_on_policy(agent, envs, OnPolicySettings(total_steps=8_000, n_steps=24, sequence_length=12), seed=0)
    assert evaluate(agent, make, 20).mean >= 7.0  # 8 is the optimum; without a cue the safe game gives 7


def test_policies_of_coma_learn_through_their_memory() -> None:
    make = partial(make_joint_env, "cued_two_step")
    agent = make_agent(make, "COMA", "gru", actor_lr=1e-2)
    with make_vector_env(make, 4) as envs:
        train_on_policy(agent, envs, SMALL, seed=3)
        before = agent.get_weights()
        train_on_policy(agent, envs, SMALL.with_total_steps(256), seed=4)
    after = agent.get_weights()
    moved = {name for name, array in after.items() if (array != before[name]).any()}
    assert any(name.startswith("memory.") for name in moved), sorted(moved)
    obs = {name: np.stack([column] * 3) for name, column in make().reset(seed=0)[0].items()}
    state = agent.initial_state(3)
    after_one = agent.explore(obs, state=state)[-1]
    assert all(
        array.shape == after_one[name].shape and (array != after_one[name]).any() for name, array in state.items()
    )

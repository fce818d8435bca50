"""Environments that give tensors, as simulators on a GPU do, train like those that give arrays."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorWrapper

import parl
from parl_core import training
from parl_core.env.vector import make_vector_env
from parl_core.errors import DivergedError, HyperparameterError
from parl_core.training.on_policy import RolloutCollector


class AsTensors(VectorWrapper):
    """Gives tensors in memory that the next step overwrites, and takes tensors.

    Args:
        envs: a vector of environments.
        algorithm: of the backend whose tensors are wanted.
        tells: how last observations are told: `rows`, one tensor of all environments; `each`, as Gymnasium does;
            `never`.
    """

    def __init__(self, envs: Any, algorithm: Any, tells: str = "rows") -> None:
        super().__init__(envs)
        self._algorithm, self._tells = algorithm, tells
        self._memory = np.zeros(envs.observation_space.shape, np.float32)

    def reset(self, **options: Any) -> Any:
        obs, infos = self.env.reset(**options)
        return self._shared(obs), infos

    def step(self, actions: Any) -> Any:
        assert not isinstance(actions, np.ndarray)
        obs, reward, terminated, truncated, infos = self.env.step(self._algorithm._array(actions))
        told = {}
        if "final_obs" in infos and self._tells == "each":
            told = {"final_obs": [None if row is None else self._of(row) for row in infos["final_obs"]]}
        elif "final_obs" in infos and self._tells == "rows":
            rows = [obs[i] if row is None else row for i, row in enumerate(infos["final_obs"])]
            told = {"final_obs": self._of(np.stack(rows))}
        return self._shared(obs), *map(self._of, (reward.astype(np.float32), terminated, truncated)), told

    def _of(self, array: Any) -> Any:
        return self._algorithm._tensor(np.array(array))

    def _shared(self, obs: Any) -> Any:
        self._memory[:] = obs
        return self._algorithm._tensor(self._memory)


def ppo(env: str) -> Any:
    spaces = gymnasium.make(env)
    model = parl.networks.for_spaces(spaces.observation_space, spaces.action_space, kind="actor-critic")
    agent = parl.Agent(parl.algorithms.PPO(model, continuous_action=env == "Pendulum-v1", device="cpu"), seed=3)
    agent.explore(np.zeros(spaces.observation_space.shape, np.float32))  # layers get their shapes
    return agent


def collected(env: str, weights: Any, tells: str | None) -> Any:
    agent = ppo(env)
    agent.set_weights(weights)
    envs: Any = make_vector_env(env, 3, env_kwargs={"max_episode_steps": 12})
    with agent.drawing_from(5):
        return RolloutCollector(agent, AsTensors(envs, agent.alg, tells) if tells else envs, 30, seed=4).collect()


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("tells", ["rows", "each"])
def test_a_rollout_of_tensors_has_the_numbers_of_one_of_arrays(env: str, tells: str) -> None:
    weights = ppo(env).get_weights()
    expected, found = (collected(env, weights, how) for how in (None, tells))
    assert expected.truncated.any()
    assert [episode.length for episode in found.episodes] == [episode.length for episode in expected.episodes]
    returns = [[episode.episode_return for episode in rollout.episodes] for rollout in (found, expected)]
    np.testing.assert_allclose(returns[0], returns[1], rtol=1e-4)
    for name in ("log_prob", "reward", "value", "next_value", "terminated", "truncated"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-4, err_msg=name)
    for name in ("obs", "action"):
        assert not isinstance(getattr(found, name), np.ndarray)
        array = np.asarray(getattr(found, name).numpy())
        np.testing.assert_allclose(array, getattr(expected, name), rtol=1e-4, atol=1e-4, err_msg=name)


def test_training_on_tensors_gives_the_same_weights() -> None:
    began = ppo("CartPole-v1").get_weights()
    weights = []
    for with_tensors in (False, True):
        agent = ppo("CartPole-v1")
        agent.set_weights(began)
        envs: Any = make_vector_env("CartPole-v1", 3, env_kwargs={"max_episode_steps": 12})
        settings = training.OnPolicySettings(total_steps=3 * 3 * 30, n_steps=30, epochs=2, minibatch_size=30)
        with agent.drawing_from(5):
            training.train_on_policy(agent, AsTensors(envs, agent.alg) if with_tensors else envs, settings, seed=4)
        weights.append(agent.get_weights())
    expected, found = weights
    assert any(np.abs(expected[name] - began[name]).max() > 1e-4 for name in expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


class Clearing(AsTensors):
    """Sets the actions that it was given to 0."""

    def step(self, actions: Any) -> Any:
        answer = super().step(actions)
        actions.zero_()
        return answer


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_actions_that_a_simulator_changes_are_those_that_were_drawn(env: str) -> None:
    agent = ppo(env)
    action = RolloutCollector(agent, Clearing(make_vector_env(env, 3), agent.alg), 30, seed=4).collect().action
    assert np.asarray(action.numpy()).any()  # type: ignore[attr-defined]  # a tensor


def test_an_unknown_last_observation_has_the_value_of_the_one_before() -> None:
    agent = ppo("Pendulum-v1")
    envs = AsTensors(make_vector_env("Pendulum-v1", 2, env_kwargs={"max_episode_steps": 5}), agent.alg, "never")
    rollout = RolloutCollector(agent, envs, 7, seed=1).collect()
    assert rollout.truncated[4].all()
    np.testing.assert_array_equal(rollout.next_value[4], rollout.value[4])
    np.testing.assert_array_equal(rollout.next_value[3], rollout.value[4])
    assert [episode.length for episode in rollout.episodes] == [5, 5]
    values = agent.value(rollout.obs.reshape([-1, 3]))
    np.testing.assert_allclose(agent.alg._array(values).reshape(7, 2), rollout.value, rtol=1e-4, atol=1e-5)


class Broken(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([0.0, np.nan if self.steps == 5 else 0.0], np.float32), 0.0, False, False, {}


def test_a_number_that_is_not_finite_is_named() -> None:
    model = parl.networks.for_spaces(Broken.observation_space, Broken.action_space, kind="actor-critic")
    agent = parl.Agent(parl.algorithms.PPO(model, device="cpu"))
    collector = RolloutCollector(agent, AsTensors(make_vector_env(Broken, 2), agent.alg), 5, seed=1)
    with pytest.raises(DivergedError, match=r"environment 0 observed nan in obs\[1\] after the rollout"):
        collector.collect()


def test_what_a_rollout_of_tensors_cannot_hold_is_refused_in_words() -> None:
    agent = ppo("CartPole-v1")
    late = make_vector_env("CartPole-v1", 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(HyperparameterError, match=r"AutoresetMode\.SAME_STEP"):
        RolloutCollector(agent, AsTensors(late, agent.alg), 5)
    space = gymnasium.spaces.Box(-1, 1, (2,))
    model = parl.networks.for_spaces(space, Broken.action_space, kind="actor-critic", memory="gru")
    with_memory = parl.Agent(parl.algorithms.PPO(model, device="cpu"))
    with pytest.raises(HyperparameterError, match="memory"):
        RolloutCollector(with_memory, AsTensors(make_vector_env(Broken, 2), with_memory.alg), 5)


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_the_loop_with_a_replay_memory_refuses_tensors_in_words(name: str) -> None:
    network: Any = parl.networks.QNetwork(2) if name == "DQN" else parl.networks.SquashedActorCritic(1)
    agent = parl.Agent(getattr(parl.algorithms, name)(network, device="cpu"))
    envs: Any = make_vector_env("CartPole-v1" if name == "DQN" else "Pendulum-v1", 2)
    with pytest.raises(HyperparameterError, match="replay memories store arrays, and VectorEnv gives tensors"):
        training.train_off_policy(agent, AsTensors(envs, agent.alg), training.OffPolicySettings(total_steps=10))

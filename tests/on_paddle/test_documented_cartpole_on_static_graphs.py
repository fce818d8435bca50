"""The Getting Started of the 1.2.3 manual (sections 1.3.1 to 1.3.4) on static graphs, translated line by line.

`fluid.Program` is `paddle.static.Program`, `fluid.program_guard` is `paddle.static.program_guard`, gym is Gymnasium.
"""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import paddle
import pytest
from numpy.typing import NDArray

import parl
from parl import layers
from parl.utils import calc_discount_norm_reward

OBS_DIM = 4
GAMMA = 0.99


class CartpoleModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        act_dim = act_dim
        hid1_size = act_dim * 10

        self.fc1 = layers.fc(size=hid1_size, act="tanh")
        self.fc2 = layers.fc(size=act_dim, act="softmax")

    def forward(self, obs: Any) -> Any:
        out = self.fc1(obs)
        out = self.fc2(out)
        return out


class CartpoleAgent(parl.Agent):
    fluid_executor: Any
    learn_program: Any

    def __init__(self, algorithm: parl.Algorithm, obs_dim: int, act_dim: int) -> None:
        self.obs_dim = obs_dim
        self.act_dim = act_dim
        super().__init__(algorithm)

    def build_program(self) -> None:
        self.pred_program = paddle.static.Program()
        self.train_program = paddle.static.Program()

        with paddle.static.program_guard(self.pred_program):
            obs = layers.data(name="obs", shape=[self.obs_dim], dtype="float32")
            self.act_prob = self.alg.predict(obs)

        with paddle.static.program_guard(self.train_program):
            obs = layers.data(name="obs", shape=[self.obs_dim], dtype="float32")
            act = layers.data(name="act", shape=[1], dtype="int64")
            reward = layers.data(name="reward", shape=[], dtype="float32")
            self.cost = self.alg.learn(obs, act, reward)

    def sample(self, obs: NDArray[Any], **options: Any) -> Any:
        obs = np.expand_dims(obs, axis=0)
        act_prob = self.fluid_executor.run(
            self.pred_program, feed={"obs": obs.astype("float32")}, fetch_list=[self.act_prob]
        )[0]
        act_prob = np.squeeze(act_prob, axis=0)
        act = np.random.choice(range(self.act_dim), p=act_prob)
        return act

    def predict(self, obs: NDArray[Any]) -> Any:
        obs = np.expand_dims(obs, axis=0)
        act_prob = self.fluid_executor.run(
            self.pred_program, feed={"obs": obs.astype("float32")}, fetch_list=[self.act_prob]
        )[0]
        act_prob = np.squeeze(act_prob, axis=0)
        act = np.argmax(act_prob)
        return act

    def learn(self, obs: NDArray[Any], act: NDArray[Any], reward: NDArray[Any]) -> Any:
        act = np.expand_dims(act, axis=-1)
        feed = {"obs": obs.astype("float32"), "act": act.astype("int64"), "reward": reward.astype("float32")}
        cost = self.fluid_executor.run(self.train_program, feed=feed, fetch_list=[self.cost])[0]
        return cost


def run_episode(
    env: Any, agent: CartpoleAgent, train_or_test: str = "train"
) -> tuple[list[Any], list[Any], list[float]]:
    obs_list, action_list, reward_list = [], [], []
    obs, _ = env.reset()
    while True:
        obs_list.append(obs)
        if train_or_test == "train":
            action = agent.sample(obs)
        else:
            action = agent.predict(obs)
        action_list.append(action)

        obs, reward, terminated, truncated, _ = env.step(action)
        reward_list.append(reward)

        if terminated or truncated:
            break
    return obs_list, action_list, reward_list


def make_agent(lr: float = 1e-3) -> CartpoleAgent:
    model = CartpoleModel(act_dim=2)
    alg = parl.algorithms.PolicyGradient(model, lr=lr)
    return CartpoleAgent(alg, obs_dim=OBS_DIM, act_dim=2)


def train(agent: CartpoleAgent, episodes: int) -> list[float]:
    env = gym.make("CartPole-v1", max_episode_steps=200)
    env.reset(seed=0)
    np.random.seed(0)
    returns = []
    for _ in range(episodes):
        obs_list, action_list, reward_list = run_episode(env, agent)
        batch_obs = np.array(obs_list)
        batch_action = np.array(action_list)
        batch_reward = calc_discount_norm_reward(reward_list, GAMMA)
        agent.learn(batch_obs, batch_action, batch_reward)
        returns.append(sum(reward_list))
    return returns


@pytest.mark.slow
def test_the_documented_agent_improves() -> None:
    returns = train(make_agent(lr=1e-2), episodes=120)
    assert np.mean(returns[-20:]) > 2 * np.mean(returns[:20])


def test_a_step_in_the_program_is_the_step_of_the_eager_algorithm() -> None:
    rng = np.random.default_rng(0)
    obs, act, reward = rng.normal(size=(16, OBS_DIM)), rng.integers(2, size=16), rng.normal(size=16)
    static = make_agent()
    eager = parl.Agent(parl.algorithms.PolicyGradient(CartpoleModel(act_dim=2), lr=1e-3))
    eager.set_weights(static.get_weights())
    for _ in range(3):
        np.testing.assert_allclose(static.learn(obs, act, reward), eager.learn(obs, act, reward), rtol=1e-5)
    for name, array in static.get_weights().items():
        np.testing.assert_allclose(array, eager.get_weights()[name], rtol=1e-5, atol=1e-7)


def test_weights_that_are_set_reach_the_programs() -> None:
    agent, other = make_agent(), make_agent()
    obs = np.array([0.1, -0.2, 0.3, -0.4])
    other.set_weights(agent.get_weights())
    fetched = [
        each.fluid_executor.run(
            each.pred_program, feed={"obs": obs[None].astype("float32")}, fetch_list=[each.act_prob]
        )
        for each in (agent, other)
    ]
    np.testing.assert_array_equal(fetched[0], fetched[1])


def test_static_graphs_are_off_again_after_building_and_running() -> None:
    agent = make_agent()
    assert paddle.in_dynamic_mode()
    agent.sample(np.zeros(OBS_DIM))
    assert paddle.in_dynamic_mode()


def test_save_needs_a_program_or_learn_program(tmp_path: Path) -> None:
    agent = make_agent()
    with pytest.raises(ValueError, match="learn_program"):
        agent.save(tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match="learn_program"):
        agent.restore(tmp_path / "model.ckpt")


def test_save_refuses_a_program_of_another_agent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no parameters of this CartpoleAgent"):
        make_agent().save(tmp_path / "model.ckpt", paddle.static.Program())


def test_save_and_restore_with_the_train_program(tmp_path: Path) -> None:
    agent, another_agent = make_agent(), make_agent()
    agent.save(str(tmp_path / "model.ckpt"), agent.train_program)
    another_agent.restore(str(tmp_path / "model.ckpt"), another_agent.train_program)
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(array, another_agent.get_weights()[name])


def test_learn_program_is_the_default_of_save_and_restore(tmp_path: Path) -> None:
    agent, another_agent = make_agent(), make_agent()
    for each in (agent, another_agent):
        each.learn_program = each.train_program
    agent.save(str(tmp_path / "model_dir"))
    another_agent.restore(str(tmp_path / "model_dir"))
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(array, another_agent.get_weights()[name])

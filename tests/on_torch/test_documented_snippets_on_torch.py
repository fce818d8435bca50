"""The PARL 1.x manual's snippets of Model, Algorithm, Agent, save and restore: manual 1.2.3, 1.3 to 1.5; README.cn 1.1.

As written there, except: gym is Gymnasium (five values from `step`, two from `reset`), and these lines of the old
`fluid` module, translated one by one:

    fluid.Program, program_guard, layers.data, build_program    gone: PyTorch runs eagerly
    fluid_executor.run(program, feed=..., fetch_list=...)       self.run(self.alg.predict, ...), or .learn
    best_v.stop_gradient = True                                 best_v = best_v.detach()
    fluid.optimizer.Adam(self.lr, epsilon=1e-3)                 parl_torch.optim.Adam(self.model, lr=self.lr, eps=1e-3)
"""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import parl
from parl import layers
from parl.algorithms import DQN
from parl.utils import calc_discount_norm_reward, logger
from parl_torch.optim import Adam

OBS_DIM = 4
GAMMA = 0.99


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)


class MLPModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        self.fc1 = layers.fc(size=10)
        self.fc2 = layers.fc(size=act_dim)

    def forward(self, obs: Any) -> Any:
        out = self.fc1(obs)
        out = self.fc2(out)
        return out


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
    def __init__(self, algorithm: Any, obs_dim: int, act_dim: int) -> None:
        self.obs_dim = obs_dim
        self.act_dim = act_dim
        super(CartpoleAgent, self).__init__(algorithm)  # noqa: UP008 - as the manual writes it

    def sample(self, obs: NDArray[Any]) -> Any:
        obs = np.expand_dims(obs, axis=0)
        act_prob = self.run(self.alg.predict, obs.astype("float32"))
        act_prob = np.squeeze(act_prob, axis=0)
        act = np.random.choice(range(self.act_dim), p=act_prob)
        return act

    def predict(self, obs: NDArray[Any]) -> Any:
        obs = np.expand_dims(obs, axis=0)
        act_prob = self.run(self.alg.predict, obs.astype("float32"))
        act_prob = np.squeeze(act_prob, axis=0)
        act = np.argmax(act_prob)
        return act

    def learn(self, obs: NDArray[Any], act: NDArray[Any], reward: NDArray[Any]) -> Any:
        act = np.expand_dims(act, axis=-1)
        feed = {"obs": obs.astype("float32"), "act": act.astype("int64"), "reward": reward.astype("float32")}
        cost = self.run(self.alg.learn, *feed.values())
        return cost


def run_episode(env: Any, agent: Any, train_or_test: str = "train") -> tuple[list[Any], list[Any], list[float]]:
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


class TutorialDQN(parl.Algorithm):
    def __init__(
        self, model: Any, act_dim: int | None = None, gamma: float | None = None, lr: float | None = None
    ) -> None:
        """DQN algorithm

        Args:
            model (parl.Model): model defining forward network of Q function
            act_dim (int): dimension of the action space
            gamma (float): discounted factor for reward computation.
            lr (float): learning rate.
        """
        self.model = model
        self.target_model = copy.deepcopy(model)

        assert isinstance(act_dim, int)
        assert isinstance(gamma, float)
        assert isinstance(lr, float)
        self.act_dim = act_dim
        self.gamma = gamma
        self.lr = lr
        self.optimizer = Adam(self.model, lr=self.lr, eps=1e-3)

    def predict(self, obs: Any) -> Any:
        """use value model self.model to predict the action value"""
        return self.model.value(obs)

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
        """update value model self.model with DQN algorithm"""
        pred_value = self.model.value(obs)
        next_pred_value = self.target_model.value(next_obs)
        best_v = layers.reduce_max(next_pred_value, dim=1)
        best_v = best_v.detach()
        target = reward + (1.0 - layers.cast(terminal, dtype="float32")) * self.gamma * best_v

        action_onehot = layers.one_hot(action, self.act_dim)
        action_onehot = layers.cast(action_onehot, dtype="float32")
        pred_action_value = layers.reduce_sum(layers.elementwise_mul(action_onehot, pred_value), dim=1)
        cost = layers.square_error_cost(pred_action_value, target)
        cost = layers.reduce_mean(cost)
        self.optimizer.minimize(cost)
        return cost

    def sync_target(self, gpu_id: int | None = None) -> None:
        """sync weights of self.model to self.target_model"""
        self.model.sync_weights_to(self.target_model)


class ValueModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        self.fc1 = layers.fc(size=16, act="relu")
        self.fc2 = layers.fc(size=act_dim)

    def value(self, obs: Any) -> Any:
        return self.fc2(self.fc1(obs))


class AtariModel(parl.Model):
    """AtariModel
    This class defines the forward part for an algorithm,
    its input is state observed on environment.
    """

    def __init__(self, img_shape: tuple[int, int], action_dim: int) -> None:
        # define your layers
        self.cnn1 = layers.conv_2d(num_filters=32, filter_size=5, stride=1, padding=2, act="relu")
        self.fc1 = layers.fc(size=action_dim)

    def value(self, img: Any) -> Any:
        # define how to estimate the Q value based on the image of atari games.
        img = img / 255.0
        out = self.cnn1(img)
        Q = self.fc1(out)
        return Q


def _transitions(seed: int, rows: int = 32) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, rows, OBS_DIM))
    return obs, rng.integers(2, size=rows), rng.normal(size=rows), next_obs, rng.random(rows) < 0.2


def test_a_model_of_two_layers_is_duplicated_by_deepcopy() -> None:
    model = MLPModel(act_dim=2)
    target_model = copy.deepcopy(model)
    obs = torch.ones(1, OBS_DIM)
    torch.testing.assert_close(model(obs), target_model(obs))
    model.sync_weights_to(target_model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_getting_started_improves_on_cartpole() -> None:
    model = CartpoleModel(act_dim=2)
    alg = parl.algorithms.PolicyGradient(model, lr=1e-2)  # the manual's 1e-3 needs its 1000 episodes
    agent = CartpoleAgent(alg, obs_dim=OBS_DIM, act_dim=2)

    env = gym.make("CartPole-v0")
    env.reset(seed=1)
    rewards = []
    for i in range(120):
        obs_list, action_list, reward_list = run_episode(env, agent)
        if i % 10 == 0:
            logger.info(f"Episode {i}, Reward Sum {sum(reward_list)}")
        rewards.append(sum(reward_list))

        batch_obs = np.array(obs_list)
        batch_action = np.array(action_list)
        batch_reward = calc_discount_norm_reward(reward_list, GAMMA)

        agent.learn(batch_obs, batch_action, batch_reward)
    _, _, reward_list = run_episode(env, agent, train_or_test="test")
    # A random policy lasts 22 steps.
    assert np.mean(rewards[-20:]) > 2 * np.mean(rewards[:20])
    assert np.sum(reward_list) > 60


def test_the_dqn_tutorial_learns_what_the_built_in_dqn_learns() -> None:
    mine = parl.Agent(TutorialDQN(ValueModel(2), act_dim=2, gamma=0.9, lr=1e-2))
    built_in = parl.Agent(DQN(ValueModel(2), gamma=0.9, lr=1e-2, device="cpu"))
    built_in.alg.optimizer = Adam(built_in.alg.model, lr=1e-2, eps=1e-3)  # the tutorial's epsilon
    mine.alg.model.sync_weights_to(built_in.alg.model)
    mine.alg.sync_target()
    built_in.alg.sync_target()
    for i in range(6):
        if i == 3:
            mine.alg.sync_target()
            built_in.alg.sync_target()
        assert mine.learn(*_transitions(i)) == pytest.approx(built_in.learn(*_transitions(i)), rel=1e-5)
    assert mine.predict(np.zeros(OBS_DIM)).shape == (2,)


@pytest.mark.parametrize("path", ["./model.ckpt", "./model_dir"])
def test_agents_are_saved_and_restored_by_file_and_by_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def make() -> CartpoleAgent:
        return CartpoleAgent(parl.algorithms.PolicyGradient(CartpoleModel(act_dim=2), lr=1e-3), OBS_DIM, 2)

    obs = np.random.default_rng(2).normal(size=(32, OBS_DIM))
    batch = (obs, np.arange(32) % 2, np.ones(32))
    agent = make()
    agent.learn(*batch)
    # save the parameters of agent to ./model.ckpt
    agent.save(path)
    kept = agent.get_weights()
    agent.learn(*batch)
    # restore the parameters from ./model.ckpt to agent
    agent.restore(path)
    np.testing.assert_array_equal(agent.get_weights()["fc1.weight"], kept["fc1.weight"])

    # restore the parameters from ./model.ckpt to another_agent
    another_agent = make()
    another_agent.restore(path)
    assert [another_agent.predict(row) for row in obs] == [agent.predict(row) for row in obs]
    assert another_agent.learn(*batch) == agent.learn(*batch)


def test_the_atari_agent_of_three_lines_acts_and_learns_on_images() -> None:
    model = AtariModel(img_shape=(32, 32), action_dim=4)
    algorithm = DQN(model)
    agent = parl.Agent(algorithm)
    frames = np.random.default_rng(3).integers(256, size=(2, 3, 32, 32), dtype=np.uint8)
    assert agent.predict(frames).shape == (2,)
    assert agent.sample(frames[0], epsilon=0.1) in range(4)
    first = agent.learn(frames, [0, 3], [1.0, -1.0], frames, [True, True])
    for _ in range(5):
        last = agent.learn(frames, [0, 3], [1.0, -1.0], frames, [True, True])
    assert last < first


def test_parl_1_s_dictionary_of_settings_and_parl_2_s_positions_both_work() -> None:
    from_dictionary = DQN(ValueModel(2), hyperparas={"act_dim": 2, "gamma": 0.9, "lr": 1e-3})
    from_positions = DQN(ValueModel(2), 0.9, 1e-3)
    assert (from_dictionary.gamma, from_dictionary.lr) == (from_positions.gamma, from_positions.lr)

"""The PARL 1.x manual's snippets of Model, Algorithm, save and restore on paddle (1.2.3, 1.3 to 1.5; README.cn 1.1).

As written there, except these lines of the old `fluid` module, translated one by one:

    fluid.Program(), fluid.program_guard(program)    paddle.static.Program(), paddle.static.program_guard(program)
    fluid.optimizer.Adam(self.lr, epsilon=1e-3)      paddle.optimizer.Adam(self.lr, epsilon=1e-3)

The Agent of section 1.3.3 has a module of its own, `test_documented_cartpole_on_static_graphs`.
"""

# mypy: allow-untyped-calls
# Paddle leaves its programs untyped.

import copy
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import parl
from parl import layers
from parl.algorithms import DQN
from parl_paddle.optim import Adam

OBS_DIM = 4


class MLPModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        self.fc1 = layers.fc(size=10)
        self.fc2 = layers.fc(size=act_dim)

    def forward(self, obs: Any) -> Any:
        out = self.fc1(obs)
        out = self.fc2(out)
        return out


class Policy(parl.Model):
    def __init__(self) -> None:
        self.fc = parl.layers.fc(size=12, act="softmax")

    def policy(self, obs: Any) -> Any:
        out = self.fc(obs)
        return out


class ValueModel(parl.Model):
    def __init__(self, act_dim: int) -> None:
        self.fc1 = layers.fc(size=16, act="relu")
        self.fc2 = layers.fc(size=act_dim)

    def value(self, obs: Any) -> Any:
        return self.fc2(self.fc1(obs))


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

    def predict(self, obs: Any) -> Any:
        """use value model self.model to predict the action value"""
        return self.model.value(obs)

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any) -> Any:
        """update value model self.model with DQN algorithm"""
        pred_value = self.model.value(obs)
        next_pred_value = self.target_model.value(next_obs)
        best_v = layers.reduce_max(next_pred_value, dim=1)
        best_v.stop_gradient = True
        target = reward + (1.0 - layers.cast(terminal, dtype="float32")) * self.gamma * best_v

        action_onehot = layers.one_hot(action, self.act_dim)
        action_onehot = layers.cast(action_onehot, dtype="float32")
        pred_action_value = layers.reduce_sum(layers.elementwise_mul(action_onehot, pred_value), dim=1)
        cost = layers.square_error_cost(pred_action_value, target)
        cost = layers.reduce_mean(cost)
        optimizer = paddle.optimizer.Adam(self.lr, epsilon=1e-3)
        optimizer.minimize(cost)
        return cost

    def sync_target(self, gpu_id: int | None = None) -> None:
        """sync weights of self.model to self.target_model"""
        self.model.sync_weights_to(self.target_model)


class ValueAgent(parl.Agent):
    fluid_executor: Any

    def build_program(self) -> None:
        self.pred_program = paddle.static.Program()
        self.learn_program = paddle.static.Program()

        with paddle.static.program_guard(self.pred_program):
            obs = layers.data(name="obs", shape=[OBS_DIM], dtype="float32")
            self.value_of = self.alg.predict(obs)

        with paddle.static.program_guard(self.learn_program):
            obs = layers.data(name="obs", shape=[OBS_DIM], dtype="float32")
            action = layers.data(name="act", shape=[1], dtype="int64")
            reward = layers.data(name="reward", shape=[], dtype="float32")
            next_obs = layers.data(name="next_obs", shape=[OBS_DIM], dtype="float32")
            terminal = layers.data(name="terminal", shape=[], dtype="bool")
            self.cost = self.alg.learn(obs, action, reward, next_obs, terminal)

    def predict(self, obs: Any) -> Any:
        feed = {"obs": np.asarray(obs, "float32")}
        return self.fluid_executor.run(self.pred_program, feed=feed, fetch_list=[self.value_of])[0]

    def learn(self, obs: Any, act: Any, reward: Any, next_obs: Any, terminal: Any) -> float:
        feed = {
            "obs": obs.astype("float32"),
            "act": np.expand_dims(act, axis=-1),
            "reward": reward.astype("float32"),
            "next_obs": next_obs.astype("float32"),
            "terminal": terminal,
        }
        return float(self.fluid_executor.run(self.learn_program, feed=feed, fetch_list=[self.cost])[0])


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


def _tutorial_agent() -> ValueAgent:
    return ValueAgent(TutorialDQN(ValueModel(2), act_dim=2, gamma=0.9, lr=1e-2))


def test_a_model_of_two_layers_is_duplicated_by_deepcopy() -> None:
    model = MLPModel(act_dim=2)
    target_model = copy.deepcopy(model)
    obs = paddle.ones([1, OBS_DIM])
    np.testing.assert_array_equal(model(obs).numpy(), target_model(obs).numpy())
    # after initalizing the parameters ...
    model.sync_weights_to(target_model)


def test_a_policy_with_one_layer_is_duplicated_and_has_an_id_of_its_own() -> None:
    policy = Policy()
    copied_policy = copy.deepcopy(policy)
    assert policy.get_model_id() != copied_policy.get_model_id()
    np.testing.assert_allclose(policy.policy(paddle.ones([2, 3])).sum(axis=1).numpy(), 1.0, rtol=1e-6)
    assert policy.parameter_names == ["fc.weight", "fc.bias"]


def test_the_dqn_tutorial_on_static_graphs_learns_what_the_built_in_dqn_learns() -> None:
    mine = _tutorial_agent()
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
    assert mine.predict(np.zeros((1, OBS_DIM))).shape == (1, 2)


def test_the_target_network_of_the_tutorial_is_not_trained() -> None:
    agent = _tutorial_agent()
    before = agent.alg.target_model.get_weights()
    agent.learn(*_transitions(1))
    for name, array in agent.alg.target_model.get_weights().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("path", ["./model.ckpt", "./model_dir"])
def test_agents_are_saved_and_restored_by_file_and_by_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = _tutorial_agent()
    agent.learn(*_transitions(1))
    # save the parameters of agent to ./model.ckpt
    agent.save(path)
    kept = agent.get_weights()
    agent.learn(*_transitions(2))
    # restore the parameters from ./model.ckpt to agent
    agent.restore(path)
    np.testing.assert_array_equal(agent.get_weights()["fc1.weight"], kept["fc1.weight"])

    # restore the parameters from ./model.ckpt to another_agent
    another_agent = _tutorial_agent()
    another_agent.restore(path)
    obs = _transitions(3)[0]
    np.testing.assert_array_equal(another_agent.predict(obs), agent.predict(obs))


def test_an_agent_on_static_graphs_and_one_without_restore_each_other_s_files(tmp_path: Path) -> None:
    static, plain = _tutorial_agent(), parl.Agent(DQN(ValueModel(2), device="cpu"))
    plain.learn(*_transitions(1))
    static.save(tmp_path / "static.ckpt", model=static.alg.model)
    plain.restore(tmp_path / "static.ckpt", model=plain.alg.model)
    obs = _transitions(2)[0]
    np.testing.assert_allclose(static.predict(obs).argmax(axis=1), plain.predict(obs))


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

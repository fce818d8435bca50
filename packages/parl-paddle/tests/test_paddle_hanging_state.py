"""A saved agent has the state of whatever of paddle hangs on its algorithm."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from conformance.small_batches import eight_transitions
from parl_paddle.agent import Agent
from parl_paddle.algorithm import Algorithm
from parl_paddle.algorithms import DQN
from parl_paddle.model import Model
from parl_paddle.random_state import accessor_of_generator


class Net(Model):
    def __init__(self) -> None:
        self.fc = paddle.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


class Own(Algorithm):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.novelty = paddle.nn.Linear(4, 3)
        self.critics = [Net(), Net()]
        self.log_alpha = paddle.create_parameter([1], "float32")
        self.scheduler = paddle.optimizer.lr.StepDecay(0.1, 2)
        owners = [self.model, self.novelty, *self.critics]
        parameters = [parameter for owner in owners for parameter in owner.parameters()]
        self.opt = paddle.optimizer.Adam(self.scheduler, parameters=[*parameters, self.log_alpha])
        self.rng = np.random.default_rng(3)

    def predict(self, obs: Any) -> Any:
        return self.model(obs)

    def learn(self, obs: Any) -> Any:
        shifted = obs + float(self.rng.normal())
        loss = self.model(shifted).square().mean() + self.novelty(shifted).abs().mean() + self.log_alpha.exp().mean()
        loss = loss + sum(critic(shifted).square().mean() for critic in self.critics)
        loss.backward()
        self.opt.step()
        self.opt.clear_grad()
        self.scheduler.step()
        return loss.detach()


def test_all_of_it_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    agent = Agent(Own(Net()))
    for _ in range(3):
        agent.learn(obs)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(obs) for _ in range(4)]
    other = Agent(Own(Net()))  # whose parameters have other names
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(obs) for _ in range(4)] == expected


def test_a_generator_stays_on_its_device_where_the_saved_one_is_that_of_a_gpu() -> None:
    generator = paddle.base.core.default_cpu_generator()
    accessor = accessor_of_generator(generator)
    before = accessor.get()
    device, *rest = before["numbers"]
    try:
        accessor.set({**before, "numbers": np.array([device + 1, *rest])})
        after = accessor.get()
    finally:
        accessor.set(before)
    np.testing.assert_array_equal(after["numbers"], before["numbers"])
    np.testing.assert_array_equal(after["engine"], before["engine"])


class Counting(Model):
    """Changes tensors, a number and generators, of its own and of a layer, in each pass."""

    def __init__(self) -> None:
        self.fc = paddle.nn.Linear(4, 2)
        self.inner = Scaled()
        self.mean = paddle.zeros([4])
        self.register_buffer("passes", paddle.zeros([]))  # which is among the weights
        self.rng = np.random.default_rng(3)
        self.table = paddle.arange(4)  # which nothing changes

    def value(self, obs: Any) -> Any:
        self.mean = (0.9 * self.mean + 0.1 * obs.mean(0)).detach()
        self.passes.add_(paddle.ones([]))
        obs = obs + float(self.rng.normal())
        return self.fc(self.inner(obs - self.mean)) / self.passes.clone()


class Scaled(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, obs: Any) -> Any:
        self.scale *= 0.9
        return obs * self.scale


def test_what_a_model_changes_beside_its_weights_goes_on_too(tmp_path: Path) -> None:
    batch = eight_transitions()
    agent = Agent(DQN(Counting()))
    for _ in range(3):
        agent.learn(batch)
    state = agent.alg.get_state()
    assert {"model.mean", "model.rng", "model.inner.scale"} <= set(state.others)
    assert not any("table" in name for name in state.others)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(batch) for _ in range(4)]
    other = Agent(DQN(Counting()))
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(batch) for _ in range(4)] == expected


class Recurrent(Model):
    def __init__(self, kind: Any) -> None:
        self.memory = kind(4, 8)
        self.fc = paddle.nn.Linear(8, 2)

    def value(self, obs: Any) -> Any:
        return self.fc(self.memory(obs.unsqueeze(1))[0][:, 0])


class OwnLSTM(paddle.nn.LSTM):
    """Is a layer of the user's own."""


@pytest.mark.parametrize("kind", [paddle.nn.LSTM, paddle.nn.GRU, OwnLSTM])
def test_weights_of_a_recurrent_layer_in_a_copied_model_are_restored(kind: Any, tmp_path: Path) -> None:
    agent = Agent(DQN(copy.deepcopy(Recurrent(kind))))
    for _ in range(3):
        agent.learn(eight_transitions())
    state = agent.alg.get_state()
    assert state.others == {}
    agent.save(tmp_path / "agent.ckpt")
    other = Agent(DQN(Recurrent(kind)))
    other.restore(tmp_path / "agent.ckpt")
    expected = agent.get_weights()
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, expected[name])
    assert other.learn(eight_transitions()) == agent.learn(eight_transitions())


@pytest.mark.parametrize("norm", [paddle.nn.utils.weight_norm, paddle.nn.utils.spectral_norm])
def test_a_normalised_layer_is_restored(norm: Any) -> None:
    class Normalised(Model):
        def __init__(self) -> None:
            self.fc = norm(paddle.nn.Linear(4, 2))

        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    agent = Agent(DQN(Normalised()))
    agent.learn(eight_transitions())
    other = Agent(DQN(Normalised()))
    other.alg.set_state(agent.alg.get_state())
    assert other.learn(eight_transitions()) == agent.learn(eight_transitions())


def test_sparse_tensors_are_left_as_they_are() -> None:
    class Holding(Model):
        def __init__(self, held: Any) -> None:
            self.fc = paddle.nn.Linear(4, 2)
            self.held = held

        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    model = Holding(paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 1.0], [2, 2]))
    agent = Agent(DQN(model))
    agent.learn(eight_transitions())
    assert agent.alg.get_state().others == {}

"""A saved agent has the state of whatever of paddle hangs on its algorithm."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.contracts.batches import Transitions
from parl_paddle.agent import Agent
from parl_paddle.algorithm import Algorithm
from parl_paddle.algorithms import DQN
from parl_paddle.model import Model


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


def _batch() -> Transitions:
    rng = np.random.default_rng(0)
    return Transitions(
        rng.normal(size=(8, 4)).astype(np.float32),
        rng.integers(2, size=8),
        rng.normal(size=8).astype(np.float32),
        rng.normal(size=(8, 4)).astype(np.float32),
        np.zeros(8, np.float32),
    )


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
    batch = _batch()
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


class Values(Model):
    """Has `held` in an attribute, and as it is in a second one."""

    def __init__(self, held: Any) -> None:
        self.fc = paddle.nn.Linear(4, 2)
        self.held = self.shared = held

    def value(self, obs: Any) -> Any:
        if isinstance(self.held, np.ndarray):
            self.held += 1
        elif isinstance(self.held, paddle.Tensor):
            self.held.scale_(1.0, bias=1.0)
        return self.fc(obs)


@pytest.mark.parametrize(
    "held", [lambda: np.zeros(3), lambda: paddle.zeros([3]), lambda: paddle.zeros([3], dtype="bfloat16")]
)
def test_shared_arrays_and_tensors_stay_shared_in_trial_passes_and_in_a_restored_model(held: Any) -> None:
    model = Values(held())
    kept, dtype = model.held, model.held.dtype
    agent = Agent(DQN(model, sync_every=1))
    agent.alg.learn(agent.alg.check_batch(_batch()).map(agent.alg._tensor))
    assert model.held is model.shared is kept
    assert [float(number) for number in kept] == [1.0, 1.0, 1.0]  # that of the update alone
    state = agent.alg.get_state()
    assert {"model.held", "model.shared"} <= set(state.others)
    model.value(paddle.ones([1, 4]))
    agent.alg.set_state(state)
    assert model.held is model.shared is kept
    assert model.held.dtype == dtype
    assert [float(number) for number in kept] == [1.0, 1.0, 1.0]


def test_what_a_model_merely_holds_is_not_asked_for_its_state() -> None:
    class Simulator:
        def get_state(self) -> Any:
            raise AssertionError

        def set_state(self, state: Any) -> None: ...

    teacher = paddle.nn.Linear(4, 2)
    agent = Agent(DQN(Values([Simulator(), [teacher], 3])))
    agent.alg.model.simulator = Simulator()
    agent.alg.model.algorithm = [agent.alg]
    assert agent.alg.get_state().others == {}


def test_values_are_those_of_one_moment() -> None:
    class Acting(np.ndarray[Any, Any]):
        """Lets go of an attribute while it is copied, as another thread may."""

        def copy(self, order: Any = "C") -> Any:
            model.__dict__.pop("steps", None)
            return super().copy(order)

    model = Values(None)
    agent = Agent(DQN(model))
    model.steps = 1
    model.held = np.zeros(1).view(Acting)
    state = agent.alg.get_state()
    assert state.others["model.steps"]["value"] == 1


def test_a_value_does_not_replace_a_restored_weight_whose_memory_it_shares() -> None:
    agent = Agent(DQN(Values(None)))
    agent.alg.model.held = paddle.zeros([4, 2])
    state = agent.alg.get_state()
    other = Agent(DQN(Values(None)))
    other.alg.model.held = other.alg.model.fc.weight.detach()
    other.alg.set_state(state)
    expected = agent.get_weights()
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, expected[name])


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
        agent.learn(_batch())
    state = agent.alg.get_state()
    assert state.others == {}
    agent.save(tmp_path / "agent.ckpt")
    other = Agent(DQN(Recurrent(kind)))
    other.restore(tmp_path / "agent.ckpt")
    expected = agent.get_weights()
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, expected[name])
    assert other.learn(_batch()) == agent.learn(_batch())


@pytest.mark.parametrize("norm", [paddle.nn.utils.weight_norm, paddle.nn.utils.spectral_norm])
def test_a_normalised_layer_is_restored(norm: Any) -> None:
    class Normalised(Model):
        def __init__(self) -> None:
            self.fc = norm(paddle.nn.Linear(4, 2))

        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    agent = Agent(DQN(Normalised()))
    agent.learn(_batch())
    other = Agent(DQN(Normalised()))
    other.alg.set_state(agent.alg.get_state())
    assert other.learn(_batch()) == agent.learn(_batch())


def test_sparse_tensors_are_left_as_they_are() -> None:
    class Holding(Values):
        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    model = Holding(paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 1.0], [2, 2]))
    agent = Agent(DQN(model))
    agent.learn(_batch())
    assert agent.alg.get_state().others == {}


def test_a_large_constant_is_not_kept_a_second_time_and_is_saved_if_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Values(None)
    model.held = paddle.zeros([2**19])
    algorithm = DQN(model)
    algorithm._note_values()
    kept = [value for value in algorithm._first_values.values() if isinstance(value, np.ndarray)]
    assert sum(value.nbytes for value in kept) < 2**20
    before = algorithm.get_state()
    assert before.others == {}
    algorithm.model.held[3] = 1.0
    assert float(algorithm.get_state().arrays["model.held"].sum()) == 1.0
    algorithm.set_state(before)
    assert "model.held keeps its present value" in caplog.text


def test_a_value_is_not_put_in_the_place_of_a_generator(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(DQN(Values(None)))
    agent.alg.model.held = 2
    other = Agent(DQN(Values(None)))
    other.alg.model.held = kept = np.random.default_rng(0)
    other.alg.set_state(agent.alg.get_state())
    assert other.alg.model.held is kept
    assert "model.held keeps its initial state: the restored state has no state of it" in caplog.text
    assert "has no model.held, whose saved value stays unused" in caplog.text


def test_a_tensor_that_a_model_keeps_later_or_in_another_shape_is_restored() -> None:
    agent, other = Agent(DQN(Values(None))), Agent(DQN(Values(None)))
    first = agent.alg.get_state()
    for held in (paddle.ones([2]), paddle.ones([3]), paddle.ones([3]) * 2.0):
        agent.alg.model.held = held
        other.alg.set_state(agent.alg.get_state())
        assert other.alg.model.held.tolist() == held.tolist()
    other.alg.set_state(first)
    assert other.alg.model.held is None

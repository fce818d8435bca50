"""Tests of paddle's algorithms alone: devices, graphs, waiting for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor

from parl_core.contracts.batches import RolloutBatch
from parl_core.errors import HyperparameterError, ModelContractError
from parl_paddle.agent import Agent
from parl_paddle.algorithm import Algorithm
from parl_paddle.algorithms import A2C, DQN, IMPALA, PPO, PolicyGradient
from parl_paddle.model import Model
from parl_paddle.networks import ActorCritic, QNetwork

OBS, ACTION, ONES = paddle.ones([8, 4]), paddle.zeros([8], dtype="int64"), paddle.ones([8])


class Softmaxed(QNetwork):
    def forward(self, obs: Tensor) -> Tensor:
        return paddle.nn.functional.softmax(self.value(obs))


class Gaussian(ActorCritic):
    def __init__(self) -> None:
        super().__init__(2)

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = super().policy(obs)
        assert isinstance(mean, Tensor)
        return mean, paddle.zeros_like(mean)


def _policy_gradient() -> Callable[[], Any]:
    algorithm = PolicyGradient(Softmaxed(2), device="cpu")
    return lambda: algorithm.learn(OBS, ACTION, ONES)


def _dqn() -> Callable[[], Any]:
    algorithm = DQN(QNetwork(2), device="cpu", sync_every=1, double=True, max_grad_norm=1.0)
    return lambda: algorithm.learn(OBS, ACTION, ONES, OBS, ONES, weights=ONES)


def _ppo() -> Callable[[], Any]:
    algorithm = PPO(ActorCritic(2), device="cpu")
    return lambda: algorithm.learn(OBS, ACTION, ONES, ONES, ONES, ONES)


def _multi_discrete() -> Callable[[], Any]:
    algorithm = PPO(ActorCritic(4), device="cpu", nvec=(2, 2))
    actions = paddle.zeros([8, 2], dtype="int64")
    possible = paddle.ones([8, 4], dtype="bool")
    return lambda: algorithm.learn(OBS, actions, ONES, ONES, ONES, ONES, action_mask=possible)


def _a2c() -> Callable[[], Any]:
    algorithm = A2C(ActorCritic(2), device="cpu")
    return lambda: algorithm.learn(OBS, ACTION, ONES, ONES)


def _impala() -> Callable[[], Any]:
    algorithm = IMPALA(ActorCritic(2), sample_batch_steps=4, device="cpu")
    logits, last = paddle.zeros([8, 2]), OBS[:2]

    def learn() -> Any:
        losses, kl = algorithm.learn(OBS, ACTION, logits, ONES, ONES, last_obs=last)
        return *losses, kl

    return learn


def _separate_policy() -> Callable[[], Any]:
    algorithm = PPO(Gaussian(), policy_lr=1e-3, value_lr=1e-3, device="cpu")
    return lambda: algorithm.policy_learn(OBS, paddle.zeros([8, 2]), ONES)


def _separate_value() -> Callable[[], Any]:
    algorithm = PPO(Gaussian(), policy_lr=1e-3, value_lr=1e-3, device="cpu")
    return lambda: algorithm.value_learn(OBS, ONES)


LEARN = [_policy_gradient, _dqn, _ppo, _multi_discrete, _a2c, _impala, _separate_policy, _separate_value]


@contextmanager
def reads_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collects the names of the methods that wait for the device; `__bool__` and its kind go by way of them."""
    reads: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)

        def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            reads.append(name)
            return original(self, *args, **kwargs)

        return read

    with monkeypatch.context() as patch:
        for name in ("numpy", "item", "tolist", "__float__", "__int__", "__bool__", "__array__"):
            patch.setattr(Tensor, name, counted(name))
        yield reads


@pytest.mark.parametrize("make", LEARN)
def test_learn_returns_tensors_without_a_graph(make: Callable[[], Callable[[], Any]]) -> None:
    result = make()()
    for tensor in result if isinstance(result, tuple) else (result,):
        assert isinstance(tensor, Tensor)
        assert tensor.stop_gradient
        assert tensor.grad_fn is None


@pytest.mark.parametrize("make", LEARN)
def test_learn_reads_no_number_from_the_device(
    make: Callable[[], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = make()
    learn()  # lazily shaped layers draw their first weights
    with reads_counted(monkeypatch) as reads:
        learn()
    assert reads == []


@pytest.mark.parametrize("read", [lambda tensor: tensor.numpy(), float, bool, np.asarray])
def test_the_counter_of_reads_sees_them(read: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with reads_counted(monkeypatch) as reads:
        read(paddle.ones([]))
    assert reads


def test_a_rollout_is_read_from_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(PPO(ActorCritic(2), device="cpu"))
    rng = np.random.default_rng(1)
    floats = [np.ones(32, np.float32) for _ in range(4)]
    batch = RolloutBatch(np.ones((32, 4), np.float32), np.zeros(32, np.int64), *floats)
    agent.learn_rollout(batch, epochs=1, minibatch_size=8, rng=rng)

    with reads_counted(monkeypatch) as reads:
        agent.learn_rollout(batch, epochs=3, minibatch_size=8, rng=rng)
    assert reads == ["numpy"]


def test_a_minibatch_of_one_row_does_not_end_in_nan() -> None:
    agent = Agent(PPO(ActorCritic(2), device="cpu"))
    floats = [np.ones(9, np.float32) for _ in range(4)]
    batch = RolloutBatch(np.ones((9, 4), np.float32), np.zeros(9, np.int64), *floats)
    figures = agent.learn_rollout(batch, epochs=2, minibatch_size=8, rng=np.random.default_rng(1))
    assert figures["steps"] == 4


def test_the_environment_variable_decides_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "cuda:99")
    with pytest.raises(HyperparameterError, match=r"'cuda:99' is not there: this paddle sees \d+ CUDA devices"):
        DQN(QNetwork(2))
    assert DQN(QNetwork(2), device="cpu").device == "cpu"


def test_an_unknown_device_is_refused_by_the_algorithm() -> None:
    with pytest.raises(HyperparameterError, match="'cpuu' is unknown"):
        DQN(QNetwork(2), device="cpuu")


def test_an_algorithm_without_super_init_works_where_its_model_is() -> None:
    class Own(Algorithm):
        def __init__(self, model: Model) -> None:
            self.model = model

        def predict(self, obs: Tensor) -> Tensor:
            values: Tensor = self.model.value(obs)
            return values

    agent = Agent(Own(QNetwork(3)))
    assert agent.alg.device == paddle.device.get_device()
    assert agent.predict(np.zeros(4)).shape == (3,)
    assert agent.sample(np.zeros((2, 4))).shape == (2, 3)


def test_an_algorithm_is_duplicated_by_deepcopy() -> None:
    import copy

    one: Any = DQN(QNetwork(2), lr=0.01, device="cpu")
    batch = (OBS, ACTION, ONES, OBS, ONES)
    one.learn(*batch)
    other = copy.deepcopy(one)
    assert float(one.learn(*batch)) == float(other.learn(*batch))
    assert float(one.learn(*batch)) == float(other.learn(*batch))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelContractError, match=r"DQN needs a parl.Model, got 'a model' of type str"):
        DQN("a model")  # type: ignore[arg-type]  # that is the mistake

"""Tests of PyTorch's algorithms alone: devices, graphs, waiting for the device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parl_core.contracts.batches import RolloutBatch
from parl_core.errors import HyperparameterError, ModelContractError
from parl_torch import algorithms, networks
from parl_torch.agent import Agent
from parl_torch.algorithm import Algorithm
from parl_torch.algorithms import A2C, DQN, IMPALA, PPO, PolicyGradient
from parl_torch.model import Model
from parl_torch.networks import ActorCritic, QNetwork

OBS, ACTION = torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)
ONES = torch.ones(8)


class Softmaxed(QNetwork):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.value(obs), dim=1)


class Gaussian(ActorCritic):
    def __init__(self) -> None:
        super().__init__(2)

    def policy(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = super().policy(obs)
        assert isinstance(mean, torch.Tensor)
        return mean, torch.zeros_like(mean)


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
    actions = torch.zeros(8, 2, dtype=torch.int64)
    possible = torch.ones(8, 4, dtype=torch.bool)
    return lambda: algorithm.learn(OBS, actions, ONES, ONES, ONES, ONES, action_mask=possible)


def _a2c() -> Callable[[], Any]:
    algorithm = A2C(ActorCritic(2), device="cpu")
    return lambda: algorithm.learn(OBS, ACTION, ONES, ONES)


def _impala() -> Callable[[], Any]:
    algorithm = IMPALA(ActorCritic(2), sample_batch_steps=4, device="cpu")
    logits, last = torch.zeros(8, 2), OBS[:2]

    def learn() -> Any:
        losses, kl = algorithm.learn(OBS, ACTION, logits, ONES, ONES, last_obs=last)
        return *losses, kl

    return learn


def _separate_policy() -> Callable[[], Any]:
    algorithm = PPO(Gaussian(), policy_lr=1e-3, value_lr=1e-3, device="cpu")
    return lambda: algorithm.policy_learn(OBS, torch.zeros(8, 2), ONES)


def _separate_value() -> Callable[[], Any]:
    algorithm = PPO(Gaussian(), policy_lr=1e-3, value_lr=1e-3, device="cpu")
    return lambda: algorithm.value_learn(OBS, ONES)


def _continuous(name: str, network: type[Any], **settings: Any) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        algorithm = getattr(algorithms, name)(network(2), device="cpu", **settings)
        return lambda: algorithm.learn(OBS, torch.zeros(8, 2), ONES, OBS, ONES, weights=ONES, discount=ONES)

    return make


LEARN = [
    _policy_gradient,
    _dqn,
    _ppo,
    _multi_discrete,
    _a2c,
    _impala,
    _separate_policy,
    _separate_value,
    _continuous("DDPG", networks.DeterministicActorCritic),
    _continuous("TD3", networks.TwinActorCritic, policy_freq=1),
    _continuous("SAC", networks.SquashedActorCritic),
    _continuous("OAC", networks.SquashedActorCritic, alpha=0.2),
]


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    """Counts the operations that have to wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", LEARN)
def test_learn_returns_tensors_without_a_graph(make: Callable[[], Callable[[], Any]]) -> None:
    result = make()()
    for tensor in result if isinstance(result, tuple) else (result,):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


@pytest.mark.parametrize("make", LEARN)
def test_learn_reads_no_number_from_the_device(make: Callable[[], Callable[[], Any]]) -> None:
    learn = make()
    learn()  # lazily shaped layers draw their first weights
    with Reads() as reads:
        learn()
    assert reads.count == 0


def test_the_counter_of_reads_sees_them() -> None:
    with Reads() as reads:
        torch.ones(1).item()
    assert reads.count == 1


def test_a_rollout_is_read_from_the_device_once() -> None:
    agent = Agent(PPO(ActorCritic(2), device="cpu"))
    rng = np.random.default_rng(1)
    floats = [np.ones(32, np.float32) for _ in range(4)]
    batch = RolloutBatch(np.ones((32, 4), np.float32), np.zeros(32, np.int64), *floats)
    agent.learn_rollout(batch, epochs=1, minibatch_size=8, rng=rng)

    with Reads() as reads:
        agent.learn_rollout(batch, epochs=3, minibatch_size=8, rng=rng)
    assert reads.count <= 5  # tolist() of the five means


def test_a_minibatch_of_one_row_does_not_end_in_nan() -> None:
    agent = Agent(PPO(ActorCritic(2), device="cpu"))
    floats = [np.ones(9, np.float32) for _ in range(4)]
    batch = RolloutBatch(np.ones((9, 4), np.float32), np.zeros(9, np.int64), *floats)
    figures = agent.learn_rollout(batch, epochs=2, minibatch_size=8, rng=np.random.default_rng(1))
    assert figures["steps"] == 4


def test_an_algorithm_puts_its_model_on_the_device_asked_for() -> None:
    algorithm = DQN(QNetwork(2), device="meta")
    assert algorithm.device == torch.device("meta")
    assert {parameter.device.type for parameter in algorithm.target_model.parameters()} == {"meta"}


def test_the_environment_variable_decides_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "meta")
    assert DQN(QNetwork(2)).device == torch.device("meta")
    assert DQN(QNetwork(2), device="cpu").device == torch.device("cpu")


def test_an_unknown_device_is_refused_by_the_algorithm() -> None:
    with pytest.raises(HyperparameterError, match="'cpuu' is unknown"):
        DQN(QNetwork(2), device="cpuu")


def test_an_algorithm_without_super_init_works_where_its_model_is() -> None:
    class Own(Algorithm):
        def __init__(self, model: Model) -> None:
            self.model = model

        def predict(self, obs: torch.Tensor) -> torch.Tensor:
            values: torch.Tensor = self.model.value(obs)
            return values

    agent = Agent(Own(QNetwork(3)))
    assert agent.alg.device == torch.device("cpu")
    assert agent.predict(np.zeros(4)).shape == (3,)
    assert agent.sample(np.zeros((2, 4))).shape == (2, 3)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelContractError, match=r"DQN needs a parl.Model, got 'a model' of type str"):
        DQN("a model")  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cpu_and_cuda_learn_the_same() -> None:
    weights = None
    losses = []
    for device in ("cpu", "cuda"):
        agent = Agent(DQN(QNetwork(2), lr=0.01, device=device, max_grad_norm=1.0))
        agent.predict(np.zeros((1, 4), np.float32))
        weights = weights or agent.get_weights()
        agent.set_weights(weights)
        agent.alg.sync_target()
        rng = np.random.default_rng(1)
        obs = rng.normal(size=(32, 4)).astype(np.float32)
        batch = (obs, rng.integers(2, size=32), np.ones(32, np.float32), obs, np.zeros(32, np.float32))
        losses.append([agent.learn(*batch) for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)

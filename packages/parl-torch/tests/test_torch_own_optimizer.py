"""Algorithms take their steps with an optimizer of PyTorch's where one is given, and save its state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parl_core.errors import HyperparameterError
from parl_torch.agent import Agent
from parl_torch.algorithms.a2c import A2C
from parl_torch.algorithms.cql import CQL
from parl_torch.algorithms.ddpg import DDPG
from parl_torch.algorithms.dqn import DQN
from parl_torch.algorithms.impala import IMPALA
from parl_torch.algorithms.iql import IQL
from parl_torch.algorithms.oac import OAC
from parl_torch.algorithms.offline_q import OfflineQ
from parl_torch.algorithms.policy_gradient import PolicyGradient
from parl_torch.algorithms.ppo import PPO
from parl_torch.algorithms.sac import SAC
from parl_torch.algorithms.td3 import TD3
from parl_torch.model import Model
from parl_torch.optim import Adam


class Q(Model):
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


class ActorCritic(Q):
    def policy(self, obs: Any) -> Any:
        return self.fc(obs)

    def value(self, obs: Any) -> Any:
        return self.fc(obs)[:, :1]


def batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, 8, 4)).astype(np.float32)
    return obs, rng.integers(2, size=8), rng.normal(size=8).astype(np.float32), next_obs, np.ones(8, np.float32)


def test_one_step_of_sgd_is_the_one_by_hand() -> None:
    model, other = Q(), Q()
    agent = Agent(DQN(model, optimizer=torch.optim.SGD(model.parameters(), 0.5), device="cpu"))
    obs, action, reward, *_ = (torch.as_tensor(column) for column in batch())
    loss = (other(obs).gather(1, action[:, None])[:, 0] - reward).square().mean()  # all transitions are terminal
    loss.backward()
    assert agent.learn(*batch()) == pytest.approx(float(loss.detach()))
    for name, weight in model.named_parameters():
        by_hand = other.get_parameter(name)
        torch.testing.assert_close(weight.detach(), by_hand.detach() - 0.5 * by_hand.grad)


@pytest.mark.parametrize("rate", [{"lr": 0.25}, {"learning_rate": 0.25}], ids=["constructor", "call"])
def test_a_rate_that_is_given_is_that_of_the_steps(rate: dict[str, float]) -> None:
    model = Q()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    agent = Agent(DQN(model, lr=rate.get("lr"), optimizer=optimizer, device="cpu"))
    agent.learn(*batch(), learning_rate=rate.get("learning_rate"))
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_its_state_is_saved_and_goes_on(tmp_path: Path) -> None:
    def new() -> Agent:
        model = Q()
        return Agent(DQN(model, optimizer=torch.optim.AdamW(model.parameters(), 1e-2), max_grad_norm=0.5, device="cpu"))

    agent = new()
    for _ in range(3):
        agent.learn(*batch())
    agent.save(tmp_path / "agent.ckpt")
    other = new()
    other.restore(tmp_path / "agent.ckpt")
    assert [agent.learn(*batch()) for _ in range(3)] == [other.learn(*batch()) for _ in range(3)]


def test_one_of_parl_optim_may_be_given() -> None:
    model, other = Q(), Q()
    own = Agent(DQN(model, optimizer=Adam(model, lr=1e-2), device="cpu"))
    usual = Agent(DQN(other, lr=1e-2, device="cpu"))
    assert [own.learn(*batch()) for _ in range(3)] == [usual.learn(*batch()) for _ in range(3)]


@pytest.mark.parametrize(
    "make",
    [
        OfflineQ,
        PolicyGradient,
        A2C,
        PPO,
        lambda model, **settings: IMPALA(model, sample_batch_steps=4, **settings),
    ],
    ids=["OfflineQ", "PolicyGradient", "A2C", "PPO", "IMPALA"],
)
def test_every_algorithm_with_one_optimizer_takes_one(make: Any) -> None:
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    assert make(model, optimizer=optimizer, device="cpu").optimizer.optimizer is optimizer


def test_one_of_another_model_or_none_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="SGD has no parameters of this model"):
        DQN(Q(), optimizer=torch.optim.SGD(Q().parameters(), 0.1))
    with pytest.raises(HyperparameterError, match=r"must be one of torch.optim or parl.optim, got 'adam'"):
        DQN(Q(), optimizer="adam")


class Continuous(Model):
    """Actor and critics as every algorithm with continuous actions wants them, but for BootstrappedDDPG."""

    def __init__(self, twin: bool, gaussian: bool) -> None:
        torch.manual_seed(3)
        self.twin, self.gaussian = twin, gaussian
        self.actor, self.spread = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        self.q1, self.q2, self.state = torch.nn.Linear(6, 1), torch.nn.Linear(6, 1), torch.nn.Linear(4, 1)

    def policy(self, obs: Any) -> Any:
        mean = torch.tanh(self.actor(obs))
        return (mean, torch.tanh(self.spread(obs))) if self.gaussian else mean

    def q_value(self, obs: Any, action: Any) -> Any:
        both = torch.cat([obs, action], 1)
        return self.q1(both), self.q2(both)

    def value(self, obs: Any, action: Any = None) -> Any:
        if action is None:
            return self.state(obs)
        return self.q_value(obs, action) if self.twin else self.q_value(obs, action)[0]

    def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that TD3 asks for
        return self.q_value(obs, action)[0]

    def get_actor_params(self) -> list[Any]:
        return [*self.actor.parameters(), *(self.spread.parameters() if self.gaussian else ())]

    def get_critic_params(self) -> list[Any]:
        return [*self.q1.parameters(), *(self.q2.parameters() if self.twin else ())]

    def get_value_params(self) -> list[Any]:
        return list(self.state.parameters())


APART = {
    "DDPG": (DDPG, False, False),
    "TD3": (TD3, True, False),
    "SAC": (SAC, True, True),
    "OAC": (OAC, True, True),
    "CQL": (CQL, True, True),
    "IQL": (IQL, True, True),
}
apart = pytest.mark.parametrize("name", APART)


def continuous_batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, 8, 4)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (8, 2)).astype(np.float32)
    return obs, action, rng.normal(size=8).astype(np.float32), next_obs, np.zeros(8, np.float32)


def parts_of(name: str, model: Any) -> dict[str, Any]:
    parts = {"actor": model.get_actor_params(), "critic": model.get_critic_params()}
    return {**parts, "value": model.get_value_params()} if name == "IQL" else parts


def made(name: str, how: Callable[[Any], Any] | None, **settings: Any) -> Agent:
    kind, twin, gaussian = APART[name]
    model = Continuous(twin, gaussian)
    optimizer = None if how is None else {part: how(listed) for part, listed in parts_of(name, model).items()}
    return Agent(kind(model, optimizer=optimizer, device="cpu", **settings))


def sgd(listed: Any) -> Any:
    return torch.optim.SGD(listed, 0.5)


def adam(listed: Any) -> Any:
    return torch.optim.Adam(listed, 1e-2)


@apart
def test_actor_and_critic_take_steps_with_what_they_were_given(name: str) -> None:
    agent = made(name, sgd)
    before = agent.get_weights()
    agent.learn(*continuous_batch())
    agent.learn(*continuous_batch())  # TD3's actor learns at the second update
    after = agent.get_weights()
    idle = ("q2",) if name == "DDPG" else ()
    learns = {"actor.weight", "q1.weight"} | ({"state.weight"} if name == "IQL" else set())
    for weight in learns:
        assert np.abs(after[weight] - before[weight]).max() > 0.0
    for weight, array in after.items():
        if (weight.startswith(idle) and idle) or (name != "IQL" and weight.startswith("state")):
            np.testing.assert_array_equal(array, before[weight])


@apart
def test_the_optimizers_of_actor_and_critic_are_saved(name: str, tmp_path: Path) -> None:
    agent = made(name, adam)
    for _ in range(3):
        agent.learn(*continuous_batch())
    agent.save(tmp_path / "agent.ckpt")
    other = made(name, adam)
    other.restore(tmp_path / "agent.ckpt")
    for one in (agent, other):
        torch.manual_seed(3)
        for _ in range(2):
            one.learn(*continuous_batch())
    found, expected = other.get_weights(), agent.get_weights()
    for weight, array in expected.items():
        np.testing.assert_array_equal(found[weight], array, err_msg=weight)


def test_optimizers_that_do_not_fit_their_part_are_refused() -> None:
    model = Continuous(False, False)
    one = torch.optim.SGD(model.parameters(), 0.5)
    with pytest.raises(HyperparameterError, match=r"optimizer= takes a dictionary, .'actor': ..., 'critic': ..."):
        DDPG(model, optimizer=one)
    with pytest.raises(HyperparameterError, match="has parameters of another part of the model"):
        DDPG(model, optimizer={"actor": one})
    with pytest.raises(HyperparameterError, match="updates its networks apart"):
        DDPG(model, optimizer={"value": one})


def test_a_part_keeps_the_rate_of_its_optimizer_unless_one_is_given() -> None:
    agent = made("DDPG", sgd, critic_lr=0.125)
    agent.learn(*continuous_batch())
    rates = [part.optimizer.param_groups[0]["lr"] for part in (agent.alg.actor_optimizer, agent.alg.critic_optimizer)]
    assert rates == [0.5, 0.125]

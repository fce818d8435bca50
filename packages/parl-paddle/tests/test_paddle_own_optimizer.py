"""Algorithms take their steps with an optimizer of paddle's where one is given, and save its state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import HyperparameterError
from parl_paddle.agent import Agent
from parl_paddle.algorithms.cql import CQL
from parl_paddle.algorithms.ddpg import DDPG
from parl_paddle.algorithms.dqn import DQN
from parl_paddle.algorithms.iql import IQL
from parl_paddle.algorithms.oac import OAC
from parl_paddle.algorithms.sac import SAC
from parl_paddle.algorithms.td3 import TD3
from parl_paddle.model import Model


class Q(Model):
    def __init__(self) -> None:
        paddle.seed(3)
        self.fc = paddle.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


def batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, 8, 4)).astype(np.float32)
    return obs, rng.integers(2, size=8), rng.normal(size=8).astype(np.float32), next_obs, np.ones(8, np.float32)


def test_one_step_of_sgd_is_the_one_by_hand() -> None:
    model, other = Q(), Q()
    agent = Agent(DQN(model, optimizer=paddle.optimizer.SGD(0.5, parameters=model.parameters()), device="cpu"))
    obs, action, reward, *_ = batch()
    values = other(paddle.to_tensor(obs))
    chosen = (values * paddle.nn.functional.one_hot(paddle.to_tensor(action), 2)).sum(1)
    loss = (chosen - paddle.to_tensor(reward)).square().mean()  # all transitions are terminal
    loss.backward()
    assert agent.learn(*batch()) == pytest.approx(float(loss.detach()))
    for weight, by_hand in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(weight.numpy(), by_hand.numpy() - 0.5 * by_hand.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_its_state_is_saved_and_goes_on(tmp_path: Path) -> None:
    def new() -> Agent:
        model = Q()
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
        return Agent(DQN(model, optimizer=optimizer, max_grad_norm=0.5, device="cpu"))

    agent = new()
    for _ in range(3):
        agent.learn(*batch())
    agent.save(tmp_path / "agent.ckpt")
    other = new()
    other.restore(tmp_path / "agent.ckpt")
    assert [agent.learn(*batch()) for _ in range(3)] == [other.learn(*batch()) for _ in range(3)]


def test_one_of_another_model_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="SGD has no parameters of this model"):
        DQN(Q(), optimizer=paddle.optimizer.SGD(0.1, parameters=Q().parameters()))


class Continuous(Model):
    """Actor and critics as every algorithm with continuous actions wants them, but for BootstrappedDDPG."""

    def __init__(self, twin: bool, gaussian: bool) -> None:
        paddle.seed(3)
        self.twin, self.gaussian = twin, gaussian
        self.actor, self.spread = paddle.nn.Linear(4, 2), paddle.nn.Linear(4, 2)
        self.q1, self.q2, self.state = paddle.nn.Linear(6, 1), paddle.nn.Linear(6, 1), paddle.nn.Linear(4, 1)

    def policy(self, obs: Any) -> Any:
        mean = paddle.tanh(self.actor(obs))
        return (mean, paddle.tanh(self.spread(obs))) if self.gaussian else mean

    def q_value(self, obs: Any, action: Any) -> Any:
        both = paddle.concat([obs, action], 1)
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
    return paddle.optimizer.SGD(0.5, parameters=listed)


def adam(listed: Any) -> Any:
    return paddle.optimizer.Adam(1e-2, parameters=listed)


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
        paddle.seed(3)
        for _ in range(2):
            one.learn(*continuous_batch())
    found, expected = other.get_weights(), agent.get_weights()
    for weight, array in expected.items():
        np.testing.assert_array_equal(found[weight], array, err_msg=weight)


def test_optimizers_that_do_not_fit_their_part_are_refused() -> None:
    model = Continuous(False, False)
    one = paddle.optimizer.SGD(0.5, parameters=model.parameters())
    with pytest.raises(HyperparameterError, match=r"optimizer= takes a dictionary, .'actor': ..., 'critic': ..."):
        DDPG(model, optimizer=one)
    with pytest.raises(HyperparameterError, match="has parameters of another part of the model"):
        DDPG(model, optimizer={"actor": one})
    with pytest.raises(HyperparameterError, match="updates its networks apart"):
        DDPG(model, optimizer={"value": one})


def test_a_part_keeps_the_rate_of_its_optimizer_unless_one_is_given() -> None:
    agent = made("DDPG", sgd, critic_lr=0.125)
    agent.learn(*continuous_batch())
    rates = [part.optimizer.get_lr() for part in (agent.alg.actor_optimizer, agent.alg.critic_optimizer)]
    assert rates == [0.5, 0.125]

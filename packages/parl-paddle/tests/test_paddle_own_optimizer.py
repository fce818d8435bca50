"""Algorithms take their steps with an optimizer of paddle's where one is given, and save its state."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import HyperparameterError, ModelContractError
from parl_paddle.agent import Agent
from parl_paddle.algorithms.dqn import DQN
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
    model = Q()
    with pytest.raises(HyperparameterError, match="LBFGS computes the loss of one step several times"):
        DQN(model, optimizer=paddle.optimizer.LBFGS(parameters=model.parameters()))


@pytest.mark.parametrize("own", [False, True])
def test_a_loss_without_a_gradient_is_refused(own: bool) -> None:
    model = Q()
    for parameter in model.parameters():
        parameter.stop_gradient = True
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters()) if own else None
    agent = Agent(DQN(model, optimizer=optimizer, device="cpu"))
    with pytest.raises(ModelContractError, match="the loss has no gradient, so nothing would be learned"):
        agent.learn(*batch())

"""A saved agent has the state of whatever of paddle hangs on its algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle

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


class Counting(Model):
    """Keeps what no weights hold: a tensor and a number, of its own and of a layer."""

    def __init__(self) -> None:
        self.fc = paddle.nn.Linear(4, 2)
        self.inner = Scaled()
        self.mean = paddle.zeros([4])
        self.table = paddle.arange(4)  # which nothing changes

    def value(self, obs: Any) -> Any:
        if paddle.is_grad_enabled():
            self.mean = (0.9 * self.mean + 0.1 * obs.mean(0)).detach()
        return self.fc(self.inner(obs - self.mean))


class Scaled(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, obs: Any) -> Any:
        if paddle.is_grad_enabled():
            self.scale *= 0.9
        return obs * self.scale


def test_what_a_model_changes_beside_its_weights_goes_on_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = Transitions(
        rng.normal(size=(8, 4)).astype(np.float32),
        rng.integers(2, size=8),
        rng.normal(size=8).astype(np.float32),
        rng.normal(size=(8, 4)).astype(np.float32),
        np.zeros(8, np.float32),
    )
    agent = Agent(DQN(Counting()))
    for _ in range(3):
        agent.learn(batch)
    state = agent.alg.get_state()
    assert {"model.mean", "model.inner.scale"} <= set(state.others)
    assert not any("table" in name for name in state.others)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(batch) for _ in range(4)]
    other = Agent(DQN(Counting()))
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(batch) for _ in range(4)] == expected

"""A saved agent has the state of whatever of paddle hangs on its algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle

from parl_paddle.agent import Agent
from parl_paddle.algorithm import Algorithm
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

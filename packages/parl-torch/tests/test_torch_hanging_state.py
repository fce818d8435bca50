"""A saved agent has the state of whatever of PyTorch hangs on its algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parl_core.errors import CheckpointError
from parl_torch.agent import Agent
from parl_torch.algorithm import Algorithm
from parl_torch.model import Model


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "cpu")  # where the parts of `Own` are


class Net(Model):
    def __init__(self) -> None:
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


class Own(Algorithm):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.novelty = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        self.critics = [Net(), Net()]
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.scale = torch.ones(2)
        owners = [self.model, self.novelty, *self.critics]
        parameters = [parameter for owner in owners for parameter in owner.parameters()]
        self.optimizers = {
            "adam": torch.optim.Adam(parameters, 1e-2),
            "sgd": torch.optim.SGD([self.log_alpha], 0.1, 0.9),
        }
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizers["adam"], 0.1, total_steps=20)
        self.noise = torch.Generator().manual_seed(3)
        self.rng = np.random.default_rng(3)

    def predict(self, obs: Any) -> Any:
        return self.model(obs)

    def learn(self, obs: Any) -> Any:
        shifted = obs + torch.randn(obs.shape, generator=self.noise) + float(self.rng.normal())
        loss = self.model(shifted).square().mean() + self.novelty(shifted).abs().mean() + self.log_alpha.exp()
        loss = loss + sum(critic(shifted).square().mean() for critic in self.critics)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.scheduler.step()
        return loss.detach()


def test_all_of_it_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    agent = Agent(Own(Net()))
    for _ in range(3):
        agent.learn(obs)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(obs) for _ in range(4)]
    torch.manual_seed(5)
    other = Agent(Own(Net()))
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(obs) for _ in range(4)] == expected


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    obs = np.ones((8, 4), np.float32)
    agent = Agent(Own(Net()))
    agent.learn(obs)
    agent.save(tmp_path / "agent.ckpt")
    other = Agent(Own(Net()))
    other.alg.novelty = torch.nn.Linear(7, 2)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=r"Own\.novelty, a Linear, does not take the state"):
        other.restore(tmp_path / "agent.ckpt")
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


def test_a_file_without_its_state_says_that_it_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Own(Net()))
    del agent.alg.scheduler
    agent.save(tmp_path / "agent.ckpt")
    Agent(Own(Net())).restore(tmp_path / "agent.ckpt")
    assert "Own.scheduler keeps its initial state" in caplog.text


def test_a_state_that_no_file_holds_is_named(tmp_path: Path) -> None:
    agent = Agent(Own(Net()))

    class Strange:
        def state_dict(self) -> dict[str, Any]:
            return {"rule": lambda: 1}

        def load_state_dict(self, state: Any) -> None: ...

    agent.alg.strange = Strange()
    with pytest.raises(CheckpointError, match="strange/rule cannot be saved"):
        agent.save(tmp_path / "agent.ckpt")

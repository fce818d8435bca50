"""Algorithms take their steps with an optimizer of PyTorch's where one is given, and save its state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parl_core.errors import HyperparameterError, ModelContractError
from parl_torch.agent import Agent
from parl_torch.algorithms.a2c import A2C
from parl_torch.algorithms.dqn import DQN, OfflineQ
from parl_torch.algorithms.impala import IMPALA
from parl_torch.algorithms.policy_gradient import PolicyGradient
from parl_torch.algorithms.ppo import PPO
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
    model = Q()
    with pytest.raises(HyperparameterError, match="LBFGS computes the loss of one step several times"):
        DQN(model, optimizer=torch.optim.LBFGS(model.parameters()))


class Plain(torch.optim.Optimizer):
    """An optimizer of a program, whose `step` takes nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # that is what is tested
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad)


def test_an_optimizer_whose_step_takes_no_closure_is_taken() -> None:
    models = [Q(), Q()]
    models[1].set_weights(models[0].get_weights())
    plain = Agent(DQN(models[0], optimizer=Plain(models[0].parameters()), device="cpu"))
    known = Agent(DQN(models[1], optimizer=torch.optim.SGD(models[1].parameters(), 0.1), device="cpu"))
    for agent in (plain, known):
        agent.learn(*batch())
    for name, weights in known.get_weights().items():
        np.testing.assert_allclose(plain.get_weights()[name], weights, rtol=1e-6)


@pytest.mark.parametrize("own", [False, True])
def test_a_loss_without_a_gradient_is_refused(own: bool) -> None:
    model = Q().requires_grad_(False)
    agent = Agent(DQN(model, optimizer=torch.optim.SGD(model.parameters(), 0.1) if own else None, device="cpu"))
    with pytest.raises(ModelContractError, match="the loss has no gradient, so nothing would be learned"):
        agent.learn(*batch())

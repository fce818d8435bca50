"""Observations that an agent cannot act on are named in words."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.errors import SpoiledBatchError
from parl_torch.agent import Agent
from parl_torch.algorithms.dqn import DQN
from parl_torch.algorithms.ppo import PPO
from parl_torch.networks import ActorCritic, QNetwork


@pytest.fixture(params=["DQN", "PPO"])
def agent(request: pytest.FixtureRequest) -> Agent:
    return Agent(DQN(QNetwork(2)) if request.param == "DQN" else PPO(ActorCritic(act_dim=2)))


@pytest.mark.parametrize("method", ["predict", "sample"])
def test_the_pair_that_reset_returns_is_named(agent: Agent, method: str) -> None:
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(ValueError, match=r"obs, info = env.reset\(\)"):
        getattr(agent, method)(env.reset(seed=0))


@pytest.mark.parametrize("method", ["predict", "sample"])
def test_nan_is_named_with_its_place(agent: Agent, method: str) -> None:
    obs = np.zeros((3, 4), np.float32)
    obs[2, 1] = np.nan
    with pytest.raises(SpoiledBatchError, match=r"obs\[1\] of observation 2 is NaN"):
        getattr(agent, method)(obs)


def test_infinite_numbers_whose_sum_is_none_are_let_pass() -> None:
    obs: Any = np.array([[np.inf, -np.inf, 0.0, 0.0]], np.float32)
    Agent(DQN(QNetwork(2))).predict(obs)


def test_another_shape_than_before_is_named(agent: Agent) -> None:
    agent.predict(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"failed on obs of shape \[5\]; until now it was given obs of shape \[4\]"):
        agent.predict(np.zeros(5, np.float32))

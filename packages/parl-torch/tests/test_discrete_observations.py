"""The loops tell an agent how many dimensions one observation has, where the batch alone does not show it."""

from typing import Any

import gymnasium
import numpy as np
import torch

from parl_core.env.vector import make_vector_env
from parl_core.training import OnPolicySettings, evaluate, train_on_policy
from parl_torch.agent import Agent
from parl_torch.algorithms import PPO
from parl_torch.model import Model


class Corridor(gymnasium.Env[int, int]):
    """Three places in a row; the right action, 1, leads to the end and is rewarded there."""

    observation_space: Any = gymnasium.spaces.Discrete(3)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        over = self.place == 2
        return self.place, 1.0 if over else -0.1, over, False, {}


class Table(Model):
    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Embedding(3, 2)
        self.values = torch.nn.Embedding(3, 1)

    def policy(self, obs):
        return self.logits(obs.long())

    def value(self, obs):
        return self.values(obs.long())


def test_ppo_learns_where_an_observation_is_a_whole_number() -> None:
    torch.manual_seed(0)
    agent = Agent(PPO(Table(), initial_lr=0.05))
    settings = OnPolicySettings(total_steps=1024, n_steps=16, epochs=4, minibatch_size=64, lr=0.05, gamma=0.9)
    with make_vector_env(lambda: gymnasium.wrappers.TimeLimit(Corridor(), 20), num_envs=4) as envs:
        train_on_policy(agent, envs, settings, seed=0)
    assert agent.obs_ndim == 0
    result = evaluate(agent, lambda: gymnasium.wrappers.TimeLimit(Corridor(), 20), 3)
    np.testing.assert_allclose(result.returns, 0.9)

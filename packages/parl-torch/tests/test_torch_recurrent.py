"""Recurrent models whose state no loop carries are refused; those that run over the steps of an observation are not."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch

from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.training import OffPolicySettings, OnPolicySettings, train_off_policy, train_on_policy
from parl_torch.agent import Agent
from parl_torch.algorithms.dqn import DQN
from parl_torch.algorithms.ppo import PPO
from parl_torch.model import Model


class OneStep(Model):
    """Begins with an empty state at each step."""

    def __init__(self) -> None:
        self.lstm, self.out = torch.nn.LSTM(4, 8, batch_first=True), torch.nn.Linear(8, 2)

    def forward(self, obs: Any) -> Any:
        return self.out(self.lstm(obs.reshape(len(obs), -1, 4))[0][:, -1])

    def policy(self, obs: Any) -> Any:
        return self.forward(obs)

    def value(self, obs: Any) -> Any:
        return self.forward(obs)


class Remembering(OneStep):
    """Keeps its state itself, across environments and episodes."""

    def __init__(self) -> None:
        self.cell, self.out, self.state = torch.nn.GRUCell(4, 8), torch.nn.Linear(8, 2), None

    def forward(self, obs: Any) -> Any:
        self.state = self.cell(obs, self.state).detach()
        return self.out(self.state)


LOOP = OffPolicySettings(total_steps=40, learning_starts=20, batch_size=4, memory_size=50)


@pytest.mark.parametrize("model", [OneStep, Remembering])
def test_state_that_no_loop_carries_is_refused(model: Any) -> None:
    with make_vector_env("CartPole-v1", 1) as envs:
        with pytest.raises(HyperparameterError, match=r"is recurrent \((LSTM|GRUCell)\), and no loop carries its"):
            train_off_policy(Agent(DQN(model())), envs, LOOP)
        with pytest.raises(HyperparameterError, match="no loop carries its state"):
            train_on_policy(Agent(PPO(model())), envs, OnPolicySettings(total_steps=20, n_steps=10))


def test_a_layer_that_runs_over_stacked_frames_is_trained() -> None:
    def stacked() -> Any:
        env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 3)
        return gymnasium.wrappers.FlattenObservation(env)

    with make_vector_env(stacked, 1) as envs:
        assert train_off_policy(Agent(DQN(OneStep())), envs, LOOP).step == 40


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copied_recurrent_weights_are_packed_for_the_device(
    duplicate: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[torch.nn.RNNBase] = []
    model = OneStep()
    monkeypatch.setattr(torch.nn.RNNBase, "flatten_parameters", lambda self: packed.append(self))
    assert duplicate(model).lstm in packed

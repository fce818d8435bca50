"""Observations that are tensors are acted on and learned from as they are."""

from typing import Any

import numpy as np
import pytest
import torch

from parl_core.contracts.batches import Rollout, Transitions
from parl_torch.agent import Agent
from parl_torch.algorithms.dqn import DQN
from parl_torch.algorithms.ppo import PPO
from parl_torch.algorithms.sac import SAC
from parl_torch.networks import ActorCritic, QNetwork, SquashedActorCritic


class OfAnotherFramework:
    """Speaks DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.ndim = array, array.shape, array.ndim

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


OBS = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


@pytest.mark.parametrize(
    "agent",
    [
        lambda: Agent(DQN(QNetwork(2), device="cpu"), seed=1),
        lambda: Agent(PPO(ActorCritic(act_dim=2), device="cpu"), seed=1),
        lambda: Agent(SAC(SquashedActorCritic(2), device="cpu"), seed=1),
    ],
    ids=["DQN", "PPO", "SAC"],
)
def test_acting_on_tensors_gives_tensors_with_the_same_actions(agent: Any) -> None:
    made = agent()
    expected = made.predict(OBS.numpy())
    found = made.predict(OBS)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_allclose(made.predict(OBS[0]).numpy(), expected[0], rtol=1e-6)
    np.testing.assert_array_equal(made.predict(OfAnotherFramework(OBS)).numpy(), expected)
    sampled = made.sample(OBS)
    assert all(isinstance(part, torch.Tensor) for part in (sampled if isinstance(sampled, tuple) else (sampled,)))


def test_no_tensor_becomes_an_array_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(PPO(ActorCritic(act_dim=2), device="cpu"))
    agent.explore(OBS)
    monkeypatch.setattr(torch.Tensor, "numpy", None)
    value, action, log_prob = agent.explore(OBS)
    assert value.shape == action.shape == log_prob.shape == (3,)
    assert agent.value(OBS).shape == (3,)


def test_batches_of_tensors_are_learned_from() -> None:
    columns = (OBS, torch.tensor([0, 1, 0]), torch.ones(3), OBS, torch.zeros(3))
    torch.manual_seed(1)
    first = Agent(DQN(QNetwork(2), device="cpu"))
    first.predict(OBS)
    second = Agent(DQN(QNetwork(2), device="cpu"))
    second.predict(OBS)
    second.alg.set_state(first.alg.get_state())
    assert first.learn(Transitions(*columns)) == second.learn(*(column.numpy() for column in columns))
    agent = Agent(PPO(ActorCritic(act_dim=2), device="cpu"))
    value, action, log_prob = agent.explore(OBS)
    rollout = Rollout(OBS, action, value, value + 1.0, log_prob, torch.ones(3))
    figures = agent.learn_rollout(rollout, epochs=1, minibatch_size=2, rng=np.random.default_rng(0))
    assert figures["steps"] == 2

"""Ready-made models serve their algorithms."""

import numpy as np
import pytest

import parl
from parl import algorithms, networks
from parl.algorithms import DQN, PPO
from parl.networks import ActorCritic, QNetwork


@pytest.mark.parametrize("dueling", [False, True])
def test_q_networks_serve_dqn(dueling: bool) -> None:
    agent = parl.Agent(DQN(QNetwork(3, (16,), dueling=dueling), device="cpu"))
    obs = np.ones((4, 5), np.float32)
    assert agent.predict(obs).shape == (4,)
    assert agent.learn(obs, [0, 1, 2, 0], np.ones(4), obs, np.zeros(4)) > 0


def test_a_continuous_actor_critic_has_one_deviation_a_dimension() -> None:
    agent = parl.Agent(PPO(ActorCritic(2, continuous=True), continuous_action=True, device="cpu"))
    _, action, log_prob, entropy = agent.sample(np.zeros((3, 5), np.float32))
    assert action.shape == (3, 2)
    assert log_prob.shape == (3,)
    np.testing.assert_allclose(entropy, 2 * 0.5 * np.log(2 * np.pi * np.e), atol=1e-5)  # deviation 1 at the start
    assert "log_std" in agent.get_weights()


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("DDPG", "DeterministicActorCritic"),
        ("TD3", "TwinActorCritic"),
        ("SAC", "SquashedActorCritic"),
        ("OAC", "SquashedActorCritic"),
    ],
)
def test_networks_of_continuous_actions_serve_their_algorithms(name: str, network: str) -> None:
    model = getattr(networks, network)(2, (16,))
    agent = parl.Agent(getattr(algorithms, name)(model, device="cpu"))
    obs, column = np.ones((4, 5), np.float32), np.ones(4, np.float32)
    agent.learn(obs, np.zeros((4, 2), np.float32), column, obs, column)
    assert agent.predict(obs).shape == (4, 2)
    actor, critic = model.get_actor_params(), model.get_critic_params()
    assert len(actor) + len(critic) == len(list(model.parameters()))
    assert not {id(parameter) for parameter in actor} & {id(parameter) for parameter in critic}

"""`parl train` with off-policy algorithms, and the agents that it leaves."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_core import backends
from parl_core.cli._commands import parl
from parl_core.errors import DivergedError, HyperparameterError, ParlError
from parl_core.replay import Prioritized, ReplayMemory
from parl_core.training import OffPolicySettings, make_vector_env, train_off_policy
from parl_core.training.off_policy import TransitionCollector
from parl_core.training.trained import Trained

BACKEND = backends.current().name


@pytest.mark.parametrize(("command", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1"), ("td3", "Pendulum-v1")])
def test_a_trained_agent_is_found_again(command: str, env: str, tmp_path: Path) -> None:
    asked = ["train", command, env, "--steps", "30", "--runs", str(tmp_path), "--backend", BACKEND]
    trained = CliRunner().invoke(parl, asked)
    assert trained.exit_code == 0, trained.output
    (folder,) = tmp_path.iterdir()
    played = CliRunner().invoke(parl, ["evaluate", str(folder), "--episodes", "1"])
    assert played.exit_code == 0, played.output
    assert f"{env}: mean return" in played.output


def test_each_kind_of_actions_gets_its_network() -> None:
    agent = Trained("OAC", "Pendulum-v1", BACKEND, (8,)).make_agent()
    assert agent.predict(np.zeros(3, np.float32)).shape == (1,)
    with pytest.raises(HyperparameterError, match=r"SAC on CartPole-v1: .*'squashed' choose numbers"):
        Trained("SAC", "CartPole-v1", BACKEND, (8,)).make_agent()
    with pytest.raises(HyperparameterError, match=r"DQN on Pendulum-v1: .*'q' choose in a Discrete space"):
        Trained("DQN", "Pendulum-v1", BACKEND, (8,)).make_agent()


@pytest.mark.parametrize(
    ("made_for", "algorithm", "played", "message"),
    [
        ("Acrobot-v1", "DQN", "CartPole-v1", r"model must return \[batch, 2\], got \(1, 3\)"),
        ("Pendulum-v1", "TD3", "CartPole-v1", "the policy chooses other numbers .*off-policy: DQN"),
        ("CartPole-v1", "DQN", "Pendulum-v1", "the policy chooses whole numbers: .*SAC, TD3 or DDPG"),
    ],
)
def test_an_agent_for_other_actions_is_refused_before_the_first_step(
    made_for: str, algorithm: str, played: str, message: str
) -> None:
    agent = Trained(algorithm, made_for, BACKEND, (8,)).make_agent()
    with make_vector_env(played, 1) as envs, pytest.raises(ParlError, match=message):
        train_off_policy(agent, envs, OffPolicySettings(learning_starts=500, total_steps=500))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_vector_that_continues_in_the_same_arrays_is_remembered_as_any_other(mode: Any) -> None:
    remembered = []
    for copy in (True, False):
        agent = Trained("DQN", "CartPole-v1", BACKEND, (8,)).make_agent()
        memory = ReplayMemory(100, 4, 0, n_envs=2, seed=0)
        make = [lambda: gymnasium.make("CartPole-v1")] * 2
        with closing(SyncVectorEnv(make, copy=copy, autoreset_mode=mode)) as envs:
            collector = TransitionCollector(agent, envs, memory, np.random.default_rng(0), 0)
            for _ in range(40):
                collector.collect(at_random=True, exploration={})
        size = memory.size()
        remembered.append((memory.obs[:size], memory.next_obs[:size]))
    for with_copies, without in zip(*remembered, strict=True):
        np.testing.assert_array_equal(with_copies, without)


class Spoiled(gymnasium.Env[Any, Any]):
    """Gives a reward from which no loss of float32 is computed."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(4, np.float32), 3e38, False, False, {}


def test_prioritised_replay_ends_with_the_error_of_a_loss_that_is_not_finite() -> None:
    backend = backends.current()
    agent = backend.Agent(backend.algorithms.DQN(backend.networks.QNetwork(2, (8,)), device="cpu"), seed=0)
    settings = OffPolicySettings(20, learning_starts=4, batch_size=4, memory_size=20, prioritized=Prioritized())
    with make_vector_env(Spoiled, 1) as envs, pytest.raises(DivergedError, match="DQN"):
        train_off_policy(agent, envs, settings, seed=0)

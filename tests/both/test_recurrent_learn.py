"""Tasks that need a memory are solved with one, and not without."""

from typing import Any

import gymnasium
import pytest

import parl
from conformance.memory_tasks import Bandit, Recall, TMaze
from parl_core.env.vector import make_vector_env
from parl_core.env.wrappers import PreviousStep
from parl_core.schedules import linear
from parl_core.seeding import seed_everything
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.evaluation import evaluate
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def agent_for(task: Any, memory: str | None, algorithm: str = "PPO", **settings: Any) -> Any:
    env = task()
    seed_everything(1)
    model = parl.networks.for_spaces(
        env.observation_space,
        env.action_space,
        "q" if algorithm == "DQN" else "actor-critic",
        memory=memory,  # type: ignore[arg-type]  # a parameter of tests
        memory_size=32,
    )
    return parl.Agent(getattr(parl.algorithms, algorithm)(model, **settings), seed=1)


def learned(task: Any, memory: str | None, steps: int) -> float:
    """Return the mean return of PPO after so many steps."""
    agent = agent_for(task, memory)
    settings = OnPolicySettings(
        total_steps=steps, n_steps=32, epochs=4, minibatch_size=128, lr=2e-3, clip=0.2, gamma=0.98, entropy_coef=0.01
    )
    with make_vector_env(task, 16) as envs:
        train_on_policy(agent, envs, settings, seed=1)
    return evaluate(agent, task, 100, seed=2).mean


@pytest.mark.parametrize("memory", ["gru", "lstm", "transformer"])
def test_ppo_recalls_what_was_shown(memory: str) -> None:
    assert learned(Recall, memory, 16_000) >= 0.95


def test_ppo_finds_the_arm_of_the_maze() -> None:
    assert learned(TMaze, "gru", 24_000) >= 0.95


@pytest.mark.parametrize("task", [Recall, TMaze])
def test_without_a_memory_a_half_is_the_most(task: Any) -> None:
    assert learned(task, None, 16_000) <= 0.7


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("IMPALA", {"sample_batch_steps": 12, "gamma": 0.98, "learning_rate": 2e-3}),
        ("A2C", {"learning_rate": 2e-3}),
    ],
)
def test_fragments_teach_to_recall(algorithm: str, settings: dict[str, Any]) -> None:
    def make_agent() -> Any:
        return agent_for(Recall, "gru", algorithm, **settings)

    agent = make_agent()
    loop = ActorLearnerSettings(
        total_steps=40_000, n_actors=2, envs_per_group=8, n_steps=12, max_lag=0, gamma=0.98, gae_lambda=0.95
    )
    train_actor_learner(agent, make_agent, Recall, loop, seed=1)
    assert evaluate(agent, Recall, 100, seed=2).mean >= 0.95


def with_previous_step() -> Any:
    return gymnasium.wrappers.FlattenObservation(PreviousStep(Bandit()))


@pytest.mark.long
def test_impala_learns_from_its_previous_action_and_reward_which_arm_pays() -> None:
    settings = {"sample_batch_steps": 12, "gamma": 0.9, "learning_rate": 2e-3}

    def make_agent() -> Any:
        return agent_for(with_previous_step, "lstm", "IMPALA", **settings)

    agent = make_agent()
    loop = ActorLearnerSettings(total_steps=40_000, n_actors=2, envs_per_group=8, n_steps=12, max_lag=0, gamma=0.9)
    train_actor_learner(agent, make_agent, with_previous_step, loop, seed=1)
    assert evaluate(agent, with_previous_step, 200, seed=2).mean >= 5.2


def test_without_its_previous_action_and_reward_a_memory_does_not_know_which_arm_pays() -> None:
    assert learned(Bandit, "gru", 8_000) <= 3.6


def test_dqn_recalls_what_was_shown() -> None:
    agent = agent_for(Recall, "gru", "DQN", lr=2e-3, gamma=0.95, double=True, sync_every=50)
    settings = OffPolicySettings(
        total_steps=12_000,
        learning_starts=1_000,
        train_every=8,
        batch_size=320,
        n_step=3,
        sequence_length=10,
        burn_in=6,
        exploration={"epsilon": linear(1.0, 0.05, 6_000)},
    )
    with make_vector_env(Recall, 8) as envs:
        train_off_policy(agent, envs, settings, seed=1)
    assert evaluate(agent, Recall, 100, seed=2).mean >= 0.95

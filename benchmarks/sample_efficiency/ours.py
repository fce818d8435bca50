"""This project's loops."""

from functools import partial
from typing import Any

from cases import EPISODES, Case

from parl_core.env.vector import make_vector_env
from parl_core.schedules import linear
from parl_core.training import ConfirmedReturn, OnPolicySettings, evaluate, train_on_policy
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_torch.agent import Agent
from parl_torch.algorithms import DQN, PPO, SAC
from parl_torch.networks import ActorCritic, QNetwork, SquashedActorCritic

__all__ = ["ours"]


def ours(name: str, case: Case, seed: int) -> list[tuple[int, float]]:
    """Train until solved; the evaluations' steps and mean returns."""
    agent, settings, num_envs = {"ppo": _ppo, "dqn": _dqn, "sac": _sac}[name](seed)
    train = train_on_policy if isinstance(settings, OnPolicySettings) else train_off_policy
    with make_vector_env(case.env, num_envs) as envs:
        ended = train(
            agent,
            envs,
            settings.with_total_steps(case.total_steps),
            evaluator=partial(evaluate, agent, case.env, EPISODES),
            evaluate_every=case.evaluate_every,
            callbacks=[ConfirmedReturn(case.threshold)],
            seed=seed,
        )
    return [(evaluation.step, evaluation.mean) for evaluation in ended.evaluations]


def _ppo(seed: int) -> tuple[Any, Any, int]:
    settings = OnPolicySettings(
        n_steps=32,
        epochs=20,
        minibatch_size=256,
        gamma=0.98,
        gae_lambda=0.8,
        lr=1e-3,
        clip=0.2,
        decay=True,
        entropy_coef=0.0,
    )
    algorithm = PPO(ActorCritic(2), value_loss_coef=1.0, use_clipped_value_loss=False, entropy_coef=0.0)
    return Agent(algorithm, seed=seed), settings, 8


def _dqn(seed: int) -> tuple[Any, Any, int]:
    settings = OffPolicySettings(
        learning_starts=1000,
        train_every=256,
        gradient_steps=128,
        batch_size=64,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.04, 8_000)},
    )
    return Agent(DQN(QNetwork(2, (256, 256)), lr=2.3e-3, sync_every=128), seed=seed), settings, 1


def _sac(seed: int) -> tuple[Any, Any, int]:
    settings = OffPolicySettings(learning_starts=100, batch_size=256, memory_size=1_000_000)
    return Agent(SAC(SquashedActorCritic(1), actor_lr=1e-3, critic_lr=1e-3), seed=seed), settings, 1

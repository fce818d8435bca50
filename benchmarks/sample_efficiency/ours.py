"""This project's loops with the Zoo's hyper-parameters: its recipes, except for DQN, whose recipe differs."""

from functools import partial
from typing import Any

from cases import EPISODES, Case

from parl_core.env.vector import make_vector_env
from parl_core.schedules import linear
from parl_core.training import ConfirmedReturn, evaluate, train_on_policy
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.recipes import Recipe, find_recipe
from parl_torch.agent import Agent
from parl_torch.algorithms import DQN, PPO, SAC
from parl_torch.networks import ActorCritic, QNetwork, SquashedActorCritic

__all__ = ["ours"]

_MADE_OF: dict[str, tuple[str, Any, Any, Any]] = {
    "ppo": ("PPO", partial(ActorCritic, 2), PPO, train_on_policy),
    "dqn": ("DQN", partial(QNetwork, 2), DQN, train_off_policy),
    "sac": ("SAC", partial(SquashedActorCritic, 1), SAC, train_off_policy),
}


def ours(name: str, case: Case, seed: int) -> list[tuple[int, float]]:
    """Train until the task is solved, and return steps and mean returns of the evaluations."""
    known_as, network, algorithm, train = _MADE_OF[name]
    recipe = _zoo_dqn() if name == "dqn" else find_recipe(known_as, case.env)
    agent = Agent(algorithm(network(**recipe.sizes), **recipe.algorithm), seed=seed)
    with make_vector_env(case.env, recipe.num_envs) as envs:
        ended = train(
            agent,
            envs,
            recipe.loop.with_total_steps(case.total_steps),
            evaluator=partial(evaluate, agent, case.env, EPISODES),
            evaluate_every=case.evaluate_every,
            callbacks=[ConfirmedReturn(case.threshold)],
            seed=seed,
        )
    return [(evaluation.step, evaluation.mean) for evaluation in ended.evaluations]


def _zoo_dqn() -> Recipe:
    """Return the hyper-parameters of `sb3.py`."""
    loop = OffPolicySettings(
        total_steps=50_000,
        learning_starts=1_000,
        train_every=256,
        gradient_steps=128,
        batch_size=64,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.04, 8_000)},
    )
    settings = {"gamma": 0.99, "lr": 2.3e-3, "sync_every": 128, "huber": 1.0, "max_grad_norm": 10.0}
    return Recipe(loop, settings, {"hidden": (256, 256)})

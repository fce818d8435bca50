"""This project's loops, with its recipes, whose hyper-parameters are the Zoo's."""

from functools import partial
from typing import Any

from cases import EPISODES, Case

from parl_core.env.vector import make_vector_env
from parl_core.training import ConfirmedReturn, evaluate, train_on_policy
from parl_core.training.off_policy import train_off_policy
from parl_core.training.recipes import find_recipe
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
    """Train until solved; the evaluations' steps and mean returns."""
    known_as, network, algorithm, train = _MADE_OF[name]
    recipe = find_recipe(known_as, case.env)
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

"""The tasks with the returns that count as solved, and RL Baselines3 Zoo's hyper-parameters for both libraries."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["CASES", "EPISODES", "Case", "first_confirmed"]

EPISODES = 10
"""Episodes per evaluation, with the same seeds for both libraries."""


@dataclass(frozen=True)
class Case:
    """A task.

    Attributes:
        title: Algorithm and task.
        env: Id of the environment.
        threshold: Mean return of an evaluation that counts as solved.
        total_steps: Number of environment steps after which an unsolved run ends.
        evaluate_every: Number of environment steps between evaluations.
    """

    title: str
    env: str
    threshold: float
    total_steps: int
    evaluate_every: int


CASES = {
    "ppo": Case("PPO, CartPole-v1", "CartPole-v1", 475.0, 100_000, 1024),
    "dqn": Case("DQN, CartPole-v1", "CartPole-v1", 475.0, 50_000, 1024),
    "sac": Case("SAC, Pendulum-v1", "Pendulum-v1", -200.0, 20_000, 500),
}


def first_confirmed(evaluations: Sequence[tuple[int, float]], threshold: float) -> int | None:
    """Return the step of the first of two consecutive evaluations that reached the threshold; None without any."""
    for (step, mean), (_, following) in pairwise(evaluations):
        if mean >= threshold <= following:
            return step
    return None

"""The tasks, the return that counts as solved, and RL Baselines3 Zoo's hyper-parameters of both libraries."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["CASES", "EPISODES", "Case", "first_confirmed"]

EPISODES = 10
"""Of an evaluation, on the same seeds for both libraries."""


@dataclass(frozen=True)
class Case:
    """A task.

    Attributes:
        title: algorithm and task.
        env: its id.
        threshold: mean return of an evaluation that counts as solved.
        total_steps: environment steps after which a run is given up.
        evaluate_every: environment steps between evaluations.
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
    """The step of the first evaluation that reached the threshold together with the next one; None if none did."""
    for (step, mean), (_, following) in pairwise(evaluations):
        if mean >= threshold <= following:
            return step
    return None

"""This project's agent around the tasks' networks, made in the learner and in each actor."""

from typing import Any

import tasks

from parl_torch.agent import Agent
from parl_torch.algorithms import IMPALA
from parl_torch.model import Model

__all__ = ["make_agent"]


class Shared(Model):
    """A task's network as a model."""

    def __init__(self, network: tasks.Network) -> None:
        self.network = network

    def policy_and_value(self, obs: Any) -> Any:
        """Logits and values."""
        return self.network.policy_and_value(obs)

    def policy(self, obs: Any) -> Any:
        """Logits."""
        return self.network.policy_and_value(obs)[0]

    def value(self, obs: Any) -> Any:
        """Values."""
        return self.network.policy_and_value(obs)[1]


class OfVectors(Shared):
    """A network of vectors, which actors run in numpy, and which learns without autograd."""

    def policy_and_value(self, obs: Any) -> Any:
        """Logits and values."""
        features = self.network.trunk(obs)
        return self.network.pi(features), self.network.v(features)

    def policy(self, obs: Any) -> Any:
        """Logits."""
        return self.network.pi(self.network.trunk(obs))


def make_agent(task: str, compute_dtype: str = "float32") -> Any:
    """An agent for the task of this name; `compute_dtype` is its networks'."""
    model = Shared if tasks.TASKS[task].images else OfVectors
    algorithm = IMPALA(
        model(tasks.TASKS[task].network()),
        sample_batch_steps=tasks.STEPS,
        gamma=tasks.GAMMA,
        vf_loss_coeff=tasks.VALUE_LOSS,
        learning_rate=tasks.LEARNING_RATE,
        entropy_coeff=-tasks.ENTROPY,
        max_grad_norm=tasks.MAX_NORM,
        device="cpu",
        compute_dtype=compute_dtype,
    )
    return Agent(algorithm)

"""This project's agent, made in the learner and in each actor.

For images it has the ready-made network with the layers of `tasks.nature_cnn`, for vectors the task's network.
"""

from typing import Any

import tasks

from parl_torch.agent import Agent
from parl_torch.algorithms import IMPALA
from parl_torch.model import Model
from parl_torch.networks import AtariActorCritic

__all__ = ["make_agent"]


class OfVectors(Model):
    """A network for vectors, which actors evaluate in numpy, and whose gradients need no autograd."""

    def __init__(self, network: tasks.Network) -> None:
        self.network = network

    def policy_and_value(self, obs: Any) -> Any:
        """Logits and values."""
        features = self.network.trunk(obs)
        return self.network.pi(features), self.network.v(features)

    def policy(self, obs: Any) -> Any:
        """Logits."""
        return self.network.pi(self.network.trunk(obs))

    def value(self, obs: Any) -> Any:
        """Values."""
        return self.network.v(self.network.trunk(obs))


def make_agent(task: str, compute_dtype: str = "float32") -> Any:
    """Return an agent for the task of this name; `compute_dtype` is the dtype of its networks."""
    network = tasks.TASKS[task].network()
    algorithm = IMPALA(
        AtariActorCritic(network.pi.out_features) if tasks.TASKS[task].images else OfVectors(network),
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

"""PARL 2.2.1's actor and model, which must be in a module beside the program."""

from typing import Any

import numpy as np
import tasks
import torch
from torch import Tensor

import parl

__all__ = ["Model", "RemoteActor"]


class Model(parl.Model):  # type: ignore[misc]
    """A task's network for PARL 2.2.1's IMPALA: policy and value each need a pass through the trunk."""

    def __init__(self, network: tasks.Network) -> None:
        super().__init__()
        self.network = network

    def policy(self, obs: Tensor) -> Tensor:
        """Logits."""
        return self.network.policy_and_value(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Values."""
        return self.network.policy_and_value(obs)[1]

    def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values."""
        return self.policy(obs), self.value(obs)


@parl.remote_class(wait=False)
class RemoteActor:
    """Some environments and a copy of the model."""

    def __init__(self, task: str) -> None:
        torch.set_num_threads(1)
        self.model, self.rng = Model(tasks.TASKS[task].network()), np.random.default_rng()
        self.envs = [tasks.TASKS[task].env() for _ in range(tasks.ENVS)]
        self.obs = [env.reset()[0] for env in self.envs]

    def sample(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return a fragment of every environment, joined environment by environment."""
        self.model.set_weights(weights)
        steps: list[tuple[Any, ...]] = []
        for _ in range(tasks.STEPS):
            obs = np.stack(self.obs)
            with torch.no_grad():
                logits = self.model.policy(torch.from_numpy(obs)).numpy()
            actions = (logits + self.rng.gumbel(size=logits.shape)).argmax(1)
            rewards, dones = np.zeros(tasks.ENVS, np.float32), np.zeros(tasks.ENVS, np.float32)
            for i, env in enumerate(self.envs):
                self.obs[i], rewards[i], ended, cut, _ = env.step(actions[i])
                dones[i] = ended or cut
                if ended or cut:
                    self.obs[i] = env.reset()[0]
            steps.append((obs, actions, logits, rewards, dones))
        names = "obs", "action", "logits", "reward", "done"
        columns = {
            name: np.stack(column, 1).reshape(tasks.ENVS * tasks.STEPS, *column[0].shape[1:])
            for name, column in zip(names, zip(*steps, strict=True), strict=True)
        }
        return {**columns, "last_obs": np.stack(self.obs)}

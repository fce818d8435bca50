"""COMA on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import coma as contract
from parl_core.contracts.batches import Rollout
from parl_torch.algorithm import Algorithm

__all__ = ["COMA"]


class COMA(contract.COMA, Algorithm):
    def critic_loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        q = self._of_actions(self._values(self.model, batch.obs, batch.action), batch.action)
        same_shape(q=q, return_=batch.return_, active=batch.active)
        weights = batch.active / batch.active.sum().clamp_min(1.0)
        return (weights * (q - batch.return_).square()).sum(), {}

    def actor_loss(self, batch: Rollout, entropy_coef: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        policy = self._policy(self._features(batch.obs, batch.state, batch.begins), batch.action_mask)
        rows = batch.action.reshape(-1)
        log_prob, each_entropy = policy.logp(rows), policy.entropy()
        with torch.no_grad():
            values = self._values(self.model, batch.obs, batch.action).flatten(0, 1)
            probabilities = policy.log_probabilities.exp()
            baseline = (probabilities * values).sum(-1)
            advantage = values.gather(-1, rows.unsqueeze(-1)).squeeze(-1) - baseline
        active = batch.active.reshape(-1)
        weights = active / active.sum().clamp_min(1.0)
        policy_loss = -(weights * advantage * log_prob).sum()
        entropy = (weights * each_entropy).sum()
        figures = {"policy_loss": policy_loss, "entropy": entropy, "advantage": (weights * advantage.abs()).sum()}
        loss = policy_loss - coef * entropy
        return loss, {name: figure.detach() for name, figure in figures.items()}

    def _values(self, model: Any, obs: Any, action: Tensor) -> Tensor:
        dtype = obs["state"].dtype
        one_hot = torch.nn.functional.one_hot(action, self.n_actions).to(dtype) * obs["alive"].to(dtype).unsqueeze(2)
        values: Tensor = model.values(obs, one_hot)
        return values

    def _of_actions(self, values: Tensor, action: Tensor) -> Tensor:
        return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)

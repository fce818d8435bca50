"""OAC on PyTorch."""

import math

import torch
from torch import Tensor

from parl_core.contracts import oac as contract
from parl_torch.algorithms.sac import SAC

__all__ = ["OAC"]


class OAC(contract.OAC, SAC):
    def get_optimistic_exploration_action(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            mean, log_std = self.model.policy(obs)
        with torch.enable_grad():
            u = mean.detach().requires_grad_()
            q1, q2 = self.model.value(obs, torch.tanh(u))
            upper_bound = 0.5 * (q1 + q2) + self.beta * 0.5 * (q1 - q2).abs()
            (gradient,) = torch.autograd.grad(upper_bound.sum(), u)
        with torch.no_grad():
            std = log_std.exp()
            norm = (std * gradient).norm(dim=-1, keepdim=True) + 1e-5
            shifted = mean + math.sqrt(2.0 * self.delta) * std.square() * gradient / norm
            return torch.tanh(shifted + std * self._noise(mean))

"""TD3+BC on PyTorch."""

from torch import Tensor

from parl_core.contracts import td3_bc as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.td3 import TD3

__all__ = ["TD3BC"]


class TD3BC(contract.TD3BC, TD3):
    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        value = self.model.Q1(batch.obs, action).reshape(-1)
        scale = self.alpha / value.detach().abs().mean()
        return (action - batch.action).square().mean() - scale * value.mean(), {}

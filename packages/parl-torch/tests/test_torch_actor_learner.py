"""Actors and a learner on PyTorch; the suite is in `parl_core.testing`."""

from typing import Any

import torch

from parl_core.testing import ActorLearnerConformance
from parl_torch.backend import TorchBackend


class TorchAdapter:
    backend = TorchBackend()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def double(self, model: Any) -> Any:
        return model.double()


class TestActorLearner(ActorLearnerConformance):
    adapter = TorchAdapter()

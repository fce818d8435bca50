"""parl-torch's offline algorithms do what every backend's must do; the suites are in `conformance`."""

from typing import Any

import torch

from conformance import (
    AWACConformance,
    BCConformance,
    CQLConformance,
    DecisionTransformerConformance,
    IQLConformance,
    OfflineQConformance,
    ReBRACConformance,
    TD3BCConformance,
)
from parl_torch.backend import TorchBackend
from parl_torch.transformer import TrajectoryTransformer


class TorchAdapter:
    backend = TorchBackend()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def double(self, model: Any) -> Any:
        return model.double()


class TestBC(BCConformance):
    adapter = TorchAdapter()


class TestCQL(CQLConformance):
    adapter = TorchAdapter()


class TestIQL(IQLConformance):
    adapter = TorchAdapter()


class TestTD3BC(TD3BCConformance):
    adapter = TorchAdapter()


class TestAWAC(AWACConformance):
    adapter = TorchAdapter()


class TestReBRAC(ReBRACConformance):
    adapter = TorchAdapter()


class TestOfflineQ(OfflineQConformance):
    adapter = TorchAdapter()


class TestDecisionTransformer(DecisionTransformerConformance):
    adapter = TorchAdapter()

    def transformer(self, **sizes: Any) -> Any:
        return TrajectoryTransformer(**sizes)

"""parl-paddle's offline algorithms do what every backend's must do; the suites are in `conformance`."""

from typing import Any

import paddle

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
from parl_paddle.backend import PaddleBackend
from parl_paddle.transformer import TrajectoryTransformer


class PaddleAdapter:
    backend = PaddleBackend()

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def double(self, model: Any) -> Any:
        return model.to(dtype="float64")


class TestBC(BCConformance):
    adapter = PaddleAdapter()


class TestCQL(CQLConformance):
    adapter = PaddleAdapter()


class TestIQL(IQLConformance):
    adapter = PaddleAdapter()


class TestTD3BC(TD3BCConformance):
    adapter = PaddleAdapter()


class TestAWAC(AWACConformance):
    adapter = PaddleAdapter()


class TestReBRAC(ReBRACConformance):
    adapter = PaddleAdapter()


class TestOfflineQ(OfflineQConformance):
    adapter = PaddleAdapter()


class TestDecisionTransformer(DecisionTransformerConformance):
    adapter = PaddleAdapter()

    def transformer(self, **sizes: Any) -> Any:
        return TrajectoryTransformer(**sizes)

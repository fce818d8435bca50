"""parl-paddle's offline algorithms do what every backend's must do; the suites are in `conformance`."""

from typing import Any

import paddle

from conformance import (
    BCConformance,
    CQLConformance,
    DecisionTransformerConformance,
    IQLConformance,
    OfflineQConformance,
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


class TestOfflineQ(OfflineQConformance):
    adapter = PaddleAdapter()


class TestDecisionTransformer(DecisionTransformerConformance):
    adapter = PaddleAdapter()

    def transformer(self, **sizes: Any) -> Any:
        return TrajectoryTransformer(**sizes)

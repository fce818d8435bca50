"""The suite that both backends run, on PaddlePaddle."""

from typing import Any

import paddle

from parl_core.testing import (
    AgentConformance,
    DQNConformance,
    LazyLayersConformance,
    ModelConformance,
    PolicyGradientConformance,
    PPOConformance,
    SeparatePPOConformance,
)
from parl_paddle.backend import PaddleBackend


class PaddleAdapter:
    backend = PaddleBackend()

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def double(self, model: Any) -> Any:
        return model.to(dtype="float64")


class TestModel(ModelConformance):
    adapter = PaddleAdapter()


class TestLazyLayers(LazyLayersConformance):
    adapter = PaddleAdapter()


class TestAgent(AgentConformance):
    adapter = PaddleAdapter()


class TestPolicyGradient(PolicyGradientConformance):
    adapter = PaddleAdapter()


class TestDQN(DQNConformance):
    adapter = PaddleAdapter()


class TestPPO(PPOConformance):
    adapter = PaddleAdapter()


class TestSeparatePPO(SeparatePPOConformance):
    adapter = PaddleAdapter()

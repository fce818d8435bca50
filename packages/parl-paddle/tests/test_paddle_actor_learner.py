"""Actors and a learner on paddle; the suite is in `parl_core.testing`."""

from typing import Any

import paddle

from parl_core.testing import ActorLearnerConformance
from parl_paddle.backend import PaddleBackend


class PaddleAdapter:
    backend = PaddleBackend()

    def seed(self, seed: int) -> None:
        paddle.seed(seed)

    def double(self, model: Any) -> Any:
        return model.to(dtype="float64")


class TestActorLearner(ActorLearnerConformance):
    adapter = PaddleAdapter()

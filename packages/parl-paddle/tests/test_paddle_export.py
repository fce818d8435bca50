"""`save_inference_model`: what Paddle Inference loads computes what the model computed."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from parl_core.errors import ModelContractError
from parl_paddle import layers
from parl_paddle.agent import Agent
from parl_paddle.algorithms import DQN
from parl_paddle.model import Model

OBS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)


class Network(Model):
    def __init__(self) -> None:
        self.hidden = layers.fc(size=8, act="relu")
        self.norm = layers.batch_norm()
        self.out = layers.fc(size=2)

    def forward(self, obs: Any) -> Any:
        return self.out(self.norm(self.hidden(obs)))


def _agent() -> Agent:
    agent = Agent(DQN(Network()))
    agent.learn(OBS, [0, 1, 0, 1, 0], np.ones(5), OBS, np.zeros(5))
    return agent


def test_an_exported_model_gives_the_same_values_for_any_batch(tmp_path: Path) -> None:
    agent = _agent()
    agent.save_inference_model(tmp_path / "policy", [[None, 4]], ["float32"])
    loaded = paddle.jit.load(str(tmp_path / "policy"))
    agent.eval()
    for rows in (1, 5):
        inputs = paddle.to_tensor(OBS[:rows])
        np.testing.assert_allclose(loaded(inputs).numpy(), agent.alg.predict(inputs).numpy(), atol=1e-6)


def test_exporting_leaves_the_model_in_training_and_able_to_learn(tmp_path: Path) -> None:
    agent = _agent()
    agent.save_inference_model(str(tmp_path / "policy"), [[None, 4]], ["float32"])
    assert agent.alg.model.training
    before = agent.get_weights()["out.bias"]
    agent.learn(OBS, [0, 1, 0, 1, 0], np.ones(5), OBS, np.zeros(5))
    assert (agent.get_weights()["out.bias"] != before).any()


def test_a_part_of_a_model_is_exported_alone(tmp_path: Path) -> None:
    agent = _agent()
    agent.save_inference_model(tmp_path / "head", [[None, 8]], ["float32"], agent.alg.model.out)
    features = paddle.ones([2, 8])
    loaded = paddle.jit.load(str(tmp_path / "head"))
    np.testing.assert_allclose(loaded(features).numpy(), agent.alg.model.out(features).numpy(), atol=1e-6)


def test_a_model_without_shapes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelContractError, match=r"hidden\.weight is not known before the first batch"):
        Agent(DQN(Network())).save_inference_model(tmp_path / "policy", [[None, 4]], ["float32"])


def test_lists_of_different_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 1 shapes and 2 dtypes"):
        _agent().save_inference_model(tmp_path / "policy", [[None, 4]], ["float32", "int64"])

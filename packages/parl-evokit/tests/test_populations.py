"""Whole populations of numpy models in one batch give what their members give."""

from typing import Any

import numpy as np
import pytest

from parl_evokit import ESAgent, EvolutionError, SamplingInfo, mlp

SETTINGS = {"keys": "COUNTER", "solver": {"sampling": {"gaussian_sampling": {"std": 0.3}}}}
RNG = np.random.default_rng(1)


def linear() -> tuple[dict[str, np.ndarray], Any]:
    return {"w": np.ones((4, 2)), "b": np.zeros(2)}, lambda arrays, x: x @ arrays["w"] + arrays["b"]


@pytest.mark.parametrize("model", [mlp([4, 20, 2]), mlp([4, 3, 3, 2], activation="relu", softmax=False), linear()])
@pytest.mark.parametrize("shape", [(4,), (7, 4)])
@pytest.mark.parametrize("each", [False, True])
def test_a_batch_is_what_its_members_give(model: Any, shape: tuple[int, ...], each: bool) -> None:
    agent = ESAgent(SETTINGS, model)
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(6)]
    x = RNG.normal(size=(6, *shape) if each else shape).astype(np.float32)
    outputs = agent.predict_many(infos, x, each=each)
    assert outputs.shape == (6, *shape[:-1], 2)
    for k, info in enumerate(infos):
        clone.apply_noise(info)
        assert outputs[k] == pytest.approx(clone.predict(x[k] if each else x), abs=1e-5)


def test_samples_of_another_model_and_a_wrong_number_of_inputs_are_refused() -> None:
    agent = ESAgent(SETTINGS, mlp([4, 2]))
    infos = [agent.clone().add_noise() for _ in range(3)]
    with pytest.raises(EvolutionError, match="3 samples came with 2 inputs"):
        agent.predict_many(infos, np.ones((2, 4)), each=True)
    agent.update(infos, [1.0, 2.0, 3.0])
    with pytest.raises(EvolutionError, match="is of model 0, not of the present model 1"):
        agent.predict_many(infos, np.ones(4))
    assert agent.predict_many([SamplingInfo([0, 0], 1)], np.ones(4))[0] == pytest.approx(agent.predict(np.ones(4)))

"""Forms of PARL 1.x and 2.x that their programs use, on the backend in use."""

from typing import Any

import numpy as np
import pytest

import parl
from parl_core import backends

layers = parl.layers
BACKEND = backends.current().name


class ActorCritic(parl.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.fc(8, act="relu")
        self.head = layers.fc(2)
        self.judge = layers.fc(1)

    def policy(self, obs: Any) -> Any:
        return self.head(self.hidden(obs))

    def value(self, obs: Any) -> Any:
        return self.judge(self.hidden(obs))


def tensor(values: Any, dtype: str = "float32") -> Any:
    array = np.asarray(values, dtype)
    if BACKEND == "torch":
        import torch

        return torch.as_tensor(array)
    import paddle

    return paddle.to_tensor(array)


def rollout(dtype: str) -> list[Any]:
    rng = np.random.default_rng(1)
    obs, action = rng.normal(size=(6, 3)), rng.integers(0, 2, 6)
    numbers = [rng.normal(size=6) for _ in range(3)]
    value, return_, advantage = numbers
    return [
        tensor(obs),
        tensor(action, dtype),
        *map(tensor, (value, return_, np.full(6, -0.7), advantage)),
    ]


def made() -> Any:
    algorithm = parl.algorithms.PPO(ActorCritic(), clip_param=0.2, initial_lr=1e-3, continuous_action=False)
    algorithm.sample(tensor(np.zeros((1, 3))))  # gives the layers their shapes
    return algorithm


def test_ppo_takes_discrete_actions_as_the_floats_that_rollouts_of_parl_2_store() -> None:
    whole, floating = made(), made()
    whole.model.sync_weights_to(floating.model)
    expected = [float(figure) for figure in whole.learn(*rollout("int64"))]
    assert [float(figure) for figure in floating.learn(*rollout("float32"), 1e-3)] == expected
    for name, array in whole.model.get_weights().items():
        np.testing.assert_array_equal(floating.model.get_weights()[name], array)


def test_arguments_of_parl_1_that_have_no_effect_are_taken() -> None:
    one, other = made(), made()
    one.model.sync_weights_to(other.model, decay=0.0, share_vars_parallel_executor=None)
    for name, array in one.model.get_weights().items():
        np.testing.assert_array_equal(other.model.get_weights()[name], array)
    with pytest.warns(DeprecationWarning, match="device="):
        agent = parl.Agent(one, gpu_id=0)
    assert agent.gpu_id == 0
    assert parl.Agent(one).gpu_id is None

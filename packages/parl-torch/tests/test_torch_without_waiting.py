"""On CUDA no update waits for the device, compiled or not: PyTorch is told to refuse it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from parl_torch import algorithms, networks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONTINUOUS = {
    "DDPG": networks.DeterministicActorCritic,
    "TD3": networks.TwinActorCritic,
    "SAC": networks.SquashedActorCritic,
    "OAC": networks.SquashedActorCritic,
}


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("waiting_is_an_error")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["DQN", "PPO", *CONTINUOUS])
def test_an_update_does_not_wait_for_the_device(name: str, compiled: bool) -> None:
    columns, algorithm = _learner(name, compiled)
    for _ in range(5):  # shapes, compilation, capture
        algorithm.learn(*columns)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(3):
        algorithm.learn(*columns)


def _learner(name: str, compiled: bool) -> tuple[tuple[Any, ...], Any]:
    obs, ones = torch.randn(64, 4, device="cuda"), torch.ones(64, device="cuda")
    chosen = torch.zeros(64, dtype=torch.int64, device="cuda")
    if name == "DQN":
        return (obs, chosen, ones, obs, ones), algorithms.DQN(networks.QNetwork(2), compile=compiled, sync_every=2)
    if name == "PPO":
        return (obs, chosen, ones, ones, ones, ones), algorithms.PPO(networks.ActorCritic(2), compile=compiled)
    action = torch.zeros(64, 2, device="cuda")
    return (obs, action, ones, obs, ones), getattr(algorithms, name)(CONTINUOUS[name](2), compile=compiled)

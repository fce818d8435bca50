"""`compile=True` of the on-policy algorithms changes no number, and schedules compile nothing again."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from conformance.adapter import assert_weights_close
from parl_core.schedules import linear
from parl_torch.agent import Agent
from parl_torch.algorithms import A2C, PPO
from parl_torch.networks import ActorCritic

ROWS, ACTIONS = 16, 3


def ppo(compile: bool) -> tuple[Agent, Callable[[Mapping[str, Any]], object]]:
    schedules: dict[str, Any] = {"initial_lr": linear(0.1, 0, 50), "clip_param": linear(0.3, 0.1, 50)}
    agent = Agent(PPO(ActorCritic(ACTIONS), **schedules, device="cpu", compile=compile))
    names = ("obs", "action", "value", "value", "log_prob", "advantage")
    return agent, lambda batch: agent.learn(*(batch[name] for name in names), action_mask=batch["mask"])


def a2c(compile: bool) -> tuple[Agent, Callable[[Mapping[str, Any]], object]]:
    agent = Agent(A2C(ActorCritic(ACTIONS), entropy_coeff=linear(-0.1, 0, 50), device="cpu", compile=compile))
    return agent, lambda batch: agent.learn(batch["obs"], batch["action"], batch["advantage"], batch["value"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, from its own compiler
@pytest.mark.parametrize("make", [ppo, a2c])
def test_compiled_updates_are_the_eager_ones(make: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    (eager, learn), (compiled, learn_compiled) = make(False), make(True)
    obs = rng.normal(size=(1, 4)).astype(np.float32)
    eager.explore(obs)
    compiled.explore(obs)
    compiled.set_weights(eager.get_weights())
    graphs = []
    for _ in range(4):
        batch = _batch(rng)
        assert learn_compiled(batch) == pytest.approx(learn(batch), abs=1e-5)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1]
    assert_weights_close(compiled.get_weights(), eager.get_weights(), 1e-5)


def _batch(rng: np.random.Generator) -> dict[str, Any]:
    floats = {name: rng.normal(size=ROWS).astype(np.float32) for name in ("value", "advantage")}
    return {
        "obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
        "action": rng.integers(ACTIONS, size=ROWS),
        "log_prob": rng.normal(-1.1, 0.3, size=ROWS).astype(np.float32),
        "mask": np.ones((ROWS, ACTIONS), np.bool_),
        **floats,
    }

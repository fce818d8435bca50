"""`compute_dtype="bfloat16"`: networks multiply in half the bits, all else stays float32."""

import functools
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from parl_core.errors import HyperparameterError
from parl_torch import algorithms, networks
from parl_torch.agent import Agent
from parl_torch.algorithms import A2C, DQN

ROWS, ACTIONS = 8, 3


def _agent(name: str, compute_dtype: str | None, **options: Any) -> Agent:
    make = networks.AtariQNetwork if name in ("DDQN", "DQN") else networks.AtariActorCritic
    settings = options | ({"sample_batch_steps": 4} if name == "IMPALA" else {})
    torch.manual_seed(1)
    algorithm = getattr(algorithms, name)(make(ACTIONS), compute_dtype=compute_dtype, device="cpu", **settings)
    agent = Agent(algorithm)
    agent.sample(np.zeros((1, 4, 36, 36), np.uint8))  # which runs both heads, so that all layers have shapes
    return agent


def _batch(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs = rng.integers(256, size=(ROWS, 4, 36, 36), dtype=np.uint8)
    action, column = rng.integers(ACTIONS, size=ROWS), rng.normal(size=ROWS).astype(np.float32)
    ended = np.zeros(ROWS, np.float32)
    return {
        "A2C": (obs, action, column, column),
        "IMPALA": (obs, action, np.zeros((ROWS, ACTIONS), np.float32), column, ended.astype(bool)),
        "PPO": (obs, action, column, column, np.full(ROWS, -1.1, np.float32), column),
    }.get(name, (obs, action, column, obs, ended))


@pytest.mark.parametrize("name", ["DQN", "DDQN", "A2C", "PPO", "IMPALA"])
def test_an_update_is_the_one_of_float32_but_for_rounding(name: str) -> None:
    wide, narrow = _agent(name, None), _agent(name, "bfloat16")
    before = narrow.get_weights()
    seen: set[torch.dtype] = set()
    layer = next(iter(narrow.alg.model.trunk))
    layer.register_forward_hook(lambda _layer, _inputs, output: seen.add(output.dtype))
    for _ in range(3):
        found, expected = narrow.learn(*_batch(name)), wide.learn(*_batch(name))
        np.testing.assert_allclose(np.hstack(_flat(found)), np.hstack(_flat(expected)), rtol=0.05, atol=0.05)
    assert seen == {torch.bfloat16}
    for key, weights in narrow.get_weights().items():
        assert weights.dtype == np.float32
        assert (weights != before[key]).any()
        moved, wanted = weights - before[key], wide.get_weights()[key] - before[key]
        assert np.abs(moved - wanted).mean() < 0.3 * np.abs(wanted).mean() + 1e-7, key


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, from its own compiler
@pytest.mark.parametrize("name", ["DQN", "DDQN", "A2C", "PPO", "IMPALA"])
def test_compiled_updates_are_traced_in_bfloat16_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced and differentiated as by any compiler, and run by PyTorch's own kernels: no C++ compiler is needed.
    traced = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr("parl_torch.algorithm.require_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda function, mode: traced(function))
    agents = _agent(name, "bfloat16", compile=True), _agent(name, "bfloat16"), _agent(name, None)
    _assert_compiled_agrees(*agents, *_batch(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler")
def test_a_compiled_update_in_bfloat16_is_the_eager_one_but_for_rounding() -> None:
    agents = []
    for options in ({"compute_dtype": "bfloat16", "compile": True}, {"compute_dtype": "bfloat16"}, {}):
        torch.manual_seed(2)
        agents.append(Agent(DQN(networks.QNetwork(ACTIONS), device="cpu", **options)))
        agents[-1].sample(np.zeros((1, 4), np.float32))  # all layers have shapes then
    rng = np.random.default_rng(2)
    obs, next_obs = rng.normal(size=(2, ROWS, 4)).astype(np.float32)
    _assert_compiled_agrees(*agents, obs, np.arange(ROWS) % ACTIONS, np.ones(ROWS), next_obs, np.zeros(ROWS))


def test_an_agent_acts_and_is_saved_in_float32(tmp_path: Any) -> None:
    agent = _agent("A2C", "bfloat16")
    obs = _batch("A2C")[0]
    assert agent.explore(obs)[0].dtype == np.float32
    agent.save(tmp_path / "agent.ckpt")
    wide = _agent("A2C", None)
    wide.restore(tmp_path / "agent.ckpt")
    np.testing.assert_allclose(agent.value(obs), wide.value(obs), rtol=0.05, atol=0.02)
    assert (agent.value(obs) != wide.value(obs)).any()


@pytest.mark.parametrize("name", ["A2C", "PPO", "IMPALA"])
def test_a_gaussian_and_its_value_from_one_pass_are_float32(name: str) -> None:
    found = []
    for dtype in (None, "bfloat16"):
        torch.manual_seed(1)
        settings: dict[str, Any] = {"sample_batch_steps": 4} if name == "IMPALA" else {}
        model = networks.SharedActorCritic(ACTIONS, (16,), continuous=True)
        algorithm = getattr(algorithms, name)(
            model, continuous_action=True, compute_dtype=dtype, device="cpu", **settings
        )
        agent = Agent(algorithm)
        rng = np.random.default_rng(1)
        obs, action = (rng.normal(size=(ROWS, size)).astype(np.float32) for size in (4, ACTIONS))
        column = rng.normal(size=ROWS).astype(np.float32)
        batch = {
            "A2C": (obs, action, column, column),
            "IMPALA": (obs, action, np.zeros((ROWS, 2 * ACTIONS), np.float32), column, np.zeros(ROWS, bool)),
            "PPO": (obs, action, column, column, np.full(ROWS, -4.0, np.float32), column),
        }[name]
        found.append(np.hstack([agent.value(obs), *_flat(agent.learn(*batch))]))
        assert agent.value(obs).dtype == np.float32
    np.testing.assert_allclose(found[1], found[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("wrong", ["float16", "bf16", True])
def test_another_dtype_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(HyperparameterError, match='compute_dtype must be "float32" or "bfloat16", got'):
        DQN(networks.QNetwork(2), compute_dtype=wrong, device="cpu")


def test_float32_is_the_default_by_its_name() -> None:
    assert not A2C(networks.ActorCritic(2), compute_dtype="float32", device="cpu")._reduces


def _assert_compiled_agrees(compiled: Agent, eager: Agent, wide: Agent, *batch: Any) -> None:
    """Figures of bfloat16, which those of float32 are not.

    The first ones come from forward passes over equal weights. Kernels for gradients may sum in another order, and the
    difference is one of bfloat16's roundings then, so what follows has the tolerances of such roundings.
    """
    before = eager.get_weights()
    found, expected, other = (
        np.stack([np.hstack(_flat(agent.learn(*batch))) for _ in range(3)]) for agent in (compiled, eager, wide)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=5e-6, atol=5e-7)
    assert not np.allclose(found[0], other[0], rtol=5e-6, atol=5e-7)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)
    for key, weights in compiled.get_weights().items():
        assert weights.dtype == np.float32
        moved, wanted = weights - before[key], eager.get_weights()[key] - before[key]
        assert np.abs(moved - wanted).mean() < 0.3 * np.abs(wanted).mean() + 1e-7, key


def _flat(figures: Any) -> list[Any]:
    if isinstance(figures, tuple):
        return [part for figure in figures for part in _flat(figure)]
    return [np.asarray(figures).reshape(-1)]

"""`compile=True` of the off-policy algorithms passes tests of the common suite; without a compiler it warns."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from conformance import (
    CQLConformance,
    DDPGConformance,
    DQNConformance,
    IQLConformance,
    OfflineQConformance,
    SACConformance,
    TD3Conformance,
)
from conformance.adapter import FLOAT32, FLOAT64
from parl_torch import _compiled
from parl_torch.agent import Agent
from parl_torch.algorithms import DQN
from parl_torch.backend import TorchBackend
from parl_torch.networks import QNetwork

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, from its own compiler
needs_a_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="torch.compile needs a C++ compiler"
)


class Compiled:
    """Beside a suite: all its algorithms compile."""

    class Adapter:
        backend = TorchBackend()

        @staticmethod
        def double(model: Any) -> Any:
            return model.double()

    adapter: Any = Adapter

    def algorithm(self, name: str, model: Any, **settings: Any) -> Any:
        return super().algorithm(name, model, compile=True, **settings)  # type: ignore[misc]  # the suite's


class CompiledDQN(Compiled, DQNConformance):
    pass


class CompiledSAC(Compiled, SACConformance):
    pass


class CompiledDDPG(Compiled, DDPGConformance):
    pass


class CompiledTD3(Compiled, TD3Conformance):
    pass


class CompiledCQL(Compiled, CQLConformance):
    pass


class CompiledIQL(Compiled, IQLConformance):
    pass


class CompiledOfflineQ(Compiled, OfflineQConformance):
    pass


@needs_a_compiler
@pytest.mark.slow
def test_compiled_dqn_agrees_with_the_reference() -> None:
    CompiledDQN().test_three_updates_agree_with_the_reference(FLOAT64, double=True, extras=True)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_sac_agrees_with_the_reference() -> None:
    CompiledSAC().test_three_updates_agree_with_the_reference(FLOAT32, alpha=None, extras=False)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_ddpg_agrees_with_the_reference() -> None:
    CompiledDDPG().test_three_updates_agree_with_the_reference(FLOAT64, extras=True)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_td3_agrees_with_the_reference() -> None:
    CompiledTD3().test_four_updates_agree_with_the_reference(FLOAT32, extras=False)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_cql_agrees_with_the_reference() -> None:
    CompiledCQL().test_three_updates_agree_with_the_reference(FLOAT32, version=3, lagrange=True, learned=True)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_iql_agrees_with_the_reference() -> None:
    CompiledIQL().test_three_updates_agree_with_the_reference(FLOAT64, max_steps=4)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_offline_q_agrees_with_the_reference() -> None:
    CompiledOfflineQ().test_three_updates_agree_with_the_reference(FLOAT32, heads=1, double=True, extras=True)


@needs_a_compiler
@pytest.mark.slow
def test_compiled_updates_leave_frozen_parameters_out_until_they_are_trained_again() -> None:
    found = []
    rng = np.random.default_rng(4)
    obs, next_obs = rng.normal(size=(2, 8, 3)).astype(np.float32)
    batch = obs, rng.integers(2, size=8), np.ones(8, np.float32), next_obs, np.zeros(8, np.float32)
    for compiles in (True, False):
        torch.manual_seed(1)
        algorithm = DQN(QNetwork(2, (8,)), lr=0.01, device="cpu", compile=compiles)
        agent = Agent(algorithm)
        agent.predict(obs)
        layer = next(algorithm.model.parameters())
        for frozen, updates in ((True, 2), (False, 10), (True, 2)):
            layer.requires_grad_(not frozen)
            before = layer.detach().clone()
            for _ in range(updates):
                agent.learn(*batch)
            assert torch.equal(before, layer) == frozen
        found.append(agent.get_weights())
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_without_a_compiler_it_warns_once_and_learns_as_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_compiled.shutil, "which", lambda _: None)
    weights = []
    for compiles in (True, False):
        torch.manual_seed(1)
        algorithm = DQN(QNetwork(2, (8,)), device="cpu", compile=compiles)
        agent, obs = Agent(algorithm), np.ones((4, 3), np.float32)
        agent.learn(obs, np.zeros(4, np.int64), np.ones(4, np.float32), obs, np.zeros(4, np.float32))
        weights.append(agent.get_weights())
    assert [record.message for record in caplog.records if "C++ compiler" in record.message] == [caplog.messages[0]]
    for name, array in weights[0].items():
        np.testing.assert_array_equal(array, weights[1][name])

"""Evolution of torch modules: shared memory, whole populations in one batch, files, the documented calls."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.bfloat16 import check_numbers_in_lists
from faults.small_disk import limited_files
from parl_evokit import (
    CMAES,
    ES,
    ESAgent,
    EvolutionError,
    LayoutMismatch,
    LogWriter,
    SamplingInfo,
    SolverError,
    StorageError,
    off_policy,
    read_log,
)
from parl_evokit.config import SolverKind
from parl_evokit.models import adapt
from parl_evokit.models.torch_model import TorchModel

SETTINGS: dict[str, Any] = {"keys": "COUNTER", "solver": {"sampling": {"gaussian_sampling": {"std": 0.1}}}}


class Net(torch.nn.Module):
    """Two layers, a batch norm whose statistics do not evolve, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 2)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(torch.tanh(self.first(x)))
        return self.last(hidden) * self.frozen


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()


def test_what_is_written_into_the_vector_changes_the_module_without_a_copy() -> None:
    module = net()
    model = TorchModel(module)
    assert "frozen" not in model.layout.names
    flat = model.parameters()
    model.bind(flat)
    assert module.first.weight.data_ptr() == flat.ctypes.data
    flat[:] = 0.0
    model.refresh()
    assert not model.predict(np.ones((3, 4), np.float32)).any()
    assert not module(torch.ones(1, 4)).any()


def test_parameters_in_another_precision_are_copied_when_the_vector_changes() -> None:
    module = torch.nn.Linear(3, 1, bias=False).to(torch.float64)
    model = TorchModel(module)
    flat = model.parameters()
    model.bind(flat)
    flat[:] = [1, 2, 3]
    model.refresh()
    assert model.predict(np.ones(3)).tolist() == [6.0]
    assert module.weight.dtype is torch.float64


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_of_another_precision_is_saved_with_its_solver_and_loaded(
    precision: torch.dtype, tmp_path: Path
) -> None:
    agent = ESAgent(SETTINGS, net().to(precision))
    clone = agent.clone()
    agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    agent.save(tmp_path / "d")
    restored = ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(tmp_path / "d", model=net(7).to(precision))
    restored.load_solver(tmp_path / "d")
    x = torch.ones(2, 4, dtype=precision)
    assert restored.predict(x).dtype is precision
    assert (restored.predict(x) == agent.predict(x)).all()
    for name, array in agent.parameters().items():
        assert (restored.parameters()[name] == array).all()


def test_half_precision_rounds_the_module_only_and_not_what_is_learnt(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 1, bias=False).to(torch.bfloat16)
    model = TorchModel(module)
    flat = np.array([1.0, 1.001, 1.002], np.float32)
    model.bind(flat.copy())
    assert module.weight.tolist() == [[1.0, 1.0, 1.0]]
    assert (model.parameters() == flat).all()
    model.save(tmp_path)
    restored = TorchModel(torch.nn.Linear(3, 1, bias=False).to(torch.bfloat16))
    restored.load(tmp_path)
    assert (restored.parameters() == flat).all()
    with torch.no_grad():
        module.weight.fill_(2.0)  # by other means than the vector
    assert (model.parameters() == 2.0).all()


class Migrating(torch.nn.Module):
    """Files have half of the weight, which the module doubles as it reads them."""

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()
        self.kept = torch.nn.Parameter(torch.zeros(2, dtype=precision))
        self.moved = torch.nn.Parameter(torch.zeros(2, dtype=precision))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict[prefix + "moved"] = state_dict[prefix + "moved"] * 2
        super()._load_from_state_dict(state_dict, prefix, *rest)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_weights_that_a_module_changes_as_it_reads_them_are_used_as_it_holds_them(
    precision: torch.dtype, tmp_path: Path
) -> None:
    model = TorchModel(Migrating(precision))
    model.bind(np.array([1.0, 1.001, 1.0, 1.5], np.float32))
    model.save(tmp_path)
    restored = TorchModel(Migrating(precision))
    restored.load(tmp_path)
    assert restored.module.moved.tolist() == [2.0, 3.0]
    assert (restored.parameters() == np.array([1.0, 1.001, 2.0, 3.0], np.float32)).all()


def test_rewards_and_starts_in_bfloat16_are_their_numbers(tmp_path: Path) -> None:
    numbers: Any = torch.tensor([1.5, -2.0, 3.0, 0.25], dtype=torch.bfloat16)
    for given in (numbers, list(numbers), (numbers[0], -2.0, 3.0, numbers[3])):
        es = ES(given)
        assert es.mean.tolist() == [1.5, -2.0, 3.0, 0.25]
        report = es.tell(es.ask(4), given)
        assert (report.mean_reward, report.best_reward) == (0.6875, 3.0)
    search = CMAES(np.zeros(4))
    search.inject(numbers[None], numbers[:1])
    assert search.best is not None
    assert search.best.parameters.tolist() == [1.5, -2.0, 3.0, 0.25]
    with LogWriter(tmp_path) as log:
        log.sampled(SamplingInfo([5, 6]), context=numbers, action=1)
        log.reward(SamplingInfo([5, 6]), numbers[1])
    assert off_policy.read_decisions(tmp_path).contexts.tolist() == [numbers.tolist()]
    assert read_log(tmp_path).rewards == [-2.0]


def test_numbers_in_bfloat16_may_stand_anywhere_in_lists() -> None:
    check_numbers_in_lists(torch.tensor([1.5, -2.0, 3.0, 0.25], dtype=torch.bfloat16))


class Headed(torch.nn.Module):
    """A frozen first layer in float64, and a last one that evolves in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3).double().requires_grad_(False)
        self.last = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x).float())
        return found


def test_inputs_have_the_precision_of_the_first_layer_though_it_is_frozen() -> None:
    module = Headed()
    agent, x = ESAgent(SETTINGS, module), np.ones((3, 4), np.float32)
    assert agent.param_size() == 8
    assert agent.predict(x) == pytest.approx(module(torch.ones(3, 4).double()).detach().numpy())
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(2)]
    assert agent.predict_many(infos, x)[1] == pytest.approx(clone.predict(x), abs=1e-6)


def test_a_lazy_module_is_refused_until_it_has_seen_an_input() -> None:
    module = torch.nn.LazyLinear(2)
    with pytest.raises(EvolutionError, match="LazyLinear has no shape of weight yet: call it with an input first"):
        ESAgent(SETTINGS, module)
    module(torch.ones(1, 3))
    assert ESAgent(SETTINGS, module).param_size() == 8


def test_complex_parameters_are_refused() -> None:
    module = torch.nn.Linear(2, 1, dtype=torch.complex64)
    with pytest.raises(LayoutMismatch, match="must hold real numbers, not complex64"):
        ESAgent(SETTINGS, module)


def test_a_vector_that_must_not_be_written_to_is_copied() -> None:
    model = TorchModel(net())
    flat = np.full(model.layout.size, 0.5, np.float32)
    flat.flags.writeable = False
    model.bind(flat)
    assert (model.parameters() == 0.5).all()


def test_parameters_can_be_chosen_by_name_and_none_at_all_is_refused() -> None:
    assert TorchModel(net(), parameters=["last.*"]).layout.names == ("last.weight", "last.bias")
    with pytest.raises(EvolutionError, match=r"no trainable parameter that matches \['policy"):
        TorchModel(net(), parameters=["policy.*"])


def test_an_agent_evolves_a_module_and_its_clones_do_not_disturb_it() -> None:
    module = net()
    agent = ESAgent(SETTINGS, module)
    before = agent.parameters()
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(8)]
    assert all((agent.parameters()[name] == before[name]).all() for name in before)
    x = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    assert clone.predict(x) != pytest.approx(agent.predict(x))
    agent.update(infos, np.arange(8.0))
    assert any((agent.parameters()[name] != before[name]).any() for name in before)
    assert agent.predict(x) == pytest.approx(module(torch.from_numpy(x)).detach().numpy())


@pytest.mark.parametrize("each", [False, True])
def test_a_population_in_one_batch_gives_what_its_members_give(each: bool) -> None:
    agent = ESAgent(SETTINGS, net())
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(5)]
    inputs = np.random.default_rng(1).normal(size=(5, 3, 4)).astype(np.float32)
    x: Any = inputs if each else inputs[0]
    outputs = agent.predict_many(infos, x, each=each)
    assert outputs.shape == (5, 3, 2)
    for k, info in enumerate(infos):
        clone.apply_noise(info)
        assert outputs[k] == pytest.approx(clone.predict(x[k] if each else x), abs=1e-5)
    with pytest.raises(EvolutionError, match="5 samples came with 4 inputs"):
        agent.predict_many(infos, inputs[:4], each=True)


def test_weights_and_buffers_come_back_from_the_file_and_another_models_are_refused(tmp_path: Path) -> None:
    module = net()
    module.norm.running_mean += 3.0  # type: ignore[operator]  # torch's types allow a module there
    agent = ESAgent(SETTINGS, module)
    clone = agent.clone()
    agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    agent.save(tmp_path / "d")
    restored = ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(tmp_path / "d", model=net(7))
    restored.load_solver(tmp_path / "d")
    x = np.ones((2, 4), np.float32)
    assert (restored.predict(x) == agent.predict(x)).all()
    with pytest.raises(LayoutMismatch, match="is of another model"):
        ESAgent().load_inference_model(tmp_path / "d", model=torch.nn.Linear(4, 2))
    (tmp_path / "d" / "params.safetensors").write_bytes(b"damaged")
    with pytest.raises(SolverError, match="cannot be read"):
        ESAgent().load_inference_model(tmp_path / "d", model=net())


def test_weights_that_do_not_fit_leave_the_old_ones(tmp_path: Path) -> None:
    agent = ESAgent(SETTINGS, torch.nn.Linear(30_000, 1))
    place = tmp_path / "model"
    agent.save(place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    for save in (agent.save, agent.save_inference_model):
        with limited_files(60_000), pytest.raises(StorageError) as refused:
            save(place)
        told = rf"{re.escape(str(place))} cannot be written: .*File too large.*; it is unchanged"
        assert re.fullmatch(told, str(refused.value))
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert os.listdir(tmp_path) == ["model"]
    agent.save(place)
    restored = ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(place, model=torch.nn.Linear(30_000, 1))
    restored.load_solver(place)  # which checks that the weights are whole
    assert restored.model_iter_id == 1


def test_a_parl_model_is_a_module_and_a_function_may_make_one() -> None:
    from parl_torch.model import Model

    class Policy(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.layer(x), -1)

    model = adapt(Policy())
    assert model.predict(np.ones(4)).sum() == pytest.approx(1.0)
    assert adapt(lambda: torch.nn.Linear(4, 2)).layout.size == 10


def test_the_same_samples_move_a_torch_and_a_numpy_model_to_the_same_bits() -> None:
    module = torch.nn.Linear(4, 2)
    weights = {name: parameter.detach().numpy().copy() for name, parameter in module.named_parameters()}
    agents = [ESAgent(SETTINGS, module), ESAgent(SETTINGS, (weights, lambda arrays, x: x @ arrays["weight"].T))]
    digests = set()
    for agent in agents:
        clone = agent.clone()
        report = agent.update([clone.add_noise() for _ in range(10)], np.arange(10.0) % 7)
        digests.add(report.parameters_sha256)
    assert len(digests) == 1


@pytest.mark.parametrize("kind", [kind.name for kind in SolverKind])
def test_every_algorithm_moves_a_torch_and_a_numpy_model_to_the_same_bits(kind: str) -> None:
    module = net(3)
    chosen = {name: p for name, p in module.named_parameters() if p.requires_grad}
    weights = {name: parameter.detach().numpy().copy() for name, parameter in chosen.items()}
    config = {**SETTINGS, "solver": {**SETTINGS["solver"], "type": kind, "optimizer": {"type": "ADAM", "base_lr": 0.1}}}
    agents = [ESAgent(config, module), ESAgent(config, (weights, lambda arrays, x: x))]
    assert agents[0].param_size() == agents[1].param_size()
    for update in range(4):
        seen = []
        for agent in agents:
            clone = agent.clone()
            infos = [clone.add_noise() for _ in range(20)]
            perturbed = np.concatenate([array.ravel() for array in clone.parameters().values()])
            report = agent.update(infos, [(7919 * (20 * update + i)) % 257 / 64.0 for i in range(20)])
            seen.append((infos, perturbed.tobytes(), report.parameters_sha256))
        assert seen[0] == seen[1]


class Tied(torch.nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]  # torch's calls have no types


def test_many_samples_of_a_module_with_tied_weights_are_predicted() -> None:
    agent = ESAgent(SETTINGS, Tied())
    clone, x = agent.clone(), np.ones(4, np.float32)
    infos = [clone.add_noise() for _ in range(3)]
    outputs = agent.predict_many(infos, x)
    for k, info in enumerate(infos):
        clone.apply_noise(info)
        assert outputs[k] == pytest.approx(clone.predict(x), abs=1e-5)

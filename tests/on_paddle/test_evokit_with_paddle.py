"""Evolution of paddle layers and inference programs: shared memory, files, the documented order of calls."""

from __future__ import annotations

import importlib
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

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
from parl_evokit.models.paddle_model import PaddleModel
from parl_evokit.models.paddle_program import PaddleProgram
from parl_evokit.parallel import Pool, open_pool, sample

SETTINGS: dict[str, Any] = {"keys": "COUNTER", "solver": {"sampling": {"gaussian_sampling": {"std": 0.1}}}}


def net(seed: int = 0) -> Any:
    """Two layers and a batch norm whose statistics do not evolve."""
    paddle.seed(seed)
    layers = [paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.BatchNorm1D(8), paddle.nn.Linear(8, 2)]
    sequential = paddle.nn.Sequential(*layers)
    sequential.eval()
    return sequential


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return program_in(tmp_path / "init", 20)


def program_in(directory: Path, width: int) -> Path:
    """Write an inference program, 4-`width`-2, as the PARL 1.x manual makes it."""
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(main, startup):
            x = paddle.static.data("obs", [-1, 4], "float32")
            hidden = paddle.static.nn.fc(x, width, activation="tanh")
            y = paddle.nn.functional.softmax(paddle.static.nn.fc(hidden, 2))
            executor = paddle.static.Executor(paddle.CPUPlace())
            executor.run(startup)
            paddle.static.save_inference_model(str(directory / "model"), [x], [y], executor)
    finally:
        paddle.disable_static()
    return directory


def test_what_is_written_into_the_vector_changes_the_layer() -> None:
    layer = net()
    model = PaddleModel(layer)
    flat = model.parameters()
    model.bind(flat)
    flat[:] = 0.0
    model.refresh()
    assert not model.predict(np.ones((3, 4), np.float32)).any()
    assert not layer(paddle.ones([1, 4])).numpy().any()


def test_this_paddle_shares_the_vectors_memory() -> None:
    model = PaddleModel(net())
    flat = model.parameters()
    model.bind(flat)
    flat[:] = 0.0  # without refresh
    assert not model.predict(np.ones((3, 4), np.float32)).any()


def test_parameters_in_another_precision_are_copied_when_the_vector_changes() -> None:
    layer = paddle.nn.Linear(3, 1, bias_attr=False)
    layer.to(dtype="float64")
    model = PaddleModel(layer)
    flat = model.parameters()
    model.bind(flat)
    flat[:] = [1, 2, 3]
    model.refresh()
    assert model.predict(np.ones((1, 3))).tolist() == [[6.0]]


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_a_model_of_another_precision_is_saved_with_its_solver_and_loaded(precision: str, tmp_path: Path) -> None:
    def layers(seed: int) -> Any:
        found = net(seed)
        found.to(dtype=precision)
        for parameter in found[3].parameters():
            parameter.stop_gradient = True
        return found

    agent = ESAgent(SETTINGS, layers(0))
    clone = agent.clone()
    agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    agent.save(tmp_path / "d")
    other, restored = layers(7), ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(tmp_path / "d", model=other)
    restored.load_solver(tmp_path / "d")
    assert other[0].weight.dtype == getattr(paddle, precision)
    for name, array in agent.parameters().items():
        assert (restored.parameters()[name] == array).all()
    frozen = [found[3].weight.astype("float32").numpy() for found in (layers(0), other)]
    assert (frozen[0] == frozen[1]).all()


def test_half_precision_rounds_the_layer_only_and_not_what_is_learnt(tmp_path: Path) -> None:
    def layer() -> Any:
        found = paddle.nn.Linear(3, 1, bias_attr=False)
        found.to(dtype="bfloat16")
        return found

    own = layer()
    model, flat = PaddleModel(own), np.array([1.0, 1.001, 1.002], np.float32)
    model.bind(flat.copy())
    assert own.weight.astype("float32").numpy().ravel().tolist() == [1.0, 1.0, 1.0]
    assert (model.parameters() == flat).all()
    model.save(tmp_path)
    restored = PaddleModel(layer())
    restored.load(tmp_path)
    assert (restored.parameters() == flat).all()
    own.weight.set_value(paddle.full([3, 1], 2.0, "bfloat16"))  # by other means than the vector
    assert (model.parameters() == 2.0).all()


def test_rewards_and_starts_in_bfloat16_are_their_numbers(tmp_path: Path) -> None:
    numbers: Any = paddle.to_tensor([1.5, -2.0, 3.0, 0.25], dtype="bfloat16")
    for given in (numbers, list(numbers), (numbers[0], -2.0, 3.0, numbers[3])):
        es = ES(given)
        assert es.mean.tolist() == [1.5, -2.0, 3.0, 0.25]
        report = es.tell(es.ask(4), given)
        assert (report.mean_reward, report.best_reward) == (0.6875, 3.0)
    search = CMAES(np.zeros(4))
    search.inject(numbers.unsqueeze(0), numbers[:1])
    assert search.best is not None
    assert search.best.parameters.tolist() == [1.5, -2.0, 3.0, 0.25]
    with LogWriter(tmp_path) as log:
        log.sampled(SamplingInfo([5, 6]), context=numbers, action=1)
        log.reward(SamplingInfo([5, 6]), numbers[1])
    assert off_policy.read_decisions(tmp_path).contexts.tolist() == [[1.5, -2.0, 3.0, 0.25]]
    assert read_log(tmp_path).rewards == [-2.0]


def test_numbers_in_bfloat16_may_stand_anywhere_in_lists() -> None:
    check_numbers_in_lists(paddle.to_tensor([1.5, -2.0, 3.0, 0.25], dtype="bfloat16"))


class Headed(paddle.nn.Layer):
    """A frozen first layer in float64, and a last one that evolves in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(4, 3), paddle.nn.Linear(3, 2)
        self.first.to(dtype="float64")
        for parameter in self.first.parameters():
            parameter.stop_gradient = True

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).astype("float32"))


def test_inputs_have_the_precision_of_the_first_layer_though_it_is_frozen() -> None:
    layer = Headed()
    agent, x = ESAgent(SETTINGS, layer), np.ones((3, 4), np.float32)
    assert agent.param_size() == 8
    assert agent.predict(x) == pytest.approx(layer(paddle.ones([3, 4], "float64")).numpy())
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(2)]
    assert agent.predict_many(infos, x)[1] == pytest.approx(clone.predict(x), abs=1e-6)


def test_parameters_can_be_chosen_by_name_and_none_at_all_is_refused() -> None:
    assert PaddleModel(net(), parameters=["3.*"]).layout.names == ("3.weight", "3.bias")
    with pytest.raises(EvolutionError, match=r"no trainable parameter that matches \['policy"):
        PaddleModel(net(), parameters=["policy.*"])


def test_an_agent_evolves_a_layer_and_its_clones_do_not_disturb_it() -> None:
    layer = net()
    agent = ESAgent(SETTINGS, layer)
    before = agent.parameters()
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(8)]
    assert all((agent.parameters()[name] == before[name]).all() for name in before)
    x = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    assert clone.predict(x) != pytest.approx(agent.predict(x))
    agent.update(infos, np.arange(8.0))
    assert any((agent.parameters()[name] != before[name]).any() for name in before)
    assert agent.predict(x) == pytest.approx(layer(paddle.to_tensor(x)).numpy())


def test_a_population_gives_what_its_members_give() -> None:
    agent = ESAgent(SETTINGS, net())
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(3)]
    x = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    outputs = agent.predict_many(infos, x, each=True)
    for k, info in enumerate(infos):
        clone.apply_noise(info)
        assert outputs[k] == pytest.approx(clone.predict(x[k]), abs=1e-6)


def test_weights_and_buffers_come_back_from_the_file_and_another_models_are_refused(tmp_path: Path) -> None:
    layer = net()
    layer[2]._mean.set_value(paddle.full([8], 3.0))
    agent = ESAgent(SETTINGS, layer)
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
        ESAgent().load_inference_model(tmp_path / "d", model=paddle.nn.Linear(4, 2))
    (tmp_path / "d" / "params.safetensors").write_bytes(b"damaged")
    with pytest.raises(SolverError, match="cannot be read"):
        ESAgent().load_inference_model(tmp_path / "d", model=net())


def test_a_parl_model_is_a_layer() -> None:
    from parl_paddle.model import Model

    class Policy(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = paddle.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.softmax(self.layer(x))

    assert adapt(Policy()).predict(np.ones((1, 4), np.float32)).sum() == pytest.approx(1.0)


def test_an_inference_program_evolves_and_paddle_reads_what_is_saved(program: Path, tmp_path: Path) -> None:
    agent = ESAgent()
    agent.load_config(SETTINGS)
    agent.load_inference_model(program, model=PaddleProgram(program))
    agent.init_solver()
    assert agent.param_size() == 4 * 20 + 20 + 20 * 2 + 2
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    assert agent.predict(x).sum(axis=1) == pytest.approx([1.0, 1.0])
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(6)]
    assert clone.predict(x) != pytest.approx(agent.predict(x), abs=1e-4)
    agent.update(infos, [5.0, 3.0, 1.0, 2.0, 4.0, 0.0])
    agent.save(tmp_path / "next")
    assert paddle.in_dynamic_mode()

    paddle.enable_static()
    try:
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor = paddle.static.Executor(paddle.CPUPlace())
            loaded, feeds, fetches = paddle.static.load_inference_model(str(tmp_path / "next" / "model"), executor)
            (theirs,) = executor.run(loaded, feed={feeds[0]: x}, fetch_list=fetches)
    finally:
        paddle.disable_static()
    assert theirs == pytest.approx(agent.predict(x), abs=1e-6)

    restored = ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(tmp_path / "next", model=PaddleProgram(tmp_path / "next"))
    restored.load_solver(tmp_path / "next")
    assert (restored.predict(x) == agent.predict(x)).all()


@pytest.mark.parametrize("kind", ["layer", "program"])
def test_weights_that_do_not_fit_leave_the_old_ones(kind: str, tmp_path: Path) -> None:
    model: Any = paddle.nn.Linear(30_000, 1) if kind == "layer" else PaddleProgram(program_in(tmp_path / "init", 5_000))
    agent = ESAgent(SETTINGS, model)
    place = tmp_path / "model"
    agent.save(place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    for save in (agent.save, agent.save_inference_model):
        with limited_files(60_000), pytest.raises(StorageError) as refused:
            save(place)
        assert re.fullmatch(rf"{re.escape(str(place))} cannot be written: .*; it is unchanged", str(refused.value))
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert not [path.name for path in tmp_path.iterdir() if ".tmp-" in path.name]
    agent.save(place)
    restored = ESAgent()
    restored.load_config(SETTINGS)
    restored.load_inference_model(place, model=model)
    restored.load_solver(place)  # which checks that the weights are whole
    assert restored.model_iter_id == 1


def test_a_clone_of_a_program_travels_to_another_process(program: Path) -> None:
    agent = ESAgent(SETTINGS, PaddleProgram(program))
    clone = agent.clone()
    clone.add_noise()
    travelled = pickle.loads(pickle.dumps(clone))
    x = np.ones((1, 4), np.float32)
    assert travelled.predict(x) == pytest.approx(clone.predict(x), abs=1e-7)


def test_a_directory_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SolverError, match=r"must hold one inference program of paddle .*; it has none"):
        PaddleProgram(tmp_path)


@pytest.mark.parametrize("kind", [kind.name for kind in SolverKind])
def test_every_algorithm_moves_a_paddle_and_a_numpy_model_to_the_same_bits(kind: str) -> None:
    layer = net(3)
    weights = {name: p.numpy().copy() for name, p in layer.named_parameters() if not p.stop_gradient}
    config = {**SETTINGS, "solver": {**SETTINGS["solver"], "type": kind, "optimizer": {"type": "ADAM", "base_lr": 0.1}}}
    agents = [ESAgent(config, layer), ESAgent(config, (weights, lambda arrays, x: x))]
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


@pytest.mark.slow
def test_samples_of_paddle_models_are_evaluated_in_processes_unless_told_otherwise(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "evaluation_of_paddle.py").write_text(
        "import numpy as np\n"
        "def evaluate(agent):\n"
        "    return float(np.asarray(agent.predict(np.ones((1, 4), np.float32)))[0, 0])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    evaluate = importlib.import_module("evaluation_of_paddle").evaluate

    opened: list[str] = []

    def one_worker(kind: str) -> Pool:
        opened.append(kind)
        return open_pool(kind, 1)

    monkeypatch.setattr("parl_evokit.parallel._pool.open_pool", one_worker)
    agent = ESAgent(SETTINGS, PaddleProgram(program))
    sampled = sample(agent, evaluate, 4)
    assert opened == ["processes"]
    clone = agent.clone()
    for info, reward in zip(*sampled, strict=True):
        clone.apply_noise(info)
        assert evaluate(clone) == pytest.approx(reward)
    assert sample(ESAgent(SETTINGS, net()), evaluate, 4, "threads").missing == 0

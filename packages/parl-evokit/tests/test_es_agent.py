"""The PARL 1.x manual's agent: its calls in their order, clones in threads, and what a wrong call says."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import ESAgent, SamplingAgent
from parl_evokit._records import SamplingInfo
from parl_evokit.config import Config
from parl_evokit.errors import EvolutionError, LayoutMismatch, NothingToUpdate, SolverError
from parl_evokit.models import NumpyModel, mlp

CONFIG: dict[str, Any] = {
    "solver": {
        "optimizer": {"type": "ADAM", "base_lr": 0.05},
        "sampling": {"gaussian_sampling": {"std": 0.5, "cached": True, "seed": 1024}},
    },
    "keys": "COUNTER",
}
X = np.array([0.1, -0.2, 0.3, 0.4])


@pytest.fixture
def agent() -> ESAgent:
    return ESAgent(CONFIG, mlp([4, 20, 2]))


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "init_model"
    directory.mkdir()
    mlp([4, 20, 2], seed=3).save(directory)
    return directory


def test_the_documented_calls_work_in_their_order(tmp_path: Path, model_dir: Path) -> None:
    config = tmp_path / "config.prototxt"
    config.write_text(Config.load(CONFIG).to_prototxt())

    agent = ESAgent()
    agent.load_config(config)
    agent.load_inference_model(model_dir, model=mlp([4, 20, 2]))
    agent.init_solver()
    sampling_agent = agent.clone()
    sampling_info = sampling_agent.add_noise()
    assert sampling_agent.predict(X).shape == (2,)
    other = SamplingInfo([7, 7], 9, 9)
    assert sampling_agent.add_noise(other) is other
    report = agent.update([sampling_info, other], [1.0, 2.0])
    assert (report.used, report.pairs, report.model_iter_id) == (2, 1, 1)
    assert agent.param_size() == 4 * 20 + 20 + 20 * 2 + 2
    assert {name: array.shape for name, array in agent.parameters().items()} == {
        "w0": (4, 20),
        "b0": (20,),
        "w1": (20, 2),
        "b1": (2,),
    }


def test_the_original_predicts_without_noise_and_clones_with_their_own(agent: ESAgent) -> None:
    plain = agent.predict(X)
    clones = [agent.clone() for _ in range(3)]
    assert all((clone.predict(X) == plain).all() for clone in clones)
    for clone in clones:
        clone.add_noise()
    outputs = [plain, *(clone.predict(X) for clone in clones)]
    assert len({output.tobytes() for output in outputs}) == 4
    assert (agent.predict(X) == plain).all()
    clones[0].add_noise(evaluate=True)
    assert (clones[0].predict(X) == plain).all()


def test_the_record_of_a_sample_is_enough_to_make_its_parameters_again(agent: ESAgent) -> None:
    clone, other = agent.clone(), agent.clone()
    text = clone.add_noise().SerializeToString()
    info = SamplingInfo()
    info.ParseFromString(text)
    other.apply_noise(info)
    for name, array in clone.parameters().items():
        assert (other.parameters()[name] == array).all()


def test_clones_take_an_update_at_their_next_add_noise_and_keep_their_episode_until_then(agent: ESAgent) -> None:
    clones = [agent.clone() for _ in range(4)]
    infos = [clone.add_noise() for clone in clones]
    within_episode = clones[0].predict(X)
    before = agent.predict(X)
    agent.update(infos, [1.0, 2.0, 3.0, 4.0])
    assert not (agent.predict(X) == before).all()
    assert (clones[0].predict(X) == within_episode).all()
    assert clones[0].add_noise(evaluate=True).model_iter_id == 1
    assert (clones[0].predict(X) == agent.predict(X)).all()


def test_a_predictor_keeps_its_parameters_whatever_updates_come(agent: ESAgent) -> None:
    predict, before = agent.get_predictor(), agent.predict(X)
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 5.0])
    assert (predict(X) == before).all()


def test_an_update_that_cannot_be_leaves_the_agent_as_it_was(agent: ESAgent) -> None:
    before = agent.predict(X)
    with pytest.raises(NothingToUpdate):
        agent.update([], [])
    with pytest.raises(NothingToUpdate, match="1 foreign, 1 not finite"):
        agent.update([SamplingInfo([1, 2], 0, 77), agent.clone().add_noise()], [1.0, float("nan")])
    assert (agent.predict(X) == before).all()
    assert agent.model_iter_id == 0


def test_threads_that_sample_while_updates_run_never_see_a_mixed_model() -> None:
    # Without noise all parameters of a model are equal, and halve with each update; a mixture would have two values.
    def extremes(arrays: dict[str, np.ndarray], _: None) -> tuple[float, float]:
        return float(arrays["w"].min()), float(arrays["w"].max())

    update = {"weight_decay": 1.0, "min_samples": 1}
    config = {"solver": {"update": update, "optimizer": {"base_lr": 0.5}}}
    agent = ESAgent(config, NumpyModel({"w": np.full(50_000, 1024.0)}, extremes))
    done = threading.Event()

    def sample(clone: SamplingAgent) -> int:
        models = set()
        while not done.is_set():
            iteration = clone.add_noise(evaluate=True).model_iter_id
            low, high = clone.predict(None)
            assert low == high == 1024.0 * 0.5**iteration
            models.add(iteration)
        return len(models)

    with ThreadPoolExecutor(3) as pool:
        seen = [pool.submit(sample, agent.clone()) for _ in range(3)]
        clone = agent.clone()
        try:
            for _ in range(8):
                # Equal rewards: what remains of the gradient is the weight decay.
                agent.update([clone.add_noise(), clone.add_noise()], [1.0, 1.0])
        finally:
            done.set()
        assert all(future.result(timeout=240) >= 1 for future in seen)
    assert agent.model_iter_id == 8


def test_a_pickled_clone_samples_elsewhere_and_its_records_update_the_original(agent: ESAgent) -> None:
    clone = agent.clone()
    clone.add_noise()
    other = pickle.loads(pickle.dumps(clone))
    assert (other.predict(X) == clone.predict(X)).all()
    infos = [other.add_noise(), other.add_noise()]
    assert agent.update(infos, [1.0, 2.0]).used == 2
    assert other.add_noise().model_iter_id == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.init_solver(), "init_solver.. needs a model: call load_inference_model.. before it"),
        (lambda agent: agent.clone(), "clone.. needs a model"),
        (lambda agent: agent.update([], []), "update.. needs a model"),
        (lambda agent: agent.predict(X), "predict.. needs a model"),
        (lambda agent: agent.load_inference_model("x"), "needs model=: files contain weights"),
    ],
)
def test_a_missing_call_is_named(call: Callable[[ESAgent], object], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        call(ESAgent())


def test_the_settings_and_the_solver_have_their_place_in_the_order(agent: ESAgent, model_dir: Path) -> None:
    without_config = ESAgent(model=mlp([4, 20, 2]))
    with pytest.raises(SolverError, match=r"call load_config\(\) before it"):
        without_config.init_solver()
    with pytest.raises(SolverError, match=r"call init_solver\(\) or load_solver\(\) before it"):
        without_config.clone()
    with pytest.raises(SolverError, match="the agent has a solver already, from init_solver"):
        agent.init_solver()
    with pytest.raises(SolverError, match="the agent has a solver already, from init_solver"):
        agent.load_solver(model_dir)
    with pytest.raises(SolverError, match="a new agent for other settings"):
        agent.load_config({})
    with pytest.raises(SolverError, match="a new agent for another model"):
        agent.load_inference_model(model_dir)


def test_calls_on_the_wrong_agent_name_the_right_one(agent: ESAgent) -> None:
    clone = agent.clone()
    with pytest.raises(EvolutionError, match=r"add_noise\(\) of a clone, which clone\(\) returns"):
        agent.add_noise()
    with pytest.raises(EvolutionError, match=r"update\(\) of the original agent"):
        clone.update([], [])
    with pytest.raises(EvolutionError, match=r"clone\(\) of the original agent"):
        clone.clone()
    with pytest.raises(EvolutionError, match="is of model 5, not of the present model 0"):
        clone.apply_noise(SamplingInfo([1, 2], 5, clone.add_noise().fingerprint))


def test_a_model_may_be_arrays_with_a_function_or_a_function_that_makes_it() -> None:
    arrays = {"w": np.ones((4, 3))}
    agents = [
        ESAgent(CONFIG, (arrays, lambda parts, x: x @ parts["w"])),
        ESAgent(CONFIG, lambda: (arrays, lambda parts, x: x @ parts["w"])),
    ]
    for agent in agents:
        assert agent.predict(X) == pytest.approx([0.6, 0.6, 0.6])
    with pytest.raises(EvolutionError, match="int is not a model"):
        ESAgent(CONFIG, 3)


def test_a_saved_solver_goes_on_to_the_same_bits(agent: ESAgent, tmp_path: Path) -> None:
    clone = agent.clone()
    agent.update([clone.add_noise() for _ in range(6)], [1.0, 5.0, 2.0, 2.0, 9.0, 0.0])
    agent.save_inference_model(tmp_path / "model")
    agent.save_solver(tmp_path / "model")

    restored = ESAgent()
    restored.load_config(CONFIG)
    restored.load_inference_model(tmp_path / "model", model=mlp([4, 20, 2]))
    restored.load_solver(tmp_path / "model")
    assert restored.model_iter_id == 1
    infos, rewards = [clone.add_noise() for _ in range(6)], [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    straight = agent.update(infos, rewards)
    assert restored.update(infos, rewards).parameters_sha256 == straight.parameters_sha256


def test_saving_twice_gives_the_same_bytes_and_replaces_what_was_there(agent: ESAgent, tmp_path: Path) -> None:
    def save(name: str) -> dict[str, bytes]:
        agent.save_inference_model(tmp_path / name)
        agent.save_solver(tmp_path / name)
        return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

    first, second = save("a"), save("b")
    assert first == second == save("a")
    assert set(first) == {"history.jsonl", "params.npz", "solver.json", "solver.npz"}
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    assert save("a") != first
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_weights_or_a_solver_that_do_not_belong_are_refused(agent: ESAgent, model_dir: Path, tmp_path: Path) -> None:
    fresh = ESAgent()
    with pytest.raises(LayoutMismatch, match="is of another model: parameter 'w0' has shape"):
        fresh.load_inference_model(model_dir, model=mlp([4, 30, 2]))
    with pytest.raises(SolverError, match=r"params\.npz cannot be read"):
        fresh.load_inference_model(tmp_path / "nowhere", model=mlp([4, 20, 2]))
    (model_dir / "params.npz").write_bytes((model_dir / "params.npz").read_bytes()[:-50])
    with pytest.raises(SolverError, match=r"params\.npz cannot be read"):
        fresh.load_inference_model(model_dir, model=mlp([4, 20, 2]))

"""The PARL 1.x manual's minimal program runs as it writes it, and learns."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from parl_evokit import Config, mlp
from parl_evokit.config import KeyKind

FOLDER = Path(__file__).parents[3] / "examples" / "evolution" / "minimal"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the examples are in the repository only")


@pytest.fixture
def example() -> ModuleType:
    pytest.importorskip("gymnasium", reason="the example needs gymnasium")
    spec = importlib.util.spec_from_file_location("evolution_minimal", FOLDER / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_it_reaches_475_within_the_manuals_100_epochs_and_repeats_with_counted_keys(
    example: ModuleType, tmp_path: Path
) -> None:
    mlp([4, 20, 2], activation="linear", seed=1).save(tmp_path)
    config = Config(Config.load(FOLDER / "config.prototxt").solver, keys=KeyKind.COUNTER)
    rewards = example.train(config, tmp_path, 100)
    assert len(rewards) == 100
    assert max(rewards) >= 475.0
    assert sum(rewards[-10:]) / 10 > 3 * sum(rewards[:10]) / 10
    assert example.train(config, tmp_path, 3) == rewards[:3]


def test_the_example_has_the_manuals_configuration() -> None:
    solver = Config.load(FOLDER / "config.prototxt").solver
    assert (solver.optimizer.type.name, solver.optimizer.base_lr) == ("ADAM", 0.05)
    gaussian = solver.sampling.gaussian_sampling
    assert (gaussian.std, gaussian.cached, gaussian.seed, gaussian.cache_size) == (0.5, True, 1024, 100_000)

"""SNES and PGPE: their formulas in plain float64, what they find, and that their updates repeat."""

import random
from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from parl_evokit import PGPE, SNES, ESAgent, NothingToUpdate, mlp
from parl_evokit.adaptive_std import AdaptiveStd, _utility_weights
from parl_evokit.errors import LayoutMismatch
from parl_evokit.noise import GaussianNoise, NoiseSpec
from parl_evokit.noise._exact_sum import sum_of_squares


def settings(kind: str, std: float = 0.5, seed: int = 1, **solver: Any) -> dict[str, Any]:
    sampling = {"gaussian_sampling": {"std": std, "seed": seed}}
    return {"keys": "COUNTER", "solver": {"type": kind, "sampling": sampling, **solver}}


def pgpe(n: int = 20, seed: int = 1, std: float = 0.5) -> PGPE:
    return PGPE(np.ones(n), settings("PGPE", std, seed, optimizer={"type": "ADAM", "base_lr": 0.05}))


def snes(n: int = 20, seed: int = 1, std: float = 0.5) -> SNES:
    return SNES(np.ones(n), settings("SNES", std, seed))


def sphere(x: np.ndarray) -> float:
    return -float((x.astype(np.float64) ** 2).sum())


def scaled(x: np.ndarray) -> float:
    """Axes that differ by a factor of a thousand."""
    return -float((10 ** (6 * np.arange(len(x)) / (len(x) - 1)) * x.astype(np.float64) ** 2).sum())


def run(es: AdaptiveStd, score: Any, generations: int, n: int = 20) -> None:
    for _ in range(generations):
        infos = es.ask(n)
        es.tell(infos, [score(x) for x in es.candidates(infos)])


def normals(es: AdaptiveStd, infos: list[Any]) -> np.ndarray:
    return np.stack([es.sampler.noise.units(info.noise_key, 0, es.layout.size) / 4096 for info in infos])


def test_utilities_are_those_of_the_paper_for_six_samples() -> None:
    # max(0, ln 4 - ln k) for k = 1 .. 6, divided by their sum
    raw = np.array([1.3863, 0.6931, 0.2877, 0.0, 0.0, 0.0])
    weights = _utility_weights(np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]))
    assert weights / weights.sum() == pytest.approx(raw / raw.sum(), abs=1e-4)
    assert _utility_weights(np.ones(4)).tolist() == [1] * 4


def test_steps_of_snes_agree_with_the_papers_formulas() -> None:
    n, d = 11, 7
    es = snes(d)
    mean, std = np.ones(d), np.full(d, 0.5)
    draw = random.Random(3)
    for _ in range(3):
        infos = es.ask(n)
        rewards = np.array([draw.gauss(0, 1) for _ in infos])
        z = normals(es, infos)
        ranks = 1 + np.argsort(np.argsort(-rewards))
        u = np.maximum(0, log(n / 2 + 1) - np.log(ranks))
        u = u / u.sum() - 1 / n
        mean = mean + std * (u @ z)
        std = std * np.exp((3 + log(d)) / (5 * sqrt(d)) / 2 * (u @ (z**2 - 1)))
        es.tell(infos, rewards)
        assert es.mean == pytest.approx(mean, rel=1e-4, abs=1e-5)
        assert es.std == pytest.approx(std, rel=1e-4)


def test_steps_of_pgpe_agree_with_the_papers_formulas() -> None:
    n, d = 8, 7
    es = PGPE(
        np.ones(d),
        settings("PGPE", optimizer={"type": "SGD", "base_lr": 0.3}, adaptive_std={"learning_rate": 0.2}),
    )
    mean, std = np.ones(d), np.full(d, 0.5)
    draw = random.Random(3)
    for _ in range(3):
        infos = es.ask(n)
        rewards = np.array([draw.gauss(0, 1) for _ in infos])
        z = normals(es, infos)
        u = np.argsort(np.argsort(rewards)) / (n - 1) - 0.5
        step = (u @ (std * z)) / n
        change = np.clip(0.2 * (u @ (z**2 - 1)) * std / n, -0.2 * std, 0.2 * std)
        mean, std = mean + 0.3 * step, std + change
        es.tell(infos, rewards)
        assert es.mean == pytest.approx(mean, rel=1e-4, abs=1e-5)
        assert es.std == pytest.approx(std, rel=1e-5)


@pytest.mark.slow
def test_snes_converges_on_axes_of_very_different_scale() -> None:
    es = snes(10)
    run(es, scaled, 900, n=14)
    assert scaled(es.mean) > -1e-6
    assert es.std[0] > 30 * es.std[-1], "flat axes keep wide deviations"


def test_pgpe_descends_and_its_deviations_shrink_where_it_matters() -> None:
    es = pgpe()
    run(es, sphere, 300)
    assert sphere(es.mean) > -0.1
    assert es.std.max() < 0.5


@pytest.mark.parametrize("make", [snes, pgpe])
def test_equal_rewards_change_nothing(make: Any) -> None:
    es = make()
    infos = es.ask(9)
    es.tell(infos, [2.0] * 9)
    assert (es.mean == 1.0).all()
    assert es.std == pytest.approx(np.full(20, 0.5), rel=1e-12)


@pytest.mark.parametrize("make", [snes, pgpe])
def test_order_of_samples_changes_no_bit(make: Any) -> None:
    states = set()
    for seed in range(4):
        es = make(300)
        for _ in range(3):
            samples = list(enumerate(es.ask(13)))
            random.Random(seed).shuffle(samples)
            es.tell([info for _, info in samples], [(7 * i) % 5 for i, _ in samples])
        states.add((es.mean.tobytes(), es.std.tobytes()))
    assert len(states) == 1


@pytest.mark.parametrize("make", [snes, pgpe])
def test_a_resumed_search_goes_on_to_the_same_bits(make: Any) -> None:
    straight = make()
    run(straight, sphere, 20)
    resumed = type(straight)(straight.mean, straight.config)
    resumed.load_state(straight.state())
    infos = straight.ask(12)
    assert (resumed.candidates(infos) == straight.candidates(infos)).all()
    rewards = [float(i) for i in range(12)]
    assert resumed.tell(infos, rewards).parameters_sha256 == straight.tell(infos, rewards).parameters_sha256
    assert resumed.std.tobytes() == straight.std.tobytes()
    with pytest.raises(LayoutMismatch, match=r"shape \(3,\), not \(20,\)"):
        resumed.load_state(straight.state() | {"std": np.ones(3)})


@pytest.mark.parametrize("make", [snes, pgpe])
def test_any_number_of_samples_will_do_but_not_those_of_older_models(make: Any) -> None:
    es = make()
    first = es.ask(30)
    es.tell(first[:3], [1.0, 2.0, 3.0])
    with pytest.raises(NothingToUpdate, match="27 too old"):
        es.tell(first[3:], [1.0] * 27)
    assert es.tell(es.ask(2000), np.linspace(0, 1, 2000)).used == 2000


def test_a_converged_search_says_so() -> None:
    es = snes(3)
    for _ in range(40):
        run(es, sphere, 50, n=8)
        if es.should_stop():
            break
    assert "converged" in es.should_stop()


@pytest.mark.parametrize("kind", ["SNES", "PGPE"])
def test_the_agent_uses_it_when_the_settings_say_so(tmp_path: Any, kind: str) -> None:
    config = settings(kind)
    agent = ESAgent(config, mlp([4, 3, 2]))
    clone = agent.clone()
    for _ in range(3):
        agent.update([clone.add_noise() for _ in range(6)], [5.0, 3.0, 1.0, 2.0, 4.0, 0.0])
    agent.save(tmp_path / "d")
    restored = ESAgent()
    restored.load_config(config)
    restored.load_inference_model(tmp_path / "d", model=mlp([4, 3, 2]))
    restored.load_solver(tmp_path / "d")
    info = clone.add_noise()
    other = restored.clone()
    other.apply_noise(info)
    for name, array in clone.parameters().items():
        assert (other.parameters()[name] == array).all()


def test_sums_of_squares_are_exact_for_large_weights_too() -> None:
    noise = GaussianNoise(NoiseSpec(3, False, 4096))
    keys = np.arange(2, 402, 2, dtype=np.uint64)
    units = [[int(unit) for unit in noise.units(int(key), 0, 50)] for key in keys]
    for factor in (2**17, 2**22):  # their sizes add up to some 2**30, and to more than 2**34
        weights = (np.arange(200) - 100) * factor
        found = sum_of_squares(noise, keys, weights, 50)
        exact = [sum(int(w) * row[c] ** 2 for w, row in zip(weights, units, strict=True)) for c in range(50)]
        assert found.tolist() == [float(value) for value in exact]

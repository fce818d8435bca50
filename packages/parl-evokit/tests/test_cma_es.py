"""CMA-ES: its published numbers, its formulas, invariance, and how many evaluations it needs."""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from parl_evokit import CMAES, ESAgent, NothingToUpdate, mlp
from parl_evokit._cma_family import Rates, Recombination, default_population, expected_norm, sorted_log_ranks
from parl_evokit.cma_es import PATIENCE
from parl_evokit.errors import LayoutMismatch


def settings(std: float, seed: int = 1, population: int = 0) -> dict[str, Any]:
    sampling = {"gaussian_sampling": {"std": std, "seed": seed}, "cma_sampling": {"population": population}}
    return {"keys": "COUNTER", "solver": {"type": "CMA_ES", "sampling": sampling}}


def sphere(x: np.ndarray) -> float:
    return float(x @ x)


def rosenbrock(x: np.ndarray) -> float:
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def rotated_ellipsoid(n: int) -> Callable[[np.ndarray], float]:
    """Axes that differ by a factor of a thousand, in no particular direction."""
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(n, n)))[0]
    scales = 10 ** (6 * np.arange(n) / (n - 1))
    return lambda x: float((scales * (turn @ x) ** 2).sum())


def generation(es: CMAES, score: Callable[[np.ndarray], float]) -> float:
    infos = es.ask(es.population)
    values = [score(x.astype(np.float64)) for x in es.candidates(infos)]
    es.tell(infos, [-value for value in values])
    return min(values)


def evaluations(score: Callable[[np.ndarray], float], start: float, n: int, std: float, seed: int, most: int) -> int:
    es = CMAES(np.full(n, start), settings(std, seed))
    for count in range(es.population, most, es.population):
        if generation(es, score) < 1e-8:
            return count
    return most


def test_rates_and_weights_are_those_that_the_tutorial_and_pycma_give_for_ten_dimensions() -> None:
    assert (default_population(10), default_population(20), default_population(100)) == (10, 12, 17)
    raw = sorted_log_ranks(-np.arange(10.0))
    parents = np.maximum(raw, 0) / np.maximum(raw, 0).sum()
    assert parents[:5] == pytest.approx([0.4563, 0.2707, 0.1622, 0.0852, 0.0255], abs=1e-4)
    mueff = 1 / np.square(parents).sum()
    rates = Rates.of(10, float(mueff))
    assert (rates.c_sigma, rates.c_c, rates.c_1, rates.c_mu) == pytest.approx(
        (5.167 / 18.167, 4.3167 / 14.6334, 2 / 130.857, 2 * 1.4828 / 147.167), rel=1e-3
    )
    assert expected_norm(10) == pytest.approx(3.084, abs=1e-3)
    by_rank = Recombination.of(raw, 10)
    assert (by_rank.mueff, by_rank.rates) == (pytest.approx(mueff), rates)
    assert by_rank.active[:5] == pytest.approx(parents[:5])
    negative = by_rank.active - by_rank.parents
    assert negative[:5].tolist() == [0.0] * 5
    assert (np.diff(negative[5:]) < 0).all()
    bounds = (1 + rates.c_1 / rates.c_mu, (1 - rates.c_1 - rates.c_mu) / (10 * rates.c_mu))
    assert -negative.sum() <= min(bounds) + 1e-12


def test_one_update_agrees_with_the_tutorials_formulas() -> None:
    n, k, changed = 5, 9, 0.0
    B, D = np.eye(n), np.ones(n)
    es = CMAES(np.zeros(n), settings(0.5, population=k))
    m, sigma, C, ps, pc = np.zeros(n), 0.5, np.eye(n), np.zeros(n), np.zeros(n)
    draw = random.Random(2)
    for step in range(1, 8):
        infos = es.ask(k)
        x = es.candidates(infos).astype(np.float64)
        rewards = [draw.gauss(0, 1) for _ in infos]
        y = (x - m) / sigma
        raw = np.empty(k)
        raw[np.argsort(-np.array(rewards))] = np.log((k + 1) / 2) - np.log(np.arange(1, k + 1))
        w = np.where(raw > 0, raw / raw[raw > 0].sum(), 0.0)
        mueff = 1 / (w**2).sum()
        cs = (mueff + 2) / (n + mueff + 5)
        ds = 1 + 2 * max(0, np.sqrt((mueff - 1) / (n + 1)) - 1) + cs
        cc = (4 + mueff / n) / (n + 4 + 2 * mueff / n)
        c1 = 2 / ((n + 1.3) ** 2 + mueff)
        cmu = min(1 - c1, 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ** 2 + mueff))
        worse = raw < 0
        mueff_worse = raw[worse].sum() ** 2 / (raw[worse] ** 2).sum()
        allowed = min(1 + c1 / cmu, 1 + 2 * mueff_worse / (mueff + 2), (1 - c1 - cmu) / (n * cmu))
        full = w + np.where(worse, allowed * raw / -raw[worse].sum(), 0.0)
        yw = w @ y
        root = B @ np.diag(1 / D) @ B.T
        m = m + sigma * yw
        ps = (1 - cs) * ps + np.sqrt(cs * (2 - cs) * mueff) * root @ yw
        chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        norm = np.linalg.norm(ps)
        h = float(norm / np.sqrt(1 - (1 - cs) ** (2 * step)) < (1.4 + 2 / (n + 1)) * chi)
        pc = (1 - cc) * pc + h * np.sqrt(cc * (2 - cc) * mueff) * yw
        lengths = np.array([(root @ one) @ (root @ one) for one in y])
        adjusted = np.where(full < 0, full * n / lengths, full)
        C = (1 + c1 * (1 - h) * cc * (2 - cc) - c1 - cmu * full.sum()) * C + c1 * np.outer(pc, pc)
        C = C + cmu * sum(a * np.outer(one, one) for a, one in zip(adjusted, y, strict=True))
        sigma *= np.exp(cs / ds * (norm / chi - 1))
        changed += n * (c1 + cmu)
        if changed >= PATIENCE:  # the tutorial's section B.2
            squares, B = np.linalg.eigh(C)
            D, changed = np.sqrt(squares), 0.0
        es.tell(infos, rewards)
        assert es.mean == pytest.approx(m, rel=1e-4, abs=1e-5)
        assert es.sigma == pytest.approx(sigma, rel=1e-4)
        assert es.state()["covariance"] == pytest.approx(C, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_it_needs_no_more_evaluations_than_pycma() -> None:
    # pycma 4.5, medians: sphere of 20 dimensions 2748, Rosenbrock of 20 dimensions 16 872; the gate is 1.1 of that.
    assert median(evaluations(sphere, 1.0, 20, 0.5, seed, 4000) for seed in range(3)) <= 1.1 * 2748
    assert median(evaluations(rosenbrock, 0.0, 20, 0.3, seed, 25_000) for seed in range(3)) <= 1.1 * 16_872


def test_the_direction_of_the_axes_does_not_matter() -> None:
    assert evaluations(rotated_ellipsoid(10), 1.0, 10, 0.5, 1, 9000) < 6500


def test_more_samples_than_the_population_are_used_and_fewer_are_waited_for() -> None:
    es = CMAES(np.ones(5), settings(0.3, population=8))
    infos = es.ask(20)
    with pytest.raises(NothingToUpdate, match="7 samples could be used, 8 are needed"):
        es.tell(infos[:7], [1.0] * 7)
    assert es.tell(infos[:17], list(range(17))).used == 17


def test_equal_rewards_teach_nothing() -> None:
    es = CMAES(np.ones(5), settings(0.3))
    before = es.state()
    es.tell(es.ask(8), [2.0] * 8)
    assert es.mean.tolist() == [1.0] * 5
    assert (es.state()["covariance"] == before["covariance"]).all()


def test_order_of_samples_changes_no_bit_here() -> None:
    digests = set()
    for seed in range(4):
        es = CMAES(np.ones(30), settings(0.3, population=12))
        for _ in range(4):
            samples = list(enumerate(es.ask(12)))
            random.Random(seed).shuffle(samples)
            report = es.tell([info for _, info in samples], [(7 * i) % 5 for i, _ in samples])
        digests.add(report.parameters_sha256)
    assert len(digests) == 1


def test_a_resumed_search_goes_on_to_the_same_bits() -> None:
    straight = CMAES(np.ones(8), settings(0.3))
    for _ in range(25):
        generation(straight, rosenbrock)
    resumed = CMAES(straight.mean, settings(0.3))
    resumed.load_state(straight.state())
    infos = straight.ask(straight.population)
    assert (resumed.candidates(infos) == straight.candidates(infos)).all()
    rewards = [float(i) for i in range(len(infos))]
    assert resumed.tell(infos, rewards).parameters_sha256 == straight.tell(infos, rewards).parameters_sha256
    assert (resumed.state()["covariance"] == straight.state()["covariance"]).all()
    with pytest.raises(LayoutMismatch, match="the state of CMA_ES"):
        CMAES(np.ones(9), settings(0.3)).load_state(straight.state())


def test_one_candidate_is_that_of_the_batch() -> None:
    es = CMAES(np.ones(6), settings(0.3))
    for _ in range(5):
        generation(es, rosenbrock)
    infos = es.ask(7)
    batch = es.candidates(infos)
    for info, row in zip(infos, batch, strict=True):
        assert es.candidate(info) == pytest.approx(row, rel=1e-6)


def test_a_converged_search_says_so() -> None:
    es = CMAES(np.ones(3), settings(0.3))
    for _ in range(600):
        generation(es, sphere)
        if es.should_stop():
            break
    assert "converged" in es.should_stop()


def test_a_log_of_keys_and_a_saved_solver_are_enough_to_go_on(tmp_path: Path) -> None:
    config = settings(0.5, population=6)
    agent = ESAgent(config, mlp([3, 2]))
    clone = agent.clone()
    for _ in range(4):
        agent.update([clone.add_noise() for _ in range(6)], [5.0, 3.0, 1.0, 2.0, 4.0, 0.0])
    agent.save(tmp_path / "d")
    restored = ESAgent()
    restored.load_config(config)
    restored.load_inference_model(tmp_path / "d", model=mlp([3, 2]))
    restored.load_solver(tmp_path / "d")
    info = clone.add_noise()
    other = restored.clone()
    other.apply_noise(info)
    for name, array in clone.parameters().items():
        assert (other.parameters()[name] == array).all()


@pytest.mark.parametrize(("n", "times"), [(1, 2), (1, 5), (2, 4)])
def test_few_parameters_and_many_samples_leave_the_covariance_positive(n: int, times: int) -> None:
    for seed in range(10):
        es = CMAES(np.full(n, 3.0), settings(0.5, seed))
        best = np.inf
        for step in range(60):
            infos = es.ask(es.population * (1 + step % times))
            candidates = es.candidates(infos)
            assert np.isfinite(candidates).all()
            values = [sphere(x.astype(np.float64)) for x in candidates]
            best = min(best, *values)
            es.tell(infos, [-value for value in values])
        assert best < 1e-6

"""CEM and LM-MA-ES find optima that are known, and their steps are the papers'."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parl_evokit import CEM, LMMAES, ConfigError
from parl_evokit.errors import LayoutMismatch


def cem(n: int, **settings: Any) -> CEM:
    gaussian = {"std": 2.0, "seed": 5}
    solver = {"type": "CEM", "sampling": {"gaussian_sampling": gaussian}, "cem": settings}
    return CEM(np.full(n, 3.0), {"keys": "COUNTER", "solver": solver})


def lm_ma_es(n: int, start: float = 3.0, **settings: Any) -> LMMAES:
    sampling = {"type": "CMA_SAMPLING", "gaussian_sampling": {"std": 1.0, "seed": 5}, "cma_sampling": settings}
    return LMMAES(np.full(n, start), {"keys": "COUNTER", "solver": {"type": "LM_MA_ES", "sampling": sampling}})


Function = Callable[[np.ndarray], float]


def evaluations(es: Any, function: Function, goal: float, population: int, most: int) -> int:
    """Return the number of evaluations after which the mean is as good as the goal."""
    used = 0
    while used < most:
        infos = es.ask(population)
        es.tell(infos, [-function(es.candidate(info).astype(np.float64)) for info in infos])
        used += population
        if function(es.mean.astype(np.float64)) < goal:
            return used
    return most


def sphere(x: np.ndarray) -> float:
    return float(x @ x)


def ellipsoid(x: np.ndarray) -> float:
    return float(10.0 ** np.linspace(0, 4, len(x)) @ x**2)


def cigar(x: np.ndarray) -> float:
    return float(x[0] ** 2 + 1e4 * x[1:] @ x[1:])


def test_cem_solves_a_sphere_and_an_ellipsoid() -> None:
    assert evaluations(cem(10), sphere, 1e-3, 60, 12_000) < 12_000
    assert evaluations(cem(10), ellipsoid, 1.0, 100, 30_000) < 30_000


@pytest.mark.parametrize(("n", "population"), [(1, 10), (5, 20)])
def test_cem_does_not_stop_before_the_optimum_where_samples_are_few(n: int, population: int) -> None:
    for seed in range(10):
        solver = {"type": "CEM", "sampling": {"gaussian_sampling": {"std": 1.0, "seed": seed}}}
        es = CEM(np.full(n, 3.0), {"keys": "COUNTER", "solver": solver})
        assert evaluations(es, sphere, 1e-6, population, 8000) < 8000, seed


def test_a_step_of_cem_is_the_mean_of_the_best_and_their_variance_about_the_old_mean() -> None:
    es = cem(4, elite_share=0.2, smoothing=0.7, extra_std=0.5, extra_updates=10)
    infos = es.ask(20)
    x = es.candidates(infos).astype(np.float64)
    rewards = -np.square(x - 1.0).sum(axis=1)
    best = x[np.argsort(-rewards)[:4]]
    wanted = 0.7 * best.mean(axis=0) + 0.3 * 3.0
    std = np.sqrt(0.7 * (np.square(best - 3.0).mean(axis=0) + 0.25) + 0.3 * 4.0)
    es.tell(infos, rewards)
    assert np.allclose(es.mean, wanted, atol=1e-5)
    assert np.allclose(es.std, std, atol=1e-5)


def test_extra_noise_of_cem_ends() -> None:
    es = cem(6, extra_std=1.0, extra_updates=20)
    evaluations(es, sphere, 0.0, 60, 60 * 20)
    assert es.std.min() > 0.05
    evaluations(es, sphere, 0.0, 60, 60 * 60)
    assert es.std.max() < 0.05


def test_order_of_samples_does_not_matter_to_cem() -> None:
    one, other = cem(7), cem(7)
    infos = one.ask(12)
    rewards = np.array([1.0, 2.0, 2.0, 2.0, 5.0, 1.0, 0.0, 3.0, 3.0, 2.0, 2.0, 4.0])
    order = np.random.default_rng(0).permutation(12)
    one.tell(infos, rewards)
    other.tell([infos[place] for place in order], rewards[order])
    assert one.mean.tobytes() == other.mean.tobytes()
    assert one.std.tobytes() == other.std.tobytes()


@pytest.mark.slow
def test_lm_ma_es_learns_the_long_axis_of_a_cigar() -> None:
    """Its few directions do what one step size cannot: the paper's figure 3 has the cigar solved in linear time."""
    es = lm_ma_es(50)
    assert evaluations(es, cigar, 1e-6, es.population, 60_000) < 60_000
    assert es.state()["directions"].shape == (4 + int(3 * np.log(50)), 50)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 20, 200])
def test_lm_ma_es_solves_spheres(n: int) -> None:
    es = lm_ma_es(n)
    assert evaluations(es, sphere, 1e-8, es.population, 400 * n + 4000) < 400 * n + 4000


def test_a_step_of_lm_ma_es_is_the_papers() -> None:
    es = lm_ma_es(5, population=6)
    for _ in range(3):
        infos = es.ask(6)
        es.tell(infos, [-sphere(es.candidate(info)) for info in infos])
    state, sigma, mean = es.state(), es.sigma, es.mean.astype(np.float64)
    infos = es.ask(6)
    z = es.sampler.normals(np.array([info.noise_key for info in infos], np.uint64))
    d = z.copy()
    for j in range(3):  # so many updates, so many directions
        vector, rate = state["directions"][j], 0.2 / 1.5**j
        d = np.array([(1 - rate) * row + rate * vector * (vector @ row) for row in d])
    assert np.allclose(es.candidates(infos), mean + sigma * d, atol=1e-5)
    rewards = -np.square(mean + sigma * d).sum(axis=1)
    raw = np.maximum(0.0, np.log(3.5) - np.log(np.arange(1, 7)))
    weights = np.empty(6)
    weights[np.argsort(-rewards)] = raw / raw.sum()
    mueff, c_sigma = 1 / (weights @ weights), 0.5
    path = (1 - c_sigma) * state["path_sigma"] + np.sqrt(mueff * c_sigma * (2 - c_sigma)) * (weights @ z)
    es.tell(infos, rewards)
    assert np.allclose(es.mean, mean + sigma * (weights @ d), atol=1e-5)
    assert np.allclose(es.state()["path_sigma"], path)
    change = min(1.0, c_sigma / 2 * (float(path @ path) / 5 - 1))
    assert es.sigma == pytest.approx(sigma * float(np.exp(change)))


def test_lm_ma_es_stays_near_with_two_parameters() -> None:
    def rosenbrock(x: np.ndarray) -> float:
        return float(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)

    es, farthest = lm_ma_es(2, population=12), 0.0
    for _ in range(300):
        infos = es.ask(12)
        es.tell(infos, [-rosenbrock(x) for x in es.candidates(infos).astype(np.float64)])
        farthest = max(farthest, float(np.abs(es.mean).max()))
    assert farthest < 20
    assert rosenbrock(es.mean.astype(np.float64)) < 1e-3


@pytest.mark.parametrize("make", [cem, lm_ma_es])
def test_a_saved_search_goes_on_to_the_same_bits(make: Any) -> None:
    def steps(es: Any, count: int) -> None:
        for _ in range(count):
            infos = es.ask(12)
            es.tell(infos, [-ellipsoid(x.astype(np.float64)) for x in es.candidates(infos)])

    whole, first = make(6), make(6)
    steps(whole, 9)
    steps(first, 4)
    second = type(first)(first.mean, first.config)
    second.load_state(first.state())
    steps(second, 5)
    assert second.mean.tobytes() == whole.mean.tobytes()


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"elite_share": 0.0}, {"smoothing": 1.5}, {"extra_std": -1.0}, {"extra_updates": 0}):
        with pytest.raises(ConfigError):
            cem(3, **wrong)
    state = cem(3).state()
    del state["updates"]
    with pytest.raises(LayoutMismatch):
        cem(3).load_state(state)

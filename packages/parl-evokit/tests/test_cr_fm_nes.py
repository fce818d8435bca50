"""CR-FM-NES: its steps are the paper's, it finds known optima, and it goes on where it was saved."""

from typing import Any

import numpy as np
import pytest

from parl_evokit import CRFMNES


def search(n: int, start: float = 3.0, std: float = 1.0, seed: int = 5, **settings: Any) -> CRFMNES:
    sampling = {"type": "CMA_SAMPLING", "gaussian_sampling": {"std": std, "seed": seed}, "cma_sampling": settings}
    return CRFMNES(np.full(n, start), {"keys": "COUNTER", "solver": {"type": "CR_FM_NES", "sampling": sampling}})


def generation(es: CRFMNES, function: Any, population: int = 0) -> float:
    infos = es.ask(population or es.population)
    values = np.array([function(x) for x in es.candidates(infos).astype(np.float64)])
    es.tell(infos, -values)
    return float(values.min())


def sphere(x: np.ndarray) -> float:
    return float(x @ x)


def ellipsoid(x: np.ndarray) -> float:
    return float(10.0 ** np.linspace(0, 4, len(x)) @ x**2)


def rosenbrock(x: np.ndarray) -> float:
    return float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


@pytest.mark.parametrize(
    ("function", "n", "start", "most"),
    [(sphere, 2, 3.0, 200), (sphere, 40, 3.0, 600), (ellipsoid, 20, 3.0, 2500), (rosenbrock, 10, 0.0, 3000)],
)
def test_known_optima_are_found(function: Any, n: int, start: float, most: int) -> None:
    es = search(n, start, 2.0 if start else 0.5, population=0 if start else 20)
    assert any(generation(es, function) < 1e-6 for _ in range(most))


def reference(state: Any, sigma: float, mean: np.ndarray, z: np.ndarray, rewards: np.ndarray) -> Any:
    """One step in the words of the paper, sample by sample and with whole matrices; the better rewards come first."""
    n, k = len(mean), len(z)
    v, d, p, p_c = (state[name].copy() for name in ("direction", "deviations", "path_sigma", "path_c"))
    order = np.argsort(-rewards)
    z = z[order]
    norm2 = v @ v
    bar = v / np.sqrt(norm2)
    y = np.array([row + (np.sqrt(1 + norm2) - 1) * np.outer(bar, bar) @ row for row in z])
    hat = np.maximum(0.0, np.log(k / 2 + 1) - np.log(np.arange(1, k + 1)))
    rank = hat / hat.sum() - 1 / k
    mueff = 1 / np.sum((rank + 1 / k) ** 2)
    c_s = (mueff + 2) / (n + mueff + 5)
    c_c = (4 + mueff / n) / (n + 4 + 2 * mueff / n)
    c_1 = 2 / ((n + 1.3) ** 2 + mueff) * (n - 5) / 6
    chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    p = (1 - c_s) * p + np.sqrt(c_s * (2 - c_s) * mueff) * sum(w * row for w, row in zip(rank, z, strict=True))
    length = np.linalg.norm(p)
    a, above = 0.0, 6.0
    for _ in range(60):
        middle = (a + above) / 2
        below = (1 + middle**2) * np.exp(middle**2 / 2) / 0.24 - 10 - n < 0
        a, above = (middle, above) if below else (a, middle)
    far = hat * np.exp(a * min(1, np.sqrt(k / n)) * np.linalg.norm(z, axis=1))
    moving = length >= chi
    w = far / far.sum() - 1 / k if moving else rank
    step = sum(wi * d * row for wi, row in zip(w, y, strict=True))
    p_c = (1 - c_c) * p_c + np.sqrt(c_c * (2 - c_c) * mueff) * step
    eta_b = np.tanh((min(0.02 * k, 3 * np.log(n)) + 5) / (0.23 * n + 25))

    gamma, bb = 1 + norm2, bar * bar
    alpha = min(1, np.sqrt(norm2**2 + (2 * gamma - np.sqrt(gamma)) / bb.max()) / (2 + norm2))
    b = -(1 - alpha**2) * norm2**2 / gamma + 2 * alpha**2
    whole = np.diag(2 - (b + 2 * alpha**2) * bb) + b * np.outer(bb, bb)
    move_v, move_d = np.zeros(n), np.zeros(n)
    for weight, row in [*zip(eta_b * w, y, strict=True), (c_1 if moving else 0.0, p_c / d)]:
        t = row * (bar @ row) - bar * ((bar @ row) ** 2 + gamma) / 2
        s = row**2 - norm2 / gamma * (bar @ row) * row * bar + 1
        s = s - alpha / gamma * ((2 + norm2) * bar * t - norm2 * bb * (bar @ t))
        s = np.linalg.solve(whole, s)
        t = t - alpha * ((2 + norm2) * bar * s - bar * (bb @ s))
        move_v += weight * t / np.sqrt(norm2)
        move_d += weight * s
    before = np.linalg.det(np.diag(d) @ (np.eye(n) + (np.sqrt(gamma) - 1) * np.outer(bar, bar))) ** (1 / n)
    v, d = v + move_v, d + move_d * d
    norm2 = v @ v
    bar = v / np.sqrt(norm2)
    after = np.linalg.det(np.diag(d) @ (np.eye(n) + (np.sqrt(1 + norm2) - 1) * np.outer(bar, bar))) ** (1 / n)
    g = sum(wi * (row @ row - n) for wi, row in zip(w, z, strict=True)) / n
    if moving:
        rate = 0.0 if g < 0 else 1.0
    elif length >= 0.1 * chi:
        rate = np.tanh((0.024 * k + 0.7 * n + 20) / (n + 12))
    else:
        rate = 2 * np.tanh((0.025 * k + 0.75 * n + 10) / (n + 4))
    found = {"direction": v, "deviations": d / after, "path_sigma": p, "path_c": p_c}
    return found, sigma * np.exp(rate / 2 * g) * before, mean + sigma * step, moving


@pytest.mark.parametrize("function", [sphere, ellipsoid, lambda x: float(-x[0])])
def test_its_steps_are_the_papers(function: Any) -> None:
    """In all phases: far from the optimum it moves, and near it converges."""
    es, phases = search(7, 5.0, 0.3, population=8), set()
    for _ in range(40):
        infos = es.ask(8)
        x = es.candidates(infos).astype(np.float64)
        z = es.sampler.normals(np.array([info.noise_key for info in infos], np.uint64))
        rewards = np.array([-function(row) for row in x])
        state, mean = es.state(), es.mean.astype(np.float64)
        found, sigma, wanted, moving = reference(state, es.sigma, mean, z, rewards)
        norm2 = state["direction"] @ state["direction"]
        bar = state["direction"] / np.sqrt(norm2)
        shape = np.diag(state["deviations"]) @ (np.eye(7) + (np.sqrt(1 + norm2) - 1) * np.outer(bar, bar))
        assert np.allclose(x, mean + es.sigma * z @ shape.T, rtol=1e-5, atol=1e-5)
        es.tell(infos, rewards)
        for name, array in found.items():
            assert np.allclose(es.state()[name], array, rtol=1e-5, atol=1e-7), name
        assert es.sigma == pytest.approx(sigma, rel=1e-6)
        assert np.allclose(es.mean, wanted, rtol=1e-5, atol=1e-5)
        phases.add(moving)
    assert function is ellipsoid or phases >= ({True} if function not in (sphere, ellipsoid) else {False})


def test_populations_of_the_default_size_are_whole_pairs() -> None:
    assert [search(n).population for n in (1, 2, 3, 20, 100)] == [4, 6, 8, 12, 18]
    infos = search(20).ask(12)
    assert {info.noise_key >> 1 for info in infos} == {infos[2 * i].noise_key >> 1 for i in range(6)}


def test_order_of_samples_does_not_matter() -> None:
    one, other = search(6, population=8), search(6, population=8)
    infos = one.ask(8)
    rewards = np.array([1.0, 2.0, 2.0, 5.0, 1.0, 0.0, 3.0, 2.0])
    order = np.random.default_rng(0).permutation(8)
    one.tell(infos, rewards)
    other.tell([infos[place] for place in order], rewards[order])
    assert one.mean.tobytes() == other.mean.tobytes()
    assert one.sigma == other.sigma


def test_a_saved_search_goes_on_to_the_same_bits() -> None:
    whole, first = search(9), search(9)
    for _ in range(8):
        generation(whole, ellipsoid)
    for _ in range(3):
        generation(first, ellipsoid)
    second = CRFMNES(first.mean, first.config)
    second.load_state(first.state())
    for _ in range(5):
        generation(second, ellipsoid)
    assert second.mean.tobytes() == whole.mean.tobytes()


def test_bounds_restarts_and_warm_starts_are_those_of_the_family() -> None:
    es = search(4, 1.0, 0.5, lower=[0.0], upper=[2.0], restarts="IPOP", max_restarts=2)
    for _ in range(600):
        infos = es.ask(es.population)
        x = es.candidates(infos)
        assert x.min() >= 0.0
        assert x.max() <= 2.0
        es.tell(infos, -np.square(x - 1.5).sum(axis=1))
        if es.restarts == 2:
            break
    assert es.restarts == 2
    assert es.population == 8 * 4
    solutions = np.random.default_rng(1).normal(2.0, 0.1, (50, 5))
    warm = CRFMNES.warm_start(solutions, -np.square(solutions - 2.0).sum(axis=1), search(5).config)
    assert np.abs(warm.mean - 2.0).max() < 0.2


@pytest.mark.parametrize(("d", "cma_sampling"), [(7, {}), (7, {"lower": [0.0]}), (20, {})])
def test_samples_stay_finite_where_a_linear_reward_lengthens_the_direction(d: int, cma_sampling: Any) -> None:
    settings = {"type": "CR_FM_NES", "sampling": {"cma_sampling": cma_sampling}}
    es = CRFMNES(np.ones(d), {"keys": "COUNTER", "solver": settings})
    for _ in range(120):
        infos = es.ask(12)
        samples = es.candidates(infos).astype(np.float64)
        assert np.isfinite(samples).all()
        es.tell(infos, samples.mean(axis=1))

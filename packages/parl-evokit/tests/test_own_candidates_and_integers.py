"""CMA-ES, SEP-CMA-ES and GA take candidates that they did not draw, or whole numbers."""

from typing import Any

import numpy as np
import pytest

from parl_evokit import CMAES, GA, LMMAES, ConfigError, ESAgent, InvalidReward, LayoutMismatch, SepCMAES
from parl_evokit.noise._keys import Arm


def search(n: int, seed: int = 1, start: float = 3.0, std: float = 1.0, **cma: Any) -> CMAES:
    sampling = {"type": "CMA_SAMPLING", "gaussian_sampling": {"std": std, "seed": seed}, "cma_sampling": cma}
    return CMAES(np.full(n, start), {"keys": "COUNTER", "solver": {"type": "CMA_ES", "sampling": sampling}})


def generation(es: CMAES | SepCMAES, function: Any) -> list[float]:
    infos = es.ask(es.population)
    values = [function(es.candidate(info).astype(np.float64)) for info in infos]
    es.tell(infos, [-value for value in values])
    return values


def sphere(x: np.ndarray) -> float:
    return float(x @ x)


def test_a_good_injected_candidate_draws_the_search_to_it() -> None:
    alone, helped = search(10, start=30.0), search(10, start=30.0)
    for _ in range(15):
        generation(alone, sphere)
        helped.inject(np.zeros((1, 10)), [0.0])
        generation(helped, sphere)
    assert sphere(helped.mean) < 0.5 * sphere(alone.mean)


def test_an_injected_sample_counts_as_one_that_was_drawn() -> None:
    drawn, injected = search(5, population=6), search(5, population=6)
    for es in (drawn, injected):
        for _ in range(4):
            generation(es, sphere)
    infos = drawn.ask(7)
    x = drawn.candidates(infos)
    rewards = [-sphere(row) for row in x]
    assert drawn.mean.tobytes() == injected.mean.tobytes()
    injected.inject(x[6:], rewards[6:])
    drawn.tell(infos, rewards)
    injected.tell(infos[:6], rewards[:6])
    assert np.allclose(drawn.mean, injected.mean, atol=1e-5)
    assert drawn.sigma == pytest.approx(injected.sigma, rel=1e-4)


def test_an_injected_sample_near_a_side_counts_as_one_that_was_drawn() -> None:
    drawn, injected = (search(2, start=0.003, std=0.01, population=6, lower=[0.0]) for _ in range(2))
    infos, others = drawn.ask(40), injected.ask(40)
    x = drawn.candidates(infos)
    steps = 0.01 * drawn.sampler.normals(np.array([info.noise_key for info in infos], np.uint64))
    found = drawn.sampler.steps_to(x.astype(np.float64))
    as_drawn = (np.abs(found - steps) < 1e-6).all(axis=1)  # others came back from beyond the side
    chosen = int(np.flatnonzero(as_drawn & (np.abs(x - 0.003 - steps) > 1e-3).any(axis=1))[0])
    rewards = [-sphere(row) for row in x]
    drawn.tell(infos, rewards)
    injected.inject(x[chosen : chosen + 1], rewards[chosen : chosen + 1])
    del others[chosen], rewards[chosen]
    injected.tell(others, rewards)
    assert np.allclose(drawn.mean, injected.mean, atol=1e-6)
    assert drawn.sigma == pytest.approx(injected.sigma, rel=1e-4)


def test_a_far_candidate_moves_the_mean_no_farther_than_samples_reach() -> None:
    es = search(8, population=10)
    before = es.mean.copy()
    es.inject(np.full((2, 8), 1e6), [1e9, 1e9])
    generation(es, sphere)
    assert np.linalg.norm(es.mean - before) < np.sqrt(8) + 2
    assert np.isfinite(es.sigma)
    after = es.mean.copy()
    generation(es, sphere)  # they counted once
    assert np.linalg.norm(es.mean - after) < 5


def test_bad_injections_are_refused() -> None:
    es = search(3)
    ga = GA(np.ones(3))
    for solutions in (np.zeros((1, 4)), [[np.nan, 0, 0]], np.zeros(3), [[1e39, 0, 0]], [[0, 0, -1e300]]):
        for each in (es, ga):
            with pytest.raises(LayoutMismatch):
                each.inject(solutions, [1.0])
    given: list[Any] = [[1.0, 2.0], [np.inf], [10**400], ["7"], [b"7"], [1j], [None], [1e300], 1.0, [[1.0], [2.0, 3.0]]]
    for rewards in given:
        for each in (es, ga):
            with pytest.raises(InvalidReward):
                each.inject(np.zeros((1, 3)), rewards)
    assert es.best is None
    assert ga.best is None


def mixed(x: np.ndarray) -> float:
    """Of whole numbers first: the best are 7 and -4, and every step away costs."""
    assert (x[:2] == np.rint(x[:2])).all()
    return float((x[0] - 7) ** 2 + (x[1] + 4) ** 2 + 100 * (x[2] - 0.25) ** 2 + (x[3] + x[2]) ** 2)


@pytest.mark.parametrize("seed", range(8))
def test_mixed_problems_are_solved(seed: int) -> None:
    es = search(4, seed, start=0.3, integers=[0, 1], population=12)
    least = np.inf
    for _ in range(400):
        least = min(least, *generation(es, mixed))
        if least < 1e-8:
            break
    assert least < 1e-8
    assert es.best is not None
    assert es.best.parameters[:2].tolist() == [7.0, -4.0]


def test_whole_numbers_stay_within_their_bounds() -> None:
    es = search(3, start=1.0, std=5.0, integers=[0], lower=[0.0, -9.0, -9.0], upper=[2.0, 9.0, 9.0])
    for _ in range(60):
        infos = es.ask(es.population)
        x = es.candidates(infos)
        assert set(x[:, 0].tolist()) <= {0.0, 1.0, 2.0}
        for info, row in zip(infos, x, strict=True):
            assert es.candidate(info)[0] == row[0]
        es.tell(infos, x[:, 0] - np.abs(x[:, 1]))
    assert np.rint(es.mean[0]) == 2.0


def test_the_holdout_arm_serves_whole_numbers_too() -> None:
    guard = {"rollback": True, "control_share": 0.1, "holdout_share": 0.5}
    solver = {"type": "CMA_ES", "sampling": {"cma_sampling": {"integers": [0]}}, "guard": guard}
    start = {"x": np.array([0.4, 0.4], np.float32)}
    agent = ESAgent({"keys": "COUNTER", "solver": solver}, (start, lambda arrays, _: arrays["x"]))
    agent.update(agent.clone().draw(40), list(range(40)))
    clone = agent.clone()
    while clone.add_noise().identity >> 60 != Arm.TRUSTED:
        pass
    whole, broken = clone.parameters()["x"].tolist()
    assert whole == 0.0
    assert broken == np.float32(0.4)


def test_integers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="from 0 to 2"):
        search(3, integers=[3])
    with pytest.raises(ConfigError, match="from 0 to 2"):
        search(3, integers=[2**63])
    with pytest.raises(ConfigError, match="CMA_ES"):
        LMMAES(np.ones(3), {"solver": {"type": "LM_MA_ES", "sampling": {"cma_sampling": {"integers": [1]}}}})


def test_whole_numbers_stay_within_the_bounds() -> None:
    es = search(3, start=5.0, std=5.0, integers=[0, 1], lower=[0.4, -0.5, 0.4], upper=[9.6, 10.0, 9.6])
    infos = es.ask(500)
    table = es.candidates(infos)
    assert sorted(set(table[:, 0].tolist())) == list(range(1, 10))
    assert sorted(set(table[:, 1].tolist())) == list(range(11))
    assert (np.stack([es.candidate(info) for info in infos]) == table).all()


def test_bounds_without_a_whole_number_between_them_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter 1 of integers has no whole number between its bounds 0.4, 0.6"):
        search(3, start=0.5, integers=[1], lower=[0.4], upper=[0.6])


@pytest.mark.parametrize("kind", [CMAES, GA])
def test_the_best_candidate_may_be_an_injected_one(kind: type[CMAES | GA]) -> None:
    es = kind(np.zeros(5), {"keys": "COUNTER"})
    for reward in (1e6, 1.0):
        es.inject([[reward] * 5], [reward])
    infos = es.ask(10)
    es.tell(infos, [0.0] * 5 + [1.0] * 5)
    assert es.best is not None
    assert es.best.reward == 1e6
    assert es.best.parameters.tolist() == [1e6] * 5


@pytest.mark.parametrize("seed", range(4))
def test_the_separable_form_solves_mixed_problems_too(seed: int) -> None:
    def separable(x: np.ndarray) -> float:
        assert (x[:2] == np.rint(x[:2])).all()
        return float((x[0] - 7) ** 2 + (x[1] + 4) ** 2 + 100 * (x[2] - 0.25) ** 2 + x[3] ** 2)

    gaussian = {"std": 1.0, "seed": seed}
    sampling = {"gaussian_sampling": gaussian, "cma_sampling": {"integers": [0, 1], "population": 12}}
    es = SepCMAES(np.full(4, 0.3), {"keys": "COUNTER", "solver": {"type": "SEP_CMA_ES", "sampling": sampling}})
    assert any(min(generation(es, separable)) < 1e-8 for _ in range(600))


def ga(n: int, start: float, **settings: Any) -> GA:
    sampling = {"gaussian_sampling": {"std": 0.1, "seed": 3}, "ga_sampling": settings}
    return GA(np.full(n, start), {"keys": "COUNTER", "solver": {"type": "GA", "sampling": sampling}})


def test_a_candidate_that_is_better_than_all_children_becomes_the_model_and_breeds() -> None:
    es = ga(6, 3.0, parents=4, elites=1)
    for _ in range(3):
        infos = es.ask(12)
        es.tell(infos, [-sphere(es.candidate(info)) for info in infos])
    es.inject([[0.5] * 6, [9.0] * 6], [-1.5, -486.0])
    infos = es.ask(12)
    es.tell(infos, [-sphere(es.candidate(info)) for info in infos])
    assert es.mean.tolist() == [0.5] * 6
    assert es.sampler.parents is not None
    assert len(es.sampler.parents) == 4
    assert not (es.sampler.parents == 9.0).any()
    resumed = type(es)(es.mean, es.config)
    resumed.load_state(es.state())
    for one in (es, resumed):
        for _ in range(2):
            infos = one.ask(12)
            one.tell(infos, [-sphere(one.candidate(info)) for info in infos])
    assert resumed.mean.tobytes() == es.mean.tobytes()
    assert sphere(es.mean) <= 1.5
    with pytest.raises(LayoutMismatch):
        es.inject(np.zeros((1, 5)), [1.0])

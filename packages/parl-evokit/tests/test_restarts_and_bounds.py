"""CMA's restarts, its box, and starts from known solutions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_evokit import CMAES, CRFMNES, LMMAES, ConfigError, ESAgent, InvalidReward, LayoutMismatch, SepCMAES, mlp
from parl_evokit._cma_family import Restarts, promising_region
from parl_evokit._sampler import Bounds
from parl_evokit.config import RestartKind

BOTH = pytest.mark.parametrize("kind", [CMAES, SepCMAES])
FAMILY = pytest.mark.parametrize("kind", [CMAES, SepCMAES, LMMAES, CRFMNES])


def settings(kind: type, std: float = 0.5, seed: int = 1, **cma: Any) -> dict[str, Any]:
    sampling = {"gaussian_sampling": {"std": std, "seed": seed}, "cma_sampling": cma}
    name = kind.kind.value  # type: ignore[attr-defined]
    return {"keys": "COUNTER", "solver": {"type": name, "sampling": sampling}}


def sphere(x: np.ndarray) -> float:
    return float(x @ x)


def rastrigin(x: np.ndarray) -> float:
    return float(10 * len(x) + (x**2 - 10 * np.cos(2 * np.pi * x)).sum())


def search(es: Any, score: Callable[[np.ndarray], float], most: int, goal: float = 1e-8) -> int:
    """Evaluations until a sample is better than `goal`."""
    used = 0
    while used < most:
        infos = es.ask(es.population)
        values = [score(x.astype(np.float64)) for x in es.candidates(infos)]
        used += len(values)
        es.tell(infos, [-value for value in values])
        if min(values) < goal or es.should_stop():
            break
    return used


# -- restarts --------------------------------------------------------------------------------------------------------


def test_ipop_doubles_the_population_and_ends_after_the_last_run() -> None:
    plan = Restarts(RestartKind.IPOP, 3, 10, 0.5, seed=1)
    starts = [plan.next(1000) for _ in range(4)]
    assert [start and (start.population, start.sigma) for start in starts] == [(20, 0.5), (40, 0.5), (80, 0.5), None]


def test_bipop_gives_the_next_run_to_the_regime_that_has_used_less() -> None:
    plan = Restarts(RestartKind.BIPOP, 100, 10, 0.5, seed=1)
    first = plan.next(500)
    assert first is not None
    assert first.population == 20
    small = plan.next(4000)  # the large regime has used 4000 of 4500
    assert small is not None
    assert 2 <= small.population <= 10
    assert 0.5 * 10**-2 <= small.sigma < 0.5
    still_small = plan.next(100)
    assert still_small is not None
    assert still_small.population <= 10
    large = plan.next(5000)  # now the small one has used more
    assert large is not None
    assert (large.population, large.sigma) == (40, 0.5)


def test_a_plan_that_is_loaded_goes_on_as_it_would_have() -> None:
    plan = Restarts(RestartKind.BIPOP, 100, 10, 0.5, seed=3)
    for evaluations in (100, 900, 50):
        plan.next(evaluations)
    other = Restarts(RestartKind.BIPOP, 100, 10, 0.5, seed=3)
    other.load_state(plan.state())
    assert [plan.next(70) for _ in range(20)] == [other.next(70) for _ in range(20)]


def test_without_restarts_a_converged_search_says_so_and_with_them_it_goes_on() -> None:
    once = CMAES(np.full(2, 2.2), settings(CMAES, std=0.1))
    search(once, rastrigin, 20_000)
    assert "converged" in once.should_stop()
    assert once.restarts == 0
    again = CMAES(np.full(2, 2.2), settings(CMAES, std=0.1, restarts="IPOP", max_restarts=2))
    while not again.should_stop():
        search(again, lambda x: rastrigin(x) + 1.0, 100_000)
    assert again.restarts == 2
    assert again.population == 4 * once.population


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["IPOP", "BIPOP"])
def test_restarts_find_the_lowest_of_many_valleys(restarts: str) -> None:
    found = []
    for seed in range(3):
        es = CMAES(np.full(5, 3.0), settings(CMAES, 2.0, seed, restarts=restarts, lower=(-5.0,), upper=(5.0,)))
        search(es, rastrigin, 150_000)
        assert es.best is not None
        found.append(-es.best.reward)
    assert max(found) < 1e-6


def test_a_run_in_a_valley_ends_where_float32_parameters_do_whatever_the_rewards_have_in_common() -> None:
    updates = []
    for offset in (0.0, 1e9):
        es = CMAES(np.full(2, 2.2), settings(CMAES, std=0.1))
        count = 0
        while not es.should_stop():
            search(es, lambda x: rastrigin(x) + 8.0 + offset, es.population)  # noqa: B023  # used at once
            count += 1
        updates.append(count)
    assert 20 < updates[0] < 150
    assert abs(updates[1] - updates[0]) < 20


@BOTH
def test_a_search_that_is_resumed_after_restarts_goes_on_to_the_same_bits(kind: Any) -> None:
    config = settings(kind, 0.1, restarts="BIPOP")
    straight = kind(np.full(2, 2.2), config)
    while straight.restarts < 3:
        infos = straight.ask(straight.population)
        straight.tell(infos, [-rastrigin(x.astype(np.float64)) for x in straight.candidates(infos)])
    resumed = kind(straight.mean, config)
    resumed.load_state(straight.state())
    for _ in range(200):
        infos = straight.ask(straight.population)
        rewards = [-rastrigin(x.astype(np.float64)) for x in straight.candidates(infos)]
        assert resumed.tell(infos, rewards).parameters_sha256 == straight.tell(infos, rewards).parameters_sha256
    assert (resumed.restarts, resumed.population, resumed.sigma) == (
        straight.restarts,
        straight.population,
        straight.sigma,
    )


# -- the box ---------------------------------------------------------------------------------------------------------


def box(lower: float = -np.inf, upper: float = np.inf, n: int = 1) -> Bounds:
    found = Bounds.of((lower,), (upper,), n, 0.1)
    assert found is not None
    return found


SIDES = pytest.mark.parametrize("sides", [(-1.0, 2.5), (0.0, np.inf), (-np.inf, 1.0), (1000.0, 1000.5)])


@SIDES
@given(places=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20), length=st.floats(-1e6, 1e6))
def test_whatever_is_moved_stays_inside(sides: tuple[float, float], places: list[float], length: float) -> None:
    bounds = box(*sides, n=len(places))
    x = np.clip(max(sides[0], -4.0) + np.array(places), *sides).astype(np.float32)
    moved, _ = bounds.moved(x, np.full(len(x), length))
    assert ((moved >= bounds.lower) & (moved <= bounds.upper)).all()
    assert (bounds.moved(x, np.zeros(len(x)))[0] == x).all()


@SIDES
def test_a_step_to_the_searched_coordinates_of_a_point_leads_there(sides: tuple[float, float]) -> None:
    bounds = box(*sides)
    points = np.clip(max(sides[0], -4.0) + np.linspace(0.0, 5.0, 601), *sides)[:, np.newaxis]
    for start in (points[0], points[10], points[-1]):
        found, turned = bounds.moved(start, bounds.searched(points) - bounds.searched(start))
        assert found == pytest.approx(points, abs=1e-6)
        at_side = np.abs(points - sides[0]).clip(0, 1) * np.abs(points - sides[1]).clip(0, 1) == 0.0
        assert not turned[~at_side].any()  # at a side, rounding decides


def test_samples_are_those_of_a_line_between_two_parabolas() -> None:
    bounds = box(0.0, 1.0, n=7)  # whose margin is 0.05
    steps = np.array([0.2, 0.45, 0.5, 0.55, 0.6, 0.65, 1.65])
    x, turned = bounds.moved(np.full(7, 0.5), steps)
    assert x.tolist() == pytest.approx([0.7, 0.95, 0.9875, 1.0, 0.9875, 0.95, 0.0])
    assert turned[[0, 1, 2, 4, 5]].tolist() == [False, False, False, True, True]
    half = box(0.0, n=2)
    x, turned = half.moved(np.array([0.0, 7.0]), np.array([-3.0, 1e6]))
    assert x.tolist() == pytest.approx([3.0 - 0.05, 1e6 + 7.0])
    assert turned.tolist() == [True, False]


@SIDES
def test_no_kink_is_in_the_path_of_a_parameter(sides: tuple[float, float]) -> None:
    bounds = box(*sides, n=4001)
    start = np.full(4001, np.clip(0.3, *sides))
    steps = np.linspace(-3.0, 3.0, 4001)
    slopes = np.diff(bounds.moved(start, steps)[0]) / np.diff(steps)
    step = steps[1] - steps[0]
    assert np.abs(slopes).max() <= 1.0 + 1e-9
    assert np.abs(np.diff(slopes)).max() <= step / (2 * bounds.margin[0]) + 1e-9


@BOTH
def test_no_sample_and_no_model_leaves_the_box_and_an_optimum_at_its_side_is_found(kind: Any) -> None:
    es = kind(np.full(4, 0.5), settings(kind, 0.3, lower=(0.1, 0.2, -1.0, -1.0), upper=(1.0,)))
    for _ in range(150):
        infos = es.ask(es.population)
        samples = es.candidates(infos)
        assert (samples >= np.array([0.1, 0.2, -1, -1], np.float32)).all()
        assert (samples <= 1.0).all()
        assert (es.candidate(infos[0]) == samples[0]).all()
        es.tell(infos, [-sphere(x.astype(np.float64)) for x in samples])
    assert es.mean == pytest.approx([0.1, 0.2, 0.0, 0.0], abs=0.01)


@FAMILY
@pytest.mark.parametrize("sides", [{"lower": (0.0,), "upper": (1.0,)}, {"lower": (0.0,)}])
@pytest.mark.parametrize("std", [1.0, 5.0])
def test_an_optimum_in_the_box_is_found_from_any_std(kind: Any, sides: Any, std: float) -> None:
    optimum = np.linspace(0.1, 0.9, 12)
    es = kind(np.full(12, 0.5), settings(kind, std, **sides))
    search(es, lambda x: sphere(x - optimum), 600 * es.population, goal=1e-9)
    assert -es.best.reward < 1e-9


@FAMILY
@pytest.mark.parametrize("box", [{}, {"lower": [0.0], "upper": [1.0]}], ids=["without a box", "in a box"])
def test_a_search_that_is_resumed_before_its_first_update_makes_the_same_samples(
    kind: Any, box: dict[str, Any]
) -> None:
    es = kind(np.full(5, 0.4), settings(kind, std=0.3, **box))
    resumed = kind(es.mean, es.config)
    resumed.load_state(es.state())
    infos = es.ask(20)
    assert resumed.candidates(infos).tobytes() == es.candidates(infos).tobytes()
    assert resumed.candidate(infos[3]).tobytes() == es.candidate(infos[3]).tobytes()


@FAMILY
@pytest.mark.parametrize("upper", [1.0, np.inf])
def test_an_optimum_at_many_sides_with_a_slope_there_is_found(kind: Any, upper: float) -> None:
    side = 1.0 if upper == 1.0 else 0.0
    optimum = np.repeat([0.0, side, 0.5], 6)
    es = kind(np.full(18, 0.5), settings(kind, 0.3, lower=(0.0,), upper=(upper,)))
    nearest = []

    def score(x: np.ndarray) -> float:
        step = x - optimum
        nearest.append(sphere(step))
        return sphere(step) + float(np.abs(step[:12]).sum())

    search(es, score, 500 * es.population, goal=0.0)
    assert min(nearest) < 1e-9


@FAMILY
def test_a_search_that_is_resumed_at_sides_goes_on_to_the_same_bits(kind: Any) -> None:
    def step(es: Any) -> str:
        infos = es.ask(es.population)
        report = es.tell(infos, [float(x[:2].sum() - x[2:].sum()) for x in es.candidates(infos)])
        return str(report.parameters_sha256)

    config = settings(kind, 0.3, lower=(0.0,), upper=(1.0, 1.0, 1.0, np.inf))
    straight = kind(np.full(4, 0.5), config)
    for _ in range(30):
        step(straight)
    resumed = kind(straight.mean, config)
    resumed.load_state(straight.state())
    assert [step(resumed) for _ in range(10)] == [step(straight) for _ in range(10)]
    assert straight.mean == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=0.1)


@FAMILY
def test_deviations_stay_within_a_third_of_the_box(kind: Any) -> None:
    width = np.array([0.5, 1.0, 4.0, 100.0, 100.0, 100.0])
    es = kind(np.zeros(6), settings(kind, 50.0, lower=(-width / 2).tolist(), upper=(width / 2).tolist()))
    dice = np.random.default_rng(1)
    most = np.full(6, 100.0) if kind is LMMAES else width  # which has one step size for all
    for _ in range(300):
        assert (es._deviations_of_samples() <= most / 3 * (1 + 1e-9)).all()
        es.tell(es.ask(es.population), dice.normal(size=es.population))  # nothing can be learnt from these
        assert (np.abs(es.mean) <= width / 2).all()
    samples = es.candidates(es.ask(200))
    assert (samples.std(axis=0) < most / 2).all()


def test_a_first_std_beyond_the_box_is_reduced_to_a_third_of_each_width() -> None:
    for kind in (CMAES, SepCMAES, CRFMNES):
        es: Any = kind(np.full(2, 0.5), settings(kind, 5.0, lower=(0.0, -2.0), upper=(1.0, 4.0)))
        assert es._deviations_of_samples() == pytest.approx([1 / 3, 2.0])
        spread = es.candidates(es.ask(2000)) - es.mean
        assert np.sqrt(np.square(spread).mean(axis=0)) == pytest.approx([0.3, 1.6], rel=0.2)
    free = CMAES(np.full(2, 0.5), settings(CMAES, 5.0, lower=(0.0,)))
    assert free.sigma == 5.0


def test_a_search_in_a_box_is_that_of_a_function_of_the_searched_coordinates_without_one() -> None:
    n, updates = 200, 15  # before the first decomposition, which may choose other signs
    boxed = CMAES(np.full(n, 0.1), settings(CMAES, 0.2, lower=(0.0,)))  # where both coordinates are still the same
    free = CMAES(np.full(n, 0.1), settings(CMAES, 0.2))
    for _ in range(updates):
        infos, others = boxed.ask(boxed.population), free.ask(free.population)
        samples = boxed.candidates(infos)
        from_side = np.abs(free.candidates(others).astype(np.float64) + 0.1)
        points = np.where(from_side < 0.2, np.square(from_side) / 0.4, from_side - 0.1)
        assert samples == pytest.approx(points, abs=1e-5)
        rewards = [-sphere(x.astype(np.float64) - 0.3) for x in samples]
        boxed.tell(infos, rewards)
        free.tell(others, rewards)
    signs = np.where(free.mean < -0.1, -1.0, 1.0)
    assert (signs < 0).sum() > 10
    here, there = boxed.state(), free.state()
    assert (here["covariance"] == there["covariance"] * np.outer(signs, signs)).all()
    for path in ("path_sigma", "path_c"):
        assert (here[path] == there[path] * signs).all()


@FAMILY
def test_a_mean_that_is_mirrored_takes_the_shape_of_the_search_with_it(kind: Any) -> None:
    def covariance(es: Any) -> np.ndarray:
        std, transform = es._shape()
        if transform is None:
            return np.diag(np.square(std))
        rows = transform.T if isinstance(transform, np.ndarray) else transform.shaped(np.eye(4))
        return std**2 * rows.T @ rows

    es = kind(np.full(4, 0.5), settings(kind, 0.1, lower=(0.0,), upper=(1.0,)))
    for _ in range(40):
        infos = es.ask(es.population)
        es.tell(infos, [-float((x[0] - 2 * x[1]) ** 2 + x[2] * x[3]) for x in es.candidates(infos)])
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    before, path = covariance(es), es.state()["path_sigma"]
    es._mirror(signs)
    assert covariance(es) == pytest.approx(before * np.outer(signs, signs))
    assert (es.state()["path_sigma"] == path * signs).all()


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"for parameter 1 they are 2\.0, 1\.0"):
        CMAES(np.zeros(2), settings(CMAES, lower=(-1.0, 2.0), upper=(1.0,)))
    with pytest.raises(ConfigError, match="one for each of the 3, not 2"):
        CMAES(np.zeros(3), settings(CMAES, lower=(-1.0, -1.0)))
    with pytest.raises(LayoutMismatch, match=r"parameter 2 is 5\.0, its bounds are -1\.0 and 1\.0"):
        CMAES(np.array([0, 0, 5]), settings(CMAES, lower=(-1.0,), upper=(1.0,)))


def test_the_agents_model_and_clones_stay_in_the_box() -> None:
    agent = ESAgent(settings(CMAES, 3.0, lower=(-1.0,), upper=(1.0,), population=6), mlp([4, 2]))
    clone = agent.clone()
    for _ in range(5):
        infos = []
        for _ in range(6):
            infos.append(clone.add_noise())
            assert all(np.abs(array).max() <= 1.0 for array in clone.parameters().values())
        agent.update(infos, [1.0, 5.0, 2.0, 4.0, 3.0, 0.0])
    assert all(np.abs(array).max() <= 1.0 for array in agent.parameters().values())


# -- known solutions -------------------------------------------------------------------------------------------------


def test_the_promising_region_of_two_points_is_the_papers() -> None:
    solutions = [[0.0, 0.0], [2.0, 0.0], [50.0, 50.0]]
    found = promising_region(solutions, [1.0, 1.0, -9.0], best=0.67, spread=0.5)
    assert found.mean.tolist() == [1.0, 0.0]
    covariance = np.array([[1.0 + 0.25, 0.0], [0.0, 0.25]])
    assert found.sigma**2 * found.covariance == pytest.approx(covariance)
    assert np.linalg.det(found.covariance) == pytest.approx(1.0)


@BOTH
def test_a_warm_start_needs_fewer_evaluations_where_the_task_is_similar(kind: Any) -> None:
    rng = np.random.default_rng(1)
    optimum = np.full(8, 4.0)
    known = optimum + rng.normal(size=(200, 8))
    rewards = [-sphere(x - optimum) for x in known]
    near = optimum + 0.2  # the new task's optimum
    cold = kind(np.zeros(8), settings(kind, 0.5))
    warm = kind.warm_start(known, rewards, settings(kind, 0.5))
    used = [search(es, lambda x: sphere(x - near), 10_000, goal=1e-3) for es in (cold, warm)]
    assert used[1] < 0.7 * used[0]


@BOTH
def test_a_warm_start_near_a_side_is_that_of_the_searched_coordinates(kind: Any) -> None:
    # Half a standard deviation is the margin m = 0.25, where x = (y + m)^2 / 4m: 0.01 and 0.0225 are -0.15 and -0.1.
    es = kind.warm_start([[0.01], [0.0225]], [1.0, 1.0], settings(kind, 0.5, lower=(0.0,)), best=1.0, spread=0.01)
    assert es.mean.tolist() == pytest.approx([0.125**2])
    assert es.sigma == pytest.approx((0.025**2 + 0.01**2) ** 0.5)


def test_solutions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(LayoutMismatch, match=r"\[k, n\], not an array of shape \(3,\)"):
        CMAES.warm_start([1.0, 2.0, 3.0], [1.0])
    with pytest.raises(InvalidReward, match="2 solutions need one finite reward each"):
        CMAES.warm_start([[1.0], [2.0]], [1.0])
    with pytest.raises(ValueError, match="best must be a share"):
        CMAES.warm_start([[1.0], [2.0]], [1.0, 2.0], best=0.0)


def test_bounds_are_rounded_inwards() -> None:
    settings = {"gaussian_sampling": {"std": 0.03}, "cma_sampling": {"lower": [-0.1], "upper": [0.1]}}
    config = {"keys": "COUNTER", "solver": {"type": "CMA_ES", "sampling": settings}}
    CMAES([0.1] * 3, config)
    CMAES([-0.1] * 3, config)
    with pytest.raises(LayoutMismatch, match=r"parameter 0 is 0\.1000"):
        CMAES([0.10001] * 3, config)
    es = CMAES([0.1] * 3, config)
    assert float(es.mean.max()) <= 0.1
    for _ in range(50):
        infos = es.ask(8)
        x = es.candidates(infos)
        assert -0.1 <= float(x.min()) <= float(x.max()) <= 0.1
        es.tell(infos, x.sum(axis=1).tolist())
    for side in (0.1, -0.1, 1e-50, 0.0, 3.0, 1e300):
        bounds = box(-side - 1.0, side)
        assert float(bounds.upper[0]) <= side
        assert float(bounds.lower[0]) >= -side - 1.0


def test_bounds_with_no_float32_number_between_them_are_refused_in_the_words_of_the_user() -> None:
    with pytest.raises(ConfigError, match=r"parameter 1: from 0\.1 to 0\.1000000001 .*float32"):
        Bounds.of([0.0, 0.1], [1.0, 0.1000000001], 2, 0.1)
    with pytest.raises(ConfigError, match=r"lower must be below upper; for parameter 0 they are 0\.2, 0\.1"):
        box(0.2, 0.1)

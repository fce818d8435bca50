"""With any rewards, updates end with a finite model or an `EvolutionError`, and sums are exact."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parl_evokit import (
    CMAES,
    ES,
    AsyncESAgent,
    EvolutionError,
    GaussianNoise,
    LogWriter,
    NoiseSpec,
    SamplingInfo,
    shaping,
)
from parl_evokit.agent import solver_class
from parl_evokit.config import SolverKind
from parl_evokit.noise._exact_sum import ExactSum, sum_of_squares

Rewards = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Rewards]


def pairs(fail: float, small: float) -> Draw:
    """Both halves of a pair see the same visitor; now and then one of them fails."""

    def draw(random: np.random.Generator, n: int) -> Rewards:
        rewards = np.repeat(random.standard_normal(-(-n // 2)), 2)[:n] + small * random.standard_normal(n)
        rewards[random.random(n) < fail] -= 5.0
        return rewards

    return draw


def outlier(base: Draw, size: float) -> Draw:
    return lambda random, n: np.append(base(random, n - 1), size)


def poisson(random: np.random.Generator, n: int) -> Rewards:
    return random.poisson(1.5, n).astype(np.float64)


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda random, n: random.standard_normal(n),
    "uniform": lambda random, n: random.random(n),
    "constant": lambda random, n: np.full(n, 3.25),
    "zero": lambda random, n: np.zeros(n),
    "clicks": lambda random, n: (random.random(n) < 0.01).astype(np.float64),
    "binomial": lambda random, n: random.binomial(10, 0.3, n).astype(np.float64),
    "poisson": poisson,
    "geometric": lambda random, n: random.geometric(0.05, n).astype(np.float64),
    "lognormal 2.5": lambda random, n: random.lognormal(0, 2.5, n),
    "lognormal 10": lambda random, n: random.lognormal(0, 10, n),
    "cauchy": lambda random, n: random.standard_cauchy(n),
    "pareto 0.5": lambda random, n: random.pareto(0.5, n),
    "pareto 0.1": lambda random, n: np.minimum(random.pareto(0.1, n), 3e38),
    "student 1.1": lambda random, n: random.standard_t(1.1, n),
    "exponential": lambda random, n: random.exponential(30.0, n),
    "weibull": lambda random, n: random.weibull(0.2, n),
    "laplace": lambda random, n: random.laplace(0, 1e-30, n),
    "bimodal": lambda random, n: np.where(random.random(n) < 0.5, -1e6, 1e-6) * random.random(n),
    "pairs 0.2 % .003": pairs(0.002, 0.003),
    "pairs 1 % .01": pairs(0.01, 0.01),
    "pairs 0.2 % .03": pairs(0.002, 0.03),
    "normal and 1e4": outlier(lambda random, n: random.standard_normal(n), 1e4),
    "counts and 1000": outlier(poisson, 1000.0),
    "counts and 1e5": outlier(poisson, 1e5),
    "counts and -1e30": outlier(poisson, -1e30),
    "beyond 2**53": lambda random, n: random.integers(2**53, 2**62, n).astype(np.float64),
    "subnormal": lambda random, n: random.random(n) * 1e-40,
    "largest": lambda random, n: np.where(random.random(n) < 0.5, -3.4e38, 3.4e38),
    "some not finite": lambda random, n: np.where(random.random(n) < 0.1, np.nan, random.standard_normal(n)),
    "ramp": lambda random, n: np.arange(n, dtype=np.float64) ** 3,
}
OPTIMIZED = {SolverKind.BASIC_ES, SolverKind.ARS, SolverKind.PGPE}
NOISE = GaussianNoise(NoiseSpec(7))
SIZES = (1, 2, 63, 500)


def keys_of(random: np.random.Generator, n: int) -> NDArray[np.uint64]:
    pairs = random.integers(1, 2**61, -(-n // 2), np.int64).astype(np.uint64) << np.uint64(1)
    return np.stack([pairs, pairs | np.uint64(1)], 1).ravel()[:n]


def exact(keys: NDArray[np.uint64], weights: NDArray[np.int64], power: int, d: int = 5) -> list[int]:
    """The same with Python's integers."""
    rows = NOISE.units_of(keys, d).tolist()
    return [sum(int(w) * int(row[k]) ** power for w, row in zip(weights.tolist(), rows, strict=True)) for k in range(d)]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", ["centered_rank", "centered", "normalized", "sign"])
def test_sums_are_those_of_pythons_integers(name: str, shape: str) -> None:
    random = np.random.default_rng(len(name))
    for n in SIZES:
        rewards = DISTRIBUTIONS[name](random, n)
        rewards = rewards[np.isfinite(rewards.astype(np.float32))]
        keys = keys_of(random, len(rewards))
        weights = getattr(shaping, shape)(rewards).weights
        assert ExactSum(NOISE, keys, weights).part(0, 5).tolist() == exact(keys, weights, 1)
        assert sum_of_squares(NOISE, keys, weights, 5).tolist() == [float(n) for n in exact(keys, weights, 2)]


@pytest.mark.parametrize("largest", [2**10, 2**20, 2**33, 2**45, 2**50, 2**61])
def test_the_digits_grow_with_the_weights(largest: int) -> None:
    random = np.random.default_rng(largest)
    keys = keys_of(random, 40)
    weights = random.integers(-largest, largest, 40)
    weights[3], weights[4] = 1, largest
    out = ExactSum(NOISE, keys, weights).part(0, 5, np.empty(5))
    assert out.tolist() == [float(n) for n in exact(keys, weights, 1)]
    if largest <= 2**33:
        squares = sum_of_squares(NOISE, keys, weights, 5)
        assert squares.tolist() == [float(n) for n in exact(keys, weights, 2)]


@pytest.mark.parametrize("name", ["poisson", "cauchy", "counts and 1e5", "beyond 2**53", "pairs 0.2 % .003"])
def test_a_step_is_that_of_fractions(name: str) -> None:
    """The gradient of plain SGD is -std / 4096 / n * sum of utility * units, each utility a whole number of `unit`s."""
    random = np.random.default_rng(5)
    rewards = DISTRIBUTIONS[name](random, 400)
    settings = {
        "optimizer": {"base_lr": 1.0},
        "sampling": {"gaussian_sampling": {"std": 0.5, "seed": 7}},
        "update": {"shaping": "CENTERED"},
    }
    es = ES(np.zeros(5, np.float32), {"solver": settings})
    infos = es.ask(400)
    es.tell(infos, rewards)
    keys = np.array([info.noise_key for info in infos], np.uint64)
    utilities = shaping.centered(rewards)
    for found, total in zip(es.mean.tolist(), exact(keys, utilities.weights, 1), strict=True):
        wanted = float(Fraction(total) * Fraction(utilities.unit) / 2 / 4096 / 400)
        assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", SolverKind)
@pytest.mark.parametrize("shape", ["CENTERED_RANK", "CENTERED", "NORMALIZED", "SIGN", "TOP_K"])
def test_no_rewards_raise_anything_else_or_publish_what_is_not_finite(kind: SolverKind, shape: str) -> None:
    random = np.random.default_rng(3)
    for optimizer in ("SGD", "ADAM") if kind in OPTIMIZED else ("ADAM",):
        settings = {"type": kind.name, "optimizer": {"type": optimizer}, "update": {"shaping": shape, "min_samples": 1}}
        search = solver_class(kind)(np.ones(12, np.float32), {"solver": settings})
        for draw in DISTRIBUTIONS.values():
            n = 40 if kind in {SolverKind.CMA_ES, SolverKind.GA} else 150
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    report = search.tell(search.ask(n), draw(random, n))
                except EvolutionError:
                    continue
            assert np.isfinite(search.mean).all()
            assert report.parameters is not None
            assert all(
                np.isfinite(array).all()
                for name, array in search.state().items()
                if array.dtype.kind == "f" and name != "rewards"
            )


def test_a_step_that_is_not_finite_is_not_taken_and_later_ones_are() -> None:
    es = ES(np.ones(4, np.float32), {"solver": {"optimizer": {"type": "ADAM"}, "update": {"shaping": "CENTERED"}}})
    before, infos = es.mean.tobytes(), es.ask(4)
    report = es.tell(infos, [3e38, -3e38, 3e38, 1.0])
    assert "not finite" in report.rejected
    assert (report.used, report.set_aside.diverged, report.model_iter_id) == (0, 4, 1)
    assert es.mean.tobytes() == before
    later = es.tell(es.ask(4), [1.0, 2.0, 3.0, 4.0])
    assert (later.used, later.rejected) == (4, "")
    assert es.mean.tobytes() != before


@pytest.mark.parametrize(("kind", "optimizer", "lr"), [("GA", "SGD", 1.0), ("ARS", "MOMENTUM", 1e37)])
def test_samples_are_finite_where_noise_is_as_wide_as_may_be(kind: str, optimizer: str, lr: float) -> None:
    sampling = {"gaussian_sampling": {"std": 1e37}}
    solver = {"type": kind, "optimizer": {"type": optimizer, "base_lr": lr}, "sampling": sampling}
    search = solver_class(SolverKind[kind])(np.ones(20), {"keys": "COUNTER", "solver": solver})
    rejected = 0
    for _ in range(40):
        infos, before, kept = search.ask(40), search.mean.copy(), search.state()
        samples = search.candidates(infos)
        assert np.isfinite(samples).all()
        report = search.tell(infos, samples[:, 0] / 1e37)
        if report.rejected:
            rejected += 1
            assert search.mean.tobytes() == before.tobytes()
            after = search.state()
            for name in set(kept) - {"model_iter_id", "next_key"}:
                np.testing.assert_array_equal(after[name], kept[name], err_msg=name)
    assert rejected


@pytest.mark.parametrize("kind", [kind for kind in SolverKind if kind not in {SolverKind.BASIC_ES, SolverKind.ARS}])
@pytest.mark.parametrize("d", [1, 3, pytest.param(7, marks=pytest.mark.slow)])
def test_samples_are_finite_where_rewards_grow_for_ever(kind: SolverKind, d: int) -> None:
    sampling = {"gaussian_sampling": {"std": 1e20}}
    settings = {"keys": "COUNTER", "solver": {"type": kind.name, "sampling": sampling}}
    search = solver_class(kind)(np.ones(d, np.float32), settings)
    rejected = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            infos = search.ask(12)
            samples = search.candidates(infos).astype(np.float64)
            assert np.isfinite(samples).all()
            report = search.tell(infos, samples.sum(axis=1) / 10)
            assert report.set_aside.total == report.set_aside.diverged == (len(infos) if report.rejected else 0)
            rejected += report.rejected != ""
        reason = search.should_stop()
    adapting = {"SNES", "CEM", "CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES"}
    assert (rejected > 0) == (kind.name in adapting) or d == 7, rejected  # which takes longer
    assert ("rewards grow" in reason) == (report.rejected != "")
    again = solver_class(kind)(search.mean, settings)
    again.load_state(search.state())
    infos = again.ask(4)
    assert again.candidates(infos).tobytes() == search.candidates(infos).tobytes()


@pytest.mark.parametrize("kind", [kind for kind in SolverKind if kind is not SolverKind.GA])  # which takes any step
def test_a_step_that_is_not_taken_changes_nothing(kind: SolverKind) -> None:
    settings = {
        "optimizer": {"type": "MOMENTUM", "base_lr": 3e37 if kind is SolverKind.ARS else 5.0},
        "sampling": {"gaussian_sampling": {"std": 1e37}},
        "cem": {"extra_std": 1e38},
        "update": {"max_age": 0, "stale": "GROUPED"},
    }
    search = solver_class(kind)(np.ones(3, np.float32), {"solver": {"type": kind.name, **settings}})
    for _ in range(300):
        infos = search.ask(12)
        before, mean = search.state(), search.mean.tobytes()
        with np.errstate(over="ignore"):
            rewards = np.nan_to_num(search.candidates(infos)).astype(np.float64)[:, 0] / 1e3
        if search.tell(infos, rewards).rejected:
            break
    else:
        pytest.fail("no step was too large")
    after = search.state()
    assert search.mean.tobytes() == mean
    assert [name for name in after if after[name].tobytes() != before[name].tobytes()] == ["model_iter_id"]


def test_own_candidates_wait_where_a_step_is_not_taken() -> None:
    settings = {"keys": "COUNTER", "solver": {"type": "CMA_ES", "sampling": {"gaussian_sampling": {"std": 1e37}}}}
    search, plain = (CMAES(np.ones(2, np.float32), settings) for _ in range(2))

    def farther(es: CMAES) -> bool:
        infos = es.ask(8)
        return es.tell(infos, es.candidates(infos)[:, 0].astype(np.float64) / 10).rejected == ""

    for es in (search, plain):
        while farther(es):
            pass
    search.inject(search.mean[np.newaxis], [-3e38])
    for es in (search, plain):
        assert not farther(es)
        assert es.tell(es.ask(8), [-(n**2.0) for n in range(8)]).rejected == ""
    assert (search.mean != plain.mean).any()


@pytest.mark.parametrize("kind", [SolverKind.CMA_ES, SolverKind.SEP_CMA_ES, SolverKind.CR_FM_NES])
def test_a_run_that_goes_beyond_all_numbers_is_followed_by_the_next(kind: SolverKind) -> None:
    sampling = {"gaussian_sampling": {"std": 1e37}, "cma_sampling": {"restarts": "IPOP", "max_restarts": 1}}
    settings = {"keys": "COUNTER", "solver": {"type": kind.name, "sampling": sampling}}
    search: Any = solver_class(kind)(np.ones(1, np.float32), settings)
    reason = ""
    while not reason:  # of the last run: as often as the step size grows, which cannot be for ever
        infos = search.ask(20)
        reason = search.tell(infos, search.candidates(infos)[:, 0] / 10).rejected
    assert "rewards grow" in reason
    assert search.restarts == 1
    assert np.isfinite(search.mean).all()


def test_late_rewards_of_a_model_whose_step_was_not_taken_count() -> None:
    config = {"optimizer": {"type": "ADAM"}, "update": {"shaping": "CENTERED", "stale": "IMPORTANCE"}}
    es = ES(np.ones(4, np.float32), {"solver": config})
    before, infos = es.mean.copy(), es.ask(8)
    assert es.tell(infos[:4], [3e38, -3e38, 3e38, 1.0]).rejected
    report = es.tell(infos[4:], [1.0, 2.0, 3.0, 4.0])
    assert (report.used, report.effective, report.stale) == (4, 4.0, {1: 4})
    assert (es.mean != before).any()


def test_a_log_with_any_rewards_is_read_to_its_end(tmp_path: Path) -> None:
    model: Any = ({"w": np.ones(8, np.float32)}, lambda arrays, x: arrays["w"] @ x)
    config = {
        "async_es": {"model_warehouse": str(tmp_path / "warehouse")},
        "solver": {"update": {"shaping": "CENTERED"}},
    }
    agent = AsyncESAgent(model, config)
    clone = agent.clone()
    for draw in DISTRIBUTIONS.values():
        with LogWriter(tmp_path / "log") as log:
            for reward in draw(np.random.default_rng(1), 60).tolist():
                log.reward(clone.add_noise(), reward)
        report, contents = agent.update_from_log(tmp_path / "log")
        assert report.used + report.set_aside.total == len(contents.samples) == 60
        assert all(np.isfinite(array).all() for array in agent.parameters().values())


def test_rewards_that_no_float_holds_are_set_aside_by_name() -> None:
    es = ES(np.ones(4, np.float32))
    report = es.tell(es.ask(6), [1.0, float("nan"), 10**400, -(10**400), 2**60, 3])
    assert (report.used, report.set_aside.not_finite) == (3, 3)
    assert str(report.set_aside) == "3 not finite"


def test_rewards_beyond_float64_in_a_wider_type_are_set_aside_without_a_warning() -> None:
    es = ES(np.ones(4, np.float32))
    widest = np.finfo(np.longdouble).max
    report = es.tell(es.ask(4), np.array([1.0, widest, -widest, 2.0], np.longdouble))
    assert report.used + report.set_aside.not_finite == 4
    assert report.used == (2 if widest > np.finfo(np.float64).max else report.used)


def test_one_sample_is_enough_where_the_settings_say_so() -> None:
    es = ES(np.ones(4, np.float32), {"solver": {"update": {"min_samples": 1}}})
    assert es.tell(es.ask(1), [5.0]).used == 1


@pytest.mark.slow
def test_a_large_update_of_snes_needs_more_than_64_bits() -> None:
    """n * weight - total, the weights of the mean, add up to 2**49 for 150 000 samples."""
    search = solver_class(SolverKind.SNES)(np.zeros(2, np.float32), {"keys": "COUNTER"})
    infos: list[SamplingInfo] = search.ask(150_000)
    report = search.tell(infos, (np.arange(150_000) % 1009).astype(np.float64))
    assert report.used == 150_000
    assert np.isfinite(search.mean).all()


def test_a_search_that_stops_at_the_precision_of_rewards_says_how_coarse_it_is() -> None:
    reasons = []
    for offset in (0.0, 1e9):
        es = CMAES(np.ones(4), {"keys": "COUNTER", "solver": {"sampling": {"gaussian_sampling": {"std": 1e-3}}}})
        while not es.should_stop():
            infos = es.ask(es.population)
            es.tell(infos, [-offset - float(np.square(es.candidate(info).astype(np.float64)).sum()) for info in infos])
        reasons.append(es.should_stop())
    assert "apart" not in reasons[0]
    assert "numbers near -1e+09 are 1.2e-07 apart, those of a log 64" in reasons[1]


@pytest.mark.parametrize("kind", SolverKind)
def test_rewards_that_float32_does_not_tell_apart_count_as_they_are(kind: SolverKind) -> None:
    means = []
    for offset in (0, 2**53 - 2**10):
        search = solver_class(kind)(np.ones(4, np.float32), {"keys": "COUNTER", "solver": {"type": kind.name}})
        assert search.tell(search.ask(24), [offset + 7 * n % 24 for n in range(24)]).used == 24
        means.append(search.mean.tobytes())
    assert means[0] == means[1]


def test_rewards_below_float32_are_none() -> None:
    es = ES(np.ones(4, np.float32), {"solver": {"update": {"shaping": "NORMALIZED"}}})
    report = es.tell(es.ask(4), [1e-300, -1e-200, 0.0, 1e-60])
    assert (report.used, report.best_reward, report.update_norm) == (4, 0.0, 0.0)

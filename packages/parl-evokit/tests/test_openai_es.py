"""OpenAI-ES through ask and tell: learns, is exact, and resumes to the same bits."""

import random
from typing import Any

import numpy as np
import pytest

from parl_evokit._params import ParameterLayout
from parl_evokit._records import SamplingInfo
from parl_evokit.errors import EvolutionError, LayoutMismatch, NothingToUpdate, SolverError
from parl_evokit.openai_es import ES


def settings(**update: Any) -> dict[str, Any]:
    return {
        "solver": {
            "optimizer": {"type": "ADAM", "base_lr": 0.05},
            "sampling": {"gaussian_sampling": {"std": 0.1, "cached": True, "cache_size": 5000}},
            "update": update,
        },
        "keys": "COUNTER",
    }


def sphere(x: np.ndarray) -> float:
    return -float((x.astype(np.float64) ** 2).sum())


def generations(es: ES, count: int) -> None:
    for _ in range(count):
        infos = es.ask(20)
        es.tell(infos, [sphere(es.candidate(info)) for info in infos])


def test_it_descends_to_the_optimum_of_the_sphere() -> None:
    es = ES(np.full(50, 3.0), settings())
    generations(es, 300)
    assert sphere(es.mean) > -0.2
    assert es.best is not None
    assert sphere(es.best.parameters) == pytest.approx(es.best.reward, rel=1e-6)
    assert es.best.reward <= 0.0


def test_the_gradient_of_a_linear_function_is_found() -> None:
    slope = np.linspace(-1.0, 1.0, 20)
    es = ES(
        np.zeros(20),
        {
            "solver": {
                "optimizer": {"type": "SGD", "base_lr": 1.0},
                "sampling": {"gaussian_sampling": {"std": 0.5}},
                "update": {"shaping": "CENTERED"},
            },
            "keys": "COUNTER",
        },
    )
    infos = es.ask(6000)
    es.tell(infos, [float(slope @ es.candidate(info)) for info in infos])
    # E[std * noise * reward] = std**2 * slope: the step of equation (1) with a learning rate of 1.
    assert es.mean == pytest.approx(0.25 * slope, abs=0.03)


def test_one_update_agrees_with_the_formula_in_float64() -> None:
    es = ES(np.linspace(0, 1, 300), settings(weight_decay=0.1))
    infos = es.ask(8)
    rewards = np.array([3.0, 1.0, 2.0, 2.0, 9.0, -4.0, 0.0, 7.0])
    noise = [es.candidate(info).astype(np.float64) - es.mean for info in infos]
    ranks = np.array([5, 2, 3.5, 3.5, 7, 0, 1, 6])
    gradient = -(np.stack(noise) * (ranks / 7 - 0.5)[:, None]).mean(axis=0) + 0.1 * es.mean.astype(np.float64)
    report = es.tell(infos, rewards)
    assert report.gradient_norm == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-5)
    first_adam_step = np.linspace(0, 1, 300) - 0.05 * gradient / (np.abs(gradient) + 1e-8 / np.sqrt(0.001))
    assert es.mean == pytest.approx(first_adam_step, abs=1e-5)


def test_order_of_samples_changes_no_bit() -> None:
    draw = random.Random(4)
    rewards = [draw.gauss(0, 1) for _ in range(31)]
    digests = set()
    for _ in range(6):
        es = ES(np.linspace(-1, 1, 3000), settings())
        infos = es.ask(31)
        es.tell(infos, rewards)
        infos += es.ask(31)
        samples = list(zip(infos, rewards + rewards, strict=True))
        draw.shuffle(samples)
        report = es.tell([info for info, _ in samples], [reward for _, reward in samples])
        assert report.stale == {1: 31}
        digests.add(report.parameters_sha256)
    assert len(digests) == 1


def test_any_number_of_answers_will_do_and_late_ones_count_by_age() -> None:
    es = ES(np.full(10, 2.0), settings(stale_decay=0.5, max_age=1))
    infos = es.ask(20)
    rewards = [sphere(es.candidate(info)) for info in infos]
    assert es.tell(infos[3:11], rewards[3:11]).used == 8
    report = es.tell(infos[11:], rewards[11:])
    assert (report.used, report.stale) == (9, {1: 9})
    with pytest.raises(NothingToUpdate, match="3 too old"):
        es.tell(infos[:3], rewards[:3])


def test_stale_samples_are_weighted_by_the_decay_to_the_power_of_their_age() -> None:
    es = ES(np.zeros(10), sgd(0.5))
    old = es.ask(4)
    noise = {2: np.array([es.candidate(info) for info in old])}  # around zeros
    es.tell(es.ask(2), [0.0, 0.0])
    es.tell(es.ask(2), [0.0, 0.0])
    fresh, before = es.ask(6), es.mean.copy()
    noise[0] = np.array([es.candidate(info) - before for info in fresh])
    es.tell([*old, *fresh], [1.0, 2.0, 3.0, 4.0, *np.arange(6.0)])
    ranked = {2: np.arange(4) / 3 - 0.5, 0: np.arange(6) / 5 - 0.5}
    total = sum(0.5**age * ranked[age] @ noise[age] for age in (2, 0))
    assert es.mean - before == pytest.approx(total / (0.25 * 4 + 6), abs=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_late_samples_alone_make_the_same_step_whatever_the_decay(decay: float) -> None:
    es = ES(np.zeros(10), sgd(decay))
    old = es.ask(4)
    noise = np.array([es.candidate(info) for info in old])  # around zeros
    es.tell(es.ask(2), [0.0, 0.0])
    es.tell(es.ask(2), [0.0, 0.0])
    before = es.mean.copy()
    es.tell(old, [1.0, 2.0, 3.0, 4.0])
    assert es.mean - before == pytest.approx((np.arange(4) / 3 - 0.5) @ noise / 4, abs=1e-6)


def test_with_a_decay_of_zero_late_samples_change_nothing() -> None:
    es = ES(np.zeros(10), sgd(0.0))
    old = es.ask(4)
    es.tell(es.ask(2), [0.0, 0.0])
    before = es.mean.copy()
    es.tell(old, [1.0, 2.0, 3.0, 4.0])
    assert np.array_equal(es.mean, before)


def sgd(decay: float) -> dict[str, Any]:
    return {
        "solver": {"optimizer": {"type": "SGD", "base_lr": 1.0}, "update": {"stale": "GROUPED", "stale_decay": decay}},
        "keys": "COUNTER",
    }


def test_with_too_few_samples_nothing_changes() -> None:
    es = ES(np.ones(5), settings(min_samples=3))
    infos = es.ask(3)
    before = es.sampler
    for some in ([], infos[:1], infos[:2]):
        with pytest.raises(NothingToUpdate, match=f"{len(some)} samples could be used, 3 are needed") as caught:
            es.tell(some, [1.0] * len(some))
        assert caught.value.report is not None
        assert caught.value.report.used == len(some)
    assert es.sampler is before
    assert es.tell(infos, [1.0, 2.0, 3.0]).model_iter_id == 1


def test_equal_rewards_change_nothing_and_a_hundred_such_updates_are_reported() -> None:
    es = ES(np.ones(5), sgd(1.0))
    before = es.mean
    for _ in range(99):
        es.tell(es.ask(4), [2.5] * 4)
    assert es.should_stop() == ""
    es.tell(es.ask(4), [2.5] * 4)
    assert "the last 100 updates changed nothing: all rewards were equal, " in es.should_stop()
    assert (es.mean == before).all()


def test_a_search_whose_steps_are_too_small_stops_without_a_word_of_float32_rewards() -> None:
    es = ES(np.ones(5), {"keys": "COUNTER", "solver": {"optimizer": {"type": "SGD", "base_lr": 1e-12}}})
    for _ in range(100):
        es.tell(es.ask(4), [1.0, 2.0, 3.0, 4.0])
    assert "the steps were too small for float32 parameters" in es.should_stop()


def test_parameters_that_overflow_are_reported() -> None:
    es = ES(np.full(2, 3e38), {"solver": {"update": {"weight_decay": 10.0}, "optimizer": {"base_lr": 1e30}}})
    with np.errstate(over="ignore", invalid="ignore"):
        es.tell(es.ask(4), [1.0, 2.0, 3.0, 4.0])
    assert "not finite" in es.should_stop()


def test_a_resumed_strategy_goes_on_to_the_same_bits() -> None:
    straight = ES(np.full(30, 1.0), settings())
    generations(straight, 10)
    state, mean = straight.state(), straight.mean
    resumed = ES(mean, settings())
    resumed.load_state(state)
    resumed.keys = straight.keys
    infos = straight.ask(20)
    rewards = [sphere(straight.candidate(info)) for info in infos]
    assert [sphere(resumed.candidate(info)) for info in infos] == rewards
    assert resumed.tell(infos, rewards).parameters_sha256 == straight.tell(infos, rewards).parameters_sha256


def test_a_state_that_lacks_something_is_refused() -> None:
    es = ES(np.ones(3), settings())
    with pytest.raises(LayoutMismatch, match="Adam's state"):
        es.load_state({"model_iter_id": np.array(1)})
    with pytest.raises(SolverError, match="no model_iter_id"):
        es.load_state({name: array for name, array in es.state().items() if name != "model_iter_id"})


def test_a_candidate_of_another_model_or_moment_is_refused() -> None:
    es = ES(np.ones(3), settings())
    info = es.ask(2)[0]
    other = ES(np.ones(4), settings())
    with pytest.raises(EvolutionError, match="another model, seed or table"):
        other.candidate(info)
    es.tell(es.ask(2), [1.0, 2.0])
    with pytest.raises(EvolutionError, match="is of model 0, not of the present model 1"):
        es.candidate(info)


def test_control_samples_tell_how_good_the_mean_is() -> None:
    es = ES(np.ones(3), settings())
    control = SamplingInfo([0, 0], 0, es.sampler.fingerprint)
    assert (es.candidate(control) == es.mean).all()
    report = es.tell([*es.ask(2), control, control], [1.0, 2.0, 10.0, 20.0])
    assert (report.used, report.control, report.control_mean) == (2, 2, 15.0)


def test_candidates_as_a_batch_are_those_one_by_one() -> None:
    es = ES(np.linspace(0, 1, 40), settings())
    infos = es.ask(9)
    assert (es.candidates(infos) == np.stack([es.candidate(info) for info in infos])).all()
    es.tell(infos, list(range(9)))
    with pytest.raises(EvolutionError, match="is of model 0"):
        es.candidates(infos)


def test_named_arrays_and_a_layout_may_be_given() -> None:
    es = ES({"w": np.ones((2, 3)), "b": np.zeros(3)}, settings())
    assert es.layout == ParameterLayout(("w", "b"), ((2, 3), (3,)))
    assert es.mean.tolist() == [1.0] * 6 + [0.0] * 3
    assert ES(np.ones(9), settings(), es.layout).sampler.fingerprint == es.sampler.fingerprint
    with pytest.raises(LayoutMismatch, match=r"shape \(9,\)"):
        ES(np.ones(8), settings(), es.layout)
    with pytest.raises(LayoutMismatch, match="finite"):
        ES([1.0, float("nan")], settings())


@pytest.mark.parametrize("shape", ["CENTERED_RANK", "CENTERED", "NORMALIZED", "SIGN", "TOP_K"])
@pytest.mark.parametrize("optimizer", ["SGD", "MOMENTUM", "ADAM"])
def test_every_shaping_learns_with_every_optimizer(shape: str, optimizer: str) -> None:
    lr = 0.05 if optimizer == "ADAM" else {"CENTERED": 1.0, "CENTERED_RANK": 10.0}.get(shape, 4.0)
    config = settings(shaping=shape)
    config["solver"]["optimizer"] = {"type": optimizer, "base_lr": lr}
    es = ES(np.full(10, 1.0), config)
    generations(es, 80)
    assert sphere(es.mean) > -5.0


def test_with_top_k_the_step_comes_from_the_best_directions_alone() -> None:
    es = ES(
        np.zeros(30),
        {"keys": "COUNTER", "solver": {"update": {"shaping": "TOP_K", "top_k": 1}, "optimizer": {"base_lr": 1.0}}},
    )
    infos = es.ask(8)
    direction = es.candidate(infos[4])  # the pair (4, 5) has the best half
    es.tell(infos, [1.0, 2.0, 1.0, 0.0, 9.0, 3.0, 4.0, 5.0])
    # Its rewards 9 and 3 are +1 and -1 when normalised; the mean is over all eight samples.
    assert es.mean == pytest.approx(2 * direction / 8, rel=1e-3)

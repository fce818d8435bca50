"""Samples of older models: ranked within their model, or weighted by clipped ratios of densities."""

from dataclasses import replace

import numpy as np
import pytest

from parl_evokit import ES, ConfigError, SamplingInfo
from parl_evokit.openai_es import CLIP, importance_weights

D, STD = 6, 0.3


def make(**update: object) -> ES:
    settings = {"stale": "IMPORTANCE", "max_age": 3} | update
    gaussian = {"std": STD, "seed": 5}
    sgd = {"type": "SGD", "base_lr": 1.0}
    solver = {"optimizer": sgd, "sampling": {"gaussian_sampling": gaussian}, "update": settings}
    return ES(np.linspace(-1.0, 1.0, D), {"keys": "COUNTER", "solver": solver})


def test_weights_are_clipped_ratios_of_normal_densities() -> None:
    draw = np.random.default_rng(1)
    noise, shift = draw.normal(size=(200, D)), draw.normal(size=D) * 0.4
    there, here = -np.square(noise).sum(1) / 2, -np.square(noise + shift).sum(1) / 2
    expected = np.minimum(CLIP, np.exp(here - there))
    assert importance_weights(noise, shift) == pytest.approx(expected, rel=1e-12)
    assert expected.max() == CLIP
    assert importance_weights(noise, np.zeros(D)) == [1.0] * 200


def test_an_update_with_stale_samples_is_that_of_the_equations() -> None:
    es = make()
    old, old_mean = es.ask(8), es.mean.astype(float)
    old_noise = np.array([es.candidate(info) for info in old], float) - old_mean
    es.tell(es.ask(8), np.arange(8.0))
    fresh, mean = es.ask(8), es.mean.astype(float)
    fresh_noise = np.array([es.candidate(info) for info in fresh], float) - mean
    rewards = np.random.default_rng(2).permutation(16).astype(float)
    es.tell([*old, *fresh], rewards)

    ranks = rewards / 15 - 0.5  # a permutation is its own ranks
    shift = (old_mean - mean) / STD
    weights = np.concatenate([importance_weights(old_noise / STD, shift), np.ones(8)])
    steps = np.concatenate([old_noise + old_mean - mean, fresh_noise])
    utilities = ranks - weights @ ranks / weights.sum()
    assert es.mean - mean == pytest.approx((weights * utilities) @ steps / weights.sum(), abs=2e-6)


def test_without_stale_samples_it_is_the_usual_estimate() -> None:
    a, b = make(), make(stale="GROUPED")
    infos = a.ask(10)
    for es in (a, b):
        es.tell(infos, np.arange(10.0) % 7)
    assert a.mean == pytest.approx(b.mean, abs=1e-6)


def test_neither_the_order_nor_a_reload_changes_a_bit() -> None:
    def run(reverse: bool, reload: bool) -> bytes:
        es = make()
        old = es.ask(6)
        es.tell(es.ask(6), np.arange(6.0))
        if reload:
            again = make()
            again._sampler = replace(es._sampler, model_iter_id=0)
            again.load_state({name: array.copy() for name, array in es.state().items()})
            again.keys = es.keys
            es = again
        infos = [*old, *es.ask(6)]
        pairs = list(zip(infos, np.arange(12.0) % 5, strict=True))
        if reverse:
            pairs.reverse()
        es.tell([info for info, _ in pairs], [reward for _, reward in pairs])
        return es.mean.tobytes()

    assert len({run(reverse, reload) for reverse in (False, True) for reload in (False, True)}) == 1


def test_only_the_centres_of_young_models_are_kept() -> None:
    es = make(max_age=2)
    for _ in range(5):
        es.tell(es.ask(4), np.arange(4.0))
    assert es.state()["stale.models"].tolist() == [3, 4]
    assert es.state()["stale.centres"].shape == (2, D)


def test_a_solver_of_another_rule_is_taken_over() -> None:
    grouped = make(stale="GROUPED")
    old = grouped.ask(4)
    grouped.tell(grouped.ask(4), np.arange(4.0))
    es = make()
    es._sampler = replace(grouped._sampler, model_iter_id=0)
    es.load_state(grouped.state())
    before = es.mean
    report = es.tell(old, np.arange(4.0))  # around a centre that is not kept
    assert report.stale == {1: 4}
    assert (es.mean == before).all()


def test_it_is_for_few_parameters_and_one_algorithm() -> None:
    with pytest.raises(ConfigError, match="IMPORTANCE is for up to 100 parameters, not 101"):
        ES(np.zeros(101), {"solver": {"update": {"stale": "IMPORTANCE"}}})
    with pytest.raises(ConfigError, match="IMPORTANCE is for BASIC_ES, not for SNES"):
        ES(np.zeros(5), {"solver": {"type": "SNES", "update": {"stale": "IMPORTANCE"}}})


def test_grouped_samples_of_an_old_model_cancel_the_shift_of_the_centre() -> None:
    es = make(stale="GROUPED", stale_decay=0.5)
    old = es.ask(6)
    es.tell(es.ask(6), [0.0] * 6)
    before = es.mean.astype(float)
    noise = np.array([_noise(es, info) for info in old])
    es.tell(old, np.arange(6.0))
    utilities = np.arange(6.0) / 5 - 0.5
    assert utilities.sum() == 0.0
    assert es.mean - before == pytest.approx(utilities @ noise / 6, abs=1e-6)


def _noise(es: ES, info: SamplingInfo) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return es.sampler.normals(np.array([info.noise_key], np.uint64))[0] * STD


def test_samples_under_a_schedule_of_std_have_no_importance_weights() -> None:
    schedule = {"type": "EXPONENTIAL", "final": 0.01, "updates": 4}
    sampling = {"gaussian_sampling": {"std": 1.0, "schedule": schedule}}
    es = ES(np.ones(5), {"keys": "COUNTER", "solver": {"sampling": sampling}})
    first = es.ask(20)
    es.tell(first[:10], np.arange(10.0))
    report = es.tell([*es.ask(10), *first[10:]], np.arange(20.0))
    assert report.stale_rule in {"GROUPED", "POOLED"}

"""Candidates are the same bits however they are asked for: one by one, in any order, again, or all at once."""

from typing import Any

import numpy as np
import pytest

from parl_evokit import CMAES, ES, GA, SNES, EvolutionError, LayoutMismatch, SamplingInfo
from parl_evokit._samples import fresh_intake
from parl_evokit.noise import CounterKeys, split_key
from parl_evokit.strategy import Strategy

SIZES = (3, 1000, 5000, 40_000)  # made a few at a time; by known windows; of several blocks


def search(kind: type[Strategy], n: int, *, cached: bool = True) -> Strategy:
    sampling: dict[str, Any] = {"gaussian_sampling": {"std": 0.3, "cached": cached, "cache_size": 20_000}}
    names = {ES: "BASIC_ES", SNES: "SNES", GA: "GA", CMAES: "CMA_ES"}
    return kind(np.linspace(-1, 1, n), {"solver": {"type": names[kind], "sampling": sampling}})


def expected(es: Strategy, info: SamplingInfo) -> np.ndarray:
    out = np.empty(es.layout.size, np.float32)
    es.sampler.perturb(info.noise_key, out)
    return out


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", [ES, SNES, GA])
def test_candidates_one_by_one_are_those_of_the_sampler(kind: type[Strategy], n: int, *, cached: bool) -> None:
    es = search(kind, n, cached=cached)
    infos = es.ask(7)
    found = [es.candidate(info) for info in infos]
    for info, x in zip(infos, found, strict=True):
        assert (x == expected(es, info)).all()
    assert (np.stack(found) == es.candidates(infos)).all()


@pytest.mark.parametrize("n", SIZES)
def test_order_and_repetition_do_not_matter(n: int) -> None:
    es = search(ES, n)
    infos = es.ask(40)
    order = np.random.default_rng(3).permutation(40).tolist()
    for place in [*order, 0, 0, *order]:
        assert (es.candidate(infos[place]) == expected(es, infos[place])).all()


@pytest.mark.parametrize("n", SIZES)
def test_every_candidate_is_an_array_of_its_own(n: int) -> None:
    es = search(ES, n)
    infos = es.ask(4)
    first = es.candidate(infos[0])
    first.fill(7.0)
    again = es.candidate(infos[0])
    assert (again == expected(es, infos[0])).all()
    assert (first == 7.0).all()
    assert (es.mean != 7.0).all()


@pytest.mark.parametrize("n", SIZES)
def test_a_given_array_is_filled(n: int) -> None:
    es = search(ES, n)
    out = np.empty(n, np.float32)
    for info in es.ask(5):
        assert es.candidate(info, out) is out
        assert (out == expected(es, info)).all()
    with pytest.raises(LayoutMismatch):
        es.candidate(es.ask(1)[0], np.empty(n + 1, np.float32))


def test_records_that_came_back_from_elsewhere_have_their_candidates() -> None:
    es = search(ES, 1000)
    for info in es.ask(6):
        copy = SamplingInfo()
        copy.ParseFromString(info.SerializeToString())
        assert (es.candidate(copy) == expected(es, info)).all()


def test_a_key_that_was_assigned_is_the_one_that_counts() -> None:
    es = search(ES, 1000)
    first, second = es.ask(2)
    first.key = [5, 6]
    assert (es.candidate(first) == expected(es, first)).all()
    assert (es.candidate(second) == expected(es, second)).all()
    second.key = []
    assert (es.candidate(second) == es.mean).all()


@pytest.mark.parametrize("n", SIZES)
def test_looking_at_keys_changes_nothing(n: int) -> None:
    es, twin = search(ES, n), search(ES, n)
    infos = es.ask(40)
    alike = [SamplingInfo(split_key(info.noise_key), 0, info.fingerprint) for info in infos]
    es.candidate(infos[0])
    for place in (1, 3, 4, 39):
        assert infos[place].key == alike[place].key
    for info in infos:
        assert (es.candidate(info) == expected(es, info)).all()
    rewards = np.random.default_rng(2).normal(size=40)
    es.tell(infos, rewards)
    twin.tell(alike, rewards)
    assert (es.mean == twin.mean).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("population", [40, 200])
def test_an_update_does_not_depend_on_which_candidates_were_made(n: int, population: int) -> None:
    gaussian = {"std": 0.3, "cached": True, "cache_size": 20_000}
    settings = {"keys": "COUNTER", "solver": {"sampling": {"gaussian_sampling": gaussian}}}
    rewards = np.random.default_rng(2).normal(size=population)
    means = []
    for wanted in (slice(None), slice(1), slice(0), slice(None, None, -1), slice(7, None)):
        es = ES(np.linspace(-1, 1, n), settings)
        infos = es.ask(population)
        for info in infos[wanted]:
            es.candidate(info)
        assert es.tell(infos, rewards).pairs == population // 2
        means.append(es.mean)
    assert all((mean == means[0]).all() for mean in means)


def test_samples_whose_first_is_the_second_half_of_a_pair_drawn_before_are_sorted() -> None:
    es = search(ES, 1000)
    first = es.ask(3)
    infos = es.ask(4)
    assert infos[0].noise_key == first[2].noise_key + 1
    intake = fresh_intake(infos, [1.0, 2.0, 3.0, 4.0], es.sampler.origin, es._ahead.keys_of)
    assert intake is not None
    assert intake.groups[0].keys.tolist() == sorted(info.noise_key for info in infos)
    assert es.tell(infos, [1.0, 2.0, 3.0, 4.0]).pairs == 1


@pytest.mark.parametrize("n", SIZES)
def test_samples_of_the_model_before_are_refused(n: int) -> None:
    es = search(ES, n)
    infos = es.ask(4)
    es.candidate(infos[0])
    es.tell(infos, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(EvolutionError):
        es.candidate(infos[1])
    for info in es.ask(3):
        assert (es.candidate(info) == expected(es, info)).all()


def test_full_covariance_agrees_to_rounding() -> None:
    es = search(CMAES, 12)
    for _ in range(4):
        infos = es.ask(12)
        found = [es.candidate(info) for info in infos]
        for info, x in zip(infos, found, strict=True):
            assert np.allclose(x, expected(es, info), rtol=1e-6, atol=1e-6)
        es.tell(infos, [-float((x**2).sum()) for x in found])


class ReusingKeys(CounterKeys):
    """Keys in an array that the next draw overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.empty(40, np.uint64)

    def draw_many(self, n: int) -> np.ndarray:
        self.memory[:n] = super().draw_many(n)
        return self.memory[:n]


@pytest.mark.parametrize("n", SIZES)
def test_a_source_of_keys_may_use_its_array_again(n: int) -> None:
    es, twin = search(ES, n), search(ES, n)
    es.keys, twin.keys = ReusingKeys(), CounterKeys()
    for one in (es, twin):
        infos = one.ask(20)
        one.keys.draw_many(20)
        for info, candidate in zip(infos, one.candidates(infos), strict=True):
            assert (candidate == expected(one, info)).all()
        one.tell(infos, np.arange(20.0))
    assert (es.mean == twin.mean).all()

"""Random generators that are handed around, not global."""

import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parl_core import seeding
from parl_core.errors import HyperparameterError
from parl_core.seeding import (
    generator_from_json,
    generator_to_json,
    make_generator,
    seed_everything,
    seed_on_load,
    spawn_seeds,
)


@pytest.fixture
def global_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the global generators back, and let no seed wait afterwards."""
    monkeypatch.setattr(seeding, "_waiting", {})
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def test_a_generator_is_passed_through_and_a_seed_makes_one() -> None:
    generator = np.random.default_rng(1)
    assert make_generator(generator) is generator
    assert make_generator(5).random() == make_generator(5).random() != make_generator(6).random()


def test_first_seeds_stay_the_same_when_more_are_asked_for() -> None:
    assert spawn_seeds(3, 100)[:8] == spawn_seeds(3, 8)


def test_neighbouring_runs_share_no_seeds() -> None:
    seeds = [seed for run in range(20) for seed in spawn_seeds(run, 50)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_generator_goes_on_after_a_round_trip_through_text() -> None:
    generator = np.random.default_rng(1)
    generator.random(7)
    restored = generator_from_json(generator_to_json(generator))
    assert np.array_equal(generator.integers(0, 1000, 20), restored.integers(0, 1000, 20))


@pytest.mark.parametrize("text", ["{}", "[]", '{"bit_generator": "os.system"}'])
def test_text_that_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PCG64"):
        generator_from_json(text)


def test_a_generator_that_cannot_be_saved_says_so() -> None:
    with pytest.raises(ValueError, match="MT19937"):
        generator_to_json(np.random.Generator(np.random.MT19937(1)))


@pytest.mark.usefixtures("global_state")
def test_seed_everything_seeds_the_global_generators_of_user_programs() -> None:
    def draw() -> tuple[float, float, float]:
        generator = seed_everything(11)
        return random.random(), float(np.random.random()), float(generator.random())

    assert draw() == draw()


@pytest.mark.usefixtures("global_state")
def test_a_framework_imported_after_seed_everything_gets_the_seed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("parl_core.seeding._loaders", {})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    seed_everything(5)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=seeds.append))
    for _ in range(2):
        seed_on_load("torch", lambda: None)
    assert seeds == [5]


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "3"])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(HyperparameterError, match="seed must be"):
        seed_everything(seed)


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64])
def test_numpys_whole_numbers_are_seeds_like_pythons(kind: type[Any]) -> None:
    def drawn(seed: int) -> tuple[float, ...]:
        generator = seed_everything(seed)
        return random.random(), float(np.random.random()), float(generator.random()), *spawn_seeds(seed, 2)

    assert drawn(kind(3)) == drawn(3)
    assert make_generator(kind(3)).random() == make_generator(3).random()


@pytest.mark.parametrize("seed", [-1, 1.5, "3", True])
def test_what_is_no_seed_is_refused_wherever_seeds_are_split(seed: Any) -> None:
    for take in (make_generator, lambda given: spawn_seeds(given, 2)):
        with pytest.raises(HyperparameterError, match="seed must be"):
            take(seed)

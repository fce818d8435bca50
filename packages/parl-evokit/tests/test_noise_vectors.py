"""The shipped test vectors, which plain integers made, hold for the package's arrays; the shipped table is normal."""

import hashlib
import json
import statistics
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from parl_evokit.noise import ExactSum, GaussianNoise, NoiseSpec, join_key, split_key
from parl_evokit.noise.philox import KNOWN_ANSWERS, numpy_is_exact, philox_block, random_bits
from parl_evokit.noise.quantiles import LARGEST_UNIT, UNITS_PER_ONE, quantiles
from parl_evokit.noise.splitmix import splitmix64, splitmix64_array

VECTORS: dict[str, Any] = json.loads(files("parl_evokit.noise").joinpath("vectors_v1.json").read_text())


def noise_of(case: dict[str, Any]) -> GaussianNoise:
    size = case["cache_size"]
    return GaussianNoise(NoiseSpec(int(case["seed"]), cached=size > 0, cache_size=size or 100_000))


@pytest.mark.parametrize("case", VECTORS["noise"], ids=lambda case: f"key {case['key']} table {case['cache_size']}")
def test_units_and_perturbed_parameters_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    noise, key, start, count = noise_of(case), int(case["key"]), case["start"], case["count"]
    units = noise.units(key, start, count)
    assert units[:40].tolist() == case["units"]
    assert hashlib.sha256(units.astype("<i2").tobytes()).hexdigest() == case["units_sha256"]

    whole = (np.arange(1, start + count + 1) / 64).astype(np.float32)
    perturbed = noise.perturb(whole, key, 0.3)[start:]
    assert perturbed[:8].tolist() == case["perturbed"]
    assert hashlib.sha256(perturbed.astype("<f4").tobytes()).hexdigest() == case["perturbed_sha256"]
    assert list(split_key(key)) == case["key_halves"]
    assert join_key(case["key_halves"]) == key


def test_the_weighted_sum_is_that_of_the_vectors() -> None:
    case = VECTORS["weighted_sum"]
    keys = [int(key) for key in case["keys"]]
    assert ExactSum(noise_of(case), keys, np.array(case["weights"])).part(0, 200).tolist() == case["sum"]


@pytest.mark.parametrize("case", VECTORS["philox4x64_10"], ids=lambda case: str(case["counter"]))
def test_philox_words_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    seed, stream = (int(word) for word in case["key"])
    words = [int(word, 16) for word in case["words"]]
    assert list(philox_block((case["counter"], 0, 0, 0), (seed, stream))) == words
    bits = random_bits(seed, stream, 16 * (case["counter"] - 1), 16)
    assert bits.tolist() == [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)]


@pytest.mark.parametrize("case", VECTORS["splitmix64"], ids=lambda case: case["value"])
def test_splitmix_numbers_are_those_of_the_vectors_in_both_forms(case: dict[str, Any]) -> None:
    key, n, value = int(case["key"]), case["n"], int(case["value"], 16)
    assert splitmix64(key, n) == value
    assert splitmix64_array(np.array([key], np.uint64), np.array([n], np.uint64)).tolist() == [value]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_plain_integer_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert philox_block(counter, key) == answer


def test_numpys_philox_passes_the_known_answers_on_this_machine() -> None:
    assert numpy_is_exact()


def test_without_an_exact_numpy_plain_integers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = random_bits(18, 2**61 - 1, 1_000_003, 77)
    monkeypatch.setattr("parl_evokit.noise.philox.numpy_is_exact", lambda: False)
    assert random_bits(18, 2**61 - 1, 1_000_003, 77).tolist() == fast.tolist()


def test_the_table_is_odd_symmetric_with_the_moments_of_the_specification() -> None:
    table = quantiles().astype(np.int64)
    assert len(table) == 65536
    assert (table == -table[::-1]).all()
    assert (np.diff(table) >= 0).all()
    assert table.max() == LARGEST_UNIT
    variance = float((table**2).sum()) / 65536 / UNITS_PER_ONE**2
    assert variance == pytest.approx(1.0, abs=1e-6)
    assert float((table.astype(np.float64) ** 4).sum()) / 65536 / UNITS_PER_ONE**4 / variance**2 == pytest.approx(
        2.9992, abs=1e-4
    )
    assert table.max() / UNITS_PER_ONE == pytest.approx(4.325, abs=1e-3)


def test_the_table_agrees_with_the_normal_quantiles_of_the_standard_library() -> None:
    normal = statistics.NormalDist()
    places = range(0, 65536, 97)
    exact = np.array([normal.inv_cdf((i + 0.5) / 65536) for i in places])
    assert np.abs(quantiles()[list(places)] / UNITS_PER_ONE - exact).max() < 0.6 / UNITS_PER_ONE

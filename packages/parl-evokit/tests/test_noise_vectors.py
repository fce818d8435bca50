"""The shipped test vectors, which plain integers made, hold for the package's arrays; the shipped table is normal."""

import hashlib
import json
import statistics
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit._params import ParameterLayout
from parl_evokit._records import Record, SamplingInfo
from parl_evokit.log import read_log
from parl_evokit.log._frames import frame
from parl_evokit.noise import ExactSum, GaussianNoise, NoiseSpec, join_key, split_key
from parl_evokit.noise._spec import (
    KNOWN_ANSWERS,
    LARGEST_UNIT,
    UNITS_PER_ONE,
    numpy_is_exact,
    philox_block,
    quantiles,
    random_bits,
    splitmix64,
    splitmix64_array,
)

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


@pytest.mark.parametrize("case", VECTORS["windows"], ids=lambda case: case["key"])
def test_windows_of_a_table_begin_where_the_vectors_say(case: dict[str, Any]) -> None:
    spec, key = NoiseSpec(1, cached=True, cache_size=case["cache_size"]), int(case["key"])
    assert spec.block == case["block"]
    starts = [splitmix64(key >> 1, number) % spec.windows for number in range(len(case["starts"]))]
    assert starts == case["starts"]


def test_the_fingerprint_is_that_of_the_vectors() -> None:
    case = VECTORS["fingerprint"]
    layout = ParameterLayout(tuple(case["names"]), tuple(tuple(shape) for shape in case["shapes"]))
    spec = NoiseSpec(int(case["seed"]), cached=True, cache_size=case["table"])
    assert spec.fingerprint(layout, case["sampler"]) == case["fingerprint"]


@pytest.mark.parametrize("case", VECTORS["records"], ids=lambda case: case["key"])
def test_records_are_encoded_as_the_vectors_say(case: dict[str, Any]) -> None:
    info = SamplingInfo(split_key(int(case["key"])), case["model_iter_id"], case["fingerprint"])
    record = Record(info, case["reward"])
    assert info.SerializeToString().hex() == case["sampling_info"]
    assert record.encode().hex() == case["record"]
    assert frame(record.encode()).hex() == case["frame"]
    assert Record.decode(bytes.fromhex(case["record"])) == record


def test_a_segment_of_the_vectors_is_read_as_a_log(tmp_path: Path) -> None:
    case = VECTORS["segment"]
    (tmp_path / "one.evl").write_bytes(bytes.fromhex(case["bytes"]))
    samples = read_log(tmp_path).samples
    assert set(samples.fingerprints.tolist()) == {case["fingerprint"]}
    found = sorted(zip(samples.keys.tolist(), samples.models.tolist(), samples.rewards.tolist(), strict=True))
    assert found == [(int(one["key"]), one["model_iter_id"], one["reward"]) for one in case["samples"]]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_plain_integer_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert philox_block(counter, key) == answer


def test_numpys_philox_passes_the_known_answers_on_this_machine() -> None:
    assert numpy_is_exact()


def test_without_an_exact_numpy_plain_integers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = random_bits(18, 2**61 - 1, 1_000_003, 77)
    monkeypatch.setattr("parl_evokit.noise._spec.numpy_is_exact", lambda: False)
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

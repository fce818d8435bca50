"""Noise by coordinate: random access, mirrored pairs, one shared table, exact sums."""

import hashlib
import pickle
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_evokit._params import FlatVector, ParameterLayout
from parl_evokit.errors import EvolutionError, InvalidKey, NoiseDataError
from parl_evokit.noise import ExactSum, GaussianNoise, NoiseSpec, _gaussian
from parl_evokit.noise import _spec as quantile_module
from parl_evokit.noise._exact_sum import BUDGET, _digits, _run_length, weighted_moments
from parl_evokit.noise._spec import LARGEST_UNIT

SPECS = [
    NoiseSpec(1024),
    NoiseSpec(1024, cached=True, cache_size=100_000),
    NoiseSpec(7, cached=True, cache_size=64),
    NoiseSpec(7, cached=True, cache_size=400_000),
]
both_kinds = pytest.mark.parametrize(
    "spec", SPECS, ids=lambda spec: f"table of {spec.cache_size}" if spec.cached else "computed"
)
KEY = 0x1234_5678_9ABC_DEF0


@both_kinds
def test_any_stretch_can_be_had_alone(spec: NoiseSpec) -> None:
    noise = GaussianNoise(spec)
    whole = noise.units(KEY, 0, 150_000)
    for start, count in ((0, 1), (15, 2), (65_530, 20), (99_999, 50_001), (149_999, 1), (70, 0)):
        assert (noise.units(KEY, start, count) == whole[start : start + count]).all()


@both_kinds
def test_the_halves_of_a_pair_are_opposite(spec: NoiseSpec) -> None:
    noise = GaussianNoise(spec)
    assert (noise.units(KEY, 3, 1000) == -noise.units(KEY + 1, 3, 1000)).all()


@both_kinds
def test_perturbing_adds_std_times_the_units_and_leaves_the_parameters_alone(spec: NoiseSpec) -> None:
    noise = GaussianNoise(spec)
    parameters = np.linspace(-3, 3, 140_000, dtype=np.float32)
    before = parameters.copy()
    for key in (KEY, KEY + 1):
        expected = parameters + noise.units(key, 0, 140_000).astype(np.float32) * (np.float32(0.02) / np.float32(4096))
        assert (noise.perturb(parameters, key, 0.02) == expected).all()
        assert (noise.perturb(parameters, key, np.full(140_000, 0.02, np.float32)) == expected).all()
    assert (parameters == before).all()
    assert noise.perturb(parameters, KEY, 0.02, out=parameters) is parameters
    assert not (parameters == before).all()


@both_kinds
def test_each_std_is_used_even_when_the_last_call_had_another(spec: NoiseSpec) -> None:
    noise = GaussianNoise(spec)
    zeros = np.zeros(100, np.float32)
    half, whole = noise.perturb(zeros, KEY, 0.5), noise.perturb(zeros, KEY, 1.0)
    assert (2 * half == whole).all()
    assert (noise.perturb(zeros, KEY, 0.5) == half).all()


def test_the_control_key_adds_nothing() -> None:
    noise = GaussianNoise(SPECS[0])
    parameters = np.arange(5, dtype=np.float32)
    assert (noise.perturb(parameters, 0, 9.0) == parameters).all()
    assert not noise.units(0, 0, 5).any()
    assert not ExactSum(noise, [0, 0], np.array([3, 4])).part(0, 5).any()


@pytest.mark.parametrize("key", [1, -1, 2**62])
def test_a_key_outside_of_its_62_bits_or_reserved_is_refused(key: int) -> None:
    noise = GaussianNoise(SPECS[0])
    with pytest.raises(InvalidKey, match=str(key)):
        noise.units(key, 0, 1)
    with pytest.raises(InvalidKey, match=str(key)):
        noise.perturb(np.zeros(1, np.float32), key, 1.0)
    if key >= 0:
        with pytest.raises(InvalidKey, match=str(key)):
            ExactSum(noise, [key], np.array([1])).part(0, 1)


@both_kinds
@pytest.mark.parametrize("largest", [100, BUDGET, 2**17, 2**40])
def test_a_weighted_sum_is_exact_for_small_and_for_huge_weights(spec: NoiseSpec, largest: int) -> None:
    draw = random.Random(5)
    keys = [draw.randrange(2, 2**62) for _ in range(60)]
    weights = np.array([draw.randint(-largest, largest) for _ in keys])
    noise = GaussianNoise(spec)
    columns = [noise.units(key, 90, 40).tolist() for key in keys]
    expected = [sum(int(w) * column[c] for w, column in zip(weights, columns, strict=True)) for c in range(40)]
    assert ExactSum(noise, keys, weights).part(90, 40).tolist() == expected


@pytest.mark.slow
@both_kinds
def test_a_sum_has_the_same_bits_in_any_order_from_any_number_of_threads_and_in_any_pieces(spec: NoiseSpec) -> None:
    draw = random.Random(6)
    samples = [(draw.randrange(2, 2**62), draw.randint(-5000, 5000)) for _ in range(50)]
    noise = GaussianNoise(spec)

    def total(order: list[tuple[int, int]]) -> bytes:
        return ExactSum(noise, [k for k, _ in order], np.array([w for _, w in order])).part(0, 120_000).tobytes()

    first = total(samples)
    with ThreadPoolExecutor(4) as pool:
        shuffled = [draw.sample(samples, len(samples)) for _ in range(8)]
        assert set(pool.map(total, shuffled)) == {first}
    keys, weights = [k for k, _ in samples], np.array([w for _, w in samples])
    parts = [ExactSum(noise, keys, weights).part(start, 40_000) for start in (0, 40_000, 80_000)]
    assert np.concatenate(parts).tobytes() == first


def test_mirrored_samples_of_equal_weight_cancel_exactly() -> None:
    noise = GaussianNoise(SPECS[1])
    assert not ExactSum(noise, [KEY, KEY + 1], np.array([123, 123])).part(0, 1000).any()


def test_pairs_that_come_again_count_again() -> None:
    noise, keys = GaussianNoise(SPECS[1]), [KEY + 2, KEY + 3, KEY, KEY + 1, KEY + 2, KEY + 3]
    unit, other = (noise.units(key, 0, 50).astype(np.int64) for key in (KEY, KEY + 2))
    assert (ExactSum(noise, keys, np.array([5, 1, 7, 9, -3, 4])).part(0, 50) == -2 * unit - 3 * other).all()


def test_a_sum_over_no_samples_is_zero() -> None:
    assert ExactSum(GaussianNoise(SPECS[0]), [], np.zeros(0, np.int64)).part(0, 3).tolist() == [0, 0, 0]


def test_weights_that_do_not_fit_the_samples_or_64_bits_are_refused() -> None:
    noise = GaussianNoise(SPECS[0])
    with pytest.raises(EvolutionError, match="2 keys"):
        ExactSum(noise, [2, 4], np.array([1])).part(0, 1)
    with pytest.raises(EvolutionError, match=r"2\*\*48"):
        ExactSum(noise, [2], np.array([2**49])).part(0, 1)


@settings(max_examples=examples(50), deadline=None)
@given(
    keys=st.lists(st.integers(2, 2**62 - 1), min_size=1, max_size=12),
    start=st.integers(0, 2**40),
    count=st.integers(0, 70),
    cached=st.booleans(),
    data=st.data(),
)
def test_sums_agree_with_python_integers(
    keys: list[int], start: int, count: int, cached: bool, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(-(2**33), 2**33), min_size=len(keys), max_size=len(keys)))
    noise = GaussianNoise(NoiseSpec(3, cached=cached, cache_size=257))
    columns = [noise.units(key, start, count).tolist() for key in keys]
    expected = [sum(w * column[c] for w, column in zip(weights, columns, strict=True)) for c in range(count)]
    assert ExactSum(noise, keys, np.array(weights)).part(start, count).tolist() == expected


def test_a_table_smaller_than_the_model_still_gives_each_sample_its_own_noise() -> None:
    noise = GaussianNoise(NoiseSpec(9, cached=True, cache_size=4096))
    a, b = (noise.units(key, 0, 50_000).astype(np.float64) for key in (2, 4))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


def test_noise_is_normal_and_streams_are_independent() -> None:
    noise = GaussianNoise(NoiseSpec(9))
    a, b = (noise.units(key, 0, 200_000) / 4096 for key in (2, 4))
    assert abs(a.mean()) < 0.01
    assert a.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.01
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.01


def test_noise_pickles_to_its_specification() -> None:
    noise = GaussianNoise(SPECS[1])
    noise.perturb(np.zeros(10, np.float32), KEY, 1.0)
    text = pickle.dumps(noise)
    assert len(text) < 300
    assert (pickle.loads(text).units(KEY, 0, 10) == noise.units(KEY, 0, 10)).all()


@pytest.mark.parametrize(
    ("size", "block"),
    [(64, 16), (100, 16), (127, 16), (128, 32), (100_000, 16_384), (262_144, 65_536), (2**31, 65_536)],
)
def test_a_block_is_the_power_of_two_up_to_a_quarter_of_the_table(size: int, block: int) -> None:
    assert NoiseSpec(cached=True, cache_size=size).block == block


@pytest.mark.parametrize("settings_", [{"seed": -1}, {"seed": 2**64}, {"cache_size": 63}, {"cache_size": 2**31 + 1}])
def test_settings_out_of_range_are_refused(settings_: dict[str, int]) -> None:
    with pytest.raises(EvolutionError, match=str(next(iter(settings_.values())))[:4]):
        NoiseSpec(**settings_)  # type: ignore[arg-type]  # each case gives one whole number


def test_a_fingerprint_tells_models_seeds_samplers_and_tables_apart() -> None:
    layout = ParameterLayout(("w", "b"), ((4, 20), (20,)))
    specs = [NoiseSpec(1), NoiseSpec(2), NoiseSpec(1, cached=True), NoiseSpec(1, cached=True, cache_size=999)]
    prints = {spec.fingerprint(layout) for spec in specs}
    prints |= {specs[0].fingerprint(layout, "cma"), specs[0].fingerprint(ParameterLayout(("b", "w"), ((20,), (4, 20))))}
    prints |= {specs[0].fingerprint(ParameterLayout(("w", "b"), ((20, 4), (20,))))}
    assert len(prints) == 7
    assert NoiseSpec(1, cache_size=5000).fingerprint(layout) == specs[0].fingerprint(layout)


def test_the_fingerprint_of_specification_1_never_changes() -> None:
    layout = ParameterLayout(("w", "b"), ((4, 20), (20,)))
    text = b"evokit noise 1\nseed 1024\nsampler gaussian\ntable 100000\n"
    layout_text = b'[["w","b"],[[4,20],[20]]]'
    expected = hashlib.sha256(text + hashlib.sha256(layout_text).digest()).digest()[:4]
    assert NoiseSpec(1024, cached=True).fingerprint(layout) == int.from_bytes(expected, "little")


def test_a_damaged_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    quantile_module.quantiles.cache_clear()
    monkeypatch.setattr(quantile_module, "QUANTILES_FILE", "vectors_v1.json")
    with pytest.raises(NoiseDataError, match="install parl-evokit again"):
        quantile_module.quantiles()


@both_kinds
@pytest.mark.parametrize("size", [1, 142, 20_000])
def test_many_samples_at_once_have_the_bits_of_one_after_the_other(spec: NoiseSpec, size: int) -> None:
    noise = GaussianNoise(spec)
    parameters = np.linspace(-1, 1, size, dtype=np.float32)
    keys = [KEY, 0, KEY + 1, 77, 4, KEY]
    one_by_one = np.stack([noise.perturb(parameters, key, 0.3) for key in keys])
    assert (noise.perturb_many(parameters, keys, 0.3) == one_by_one).all()
    out = np.empty((6, size), np.float32)
    assert noise.perturb_many(parameters, keys, 0.3, out) is out
    assert noise.perturb_many(parameters, [], 0.3).shape == (0, size)
    with pytest.raises(InvalidKey):
        noise.perturb_many(parameters, [2, 1], 0.3)


@pytest.mark.parametrize("size", [1, 300, 1024, 1025, 5000, 2**13])
@pytest.mark.parametrize(
    "keys",
    [
        [key for pair in range(40, 90) for key in (2 * pair, 2 * pair + 1)],
        [3, 4, 5, 6, 7, 8],  # neighbours, but no pairs
        [9, 9, 8, 8, 9, 8],
        [8, 9, 0, 10, 11, 0, 13],
        [8, 9, 10, 11, 12],
    ],
    ids=["pairs", "shifted", "twice", "control", "odd number"],
)
def test_many_keys_in_any_order_perturb_as_each_alone(size: int, keys: list[int]) -> None:
    noise = GaussianNoise(NoiseSpec(18, cached=True, cache_size=4096 if size < 5000 else 2**15))
    parameters = np.linspace(-1, 1, size, dtype=np.float32)
    one_by_one = np.stack([noise.perturb(parameters, key, 0.3) for key in keys])
    assert (noise.perturb_many(parameters, keys, 0.3) == one_by_one).all()


@pytest.mark.parametrize("spec", [NoiseSpec(18), NoiseSpec(18, cached=True, cache_size=4096)])
@pytest.mark.parametrize("count", [1, 17, 5000])
def test_units_of_several_keys_are_those_of_each(spec: NoiseSpec, count: int) -> None:
    noise, keys = GaussianNoise(spec), np.array([2, 3, 2**62 - 1, 0, *range(1000, 1020)], np.uint64)
    many = noise.units_of(keys, count)
    assert many.shape == (len(keys), count)
    assert all((row == noise.units(key, 0, count)).all() for row, key in zip(many, keys.tolist(), strict=True))
    assert noise.units_of(keys[:0], count).shape == (0, count)
    with pytest.raises(InvalidKey):
        noise.units_of(np.array([1], np.uint64), count)


@pytest.mark.parametrize("size", [40, 70_000, 300_000])
def test_exact_sums_are_the_same_after_the_noise_was_used_for_samples(size: int) -> None:
    used, keys = GaussianNoise(NoiseSpec(18)), [*range(200, 220), 2**62 - 1]
    parameters = np.zeros(size, np.float32)
    for key in keys[::2] + keys[1:6:2]:
        used.perturb(parameters[: size // 2 if key % 4 else size], key, 0.3, keep=True)
    weights = np.arange(len(keys))
    found = ExactSum(used, keys, weights).part(0, size)
    assert (found == ExactSum(GaussianNoise(NoiseSpec(18)), keys, weights).part(0, size)).all()
    assert (ExactSum(used, keys, weights).part(7, size - 9) == found[7:-2]).all()


@pytest.mark.parametrize("sizes", [[4], [1000, 4], [4, 1000]])
def test_noise_that_is_kept_for_an_update_takes_bounded_memory(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_gaussian, "MOST_COMPUTED", most := 2**16)
    noise = GaussianNoise(NoiseSpec(18))
    noise.perturb(np.zeros(1000, np.float32), 2, 0.3, keep=True)  # makes what all calls share
    tracemalloc.start()
    try:
        for size in sizes:
            parameters = np.zeros(size, np.float32)
            for key in range(4, 4 + 2 * (3 * most // size if size > 100 else 3000), 2):
                noise.perturb(parameters, key, 0.3, keep=True)
            assert tracemalloc.get_traced_memory()[0] <= 1.2 * most * noise.units(2, 0, 1).itemsize
    finally:
        tracemalloc.stop()


@both_kinds
def test_noise_of_many_keys_is_that_of_each_whatever_was_asked_for_before(spec: NoiseSpec) -> None:
    noise = GaussianNoise(spec)
    draw = random.Random(8)
    keys = np.array([draw.randrange(2, 2**62) for _ in range(9)] + [0], np.uint64)
    for asked in (keys, keys[::-1], keys[[4, 2]], keys, np.append(keys[3:5], np.uint64(12)), keys[:0], keys[[1, 1]]):
        for count in (37, 36, 20_000):
            found = noise.units_of(asked, count)
            assert found.shape == (len(asked), count)
            assert all((row == noise.units(int(key), 0, count)).all() for key, row in zip(asked, found, strict=True))
    assert len(pickle.dumps(noise)) < 300


@both_kinds
@pytest.mark.parametrize("largest", [3, 2**15, 2**31])
def test_moments_are_exact_for_small_and_for_huge_weights(spec: NoiseSpec, largest: int) -> None:
    draw = random.Random(6)
    keys = [draw.randrange(2, 2**62) for _ in range(7)]
    weights = np.array([draw.randint(0, largest) for _ in keys])
    weights[2] = 0
    weights[-1] = largest
    noise = GaussianNoise(spec)
    first, second = weighted_moments(noise, keys, weights, 90)
    columns = [noise.units(key, 0, 90).tolist() for key in keys]
    for place in range(90):
        terms = [(int(w), column[place]) for w, column in zip(weights, columns, strict=True)]
        assert first[place] == float(sum(w * u for w, u in terms))
        assert second[place] == float(sum(w * u * u for w, u in terms))


def test_weights_of_any_size_are_the_sum_of_their_digits() -> None:
    weights = np.array([0, 1, -1, 31, 32, -32, -33, 2**12, -(2**12), 2**47, -(2**47), 2**47 - 1])
    digits = _digits(weights)
    assert all(abs(digit).max() <= 32 for _, digit in digits)
    np.testing.assert_array_equal(sum(digit.astype(np.int64) << shift for shift, digit in digits), weights)


@pytest.mark.parametrize("largest", [1, 20, 100, 300, BUDGET, 10**6])
@pytest.mark.parametrize("count", [33, 64, 100, 1000])
def test_runs_of_a_sum_stay_within_what_float32_holds(largest: int, count: int) -> None:
    draw = random.Random(count + largest)
    weights = np.array([draw.randint(0, largest) for _ in range(count)])
    length = _run_length([weights])
    assert length or largest * 8 > BUDGET
    for start in range(0, count, length or count):
        assert not length or weights[start : start + length].sum() <= BUDGET
    assert _run_length([np.abs(digit) for _, digit in _digits(weights)]) >= 8


@pytest.mark.parametrize(("start", "count"), [(0, 7000), (0, 4096 + 4095), (4080, 4200)])
def test_a_sum_whose_last_coordinates_are_fewer_than_a_block_has_all_its_runs(start: int, count: int) -> None:
    noise = GaussianNoise(NoiseSpec(7, cached=True, cache_size=20_000))
    assert noise.row_chunk == 4096
    draw = random.Random(count)
    keys = np.array([2 * draw.randint(1, 2**60) for _ in range(64)], np.uint64)
    weights = np.array([draw.randint(-2000, 2000) for _ in keys])
    expected = np.zeros(count, np.int64)
    for key, weight in zip(keys.tolist(), weights.tolist(), strict=True):
        expected += weight * noise.units(key, start, count).astype(np.int64)
    assert (ExactSum(noise, keys, weights).part(start, count) == expected).all()


@both_kinds
@pytest.mark.parametrize("std", [0.5, np.full(10, 0.5, np.float32)])
def test_a_read_only_view_of_keys_is_not_taken_for_constant(spec: NoiseSpec, std: float | FlatVector) -> None:
    parameters, weights = np.zeros(10, np.float32), np.array([1, 2, 5, 1])
    noise, fresh = GaussianNoise(spec), GaussianNoise(spec)
    keys = np.array([4, 5, 6, 7], np.uint64)
    view = keys.view()
    view.flags.writeable = False
    noise.perturb_many(parameters, view, std)
    keys += np.uint64(10)
    assert (noise.perturb_many(parameters, view, std) == fresh.perturb_many(parameters, keys.copy(), std)).all()
    assert (ExactSum(noise, view, weights).part(0, 10) == ExactSum(fresh, keys, weights).part(0, 10)).all()


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("count", [10, 60, 300])
def test_a_sum_over_many_blocks_is_that_of_its_samples(spec: NoiseSpec, count: int) -> None:
    noise, size = GaussianNoise(spec), 70_001
    keys = np.arange(40, 40 + 2 * count, 2, dtype=np.uint64)
    weights = (np.arange(count) * 7919) % 1201 - 600
    expected = sum(
        int(w) * noise.units(int(key), 0, size).astype(np.int64) for key, w in zip(keys, weights, strict=True)
    )
    memory = np.full(size, 5, np.int64)
    found = ExactSum(noise, keys, weights).part(0, size, memory)
    assert found is memory
    assert (found == expected).all()


@both_kinds
@pytest.mark.parametrize("largest", [3, BUDGET, 2**20, 2**34])
@pytest.mark.parametrize("twos", [0, 5])
@pytest.mark.parametrize("count", [1, 31, 90])
def test_a_sum_in_float64_is_that_in_int64_rounded_once(spec: NoiseSpec, largest: int, twos: int, count: int) -> None:
    draw = random.Random(7)
    keys = [2 * draw.randrange(2, 2**61) for _ in range(count)]
    keys += [key + 1 for key in keys]
    weights = np.array([draw.randint(1, largest) << twos if key % 3 else 0 for key in keys])
    found = ExactSum(GaussianNoise(spec), keys, weights)
    whole, rounded = found.part(70, 5000), np.full(5000, np.nan)
    assert found.part(70, 5000, rounded) is rounded
    assert (whole == ExactSum(GaussianNoise(spec), keys[::-1], weights[::-1]).part(70, 5000)).all()
    alone = GaussianNoise(spec)
    columns = [alone.units(key, 70, 3).tolist() for key in keys]
    exact = [sum(int(w) * column[c] for w, column in zip(weights, columns, strict=True)) for c in range(3)]
    assert whole[:3].tolist() == exact
    assert (rounded == whole.astype(np.float64)).all()


@pytest.mark.parametrize(
    "weights", [[947] * 40, [1, 1000] * 20, [32] * 100, [10**9] * 5, [-63, 63, 5] * 30, [7], [947] * 300]
)
def test_no_product_of_a_sum_exceeds_what_float32_holds(weights: list[int]) -> None:
    # All samples have the largest unit here, so that every product is as large as it can be.
    noise = GaussianNoise(NoiseSpec(1024))
    extreme = np.full((1, 3), LARGEST_UNIT, np.float32)
    noise.rows = lambda pairs: lambda run, *_: np.repeat(extreme, len(pairs[run]), axis=0)  # type: ignore[method-assign]
    total = ExactSum(noise, [4 * (i + 1) for i in range(len(weights))], np.array(weights)).part(0, 3)
    assert total.tolist() == [sum(weights) * LARGEST_UNIT] * 3

"""Dictionaries of observations, as records of one array."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text

from parl_core.errors import HyperparameterError
from parl_core.replay import ReplayMemory
from parl_core.training.off_policy import from_records, storage_of, to_records

SPACE = Dict(
    {
        "camera": Box(0, 255, (2, 3, 3), np.uint8),
        "inner": Dict({"speed": Box(-1.0, 1.0, (2,), np.float64), "gear": Discrete(5)}),
    }
)


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="needs a name of each part"):
        storage_of(Dict({"": Box(-1.0, 1.0, (3,)), "x": Box(-1.0, 1.0)}))


def observations(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {
        "camera": rng.integers(0, 256, (n, 2, 3, 3)).astype(np.uint8),
        "inner": {"speed": rng.normal(size=(n, 2)), "gear": rng.integers(5, size=n)},
    }


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found["camera"], expected["camera"])
    np.testing.assert_array_equal(found["inner"]["speed"], expected["inner"]["speed"].astype(np.float32))
    np.testing.assert_array_equal(found["inner"]["gear"], expected["inner"]["gear"])


def test_what_goes_in_comes_out() -> None:
    shape, dtype = storage_of(SPACE)
    assert shape == ()
    records = to_records(observations(5), dtype)
    assert records.shape == (5,)
    assert_same(from_records(records), observations(5))


def test_a_memory_of_records_draws_and_saves_them(tmp_path: Path) -> None:
    shape, dtype = storage_of(SPACE)
    memory, given = ReplayMemory(10, shape, 0, obs_dtype=dtype, seed=1), observations(4)
    records = to_records(given, dtype)
    memory.append_batch(records, np.arange(4), np.arange(4.0), records[::-1], np.zeros(4, np.bool_))
    memory.save(tmp_path / "memory.npz")
    again = ReplayMemory(10, shape, 0, obs_dtype=dtype, seed=1)
    again.load(tmp_path / "memory.npz")
    for one in (memory, again):
        obs, action, _, next_obs, _ = one.sample_batch(32)
        found: Any = from_records(obs)
        np.testing.assert_array_equal(found["camera"], given["camera"][action])
        led_to: Any = from_records(next_obs)
        np.testing.assert_array_equal(led_to["inner"]["gear"], given["inner"]["gear"][3 - action])


def test_arrays_are_stored_as_they_are_with_floats_of_32_bits() -> None:
    assert storage_of(Box(-1.0, 1.0, (3,), np.float64)) == ((3,), np.dtype(np.float32))
    assert storage_of(Box(0, 255, (4, 84, 84), np.uint8)) == ((4, 84, 84), np.dtype(np.uint8))
    assert storage_of(Discrete(7)) == ((), np.dtype(np.int64))
    obs = np.ones((2, 3))
    assert to_records(obs, np.dtype(np.float32)) is obs


def test_a_missing_field_is_named() -> None:
    _, dtype = storage_of(SPACE)
    with pytest.raises(KeyError, match="inner"):
        to_records({"camera": observations(2)["camera"]}, dtype)


@pytest.mark.parametrize("space", [Text(3), Dict({}), Dict({"word": Text(3)})])
def test_spaces_without_arrays_are_refused(space: Any) -> None:
    with pytest.raises(HyperparameterError, match="FlattenObservation"):
        storage_of(space)

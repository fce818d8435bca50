"""Ranges of the columns of batches."""

from typing import Any

import numpy as np
import pytest

from parl_core.contracts.batches import Rollout, Transitions

KINDS = [np.float16, np.float32, np.float64, ">f4", ">f8"]


def transitions(**columns: Any) -> Transitions:
    obs = np.zeros((4, 2), np.float32)
    return Transitions(obs, np.zeros(4, np.int64), np.zeros(4, np.float32), obs, **columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [2.0, 1.0009765625, -1.0, -6e-8, np.inf, -np.inf, np.nan, -np.nan])
def test_flags_and_shares_beyond_0_and_1_are_refused(kind: Any, number: float) -> None:
    column = np.array([0.0, 1.0, number, 0.5], kind)
    with pytest.raises(ValueError, match=r"terminal must be 1 where an episode ended and 0 elsewhere, got .* in row 2"):
        transitions(terminal=column)
    with pytest.raises(ValueError, match=r"discount must be in \[0, 1\], got .* in row 2"):
        transitions(terminal=np.zeros(4), discount=column)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_within_their_range_are_taken(kind: Any) -> None:
    column = np.array([0.0, -0.0, 1.0, 0.5], kind)
    batch = transitions(terminal=column, discount=column[::-1], weights=1000.0 * column)
    for name, given in (("terminal", column), ("discount", column[::-1]), ("weights", 1000.0 * column)):
        np.testing.assert_array_equal(batch.named()[name], given)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_weights_below_0_or_not_finite_are_refused(kind: Any) -> None:
    for number in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"weights must be at least 0 and finite, got .* in row 0"):
            transitions(terminal=np.zeros(4), weights=np.array([number, 1.0, 2.0, 3.0], kind))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_row_of_an_infinite_number_is_named_in_every_width(dtype: Any) -> None:
    obs, numbers = np.zeros((3, 2), dtype), np.array([65504.0, -65504.0, 0.0], dtype)
    assert Transitions(obs, np.zeros(3, int), numbers, obs, np.zeros(3)).describe_not_finite() is None
    numbers = np.array([0.0, -np.inf, 0.0], dtype)
    found = Transitions(obs, np.zeros(3, int), numbers, obs, np.zeros(3)).describe_not_finite()
    assert found == "reward must be finite, got -inf in row 1"


def test_sequences_of_observations_of_which_a_part_has_no_numbers_are_taken() -> None:
    obs = {"seen": np.arange(6.0), "none": np.zeros((6, 0))}
    batch = Rollout(obs, np.arange(6), begins=np.zeros(6, np.bool_), state={"hidden": np.zeros((3, 1))})
    taken = batch.sequences(np.array([2, 0]))
    assert taken.obs["seen"].tolist() == [4.0, 5.0, 0.0, 1.0]
    assert taken.obs["none"].shape == (4, 0)

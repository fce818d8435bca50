"""Checks of arguments: what passes, what does not, and what the messages say."""

import math
from typing import Any

import numpy as np
import pytest

from parl_core.checks import (
    check_all_known,
    check_finite,
    check_fraction,
    check_int,
    check_non_negative,
    check_positive,
    check_rows,
    first_method,
)
from parl_core.errors import DivergedError, HyperparameterError, ModelContractError


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2.0), np.int64(3)])
def test_numbers_above_zero_come_back_as_floats(value: Any) -> None:
    assert check_positive("lr", value) == float(value)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", None, True, np.array([1.0])])
def test_what_is_no_number_above_zero_is_refused_with_name_and_value(value: Any) -> None:
    with pytest.raises(HyperparameterError, match=r"^lr must be .*got "):
        check_positive("lr", value)


def test_zero_is_not_negative() -> None:
    assert check_non_negative("coef", 0) == 0.0
    with pytest.raises(HyperparameterError, match="coef must be at least 0, got -1"):
        check_non_negative("coef", -1)


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_fractions_include_both_ends(value: float) -> None:
    assert check_fraction("gamma", value) == value


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_fractions_outside_are_refused(value: float) -> None:
    with pytest.raises(HyperparameterError, match=r"gamma must lie in \[0, 1\], got"):
        check_fraction("gamma", value)


@pytest.mark.parametrize("value", [0, 1.0, "2", True, None])
def test_what_is_no_whole_number_of_at_least_one_is_refused(value: Any) -> None:
    with pytest.raises(HyperparameterError, match="epochs must be"):
        check_int("epochs", value)


def test_unknown_names_are_listed_beside_the_known_ones() -> None:
    with pytest.raises(HyperparameterError, match="DQN has no hyper-parameter beta; it has gamma, lr"):
        check_all_known("DQN", {"beta": 1, "lr": 2}, ("gamma", "lr"))


def test_rows_are_counted_and_differences_shown() -> None:
    assert check_rows("learn", {"obs": np.zeros((3, 2)), "action": np.zeros(3)}) == 3
    with pytest.raises(ValueError, match=r"learn needs .*; got obs \(3, 2\), action \(2,\)"):
        check_rows("learn", {"obs": np.zeros((3, 2)), "action": np.zeros(2)})


@pytest.mark.parametrize("array", [np.zeros(0), np.zeros(())])
def test_empty_batches_and_scalars_are_refused(array: Any) -> None:
    with pytest.raises(ValueError, match="at least one"):
        check_rows("learn", {"obs": array})


def test_only_figures_that_are_not_finite_are_named() -> None:
    check_finite("learn", {"loss": 1.0})
    with pytest.raises(DivergedError, match=r"learn: kl is inf, loss is nan\. .* last checkpoint"):
        check_finite("learn", {"entropy": 1.0, "kl": math.inf, "loss": math.nan})


def test_the_first_method_that_is_there_is_taken() -> None:
    class Model:
        def implements(self, method: str) -> bool:
            return method == "forward"

    assert first_method(Model(), ("value", "forward"), "DQN") == "forward"
    said = "`DDPG`'s model needs to implement `get_actor_params` method; Model does not: define it in that class"
    with pytest.raises(ModelContractError, match=f"{said}$"):
        first_method(Model(), ("get_actor_params",), "DDPG")

"""Columns of a batch: shapes and dtypes that pass, and those that would silently mean something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parl_core.contracts._base import merge
from parl_core.contracts.batches import Transitions, actions_column, floats_column
from parl_core.contracts.dqn import DQN
from parl_core.contracts.ppo import PPO
from parl_core.errors import HyperparameterError


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32, np.float64])
def test_actions_become_int64_of_shape_n(dtype: Any) -> None:
    column = actions_column("action", np.array([[1], [2]], dtype))
    assert column.dtype == np.int64
    assert column.tolist() == [1, 2]


def test_actions_in_the_right_form_are_not_copied() -> None:
    action = np.array([1, 2])
    assert actions_column("action", action) is action


@pytest.mark.parametrize("values", [[True, False], ["a"]])
def test_actions_that_are_no_whole_numbers_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"action must hold whole numbers \(action indices\), got dtype"):
        actions_column("action", values)


@pytest.mark.parametrize(("value", "named"), [(0.5, r"0\.5"), (np.nan, "nan"), (np.inf, "inf"), (1e300, r"1e\+300")])
def test_floats_that_are_no_whole_numbers_are_refused_by_row(value: float, named: str) -> None:
    with pytest.raises(ValueError, match=rf"action must hold whole numbers \(action indices\), got {named} in row 1"):
        actions_column("action", np.array([1.0, value]))


@pytest.mark.parametrize("values", [[0, 3], [-1, 0]])
def test_actions_that_do_not_exist_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"action must be in 0\.\.2, got -?\d\.\.\d"):
        actions_column("action", values, act_dim=3)


@pytest.mark.parametrize("shape", [(), (2, 2), (2, 1, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"reward must have shape \[n\] or \[n, 1\], got"):
        floats_column("reward", np.zeros(shape))


def test_flags_become_floats_and_floats_keep_their_precision() -> None:
    assert floats_column("terminal", [True, False]).dtype == np.float32
    assert floats_column("reward", np.zeros(2)).dtype == np.float64


def in_a_file(array: NDArray[Any], path: Path) -> NDArray[Any]:
    array.tofile(path)
    return np.memmap(path, array.dtype, mode="r", shape=array.shape)


@pytest.mark.parametrize("keep", [lambda array, _: array, in_a_file], ids=["in memory", "in a file"])
@pytest.mark.parametrize(("dtype", "named"), [(np.float32, r"2\.0"), (np.int64, "2")])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_terminal_out_of_its_range_is_named_as_it_was_passed(
    shape: tuple[int, ...], dtype: Any, named: str, keep: Callable[[NDArray[Any], Path], Any], tmp_path: Path
) -> None:
    terminal = keep(np.array([0, 2, 1], dtype).reshape(shape), tmp_path / "terminal")
    with pytest.raises(ValueError, match=rf"terminal must be 1 where .*, got {named} in row 1: pass the flag"):
        Transitions(np.zeros((3, 2)), np.zeros(3), np.zeros(3), np.zeros((3, 2)), terminal)


def test_arguments_come_before_defaults_and_none_means_not_given() -> None:
    assert merge("DQN", None, {"gamma": None, "lr": 0.1}, {"gamma": 0.9, "lr": 0.2}) == {"gamma": 0.9, "lr": 0.1}


def test_the_old_dictionary_fills_what_arguments_leave_open() -> None:
    assert merge("DQN", {"gamma": 0.5}, {"gamma": None, "lr": 0.1}, {"gamma": 0.9, "lr": 0.2})["gamma"] == 0.5


def test_unknown_names_in_the_old_dictionary_are_refused() -> None:
    with pytest.raises(
        HyperparameterError, match=r"DQN has no hyper-parameter gama; did you mean gamma\? It has gamma"
    ):
        merge("DQN", {"gama": 0.5}, {}, {"gamma": 0.9})


def test_vectors_in_place_of_discrete_actions_are_refused_with_what_learns_from_them() -> None:
    with pytest.raises(ValueError, match=r"action must have shape \[n\] or \[n, 1\], got \(32, 2\): .* SAC, TD3, CQL"):
        actions_column("action", np.zeros((32, 2), np.float32))


def test_errors_of_columns_that_are_all_given_by_name_have_the_names_of_the_arguments() -> None:
    error = PPO.learn.columns.as_called(ValueError("action must be finite"), ())  # type: ignore[attr-defined]  # of the decorator
    assert str(error) == "batch_action must be finite"


@pytest.mark.parametrize(("args", "kwargs"), [((1e-3, 1e-4), {}), ((1e-3,), {"learning_rate": 1e-4})])
def test_settings_after_a_batch_that_learn_does_not_take_are_refused(args: Any, kwargs: Any) -> None:
    batch = Transitions(np.zeros((3, 2)), np.zeros(3), np.zeros(3), np.zeros((3, 2)), np.zeros(3))
    columns = DQN.learn.columns  # type: ignore[attr-defined]  # of the decorator
    assert columns.batch((batch, 1e-3), {}) == (batch, {"learning_rate": 1e-3})
    with pytest.raises(TypeError, match="learn takes a batch and learning_rate by place, each once"):
        columns.batch((batch, *args), kwargs)

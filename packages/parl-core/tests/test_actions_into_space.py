"""Actions of a policy, made valid in an environment's space."""

import inspect
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from parl_core.contracts.actions import ActionKind, unit_line
from parl_core.env.vector import make_vector_env
from parl_core.errors import DivergedError, HyperparameterError
from parl_core.spaces import action_size, kind_of, one_each
from parl_core.training.acting import into_space
from parl_core.training.on_policy import RolloutCollector

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_actions_outside_of_a_box_are_clipped() -> None:
    assert into_space(BOX)(np.array([[-3.0, 0.5]])).tolist() == [[-1.0, 0.5]]


def test_actions_in_the_unit_box_go_to_the_bounds_and_stay_where_there_are_none() -> None:
    space = gymnasium.spaces.Box(np.array([0.0, -5.0, -np.inf]), np.array([10.0, 5.0, 1.0]), dtype=np.float64)
    found = into_space(space, unit_box=True)(np.array([[0.0, 1.0, -7.0], [-3.0, -0.5, 4.0]]))
    assert found.tolist() == [[5.0, 5.0, -7.0], [0.0, -2.5, 1.0]]
    assert into_space(space)(np.array([[0.5, 9.0, -7.0]])).tolist() == [[0.5, 5.0, -7.0]]


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_the_line_to_the_bounds_is_arrays_of_the_shape_of_the_box(shape: tuple[int, ...]) -> None:
    space = gymnasium.spaces.Box(-2.0, 4.0, shape, np.float32)
    scale, shift = unit_line(space.low, space.high)
    assert isinstance(scale, np.ndarray)
    assert isinstance(shift, np.ndarray)
    np.testing.assert_array_equal((scale, shift), (np.full(shape, 3.0), np.full(shape, 1.0)))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(0.0, 2.0, (3,)),
        gymnasium.spaces.Box(0.0, 2.0, (2, 3)),
        gymnasium.spaces.Discrete(3, start=5),
        gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 0]),
        gymnasium.spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), BOX]),
        gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=BOX),
    ],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_one_action_is_made_valid_as_one_of_a_batch(space: Any, one_by_one: bool) -> None:
    kind = kind_of(space)
    choices = 0 if kind == ActionKind(continuous=True) else len(kind.nvec or (1,))
    row = np.array([0] * choices + [0.5] * action_size(space), np.float32 if kind.continuous else np.int64)
    one = row[0] if kind == ActionKind() else row
    valid = into_space(space, unit_box=True, one_by_one=one_by_one)
    batch = valid(np.stack([one, one]))
    assert space.contains(valid(one))
    assert data_equivalence(valid(one), (batch if isinstance(batch, list) else one_each(space, batch))[1])


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.Discrete(3, start=5),
        gymnasium.spaces.MultiDiscrete([3, 2]),
        gymnasium.spaces.MultiBinary([2, 2]),
    ],
)
def test_an_environment_may_change_its_action_of_which_the_drawn_one_stays(space: Any) -> None:
    drawn = np.ones((2, *space.shape), np.float32 if space is BOX else np.int64)
    into_space(space)(drawn)[...] -= 1
    assert (drawn == 1).all()


def test_multi_discrete_actions_count_from_where_each_part_starts() -> None:
    space = gymnasium.spaces.MultiDiscrete([2, 3], start=[10, 0])
    assert into_space(space)(np.array([[1, 2], [0, 0]])).tolist() == [[11, 2], [10, 0]]
    with pytest.raises(HyperparameterError, match=r"nvec=\[2 3\]"):
        into_space(space)(np.array([[0.5, 0.5]]))


def test_actions_of_another_shape_than_the_box_are_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"actions of shape \[2\], the policy chooses \[3\]"):
        into_space(BOX)(np.zeros((4, 3)))


def test_actions_of_a_discrete_space_count_from_where_it_starts() -> None:
    assert into_space(gymnasium.spaces.Discrete(3, start=5))(np.array([0, 2])).tolist() == [5, 7]
    assert into_space(gymnasium.spaces.Discrete(3))(np.array([0, 2])).tolist() == [0, 2]


def test_choices_have_the_dtype_of_their_space_which_contains_no_others() -> None:
    for space in (gymnasium.spaces.MultiBinary(2), gymnasium.spaces.MultiDiscrete([3, 2], dtype=np.int32)):
        assert into_space(space)(np.array([[1, 0]], np.int64)).dtype == space.dtype
    if "dtype" in inspect.signature(gymnasium.spaces.Discrete).parameters:  # since Gymnasium 1.3
        small = gymnasium.spaces.Discrete(3, dtype=np.int32)
        assert all(map(small.contains, into_space(small)(np.array([0, 2], np.int64))))


@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(3, start=5), gymnasium.spaces.MultiDiscrete([3, 2])])
def test_actions_below_zero_are_none_of_a_space_s_choices(space: gymnasium.spaces.Space[np.int64]) -> None:
    chosen = np.full((1, *(space.shape or ())), -1)
    with pytest.raises(HyperparameterError, match=r"the policy chose \[.*-1"):
        into_space(space)(chosen)


@pytest.mark.parametrize("unit_box", [False, True])
def test_actions_that_are_no_numbers_are_those_of_a_spoiled_agent_and_not_given_to_an_environment(
    unit_box: bool,
) -> None:
    valid = into_space(BOX, unit_box=unit_box)
    with pytest.raises(DivergedError, match=r"chose nan as number \[1\] of the action in environment 0, .* weights"):
        valid(np.array([[0.0, np.nan]], np.float32))
    with pytest.raises(DivergedError, match="chose inf"):
        into_space(gymnasium.spaces.Box(-np.inf, np.inf, (1,)))(np.array([[np.inf]]))
    assert valid(np.array([[np.inf, -np.inf]])).tolist() == [[1.0, -1.0]]


def test_whole_numbers_for_a_box_are_refused_with_what_to_do() -> None:
    with pytest.raises(HyperparameterError, match="continuous_action=True"):
        into_space(BOX)(np.array([0, 1]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_bounds_and_missing_ones_are_no_overflow(dtype: type[np.floating]) -> None:
    most = np.finfo(np.float32).max
    space = gymnasium.spaces.Box(np.array([-np.inf, -most], dtype), np.array([np.inf, most], dtype), dtype=dtype)
    assert into_space(space, unit_box=True)(np.array([[3.0, 1.0]])).tolist() == [[3.0, float(most)]]


def test_other_numbers_for_a_box_of_whole_numbers_are_refused_with_what_to_do() -> None:
    valid = into_space(gymnasium.spaces.Box(0, 4, (2,), np.int64), unit_box=True)
    assert valid(np.array([[1, 7]])).tolist() == [[1, 4]]
    with pytest.raises(HyperparameterError, match=r"int64\), whole numbers, .* MultiDiscrete"):
        valid(np.array([[0.5, 0.5]]))


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_vectors_get_the_shape_of_the_box(shape: tuple[int, ...]) -> None:
    box = gymnasium.spaces.Box(0.0, 2.0, shape)
    found = into_space(box, unit_box=True)(np.full((3, math.prod(shape)), 0.5))
    assert found.shape == (3, *shape)
    assert (found == 1.5).all()


def test_choices_get_the_shape_of_their_space() -> None:
    grid = gymnasium.spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 0], [5, 0]]))
    assert into_space(grid)(np.array([[1, 2, 3, 0]])).tolist() == [[[1, 2], [8, 0]]]
    switches = gymnasium.spaces.MultiBinary(3)
    assert into_space(switches)(np.array([[1, 0, 1]])).tolist() == [[1, 0, 1]]
    with pytest.raises(HyperparameterError, match=r"MultiBinary\(3\), the policy chose \[\[1, 0, 2\]\]"):
        into_space(switches)(np.array([[1, 0, 2]]))


def test_a_choice_that_the_space_does_not_have_is_refused_with_what_to_do() -> None:
    with pytest.raises(HyperparameterError, match=r"Discrete\(3\), the policy chose \[0, 3\] .*as many outputs"):
        into_space(gymnasium.spaces.Discrete(3))(np.array([0, 3]))
    with pytest.raises(HyperparameterError, match=r"the policy chose \[\[1, 3\]\]"):
        into_space(gymnasium.spaces.MultiDiscrete([2, 3]))(np.array([[1, 3]]))


def test_other_numbers_for_a_discrete_space_are_refused_with_what_to_do() -> None:
    with pytest.raises(HyperparameterError, match="continuous_action=False"):
        into_space(gymnasium.spaces.Discrete(3))(np.array([[0.3], [0.1]]))


def test_an_agent_without_values_is_refused_by_the_collector() -> None:
    class Actor:
        def sample(self, obs: np.ndarray) -> np.ndarray:
            return np.zeros(len(obs), np.int64)

    with (
        make_vector_env("CartPole-v1", 2) as envs,
        pytest.raises(TypeError, match=r"log_prob\), as parl.Agent has .* Actor has none"),
    ):
        RolloutCollector(Actor(), envs, 4).collect()  # type: ignore[arg-type]  # the wrong kind of agent is the point


def test_parts_of_a_row_become_those_of_the_space_choices_first() -> None:
    space = gymnasium.spaces.Dict(
        jump=gymnasium.spaces.Discrete(3, start=5),
        move=gymnasium.spaces.Tuple([BOX, gymnasium.spaces.MultiBinary(2)]),
    )
    rows = np.array([[2.0, 1.0, 0.0, 0.25, -7.0], [0.0, 0.0, 1.0, 0.5, 0.75]])
    parts = into_space(space)(rows)
    assert parts["jump"].tolist() == [7, 5]
    assert parts["move"][0].tolist() == [[0.25, -1.0], [0.5, 0.75]]
    assert parts["move"][1].tolist() == [[1, 0], [0, 1]]
    first, second = into_space(space, one_by_one=True)(rows)
    assert (first["jump"], second["jump"]) == (7, 5)
    assert first["move"][0].tolist() == [0.25, -1.0]
    assert second["move"][1].tolist() == [0, 1]


def test_another_number_of_columns_than_the_parts_need_is_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"which are 4 numbers in a row; the policy chose \[2, 3\]"):
        into_space(gymnasium.spaces.Tuple([BOX, BOX]))(np.zeros((2, 3)))


@pytest.mark.parametrize("part", [gymnasium.spaces.Text(3), gymnasium.spaces.Box(0, 9, (2,), np.int64)])
def test_parts_in_which_no_policy_chooses_are_refused_in_words(part: gymnasium.spaces.Space[object]) -> None:
    with pytest.raises(HyperparameterError, match=r"no policy chooses in .*ActionWrapper"):
        into_space(gymnasium.spaces.Dict({"move": BOX, "other": part}))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_numbers_have_the_dtype_of_their_box(dtype: Any) -> None:
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,), dtype)
    assert space.contains(into_space(space)(np.zeros((1, 2), np.float32))[0])

"""The grid that rewards its far corner alone."""

import numpy as np
import pytest

from parl_core.env.check import check_env
from parl_core.env.goals import SparseGrid
from parl_core.errors import HyperparameterError


def test_the_far_corner_is_rewarded_and_ends_the_episode() -> None:
    env = SparseGrid(3)
    first, _ = env.reset(seed=0)
    np.testing.assert_array_equal(first, [1, 0, 0, 1, 0, 0])
    steps = [env.step(action) for action in (0, 2, 1, 3, 1, 3)]  # two into walls, then down and right by turns
    assert [(reward, terminated, truncated) for _, reward, terminated, truncated, _ in steps] == [
        *[(0.0, False, False)] * 5,
        (1.0, True, False),
    ]
    np.testing.assert_array_equal(steps[1][0], first)
    np.testing.assert_array_equal(steps[-1][0], [0, 0, 1, 0, 0, 1])


def test_an_episode_is_cut_after_four_steps_a_cell_of_a_side() -> None:
    env = SparseGrid(3)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(12)] == [False] * 11 + [True]


def test_it_is_an_environment_of_gymnasium() -> None:
    check_env(SparseGrid(4))


def test_a_grid_of_one_cell_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="size"):
        SparseGrid(1)

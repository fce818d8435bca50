"""MAP-Elites fills its map, keeps the best of each cell, and goes on where it was."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from parl_evokit import EvolutionError, InvalidReward, LayoutMismatch, MapElites


def arm(angles: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the reward and the hand's place of a planar arm, the usual problem: even angles are better."""
    turned = np.cumsum(angles.astype(np.float64))
    hand = np.array([np.cos(turned).sum(), np.sin(turned).sum()]) / len(angles)
    return -float(np.var(angles)), hand


def new(**settings: Any) -> MapElites:
    return MapElites(np.zeros(8), [-1, -1], [1, 1], [20, 20], **{"std": 0.05, "initial": 200, **settings})


def run(search: MapElites, rounds: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(rounds):
            x = search.ask(100)
            rewards, hands = zip(*pool.map(arm, x), strict=True)
            search.tell(x, rewards, np.array(hands))


def test_an_arm_learns_to_reach_everywhere_and_evenly() -> None:
    search = new()
    run(search, 3)
    few, worth = search.coverage, float(search.rewards.mean())
    run(search, 30)
    assert search.coverage > max(0.7, few)  # the hand reaches a disc, 0.785 of the box
    assert float(search.rewards.mean()) > 0.5 * worth
    for x, reward, hand in zip(search.elites, search.rewards, search.descriptors, strict=True):
        again = arm(x)
        assert reward == again[0]
        assert (hand == again[1]).all()


def test_random_search_finds_less() -> None:
    search, random = new(), new(initial=10**9)
    run(search, 20)
    run(random, 20)
    assert search.coverage > random.coverage
    assert float(search.rewards.mean()) > 0.8 * float(random.rewards.mean())  # both are below 0


def test_a_cell_keeps_its_best_and_its_first_of_equals() -> None:
    search = MapElites([0.0, 0.0], [0], [1], [2])
    report = search.tell([[1, 1], [2, 2], [3, 3]], [1.0, 5.0, 5.0], [[0.1], [0.2], [0.3]])
    assert (report.added, report.improved, report.outside) == (1, 1, 0)
    assert search.elites.tolist() == [[2.0, 2.0]]
    report = search.tell([[4, 4], [5, 5], [6, 6]], [9.0, np.nan, 9.0], [[1.0], [0.1], [1.1]])
    assert (report.added, report.improved, report.outside) == (1, 0, 2)
    assert len(search) == 2
    assert search.coverage == 1.0


def test_a_saved_map_goes_on_to_the_same_bits() -> None:
    whole, first, second = new(), new(), new()
    run(whole, 8)
    run(first, 5)
    second.load_state(first.state())
    run(second, 3)
    assert second.elites.tobytes() == whole.elites.tobytes()
    with pytest.raises(LayoutMismatch):
        MapElites(np.zeros(3), [0], [1], [2]).load_state(first.state())
    for cells, side in (([10, 10], 1.0), ([20, 20], 2.0), ([20, 20], 0.5)):
        other = MapElites(np.zeros(8), [-side, -side], [side, side], cells)
        with pytest.raises(LayoutMismatch, match="other cells or another box"):
            other.load_state(first.state())
        assert len(other) == 0


def test_bad_settings_and_arrays_are_refused() -> None:
    for wrong in (([0], [0], [2]), ([0], [1], [0]), ([0, 0], [1], [2]), ([0], [np.inf], [2])):
        with pytest.raises(EvolutionError):
            MapElites([0.0], *wrong)
    bad: Any = (([2.5], 0), ([10**6] * 4, 0), ([2], -1), ([2], 2**64))
    for cells, seed in bad:
        with pytest.raises(EvolutionError):
            MapElites([0.0], [0] * len(cells), [1] * len(cells), cells, seed=seed)
    for name in ("std", "line_std", "initial_std"):
        for deviation in (-1.0, float("nan"), float("inf")):
            with pytest.raises(EvolutionError, match="std and line_std must be"):
                new(**{name: deviation})
    search = MapElites([0.0], [0], [1], [2])
    numbers: tuple[Any, ...] = ("1", 1j, None)
    for number in numbers:
        with pytest.raises(LayoutMismatch):
            search.tell([[1.0]], [1.0], [[number]])
        with pytest.raises(LayoutMismatch):
            search.tell([[number]], [1.0], [[0.5]])
    assert search.tell([[1.0]], [1.0], [[10**400]]).outside == 1
    for reward in ("1", 1j):
        with pytest.raises(InvalidReward, match="a reward must be a number"):
            search.tell([[1.0]], [reward], [[0.5]])
    assert search.tell([[1.0]], [10**400], [[0.5]]).outside == 1
    with pytest.raises(LayoutMismatch):
        search.tell([[1.0, 2.0]], [1.0], [[0.5]])
    with pytest.raises(LayoutMismatch):
        search.tell([[1.0]], [1.0], [[0.5, 0.5]])
    with pytest.raises(InvalidReward):
        search.tell([[1.0]], [1.0, 2.0], [[0.5]])

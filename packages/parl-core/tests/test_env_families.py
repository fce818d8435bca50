"""Environments of other packages: an id is enough, and a missing package is named."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_core.training.trained import _make_of_family, _register_family, make_standard_env


class Grid(gymnasium.Env[Any, Any]):
    """Shows what MiniGrid shows: cells, a direction, and a mission that is not an array."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (7, 7, 3), np.uint8), direction=spaces.Discrete(4), mission=spaces.Text(20)
    )
    action_space = spaces.Discrete(7)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"image": np.full((7, 7, 3), 10, np.uint8), "direction": 3, "mission": "get to the goal"}, {}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    module = ModuleType("minatar.gym")
    name = "MinAtar/Registered-v1"
    module.register_envs = lambda: gymnasium.register(name, lambda **_: Grid())  # type: ignore[attr-defined]  # as the package has it
    monkeypatch.setitem(sys.modules, "minatar", ModuleType("minatar"))
    monkeypatch.setitem(sys.modules, "minatar.gym", module)
    yield name
    gymnasium.registry.pop(name, None)


def test_a_package_registers_its_environments_when_one_is_asked_for(package: str) -> None:
    _register_family("CartPole-v1")
    assert package not in gymnasium.registry
    _register_family(package)
    _register_family(package)  # once more does nothing, and warns of nothing
    assert package in gymnasium.registry


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("MiniGrid-Nowhere-v0", "minigrid", "minigrid"),
        ("dm_control/cartpole-nowhere-v0", "shimmy", "dmcontrol"),
    ],
)
def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, env_id: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(ImportError, match=rf"pip install \"parl-core\[{extra}\]\""):
        make_standard_env(env_id)


def test_a_grid_is_seen_without_its_mission_and_in_its_real_bounds() -> None:
    env = _make_of_family("MiniGrid-Empty-5x5-v0", Grid())
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"image", "direction"}
    assert env.observation_space.contains(observation)
    assert env.observation_space["image"].high.max() == 10
    assert _make_of_family("CartPole-v1", env) is env

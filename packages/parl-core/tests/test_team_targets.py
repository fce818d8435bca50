"""Targets of teams whose agents come and go at random are those of a simple model of what happened."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from parl_core.env.joint import JointEnv
from parl_core.env.vector import make_vector_env
from parl_core.training.on_policy import OnPolicySettings, RolloutCollector, _learnable

NAMES = ("a", "b", "c", "d")


class ComingAndGoing:
    """Agents terminate, are truncated, vanish and join at random; `log` gets what happened, one list per episode."""

    possible_agents = NAMES
    metadata: Mapping[str, Any] = {}
    render_mode = None

    def __init__(self, log: list[list[dict[str, Any]]]) -> None:
        self.agents: list[str] = []
        self._log = log

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 1e6, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._seen: dict[str, float] = {}
        self.agents = self._rng.permutation(NAMES)[: self._rng.integers(1, 5)].tolist()
        found = self._observe(self.agents)
        self._log.append([{"present": set(self.agents), "seen": dict(self._seen)}])
        return found, {}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        acted, rng = list(self.agents), self._rng
        assert set(actions) == set(acted)
        ways = {
            name: str(rng.choice(["stays", "ends", "is cut", "vanishes"], p=(0.7, 0.1, 0.1, 0.1))) for name in acted
        }
        stayed = [name for name in acted if ways[name] == "stays"]
        joined = [name for name in NAMES if stayed and name not in acted and rng.random() < 0.2]
        self.agents = stayed + joined
        found = self._observe([name for name in acted + joined if name in self.agents or rng.random() < 0.6])
        rewards = {name: float(rng.normal()) for name in acted}
        what = {"ways": ways, "rewards": rewards, "present": set(self.agents), "seen": dict(self._seen)}
        self._log[-1].append(what)
        ended, cut = ({name: ways[name] == way for name in acted} for way in ("ends", "is cut"))
        return found, rewards, ended, cut, {}

    def _observe(self, names: list[str]) -> dict[str, Any]:
        found = {name: np.array([self._rng.integers(100)], np.float32) for name in names}
        self._seen |= {name: float(array[0]) for name, array in found.items()}
        return found

    def close(self) -> None:
        pass


def value_of(name: str, seen: float, present: set[str]) -> float:
    """Return a value that depends on who else is there, as those of COMA do."""
    return 3.0 * seen + sum(5.0 * (NAMES.index(other) + 1) for other in present - {name})


class Valuing:
    class alg:  # noqa: N801 - an attribute of agents
        TEAM = "central"

    def explore(self, obs: Any) -> tuple[Any, Any, Any]:
        value = self.value(obs)
        return value, np.zeros(value.shape, np.int64), np.zeros_like(value)

    def value(self, obs: Any) -> Any:
        weights = obs["alive"] * 5.0 * np.arange(1, 5)
        return 3.0 * obs["obs"][:, :, 0] + weights.sum(axis=1, keepdims=True) - weights


def by_hand(steps: list[tuple[Any, Any, bool]], gamma: float, lam: float, bootstraps: bool) -> Any:
    """Return the lambda-returns `[T, agents]` of steps: what was before, what it led to, and whether a limit came."""
    returns = np.full((len(steps), len(NAMES)), np.nan)
    for column, name in enumerate(NAMES):
        later = 0.0
        for t in reversed(range(len(steps))):
            before, after, limit = steps[t]
            if name not in after["ways"]:
                later = 0.0
                continue
            going_on = {other for other, way in after["ways"].items() if way != "ends"} | after["present"]
            cut = after["ways"][name] != "stays" or limit
            rest = 0.0
            if after["ways"][name] == "ends" or (cut and not bootstraps):
                later = 0.0
            elif cut:
                rest, later = value_of(name, after["seen"][name], going_on), 0.0
            else:
                rest = value_of(name, after["seen"][name], after["present"])
            value = value_of(name, before["seen"][name], before["present"])
            later = after["rewards"][name] + gamma * rest - value + gamma * lam * later
            returns[t, column] = later + value
    return returns


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("bootstraps", [True, False])
@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 1.0), (0.5, 0.0)])
def test_returns_of_agents_that_come_and_go_are_those_by_hand(
    gamma: float, lam: float, bootstraps: bool, limit: int | None
) -> None:
    agent: Any = Valuing()
    log: list[list[dict[str, Any]]] = []

    def make() -> Any:
        env = JointEnv(ComingAndGoing(log))
        return env if limit is None else TimeLimit(env, limit)

    settings = OnPolicySettings(n_steps=7, gamma=gamma, gae_lambda=lam, bootstrap_truncated=bootstraps)
    found, acted = [], []
    with make_vector_env(make, 1) as envs:
        collector = RolloutCollector(agent, envs, settings.n_steps, seed=1)
        for _ in range(20):
            batch: Any = _learnable(collector.collect(), settings)
            found.append(batch.return_)
            acted.append(batch.active != 0)
    steps = [(episode[t], episode[t + 1], t + 1 == limit) for episode in log for t in range(len(episode) - 1)]
    assert len(steps) == 20 * settings.n_steps
    rollouts = [steps[start : start + settings.n_steps] for start in range(0, len(steps), settings.n_steps)]
    expected = np.concatenate([by_hand(rollout, gamma, lam, bootstraps) for rollout in rollouts])
    mask = np.concatenate(acted)
    np.testing.assert_array_equal(mask, ~np.isnan(expected))
    np.testing.assert_allclose(np.concatenate(found)[mask], expected[mask], rtol=1e-4, atol=1e-3)

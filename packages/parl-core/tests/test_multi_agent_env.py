"""Several agents as lists: fixed places, agents that leave early, and PARL's particle environments."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.env.compat import CompatWrapper, api_of
from parl_core.env.multi_agent import SCENARIOS, MAenv, ParallelAgents
from parl_core.errors import HyperparameterError, ParlError

# MPE gives bounds of its spaces in float64, and Gymnasium says that it rounds them.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


class Leaving:
    """Agent `a` terminates after 2 steps, `b` is truncated after 4; rewards are the actions."""

    possible_agents = ("a", "b")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.actions: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-9.0, 9.0, (2 if agent == "a" else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.t = ["b", "a"], 0  # in another order than that of `possible_agents`
        return self._seen(), {"a": {"seed": seed}}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        self.actions.append(actions)
        seen = self._seen()
        rewards = {name: actions[name] for name in self.agents}
        terminated = {name: name == "a" and self.t == 2 for name in self.agents}
        truncated = dict.fromkeys(self.agents, self.t == 4)
        self.agents = [name for name in self.agents if not (terminated[name] or truncated[name])]
        return seen, rewards, terminated, truncated, {}

    def close(self) -> None:
        self.agents = []

    def _seen(self) -> dict[str, Any]:
        return {name: np.full(2 if name == "a" else 3, self.t, np.float32) for name in self.agents}


def test_an_agent_that_leaves_keeps_its_place() -> None:
    env = ParallelAgents(Leaving())
    assert (env.n, env.agents_name, env.obs_shape_n, env.act_shape_n) == (2, ["a", "b"], [2, 3], [4, 4])
    obs, infos = env.reset(seed=5)
    assert [len(row) for row in obs] == [2, 3]
    assert infos == [{"seed": 5}, {}]
    steps = [env.step([np.int64(1), 3]) for _ in range(4)]
    assert [step[1] for step in steps] == [[1.0, 3.0], [1.0, 3.0], [0.0, 3.0], [0.0, 3.0]]
    assert [step[2] for step in steps] == [[False, False], [True, False], [True, False], [True, False]]
    assert [step[3] for step in steps] == [[False, False]] * 3 + [[False, True]]
    assert steps[1][0][0].tolist() == [2, 2]  # its last observation
    assert steps[2][0][0].tolist() == [0, 0]
    assert env.env.actions[-1] == {"b": 3}
    with pytest.raises(ParlError, match="call reset"):
        env.step([1, 1])
    env.close()


def test_the_zeros_of_an_agent_that_left_have_the_parts_of_its_space() -> None:
    box = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    space = gymnasium.spaces.Dict(seen=box, both=gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), box]))

    class Parts(Leaving):
        def observation_space(self, agent: str) -> Any:
            return space

        def _seen(self) -> dict[str, Any]:
            return {name: space.sample() for name in self.agents}

    env = ParallelAgents(Parts())
    env.reset(seed=0)
    for _ in range(3):
        obs, *_ = env.step([0, 0])
    np.testing.assert_equal(obs[0], {"seen": np.zeros(2), "both": (0, np.zeros(2))})


def test_scores_choose_among_the_actions_of_a_space_that_starts_elsewhere() -> None:
    class FromOne(Leaving):
        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(4, start=1)

    env = ParallelAgents(FromOne())
    env.reset()
    env.step([[0.9, 0.1, 0.0, 0.0], [0.0, 0.1, 0.0, 0.9]])
    env.step([1, 4])
    assert env.env.actions == [{"a": 1, "b": 4}] * 2


def test_a_wrong_number_of_actions_is_refused_with_the_agents_names() -> None:
    env = ParallelAgents(Leaving())
    env.reset()
    with pytest.raises(HyperparameterError, match=r"3 actions for 2 agents: \['a', 'b'\]"):
        env.step([0, 0, 0])


def test_what_is_no_parallel_environment_is_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"CartPoleEnv has no possible_agents.*parallel"):
        ParallelAgents(gymnasium.make("CartPole-v1").unwrapped)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_plays_an_episode_of_known_length(scenario: str, continuous: bool) -> None:
    pytest.importorskip("mpe2")
    env = MAenv(scenario, continuous, max_cycles=5)
    obs, _ = env.reset(seed=1)
    for t in range(5):
        assert [row.shape[0] for row in obs] == env.obs_shape_n
        obs, rewards, terminated, truncated, _ = env.step([space.sample() for space in env.action_space])
        assert not any(terminated)
        assert truncated == [t == 4] * env.n
    assert len(rewards) == env.n
    env.close()


def test_agents_of_simple_spread_share_a_reward_as_in_parl_2() -> None:
    mpe2 = pytest.importorskip("mpe2.simple_spread_v3")
    totals = []
    for env in (
        MAenv("simple_spread"),
        ParallelAgents(mpe2.parallel_env(local_ratio=0)),
        MAenv("simple_spread", local_ratio=0.5),
    ):
        env.reset(seed=1)
        rewards = [env.step([t % 5, 1, 2])[1] for t in range(25)]
        totals.append(np.sum(rewards, axis=0).tolist())
        env.close()
    assert totals[0] == totals[1]
    assert len(set(totals[0])) == 1
    assert totals[2] != totals[0]


def test_continuous_actions_are_mapped_from_minus_one_to_one() -> None:
    pytest.importorskip("mpe2")
    env = MAenv("simple_speaker_listener", continuous_actions=True)
    assert env.agents_name == ["speaker_0", "listener_0"]
    assert all((space.low == -1).all() and (space.high == 1).all() for space in env.action_space)
    env.reset(seed=1)
    taken: list[Any] = []
    own = env.env.step

    def step(actions: Any) -> Any:
        taken.append(actions)
        return own(actions)

    env.env.step = step
    env.step([-np.ones(3), np.zeros(5)])
    np.testing.assert_array_equal(taken[0]["speaker_0"], np.zeros(3))
    np.testing.assert_array_equal(taken[0]["listener_0"], np.full(5, 0.5, np.float32))
    env.close()


def test_a_compat_wrapper_gives_the_lists_of_parl_2() -> None:
    env: Any = CompatWrapper(ParallelAgents(Leaving()))
    assert (env.api, api_of(env), api_of(env.unwrapped)) == ("gym", "gym", "gymnasium")
    assert (env.n, env.agents_name, env.act_shape_n) == (2, ["a", "b"], [4, 4])
    assert isinstance(env.action_space, list)
    inner = ParallelAgents(Leaving())
    seen, _ = inner.reset(seed=1)
    env.seed(1)
    assert [row.tolist() for row in env.reset()] == [row.tolist() for row in seen]
    over = False
    while not over:
        after, rewards, terminated, truncated, _ = inner.step([0, 1])
        obs, same, done, infos = env.step([[0.9, 0.1, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0]])  # scores of the choices
        assert [row.tolist() for row in obs] == [row.tolist() for row in after]
        assert same == rewards
        assert done == [one or other for one, other in zip(terminated, truncated, strict=True)]
        assert [info.get("TimeLimit.truncated") for info in infos] == [
            not one if end else None for one, end in zip(terminated, done, strict=True)
        ]
        over = all(done)


def test_the_documented_name_is_importable_and_an_unknown_scenario_is_refused() -> None:
    from parl.env.multiagent_env import MAenv as Documented

    assert Documented is MAenv
    with pytest.raises(HyperparameterError, match=r"simple_spread.* got 'simple_spred'"):
        MAenv("simple_spred")


def test_missing_particle_environments_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mpe2", "pettingzoo", "pettingzoo.mpe"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install \"parl-core\[multiagent\]\""):
        MAenv("simple_spread")

"""Several agents as one environment: joint observations, agents that leave, masks, padding, other interfaces."""

import re
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from parl_core.actors import open_actors
from parl_core.env._recorded import RecordedEnv
from parl_core.env.joint import JointEnv, is_joint, make_joint_env
from parl_core.env.matrix_games import GAMES, MatrixGame, TwoStepGame, climbing, penalty
from parl_core.env.multi_agent import SMACGame, TupleGame
from parl_core.env.vector import make_vector_env
from parl_core.errors import EnvironmentContractError, HyperparameterError, ParlError
from parl_core.training._recipe_run import preset
from parl_core.training.settings import settings_of
from parl_core.training.trained import make_flat_env

# MPE gives bounds of its spaces in float64, and Gymnasium says that it rounds them.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


class Leaving:
    """Agent `a` leaves after 2 steps, `b` after 4, by termination or truncation; rewards are the actions."""

    possible_agents = ("a", "b")

    def __init__(self, ends: str = "tt", masks: bool = False) -> None:
        self.agents: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.ends, self.masks = dict(zip("ab", ends, strict=True)), masks

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 9.0, (2 if agent == "a" else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2 if agent == "a" else 4, start=1 if agent == "a" else 0)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.t, self.seed = ["b", "a"], 0, seed  # in another order than that of `possible_agents`
        return self.seen(), self.infos()

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        self.actions.append(actions)
        acted = list(self.agents)
        left = {name: self.t >= (2 if name == "a" else 4) for name in acted}
        seen = self.seen()
        self.agents = [name for name in acted if not left[name]]
        return (
            seen,
            {name: float(actions[name]) for name in acted},
            {name: left[name] and self.ends[name] == "t" for name in acted},
            {name: left[name] and self.ends[name] == "c" for name in acted},
            self.infos(),
        )

    def seen(self) -> dict[str, Any]:
        return {name: self.observation_space(name).low * 0 + self.t + 1 for name in self.agents}

    def infos(self) -> dict[str, Any]:
        return {name: {"action_mask": np.array([0, 1])} if self.masks and name == "a" else {} for name in self.agents}

    def close(self) -> None: ...


def test_agents_that_leave_keep_their_rows() -> None:
    env = JointEnv(Leaving(), team_reward="sum")
    obs, _ = env.reset(seed=3)
    assert obs["alive"].tolist() == [1, 1]
    assert obs["obs"].tolist() == [[1, 1, 0], [1, 1, 1]]  # the smaller one is padded
    assert obs["state"].tolist() == [1, 1, 1, 1, 1]  # without padding
    obs, reward, *_ = env.step([0, 3])
    assert (reward, obs["rewards"].tolist()) == (4.0, [1.0, 3.0])
    obs, reward, terminated, truncated, _ = env.step([1, 2])
    assert obs["alive"].tolist() == [0, 1]
    assert obs["terminated"].tolist() == [1, 0]
    assert obs["obs"][0].tolist() == [3, 3, 0]  # its last observation
    assert (terminated, truncated) == (False, False)
    obs, reward, *_ = env.step([1, 2])
    assert obs["obs"][0].tolist() == [0, 0, 0]
    assert (reward, obs["rewards"].tolist(), obs["terminated"].tolist()) == (2.0, [0.0, 2.0], [1, 0])
    *_, terminated, truncated, _ = env.step([1, 2])
    assert (terminated, truncated) == (True, False)
    assert env.parallel_env.actions == [{"a": 1, "b": 3}, {"a": 2, "b": 2}, {"b": 2}, {"b": 2}]  # `a` counts from 1
    with pytest.raises(ParlError, match="reset"):
        env.step([0, 0])


@pytest.mark.parametrize(
    ("ends", "flags", "over"),
    [("tc", [1, 0], (False, True)), ("ct", [0, 1], (True, False)), ("cc", [0, 0], (False, True))],
)
def test_an_episode_is_truncated_if_its_last_step_truncates_an_agent(
    ends: str, flags: list[int], over: tuple[bool, bool]
) -> None:
    env = JointEnv(Leaving(ends))
    env.reset()
    for _ in range(4):
        obs, _, *ended, _ = env.step([0, 0])
    assert obs["terminated"].tolist() == flags
    assert tuple(ended) == over


class Careless(Leaving):
    """Tells nothing of agents in the step in which they leave, and everything of those that have left."""

    def seen(self) -> dict[str, Any]:
        told = {name: self.t < (2 if name == "a" else 4) or self.t > 2 for name in "ab"}
        return {name: self.observation_space(name).low * 0 + self.t + 1 for name in "ab" if told[name]}

    def infos(self) -> dict[str, Any]:
        return {"a": {"action_mask": np.array([0, 1])}} if self.t < 2 else {}


def test_an_agent_that_leaves_without_a_last_observation_keeps_the_one_before() -> None:
    env = JointEnv(Careless("cc"))
    env.reset()
    env.step([1, 2])
    obs = env.step([1, 2])[0]
    assert (obs["alive"].tolist(), obs["terminated"].tolist()) == ([0, 1], [0, 0])
    assert obs["obs"].tolist() == [[2, 2, 0], [3, 3, 3]]
    assert obs["state"].tolist() == [2, 2, 3, 3, 3]
    assert obs["action_mask"].tolist() == [[0, 1, 0, 0], [1, 1, 1, 1]]


def test_what_is_told_of_absent_agents_is_not_observed() -> None:
    env = JointEnv(Careless("cc"))
    env.reset()
    for _ in range(3):
        obs = env.step([1, 2])[0]
    assert obs["obs"].tolist() == [[0, 0, 0], [4, 4, 4]]
    assert obs["state"].tolist() == [0, 0, 4, 4, 4]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ({"masks": np.ones(3, np.int8)}, r"action_mask of shape \[3\] for a, which has 2 choices"),
        ({"masks": np.zeros(2, np.int8)}, "action_mask that leaves no action for a"),
        ({"seen": np.ones(1, np.float32)}, r"observation of a.*shape \[1\].*shape \[2\]"),
        ({"reward": None}, "reward None"),
        ({"joins": "c"}, "agent c, which is not among its possible_agents"),
        ({"untold": 1}, "no entry for a in its rewards"),
        ({"untold": 2}, "no entry for a in its terminations"),
        ({"untold": 3}, "no entry for a in its truncations"),
        ({"state": np.ones(5)}, r"state\(\) of Wrong has shape \[5\]"),
    ],
)
def test_what_breaks_the_api_is_named(spoil: dict[str, Any], told: str) -> None:
    class Wrong(Leaving):
        state_space = spaces.Box(-9.0, 9.0, (2, 2), np.float32)

        def state(self) -> Any:
            return spoil.get("state", np.ones((2, 2))) if self.t else np.ones((2, 2))

        def step(self, actions: dict[str, Any]) -> Any:
            seen, rewards, terminated, truncated, _ = super().step(actions)
            self.agents += spoil.get("joins", "")
            seen["a"] = spoil.get("seen", seen["a"])
            rewards["a"] = spoil.get("reward", 1.0)
            answer = (seen, rewards, terminated, truncated, {"a": {"action_mask": spoil.get("masks")}})
            if "untold" in spoil:
                del answer[spoil["untold"]]["a"]
            return answer

    env = JointEnv(Wrong())
    env.reset()
    with pytest.raises(EnvironmentContractError, match=told):
        env.step([0, 0])


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("reset", {"a": 1, "b": 1}, r"reset of Old returned .*: let it return \(observations, infos\)"),
        ("step", ({}, {}, {}, {}), r"step of Old returned a tuple of 4: let it return \(observations, rewards, term"),
        ("step", ({}, {}, {}, {}, None), "step of Old gave infos=None: return a dictionary by agent"),
    ],
)
def test_answers_that_are_not_of_the_present_api_are_refused(method: str, answer: Any, told: str) -> None:
    class Old(Leaving): ...

    env = JointEnv(Old())
    if method == "step":
        env.reset()
    setattr(env.parallel_env, method, lambda *_, **__: answer)
    with pytest.raises(EnvironmentContractError, match=told):
        env.step([0, 0]) if method == "step" else env.reset()


@pytest.mark.parametrize(
    ("agents", "told"),
    [([], r"agents is empty after reset"), (["a", "c"], "agent c, which is not among its possible_agents")],
)
def test_an_episode_that_begins_without_agents_or_with_unknown_ones_is_refused(agents: list[str], told: str) -> None:
    class Wrong(Leaving):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed, options)
            self.agents = agents
            return found

    env = JointEnv(Wrong())
    with pytest.raises(EnvironmentContractError, match=told):
        env.reset()
    with pytest.raises(ParlError, match="reset"):
        env.step([0, 0])


def test_an_environment_need_not_have_a_method_that_closes_it() -> None:
    class Open(Leaving):
        close = None  # type: ignore[assignment]  # as if it had none

    JointEnv(Open()).close()


@pytest.mark.parametrize("action", [-1, 2, 0.5])
def test_an_action_that_an_agent_does_not_have_is_refused(action: float) -> None:
    env = JointEnv(Leaving())
    env.reset()
    with pytest.raises(HyperparameterError, match=rf"the action {action} for a, which has 2 choices"):
        env.step([action, 0])
    with pytest.raises(HyperparameterError, match=r"dictionary of actions .* for each of \('a', 'b'\), in this order"):
        env.step({"a": 1, "b": 3})
    env.step([1, 3])


def test_an_agent_that_left_without_a_word_is_one_that_was_truncated() -> None:
    class Silent(Leaving):
        def step(self, actions: dict[str, Any]) -> Any:
            seen, rewards, *ends, infos = super().step(actions)
            return seen, rewards, *(dict.fromkeys(self.agents, False) for _ in ends), infos

    env = JointEnv(Silent())
    env.reset()
    env.step([0, 0])
    obs, *_ = env.step([0, 0])
    assert (obs["alive"].tolist(), obs["terminated"].tolist()) == ([0, 1], [0, 0])


def test_the_mean_is_of_the_agents_that_acted() -> None:
    env = JointEnv(Leaving())
    env.reset()
    assert env.step([0, 3])[1] == 2.0
    env.step([0, 3])
    assert env.step([0, 3])[1] == 3.0


@pytest.mark.parametrize("name", ["final_obs", "episode", "_final_info", "_a"])
def test_names_of_agents_that_infos_of_vectors_have_for_something_else_are_refused(name: str) -> None:
    class Renamed(Leaving):
        possible_agents = ("a", name)

    with pytest.raises(HyperparameterError, match=f"Renamed has the agent '{name}', .* rename it"):
        JointEnv(Renamed())


def test_the_state_does_not_change_with_the_environments_own_array() -> None:
    class InPlace(Leaving):
        state_space = spaces.Box(-9.0, 9.0, (1,), np.float32)

        def __init__(self) -> None:
            super().__init__()
            self.own = np.zeros(1, np.float32)

        def state(self) -> Any:
            self.own[:] = self.t
            return self.own

    env = JointEnv(InPlace())
    states = [env.reset()[0]["state"], *(env.step([1, 0])[0]["state"] for _ in range(2))]
    assert [state.tolist() for state in states] == [[0], [1], [2]]


def test_masks_have_padding_and_what_infos_say() -> None:
    env = JointEnv(Leaving(masks=True))
    obs, infos = env.reset()
    assert obs["action_mask"].tolist() == [[0, 1, 0, 0], [1, 1, 1, 1]]
    assert infos == {}
    env.step([1, 0])
    obs = env.step([1, 0])[0]
    assert obs["action_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]  # absent: no choice is impossible


def test_an_agent_that_leaves_may_have_no_choice() -> None:
    class NoneLeft(Leaving):
        def infos(self) -> dict[str, Any]:
            return {name: {"action_mask": np.zeros(2 if name == "a" else 4) + (self.t < 2)} for name in "ab"}

    env = JointEnv(NoneLeft())
    env.reset()
    assert env.step([1, 0])[0]["action_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    with pytest.raises(EnvironmentContractError, match="no action for b"):
        env.step([1, 0])


class Continuous(Leaving):
    def action_space(self, agent: str) -> Any:
        return spaces.Box(-2.0, 3.0, (1 if agent == "a" else 2,), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        found = super().step(dict.fromkeys(actions, 0))
        self.actions[-1] = actions
        return found


def test_continuous_actions_are_padded() -> None:
    env = JointEnv(Continuous())
    assert env.action_space.low.tolist() == [[-2, 0], [-2, -2]]
    assert env.act_sizes == (1, 2)
    obs, _ = env.reset()
    assert "action_mask" not in obs
    env.step(np.array([[0.5, 0.7], [1.0, 2.0]], np.float32))
    assert {name: action.tolist() for name, action in env.parallel_env.actions[0].items()} == {
        "a": [0.5],
        "b": [1.0, 2.0],
    }


def test_agents_with_both_kinds_of_actions_are_refused() -> None:
    class Both(Leaving):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2) if agent == "a" else spaces.Box(-1.0, 1.0, (1,), np.float32)

    with pytest.raises(HyperparameterError, match=r"a: Discrete\(2\), b: Box"):
        JointEnv(Both())


def test_observations_lie_in_the_space() -> None:
    for env in (JointEnv(Leaving()), JointEnv(Continuous()), make_joint_env("two_step"), JointEnv(Pictures())):
        obs, _ = env.reset(seed=0)
        assert env.observation_space.contains(obs)
        while True:
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(obs)
            if terminated or truncated:
                break


class Pictures(Leaving):
    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(
            {"observation": spaces.Box(0, 255, (2, 2, 1), np.uint8), "action_mask": spaces.MultiBinary(4)}
        )

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def seen(self) -> dict[str, Any]:
        found = {"observation": np.full((2, 2, 1), self.t, np.uint8), "action_mask": np.array([1, 0, 0, 1], np.int8)}
        return dict.fromkeys(self.agents, found)


def test_equal_arrays_keep_their_shape_and_masks_among_observations_are_found() -> None:
    env = JointEnv(Pictures())
    obs, _ = env.reset()
    assert (obs["obs"].shape, obs["obs"].dtype) == ((2, 2, 2, 1), np.uint8)
    assert obs["action_mask"].tolist() == [[1, 0, 0, 1]] * 2
    assert obs["state"].tolist() == [0.0] * 8
    obs = env.step([0, 0])[0]
    assert obs["obs"].tolist() == np.ones((2, 2, 2, 1)).tolist()
    np.testing.assert_array_equal(obs["state"], np.full(8, 1 / 255, np.float32))  # in [0, 1], as networks take images


_KINDS_OF_OBSERVATIONS: list[tuple[Any, Any, list[float]]] = [
    (spaces.Box(0, 255, (2,), np.uint8), np.array([51, 255], np.uint8), [0.2, 1.0]),
    (spaces.Box(np.array([-5, 0]), np.array([5, 100]), dtype=np.int64), np.array([-5, 25]), [0.0, 0.25]),
    (spaces.Box(-(2**31), 2**31 - 2, (1,), np.int32), np.array([7], np.int32), [7.0]),
    (spaces.Box(-1.0, 9.0, (2,), np.float32), np.array([-1.0, 8.5], np.float32), [-1.0, 8.5]),
    (spaces.Box(0.0, 10.0, (1, 2, 1), np.float32), np.array([[[2.5], [10.0]]], np.float32), [0.25, 1.0]),
    (spaces.Discrete(3, start=1), 2, [0.0, 1.0, 0.0]),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0.0, 1.0, 1.0, 0.0, 0.0]),
    (spaces.MultiBinary(2), np.array([1, 0], np.int8), [1.0, 0.0]),
    (
        spaces.Dict(x=spaces.Box(0, 4, (1,), np.int8), y=spaces.Tuple([spaces.Discrete(2)])),
        {"x": np.array([1], np.int8), "y": (1,)},
        [0.25, 0.0, 1.0],
    ),
]


@pytest.mark.parametrize(("space", "value", "features"), _KINDS_OF_OBSERVATIONS, ids=lambda part: type(part).__name__)
def test_the_state_has_features_of_any_space(space: Any, value: Any, features: list[float]) -> None:
    class Seeing(Leaving):
        def observation_space(self, agent: str) -> Any:
            return space if agent == "a" else spaces.Box(-9.0, 9.0, (1,), np.float32)

        def seen(self) -> Any:
            return {"a": value, "b": np.array([3.0], np.float32)}

    class Stating(Leaving):
        state_space = space

        def state(self) -> Any:
            return value

    joined, own = JointEnv(Seeing()), JointEnv(Stating())
    found = joined.reset(seed=0)[0]
    assert found["state"].tolist() == pytest.approx([*features, 3.0])
    assert own.reset(seed=0)[0]["state"].tolist() == pytest.approx(features)
    if not isinstance(space, spaces.Box) or space.shape != (1,):  # rows that are padded are features, too
        assert found["obs"].tolist() == [pytest.approx(features), [3.0] + [0.0] * (len(features) - 1)]
    assert all(env.observation_space.contains(env.reset(seed=0)[0]) for env in (joined, own))


def test_a_state_that_lacks_a_part_is_named() -> None:
    class Stating(Leaving):
        state_space = spaces.Dict(x=spaces.Discrete(2), y=spaces.Discrete(2))

        def state(self) -> Any:
            return {"x": 1}

    with pytest.raises(EnvironmentContractError, match=r"state\(\) of Stating is \{'x': 1\}, its state_space Dict"):
        JointEnv(Stating()).reset()


def test_what_is_no_such_environment_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="possible_agents"):
        JointEnv(gymnasium.make("CartPole-v1"))
    by_name: Any = Leaving()
    by_name.observation_space = spaces.Dict({name: Leaving().observation_space(name) for name in "ab"})
    with pytest.raises(HyperparameterError, match=r"observation_space of Leaving is a Dict: .* method"):
        JointEnv(by_name)
    nobody = Leaving()
    nobody.possible_agents = ()  # type: ignore[assignment]
    with pytest.raises(HyperparameterError, match="possible_agents of Leaving is empty"):
        JointEnv(nobody)
    with pytest.raises(HyperparameterError, match="team_reward"):
        JointEnv(Leaving(), team_reward="median")  # type: ignore[arg-type]
    with pytest.raises(HyperparameterError, match="state_space"):
        JointEnv(Leaving(), state="env")
    env = JointEnv(Leaving())
    env.reset()
    with pytest.raises(HyperparameterError, match="3 actions for 2"):
        env.step([0, 0, 0])


def test_an_episode_without_a_seed_follows_from_the_one_before() -> None:
    one, other = make_joint_env("cued_two_step"), make_joint_env("cued_two_step")
    begun = []
    for env in (one, other):
        first = [env.reset(seed=5)[0]["state"].tolist()]
        begun.append(first + [env.reset()[0]["state"].tolist() for _ in range(6)])
    assert begun[0] == begun[1]
    assert len({tuple(state) for state in begun[0]}) == 2


def test_a_recorded_episode_is_taken_up_again() -> None:
    env = RecordedEnv(JointEnv(Leaving()))
    env.reset(seed=1)
    env.step(np.array([1, 3]))
    state = env.get_state()
    again = RecordedEnv(JointEnv(Leaving()))
    again.set_state(state)
    for one, other in zip(env.step(np.array([1, 2])), again.step(np.array([1, 2])), strict=True):
        assert str(one) == str(other)


@pytest.mark.slow
def test_vectors_give_joint_observations_in_actors_as_here() -> None:
    actions = np.random.default_rng(0).integers(2, size=(6, 3, 2))
    with open_actors("subprocess", processes=2) as system:
        found = []
        for actors in (None, system):
            with make_vector_env(make_two_step, 3, actors=actors, envs_per_actor=2) as envs:
                steps = [envs.reset(seed=[1, 2, 3])[0]]
                ends = []
                for action in actions:
                    obs, reward, terminated, _, infos = envs.step(action)
                    steps.append(obs)
                    ends.append((reward, terminated, infos.get("final_obs")))
                found.append((steps, ends))
    assert sorted_text(found[0]) == sorted_text(found[1])
    assert found[0][0][1]["alive"].shape == (3, 2)
    last: Any = found[0][1][1][2]
    assert last[0]["rewards"].shape == (2,)  # the last step's rewards are in the last observation


def sorted_text(found: Any) -> str:
    """Return what was found in words, dictionaries sorted."""
    if isinstance(found, dict):
        return str([(name, sorted_text(found[name])) for name in sorted(found)])
    if isinstance(found, (list, tuple)) or (isinstance(found, np.ndarray) and found.dtype.kind == "O"):
        return str([sorted_text(part) for part in found])
    return str(found)


def make_two_step() -> Any:
    return make_joint_env("two_step")


@pytest.mark.parametrize("name", sorted(GAMES))
def test_the_optimum_of_a_game_is_the_best_mean_return(name: str) -> None:
    game = GAMES[name]()
    if isinstance(game, MatrixGame):
        returns = [_play(GAMES[name](), [list(index)], 0) for index in np.ndindex(*game.payoffs.shape)]
        assert max(returns) == game.optimum
        return
    first = [[0, 0]] if name == "cued_two_step" else []
    best = []
    for seed in range(6):  # the best team sees the cue, and any other reaches no more
        plans = [[*first, [a, 0], [b, c]] for a in range(2) for b in range(2) for c in range(2)]
        best.append(max(_play(GAMES[name](), plan, seed) for plan in plans))
    assert np.mean(best) == game.optimum


def _play(game: Any, plan: list[list[int]], seed: int) -> float:
    game.reset(seed=seed)
    total = 0.0
    for actions in plan:
        rewards = game.step(dict(zip(game.possible_agents, actions, strict=True)))[1]
        total += rewards["agent_0"]
    assert not game.agents
    return total


def test_published_payoffs() -> None:
    assert climbing().payoffs.tolist() == [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]
    assert penalty(-10).payoffs.tolist() == [[10, 0, -10], [0, 2, 0], [-10, 0, 10]]
    assert TwoStepGame.GAMES_AB.tolist() == [[[7, 7], [7, 7]], [[0, 1], [1, 8]]]


def test_only_the_first_agent_sees_the_cue_and_only_once() -> None:
    game = TwoStepGame(cued=True)
    first, _ = game.reset(seed=0)
    assert first["agent_0"][4:].sum() == 1
    assert not first["agent_1"].any()
    then = game.step({"agent_0": 0, "agent_1": 0})[0]
    assert not then["agent_0"][4:].any()


class FakeStarCraft:
    """SMAC's interface: two agents, of which the first dies in the second step."""

    def __init__(self, limit: int = 9, *, map_name: str = "8m", continuing_episode: bool = False) -> None:
        self.limit, self.map_name, self.reports_limit, self.t = limit, map_name, continuing_episode, 0
        self.actions: list[list[int]] = []

    def get_env_info(self) -> dict[str, int]:
        return {"n_agents": 2, "obs_shape": 3, "state_shape": 4, "n_actions": 5, "episode_limit": self.limit}

    def reset(self) -> Any:
        self.t = 0
        return self.get_obs(), self.get_state()

    def get_obs(self) -> Any:
        return [np.full(3, self.t), np.full(3, -self.t)]

    def get_state(self) -> Any:
        return np.full(4, 2 * self.t)

    def get_avail_actions(self) -> Any:
        return [[1, 0, 0, 0, 0] if self.t >= 2 else [0, 1, 1, 0, 0], [0, 1, 1, 1, 1]]

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.actions.append(list(actions))
        over = self.t >= min(self.limit, 4)
        at_limit = self.t == self.limit
        return 1.5, over, {"episode_limit": True} if at_limit and self.reports_limit else {"battle_won": not at_limit}

    def close(self) -> None: ...


def test_an_agent_of_smac_that_dies_leaves() -> None:
    env = JointEnv(SMACGame(env=FakeStarCraft()))
    obs, _ = env.reset(seed=1)
    assert obs["action_mask"].tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert obs["state"].tolist() == [0, 0, 0, 0]
    env.step([1, 4])
    obs, reward, *_ = env.step([2, 3])
    assert (obs["alive"].tolist(), obs["terminated"].tolist(), reward) == ([0, 1], [1, 0], 1.5)
    env.step([2, 3])
    *_, terminated, truncated, infos = env.step([2, 3])
    assert (terminated, truncated) == (True, False)
    assert infos["agent_1"]["battle_won"] is True
    assert env.parallel_env.env.actions[-1] == [0, 3]  # who has left does nothing


def test_an_agent_of_smac_that_dies_may_stay_for_the_rewards_of_its_team() -> None:
    env = JointEnv(SMACGame(env=FakeStarCraft(), dead_agents_stay=True))
    env.reset(seed=1)
    env.step([1, 4])
    obs = env.step([2, 3])[0]
    assert (obs["alive"].tolist(), obs["terminated"].tolist()) == ([1, 1], [0, 0])
    assert obs["action_mask"][0].tolist() == [1, 0, 0, 0, 0]
    assert env.step([0, 3])[0]["rewards"].tolist() == [1.5, 1.5]
    obs, _, terminated, truncated, _ = env.step([0, 3])
    assert (terminated, truncated) == (True, False)
    assert obs["terminated"].tolist() == [1, 1]


@pytest.mark.parametrize(("options", "cut"), [({}, True), ({"continuing_episode": False}, False)])
def test_the_limit_of_steps_of_smac_truncates(
    options: dict[str, Any], cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = ModuleType("smac.env")
    package.StarCraft2Env = FakeStarCraft
    monkeypatch.setitem(sys.modules, "smac.env", package)
    env = make_joint_env("smac:3m", limit=3, **options)
    assert env.parallel_env.env.map_name == "3m"
    env.reset()
    for _ in range(3):
        obs, _, terminated, truncated, _ = env.step([1, 3])
    assert (terminated, truncated) == (not cut, cut)
    assert obs["terminated"].tolist() == [1, int(not cut)]  # the first had died before


def test_smac_that_is_not_installed_is_named() -> None:
    with pytest.raises(ImportError, match="smac"):
        make_joint_env("smac:3m")


class Foraging(gymnasium.Env[Any, Any]):
    """The form of level-based foraging: tuples, and a list of rewards."""

    observation_space = spaces.Tuple([spaces.Box(0.0, 1.0, (2,), np.float32)] * 2)
    action_space = spaces.Tuple([spaces.Discrete(3)] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return (np.zeros(2, np.float32),) * 2, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return (np.ones(2, np.float32),) * 2, [float(a) for a in action], False, self.t == 2, {}


def test_tuples_are_agents() -> None:
    env = JointEnv(TupleGame(Foraging()), team_reward="sum")
    env.reset(seed=0)
    obs, reward, *_ = env.step([1, 2])
    assert (reward, obs["rewards"].tolist()) == (3.0, [1.0, 2.0])
    *_, terminated, truncated, _ = env.step([1, 2])
    assert (terminated, truncated) == (False, True)
    with pytest.raises(HyperparameterError, match="must be a Tuple"):
        TupleGame(gymnasium.make("CartPole-v1"))


class Apart(Foraging):
    """The first agent terminates in the first step, the second is truncated in the second; each has a flag."""

    action_space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Discrete(3)])

    def step(self, action: Any) -> Any:
        self.action = action
        seen, rewards, *_, info = super().step(action)
        return seen, rewards, [self.t == 1, False], [False, self.t == 2], info


def test_agents_of_tuples_that_have_flags_of_their_own_end_each_on_its_own() -> None:
    env = JointEnv(TupleGame(Apart()))
    env.reset(seed=0)
    obs, _, *ended, _ = env.step([2, 2])
    assert (obs["alive"].tolist(), obs["terminated"].tolist(), ended) == ([0, 1], [1, 0], [False, False])
    obs, _, *ended, _ = env.step([2, 2])
    assert env.parallel_env.env.action == (1, 2)  # who has left takes its first action
    assert (obs["alive"].tolist(), obs["terminated"].tolist(), ended) == ([0, 0], [1, 0], [False, True])
    assert obs["rewards"].tolist() == [0.0, 2.0]


class Skirmish(Foraging):
    """The form of SMAClite: an info has the masks of all agents, each as long as the longest."""

    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], self.info()

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], self.info()

    def info(self) -> Any:
        return {"avail_actions": [np.array([self.t, 1.0, 0.0]), np.array([1.0, 0.0, 1.0])], "time": self.t}


def test_masks_of_all_agents_of_tuples_are_found_in_the_info() -> None:
    env = JointEnv(TupleGame(Skirmish()))
    obs, info = env.reset(seed=0)
    assert obs["action_mask"].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert info == {"agent_0": {"time": 0}, "agent_1": {"time": 0}}
    obs, *_ = env.step([1, 2])
    assert obs["action_mask"].tolist() == [[1, 1, 0], [1, 0, 1]]


def test_a_mask_in_the_info_of_tuples_that_has_no_row_for_each_agent_is_every_agents() -> None:
    class Alike(Skirmish):
        def info(self) -> Any:
            return {"action_mask": np.array([1, 0])}

    game = TupleGame(Alike())
    _, infos = game.reset(seed=0)
    assert [infos[name]["action_mask"].tolist() for name in game.possible_agents] == [[1, 0], [1, 0]]


class Endless(Foraging):
    def step(self, action: Any) -> Any:
        seen, rewards, *_, info = super().step(action)
        return seen, rewards, False, False, info


@pytest.mark.parametrize(("options", "limit"), [({}, 3), ({"max_episode_steps": 2}, 2)])
def test_a_registered_limit_of_steps_truncates_agents_of_tuples(
    options: dict[str, int], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Endless-v0", f"{__name__}:Endless", max_episode_steps=3)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    env = make_joint_env(f"gymnasium:{spec.id}", **options)
    env.reset(seed=0)
    ended = [env.step([0, 0])[2:4] for _ in range(limit)]
    assert ended == [(False, False)] * (limit - 1) + [(False, True)]


def test_names() -> None:
    assert is_joint("two_step")
    assert not is_joint("CartPole-v1")
    assert not is_joint("gymnasium:CartPole-v1")


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("two_stp", HyperparameterError, "did you mean two_step?"),
        ("simple_spread_v3", HyperparameterError, "lbforaging:ID"),
        ("lbforaging:Foraging-8x8-2p-1f-v3", ImportError, "pip install lbforaging"),
        ("petingzoo.classic:chess_v6", ImportError, "did you mean pettingzoo?"),
        ("mpe2:simple_spread_v33", HyperparameterError, "did you mean mpe2:simple_spread_v3?"),
        ("gymnasium:CartPole-v11", HyperparameterError, "did you mean gymnasium:CartPole-v1?"),
        ("json:spread", HyperparameterError, "there is no module json.spread; use package:module"),
        ("json:decoder", HyperparameterError, "the module json.decoder, which has neither parallel_env nor env"),
    ],
)
def test_the_fault_of_a_name_is_reported(name: str, error: type[Exception], told: str) -> None:
    if name.startswith("mpe2"):
        pytest.importorskip("mpe2")
    if name != "gymnasium:CartPole-v11":
        with pytest.raises(error, match=re.escape(told)):
            make_joint_env(name)
    if ":" in name:
        with pytest.raises(error, match=re.escape(told)):
            make_flat_env(name)


def test_particle_environments_by_name() -> None:
    pytest.importorskip("mpe2")
    assert is_joint("mpe2:simple_spread_v3")
    env = make_joint_env("mpe2:simple_spread_v3", max_cycles=3, team_reward="sum")
    obs, _ = env.reset(seed=1)
    assert obs["obs"].shape == (3, 18)
    for _ in range(3):
        obs, reward, terminated, truncated, _ = env.step([0, 1, 2])
    assert (terminated, truncated) == (False, True)
    assert reward == pytest.approx(obs["rewards"].sum(), rel=1e-5)
    other = make_joint_env("mpe2:simple_speaker_listener_v4", continuous_actions=True)
    assert other.action_space.shape == (2, max(other.act_sizes))
    assert other.obs_sizes == (3, 11)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("task", ["simple_spread_v3", "simple_speaker_listener_v4"])
def test_particles_by_name_play_the_same_and_are_asked_once_for_each_observation(task: str, continuous: bool) -> None:
    module = pytest.importorskip(f"mpe2.{task}")
    options = {"max_cycles": 4, "continuous_actions": continuous}
    lean, usual = make_joint_env(f"mpe2:{task}", **options), JointEnv(module.parallel_env(**options))
    inner = lean.parallel_env.unwrapped
    observe, asked = inner.observe, []

    def observed(name: str) -> Any:
        asked.append(name)
        return observe(name)

    inner.observe = observed
    with pytest.raises(ParlError, match="call reset"):
        lean.step(usual.action_space.sample())
    usual.action_space.seed(3)
    for seed in (7, 8):
        lean.reset(seed=seed)
        usual.reset(seed=seed)
        over = False
        while not over:
            asked.clear()
            action = usual.action_space.sample()
            found, wanted = lean.step(action), usual.step(action)
            assert found[1:] == wanted[1:]
            assert asked == list(lean.agents)
            for name, array in wanted[0].items():
                np.testing.assert_array_equal(found[0][name], array, err_msg=name)
            over = found[2] or found[3]


@pytest.mark.parametrize("is_cut", [False, True])
def test_agents_that_take_turns_are_converted(is_cut: bool) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Counting(pettingzoo.AECEnv):  # type: ignore[misc,name-defined]  # optional package
        """Two agents count in turns; the one who acts gets its action as a reward, and the fourth turn is the last."""

        def __init__(self, *, is_cut: bool) -> None:
            super().__init__()
            self.is_cut = is_cut

        metadata = {"name": "counting", "is_parallelizable": False}  # noqa: RUF012
        possible_agents = ["a", "b"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Dict(
                {"observation": spaces.Box(0.0, 9.0, (1,), np.float32), "action_mask": spaces.MultiBinary(3)}
            )

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(3)

        def reset(self, seed: Any = None, options: Any = None) -> None:
            self.agents, self.turn = ["a", "b"], 0
            self.agent_selection = "a"
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Any] = {name: {} for name in self.agents}

        def observe(self, agent: str) -> Any:
            mask = np.array([0, 1, 1], np.int8) * (agent == self.agent_selection)
            return {"observation": np.full(1, self.turn, np.float32), "action_mask": mask}

        def step(self, action: Any) -> None:
            if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self.turn += 1
            self.rewards = {name: float(action) * (name == self.agent_selection) for name in self.agents}
            setattr(self, "truncations" if self.is_cut else "terminations", dict.fromkeys(self.agents, self.turn == 4))
            self.agent_selection = "ba"[self.turn % 2 == 0]

        def close(self) -> None: ...

    env = JointEnv(Counting(is_cut=is_cut), team_reward="sum")
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"].tolist() == [[0, 1, 1], [1, 0, 0]]  # the other one waits: what it chooses is ignored
    rewards, masks = [], []
    for action in ([1, 0], [0, 2], [1, 0], [0, 2]):
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        masks.append(obs["action_mask"].tolist())
    assert rewards == [1.0, 2.0, 1.0, 2.0]
    assert masks[:3] == [[[1, 0, 0], [0, 1, 1]], [[0, 1, 1], [1, 0, 0]], [[1, 0, 0], [0, 1, 1]]]
    assert (terminated, truncated) == (not is_cut, is_cut)
    if is_cut:
        assert masks[3] == masks[1]  # the next choices, if the episode went on


def test_agents_that_take_turns_with_numbers_are_refused() -> None:
    """No mask says that what a waiting agent does is ignored."""
    pettingzoo = pytest.importorskip("pettingzoo")

    class Turns(pettingzoo.AECEnv):  # type: ignore[misc,name-defined]  # optional package
        metadata = {"name": "turns", "is_parallelizable": False}  # noqa: RUF012
        possible_agents = ["a", "b"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0.0, 9.0, (1,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Box(-1.0, 1.0, (1,), np.float32)

    with pytest.raises(HyperparameterError, match=r"agents of Turns take turns.*numbers.*AgainstOpponents"):
        JointEnv(Turns())

    class Together(Turns):
        metadata = {"name": "together", "is_parallelizable": True}  # noqa: RUF012

    assert JointEnv(Together()).action_space.shape == (2, 1)


@pytest.mark.parametrize("dead", ["", "a"])
def test_the_next_agent_has_the_choices_of_its_turn_after_dead_ones_are_removed(dead: str) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Removal(pettingzoo.AECEnv):  # type: ignore[misc,name-defined]  # optional package
        """Agents with numbers remove the next one by choice 1; only the agent whose turn it is has choices."""

        metadata = {"name": "removal", "is_parallelizable": False}  # noqa: RUF012
        possible_agents = ["a", "b", "c", "d"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Dict({"seen": spaces.Box(0.0, 9.0, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def reset(self, seed: Any = None, options: Any = None) -> None:
            self.agents, self.agent_selection = list(self.possible_agents), "b" if dead else "a"
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = {name: name == dead for name in self.agents}
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Any] = {name: {} for name in self.agents}
            self._deads_step_first()

        def observe(self, agent: str) -> Any:
            mask = np.ones(2, np.int8) * (agent == self.agent_selection)
            return {"seen": np.ones(1, np.float32), "action_mask": mask}

        def step(self, action: Any) -> None:
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            after = self._after(self.agent_selection)
            if action == 1:
                self.terminations[after] = True
                after = self._after(after)
            self.agent_selection = after
            self._deads_step_first()

        def _after(self, name: str) -> str:
            return str(self.agents[(self.agents.index(name) + 1) % len(self.agents)])

        def close(self) -> None: ...

    env = JointEnv(Removal())
    obs, _ = env.reset(seed=0)
    first = 1 if dead else 0
    assert obs["alive"].tolist() == [not dead, 1, 1, 1]
    assert obs["action_mask"].sum(1)[first:].tolist() == [2] + [1] * (3 - first)
    obs, *_ = env.step([1, 1, 1, 1])
    assert obs["alive"].tolist() == ([0, 1, 0, 1] if dead else [1, 0, 1, 1])
    assert obs["action_mask"].sum(1)[[3] if dead else [2, 3]].tolist() == ([2] if dead else [2, 1])


def test_an_agent_that_died_while_it_waited_stays_dead_until_its_turn_removes_it() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Duel(pettingzoo.AECEnv):  # type: ignore[misc,name-defined]  # optional package
        """The first of four agents removes the last one by its first turn."""

        metadata = {"name": "duel", "is_parallelizable": False}  # noqa: RUF012
        possible_agents = ["a", "b", "c", "d"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0.0, 9.0, (1,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def reset(self, seed: Any = None, options: Any = None) -> None:
            self.agents, self.turn, self.agent_selection = list(self.possible_agents), 0, "a"
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Any] = {name: {} for name in self.agents}

        def observe(self, agent: str) -> Any:
            return np.full(1, self.turn, np.float32)

        def step(self, action: Any) -> None:
            after = "bcda"["abcd".index(self.agent_selection)]
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                self.agent_selection = after
                return
            self.agent_selection = after
            self.turn += 1
            if "d" in self.agents:
                self.terminations["d"] = True

        def close(self) -> None: ...

    env = JointEnv(Duel())
    env.reset(seed=0)
    alive, observed = [], []
    for _ in range(4):
        obs = env.step([0, 0, 0, 0])[0]
        alive.append(obs["alive"].tolist())
        observed.append(obs["obs"][3].tolist())
        assert obs["terminated"].tolist() == [0, 0, 0, 1]
    assert alive == [[1, 1, 1, 0]] * 4
    assert observed == [[1], [0], [0], [0]]


@pytest.mark.parametrize(
    ("algorithm", "remembers"), [("MAPPO", True), ("QMIX", True), ("COMA", True), ("MADDPG", False)]
)
def test_settings_of_a_team_s_network_are_those_that_its_kind_has(algorithm: str, remembers: bool) -> None:
    found = settings_of(algorithm, preset(algorithm, "two_step"))
    memory = {"network.memory", "network.memory_size"} if remembers else set()
    assert {name for name in found if name.startswith("network.")} == {
        *("network.groups", "network.hidden", "network.width", "network.depth"),
        *memory,
    }
    assert not remembers or found["network.memory"].choices == ("gru", "lstm")


def test_the_noise_of_maddpg_is_a_setting_where_actions_are_numbers() -> None:
    pytest.importorskip("mpe2")
    numbers = preset("MADDPG", "mpe2:simple_spread_v3", options={"continuous_actions": True})
    assert settings_of("MADDPG", numbers)["exploration.noise"].value == 0.1
    assert "exploration.noise" not in settings_of("MADDPG", preset("MADDPG", "two_step"))


def test_a_vector_is_made_of_the_name_of_a_game() -> None:
    with make_vector_env("penalty", 2, env_kwargs={"team_reward": "sum"}) as envs:
        envs.reset(seed=0)
        _, rewards, *_ = envs.step(np.array([[0, 0], [1, 1]]))
    assert rewards.tolist() == [20.0, 4.0]


def test_a_name_that_gymnasium_and_teams_lack_is_gymnasium_s_error() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="penalties"):
        make_vector_env("penalties", 2)

"""An episode taken up again: after the same record, every later observation and reward is the same."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, NormalizeObservation, NormalizeReward

from parl_core.checkpoint import from_tree, to_tree
from parl_core.env._recorded import RecordedEnv
from parl_core.env.atari import wrap_deepmind
from parl_core.env.normalize import wrap_rms
from parl_core.errors import CheckpointError
from parl_core.seeding import generator_from_json, generator_to_json


def through_a_file(state: Any) -> Any:
    tree, arrays = to_tree(state)
    return from_tree(json.loads(json.dumps(tree)), arrays)


def play(env: Any, actions: Any, steps: int) -> list[Any]:
    """Steps with given draws, resetting after ends; what happened."""
    seen = []
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((obs, reward, terminated, truncated))
        if terminated or truncated:
            seen.append((env.reset()[0], 0.0, False, False))
    return seen


def check_taken_up(make: Any, steps: int) -> None:
    first = RecordedEnv(make())
    first.action_space.seed(3)
    first.reset(seed=5)
    play(first, None, steps)
    state = through_a_file(first.get_state())
    second = RecordedEnv(make())
    second.set_state(state)
    second.action_space.seed(4)
    first.action_space.seed(4)
    expected, found = play(first, None, 60), play(second, None, 60)
    for (obs, *others), (again, *same) in zip(expected, found, strict=True):
        np.testing.assert_equal(again, obs)
        assert same == others


@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        ("CartPole-v1", 0),
        ("CartPole-v1", 137),
        ("Acrobot-v1", 130),
        ("Pendulum-v1", 450),
        ("MountainCarContinuous-v0", 40),
        ("FrozenLake-v1", 77),
        ("CliffWalking-v1", 250),
        ("Blackjack-v1", 33),
        ("Hopper-v5", 150),
        ("HalfCheetah-v5", 120),
        ("Ant-v5", 90),
    ],
)
def test_gymnasium_environments_go_on_where_they_were(env_id: str, steps: int) -> None:
    check_taken_up(lambda: gymnasium.make(env_id), steps)


@pytest.mark.parametrize(
    "wrap",
    [
        NormalizeObservation,
        lambda env: NormalizeReward(env, 0.9),
        lambda env: wrap_rms(env, 0.9),
        lambda env: FrameStackObservation(FlattenObservation(env), 3),
    ],
)
def test_wrappers_with_statistics_or_memories_go_on_too(wrap: Any) -> None:
    check_taken_up(lambda: wrap(gymnasium.make("CartPole-v1")), 100)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["Breakout", "Pong"])
def test_games_with_lives_and_an_emulators_generator_go_on(game: str) -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    check_taken_up(lambda: wrap_deepmind(gymnasium.make(f"ALE/{game}-v5", disable_env_checker=True)), 260)


@pytest.mark.slow
def test_a_game_with_lives_and_sticky_actions_is_taken_up_again_and_again() -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py"))

    def make() -> RecordedEnv:
        env = RecordedEnv(wrap_deepmind(gymnasium.make("ALE/Breakout-v5", frameskip=1, disable_env_checker=True)))
        env.reset(seed=5)  # as every loop does before it takes up anything
        return env

    env = make()
    env.action_space.seed(3)
    while env.get_state()["seed"] is not None:  # into the second game, which begins with what the first one left
        play(env, None, 20)
    for _ in range(3):
        state = through_a_file(env.get_state())
        env = make()
        np.testing.assert_equal(env.set_state(state), state["obs"])
        np.testing.assert_equal(env.get_state(), state)
        play(env, None, 7)


class Sum(gymnasium.Env[Any, Any]):
    """Observes the sum of all actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-9.0, 9.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sum = np.zeros(1)
        return self.sum, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sum = self.sum + np.asarray(action)
        return self.sum, 0.0, False, False, {}


def test_actions_that_begin_as_whole_numbers_keep_the_fractions_of_later_ones() -> None:
    first, second = RecordedEnv(Sum()), RecordedEnv(Sum())
    first.reset(seed=1)
    for action in ([1], [0.5], np.array([0.25], np.float32)):
        first.step(action)
    np.testing.assert_array_equal(second.set_state(through_a_file(first.get_state())), [1.75])


class Parts(gymnasium.Env[Any, Any]):
    """Observes arrays of unequal shapes in a tuple, here and within a dictionary."""

    _parts = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(-1, 1, (2, 2)), gymnasium.spaces.Discrete(4)]
    )
    observation_space = gymnasium.spaces.Tuple([_parts, gymnasium.spaces.Dict(within=_parts)])
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observed(), 0.0, False, False, {}

    def _observed(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class SavingParts(Parts):
    """The same, but it saves its generator."""

    restores_episodes = True

    def checkpoint_state(self) -> str:
        return generator_to_json(self.np_random)

    def restore_checkpoint(self, state: str) -> None:
        self.np_random = generator_from_json(state)


@pytest.mark.parametrize("kind", [Parts, SavingParts])
def test_observations_in_tuples_of_unequal_shapes_go_on(kind: type[Parts]) -> None:
    check_taken_up(kind, 9)
    env = RecordedEnv(kind())
    env.reset(seed=5)
    observed = RecordedEnv(kind()).set_state(through_a_file(env.get_state()))
    assert env.observation_space.contains(observed)


class Clock(gymnasium.Env[Any, Any]):
    """Observes how often any clock was stepped: no episode of it can be had again."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    ticks = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full(1, Clock.ticks, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Clock.ticks += 1
        return np.full(1, Clock.ticks, np.float32), 0.0, False, False, {}


class SavingClock(Clock):
    """The same, but it saves its time."""

    restores_episodes = True

    def __init__(self) -> None:
        self.own = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.own += 1
        return np.full(1, self.own, np.float32), 0.0, False, False, {}

    def checkpoint_state(self) -> dict[str, Any]:
        return {"own": self.own}

    def restore_checkpoint(self, state: dict[str, Any]) -> None:
        self.own = state["own"]


def test_an_environment_that_cannot_be_had_again_is_refused_with_what_to_do() -> None:
    first = RecordedEnv(Clock())
    first.reset(seed=1)
    first.step(0)
    with pytest.raises(CheckpointError, match=r'reached another observation.*environments="reset"'):
        RecordedEnv(Clock()).set_state(through_a_file(first.get_state()))


def test_an_environment_that_saves_itself_is_taken_at_its_word() -> None:
    first = RecordedEnv(SavingClock())
    first.reset(seed=1)
    for _ in range(5):
        first.step(0)
    state = through_a_file(first.get_state())
    assert "actions" not in state
    second = RecordedEnv(SavingClock())
    np.testing.assert_array_equal(second.set_state(state), [5.0])
    np.testing.assert_array_equal(second.step(0)[0], [6.0])


def test_an_environment_with_other_wrappers_is_refused() -> None:
    first = RecordedEnv(gymnasium.make("CartPole-v1"))
    first.reset(seed=1)
    with pytest.raises(CheckpointError, match="layers of wrappers"):
        RecordedEnv(FlattenObservation(gymnasium.make("CartPole-v1"))).set_state(through_a_file(first.get_state()))

"""The Atari wrappers, on a small game that behaves as ale-py's do."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl.env.atari_wrappers import (
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    FrameStack,
    MaxAndSkipEnv,
    MonitorEnv,
    NoopResetEnv,
    TestEnv,
    WarpFrame,
    get_wrapper_by_cls,
    wrap_deepmind,
)
from parl_core.errors import HyperparameterError

SCREEN = (210, 160, 3)


class Game(gymnasium.Env[np.ndarray, int]):
    """Shows its clock as brightness; loses a life every `life` steps; action 2 scores 5, others -3."""

    def __init__(self, lives: int = 3, life: int = 10, meanings: tuple[str, ...] = ("NOOP", "FIRE", "RIGHT")) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, SCREEN, np.uint8)
        self.action_space: Any = gymnasium.spaces.Discrete(len(meanings))
        self.meanings, self.all_lives, self.life = meanings, lives, life
        self.left, self.t, self.games = lives, 0, 0
        self.ale = SimpleNamespace(lives=lambda: self.left)
        self.log: list[Any] = []

    def get_action_meanings(self) -> list[str]:
        return list(self.meanings)

    def screen(self) -> np.ndarray:
        return np.full(SCREEN, self.t % 256, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left, self.t, self.games = self.all_lives, 0, self.games + 1
        self.log.append(("reset", seed))
        return self.screen(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        self.log.append(action)
        if self.t % self.life == 0:
            self.left -= 1
        return self.screen(), 5.0 if action == 2 else -3.0, self.left == 0, False, {"t": self.t}


def no_frameskip(**arguments: Any) -> Game:
    game = Game(**arguments)
    game.spec = gymnasium.envs.registration.EnvSpec("SmallNoFrameskip-v4")
    return game


def test_the_whole_stack_gives_what_dqn_wants() -> None:
    game = no_frameskip(lives=5, life=60)
    env = wrap_deepmind(game, obs_format="NCHW")
    obs, _ = env.reset(seed=1)
    assert obs.shape == (4, 84, 84)
    assert obs.dtype == np.uint8
    assert env.observation_space.contains(obs)
    assert (obs == obs[0]).all()  # an episode's first frame fills the stack
    before = game.t
    obs, reward, *_ = env.step(2)
    assert game.t == before + 4
    assert reward == 1.0
    assert obs[3, 0, 0] == game.t  # the brightest of the last two screens
    assert obs[2, 0, 0] == before


def test_channels_come_last_unless_asked_otherwise() -> None:
    obs, _ = wrap_deepmind(no_frameskip()).reset(seed=0)
    assert obs.shape == (84, 84, 4)
    frame, _ = wrap_deepmind(no_frameskip(), framestack=False, dim=42).reset(seed=0)
    assert frame.shape == (42, 42)
    with pytest.raises(HyperparameterError, match="NHWC"):
        wrap_deepmind(no_frameskip(), obs_format="CHW")


@pytest.mark.parametrize(
    ("game_id", "kwargs", "skips"),
    [("PongNoFrameskip-v4", {}, True), ("Pong-v5", {"frameskip": 1}, True), ("Pong-v5", {"frameskip": 4}, False)],
)
def test_frames_are_skipped_only_where_the_game_does_not(game_id: str, kwargs: dict[str, int], skips: bool) -> None:
    game = Game()
    game.spec = gymnasium.envs.registration.EnvSpec(game_id, kwargs=kwargs)
    assert (get_wrapper_by_cls(wrap_deepmind(game), MaxAndSkipEnv) is not None) == skips


def test_fire_is_pressed_only_in_games_that_have_it() -> None:
    game = no_frameskip(meanings=("NOOP", "RIGHT", "LEFT"))
    assert get_wrapper_by_cls(wrap_deepmind(game), FireResetEnv) is None


def test_noops_begin_an_episode_and_differ_between_episodes() -> None:
    game = Game(life=1000)
    env = NoopResetEnv(game, noop_max=30)
    env.reset(seed=0)
    counts = []
    for _ in range(200):
        env.reset()
        counts.append(game.t)
    assert min(counts) == 1
    assert max(counts) == 30
    assert set(game.log) == {0, ("reset", 0), ("reset", None)}


def test_noops_of_a_game_of_old_gym_are_drawn_from_its_generator() -> None:
    class OldGame(Game):
        np_random: Any = np.random.RandomState(3)  # as in gym before 0.22

        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()[0]

        def step(self, action: int) -> Any:
            obs, reward, terminated, _, info = super().step(action)
            return obs, reward, terminated, info

    game = OldGame(life=1000)
    NoopResetEnv(game).reset()
    assert game.t == np.random.RandomState(3).randint(1, 31)


def test_noops_follow_from_the_seed() -> None:
    def first_clock() -> int:
        game = Game(life=1000)
        NoopResetEnv(game).reset(seed=7)
        return game.t

    assert first_clock() == first_clock()


def test_a_game_that_ends_within_the_noops_is_begun_again() -> None:
    game = Game(lives=1, life=3)
    env = NoopResetEnv(game, noop_max=30)
    for seed in range(10):
        env.reset(seed=seed)
        assert game.left == 1


def test_a_lost_life_ends_the_episode_but_not_the_game() -> None:
    game = Game(lives=2, life=5)
    env = EpisodicLifeEnv(game)
    env.reset()
    ends = [env.step(1)[2] for _ in range(5)]
    assert ends == [False] * 4 + [True]
    assert not env.was_real_done
    env.reset()
    assert (game.games, game.t) == (1, 6)  # goes on, one no-op later
    assert [env.step(1)[2] for _ in range(4)] == [False] * 3 + [True]
    assert env.was_real_done
    env.reset()
    assert (game.games, game.t) == (2, 0)


def test_a_game_that_goes_on_without_lives_ends_by_itself() -> None:
    class Lingering(Game):
        def step(self, action: int) -> Any:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, self.t >= 8, truncated, info

    env = EpisodicLifeEnv(Lingering(lives=1, life=5))
    env.reset()
    assert [env.step(1)[2] for _ in range(8)] == [False] * 7 + [True]


def test_a_seed_always_begins_a_new_game() -> None:
    game = Game(lives=3, life=5)
    env = EpisodicLifeEnv(game)
    env.reset()
    for _ in range(5):
        env.step(1)
    env.reset(seed=3)
    assert (game.games, game.log[-1]) == (2, ("reset", 3))


def test_a_game_that_ends_in_the_noop_after_a_lost_life_is_begun_again() -> None:
    game = Game(lives=2, life=1)
    env = EpisodicLifeEnv(game)
    env.reset()
    assert env.step(1)[2]
    env.reset()
    assert (game.games, game.left) == (2, 2)


def test_fire_is_pressed_at_the_start() -> None:
    game = Game(life=1000)
    FireResetEnv(game).reset()
    assert game.log == [("reset", None), 1, 2]


def test_skipping_sums_rewards_and_stops_at_the_end() -> None:
    game = Game(lives=1, life=6)
    env = MaxAndSkipEnv(game, skip=4)
    env.reset()
    obs, reward, terminated, *_ = env.step(2)
    assert (reward, terminated, game.t) == (20.0, False, 4)
    obs, reward, terminated, *_ = env.step(2)
    assert (reward, terminated, game.t) == (10.0, True, 6)
    assert obs.max() == 6  # the final screen, from which a truncated episode bootstraps


def test_the_brighter_of_two_screens_is_kept() -> None:
    class Flicker(Game):
        def screen(self) -> np.ndarray:
            screen = np.zeros(SCREEN, np.uint8)
            screen[self.t % 2] = 200
            return screen

    env = MaxAndSkipEnv(Flicker(), skip=4)
    env.reset()
    obs, *_ = env.step(0)
    assert (obs[:2] == 200).all()
    assert (obs[2:] == 0).all()


def test_rewards_are_replaced_by_their_signs() -> None:
    env = ClipRewardEnv(Game())
    env.reset()
    assert [env.step(action)[1] for action in (2, 0)] == [1.0, -1.0]


def warped(screen: np.ndarray, dim: int) -> np.ndarray:
    class Still(Game):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, screen.shape, np.uint8)

        def screen(self) -> np.ndarray:
            return screen

    return WarpFrame(Still(), dim).reset()[0]


def test_warping_takes_the_mean_of_each_area() -> None:
    small = np.array([[0, 10, 20, 30], [40, 50, 60, 70], [80, 90, 100, 110], [120, 130, 140, 150]], np.uint8)
    assert warped(small, 2).tolist() == [[25, 45], [105, 125]]
    third = np.array([[0, 90, 30]] * 3, np.uint8)  # 3 to 2: each new pixel is one and a half old ones wide
    assert warped(third, 2).tolist() == [[30, 50], [30, 50]]


def test_warping_weighs_colours_as_the_eye_does() -> None:
    pure = np.zeros((3, 6, 6, 3), np.uint8)
    for colour in range(3):
        pure[colour, ..., colour] = 255
    assert [int(warped(screen, 3)[0, 0]) for screen in pure] == [76, 150, 29]  # ITU-R BT.601
    assert (warped(np.full(SCREEN, 255, np.uint8), 84) == 255).all()


class Pixels(gymnasium.Env[Any, Any]):
    """Draws into the same array at each step."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.screen = np.zeros((2, 2), np.uint8)
        return self.screen, {}

    def step(self, action: int) -> Any:
        self.screen += 1
        return self.screen, 0.0, False, False, {}


def test_a_stack_of_screens_in_one_array_has_them_all() -> None:
    env = FrameStack(Pixels(), 3, "NCHW")
    env.reset(seed=0)
    stacks = [env.step(0)[0][:, 0, 0].tolist() for _ in range(3)]
    assert stacks == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_stack_holds_the_newest_frames_and_is_not_changed_later() -> None:
    env = FrameStack(WarpFrame(Game(), 8), 3, "NCHW")
    env.reset()
    first, *_ = env.step(0)
    kept = first.copy()
    second, *_ = env.step(0)
    assert second[:, 0, 0].tolist() == [0, 1, 2]
    assert np.array_equal(first, kept)


def test_an_evaluation_ends_after_whole_games_with_returns_as_the_screen_shows_them() -> None:
    env = wrap_deepmind(no_frameskip(lives=2, life=40), test=True, test_episodes=2)
    assert isinstance(env, TestEnv)
    monitor = get_wrapper_by_cls(env, MonitorEnv)
    assert monitor is not None
    for _ in range(2):  # two evaluations, one after the other
        env.reset()
        while not env.get_real_done():
            assert env.get_eval_rewards() is None
            *_, terminated, truncated, _ = env.step(2)
            if terminated or truncated:
                env.reset()
        assert env.get_eval_rewards() == monitor.get_episode_rewards()[-2:]
        assert min(monitor.get_episode_rewards()) > 25  # clipped, 20 decisions could not give so much
    assert len(monitor.get_episode_rewards()) >= 4


def test_environments_that_are_no_games_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="get_action_meanings"):
        wrap_deepmind(gymnasium.make("CartPole-v1"))
    with pytest.raises(HyperparameterError, match="NOOP"):
        NoopResetEnv(Game(meanings=("UP", "DOWN")))
    with pytest.raises(HyperparameterError, match="FIRE"):
        FireResetEnv(Game(meanings=("NOOP", "UP")))
    with pytest.raises(HyperparameterError, match="MonitorEnv"):
        TestEnv(Game())
    with pytest.raises(HyperparameterError, match="WarpFrame"):
        FrameStack(Game())


@pytest.mark.parametrize("number", [0, -3, 2.5])
def test_numbers_below_one_are_refused_by_name(number: Any) -> None:
    game = no_frameskip()
    for name, make in {
        "skip": lambda: MaxAndSkipEnv(game, number),
        "dim": lambda: WarpFrame(game, number),
        "k": lambda: FrameStack(WarpFrame(game), number),
        "noop_max": lambda: NoopResetEnv(game, number),
    }.items():
        with pytest.raises(HyperparameterError, match=f"{name} must be .*got {number}"):
            make()

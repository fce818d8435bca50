"""Each Atari wrapper on a real game of ALE; `test_env_atari` has their rules on a small one."""

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
    WarpFrame,
    wrap_deepmind,
)
from parl_core.env.check import check_env

ale_py = pytest.importorskip("ale_py")
gymnasium.register_envs(ale_py)


def game(name: str = "Breakout", **options: Any) -> Any:
    settings = {"frameskip": 1, "repeat_action_probability": 0.0, **options}
    return gymnasium.make(f"ALE/{name}-v5", disable_env_checker=True, **settings)


def play(env: Any, action: int, steps: int) -> list[Any]:
    return [env.step(action) for _ in range(steps)]


def test_noops_are_frames_of_the_game() -> None:
    env: Any = NoopResetEnv(game(), noop_max=30)
    env.reset(seed=0)  # once: with a seed, ALE loads the game anew
    counts = set()
    for _ in range(12):
        env.reset()
        counts.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(counts) > 4
    assert max(counts) - min(counts) < 30


def test_skipping_takes_four_frames_and_the_maximum_of_the_last_two() -> None:
    skipping, plain = MaxAndSkipEnv(game("SpaceInvaders"), skip=4), game("SpaceInvaders")
    skipping.reset(seed=1)
    plain.reset(seed=1)
    flickers = 0
    for _ in range(60):
        seen, *_ = skipping.step(1)
        *_, third, fourth = [step[0] for step in play(plain, 1, 4)]
        np.testing.assert_array_equal(seen, np.maximum(third, fourth))
        flickers += bool((third != fourth).any())
    assert flickers  # the two screens do differ, so that the maximum says something


def test_a_lost_life_ends_an_episode_and_the_game_goes_on() -> None:
    env: Any = EpisodicLifeEnv(FireResetEnv(game()))
    env.reset(seed=0)
    lives = [env.unwrapped.ale.lives()]
    for _ in range(3):
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(1)
            over = terminated or truncated
        if not env.was_real_done:
            frame = env.unwrapped.ale.getEpisodeFrameNumber()
            env.reset()
            assert env.unwrapped.ale.getEpisodeFrameNumber() > frame
            lives.append(env.unwrapped.ale.lives())
    assert lives[0] == 5
    assert lives == sorted(lives, reverse=True)
    assert lives[-1] < 5


def test_fire_begins_a_game_that_waits_for_it() -> None:
    waiting: Any = game()
    fired: Any = FireResetEnv(game())
    waiting.reset(seed=2)
    fired.reset(seed=2)
    lives = [env.unwrapped.ale.lives() for env in (waiting, fired)]
    for env in (waiting, fired):
        play(env, 0, 250)
    assert lives == [5, 5]
    assert waiting.unwrapped.ale.lives() == 5  # no ball, no loss
    assert fired.unwrapped.ale.lives() < 5


def test_frames_are_grey_and_small() -> None:
    env = WarpFrame(game("Pong"))
    obs, _ = env.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((84, 84), np.uint8)
    assert env.observation_space.contains(obs)
    plain = game("Pong")
    screen, _ = plain.reset(seed=0)
    assert abs(float(obs.mean()) - float((screen @ np.array([0.299, 0.587, 0.114])).mean())) < 1.0


def test_rewards_are_signs_and_the_monitor_knows_the_score() -> None:
    env: Any = ClipRewardEnv(MonitorEnv(MaxAndSkipEnv(game("Pong"))))
    env.reset(seed=0)
    rewards, over = [], False
    while not over:
        *_, reward, terminated, truncated, info = env.step(0)
        rewards.append(reward)
        over = terminated or truncated
    assert set(rewards) <= {-1.0, 0.0, 1.0}
    assert info["episode"]["r"] == sum(rewards) <= -20  # who never moves, loses 0 to 21


def test_a_stack_moves_by_one_frame_a_step() -> None:
    env = FrameStack(WarpFrame(MaxAndSkipEnv(game("Pong"))), 4, "NCHW")
    before, _ = env.reset(seed=0)
    for _ in range(5):
        after, *_ = env.step(2)
        np.testing.assert_array_equal(after[:3], before[1:])
        before = after


@pytest.mark.slow
def test_the_whole_stack_passes_the_checker_and_follows_from_the_seed() -> None:
    env = wrap_deepmind(game("Breakout"), obs_format="NCHW")
    runs = [[env.reset(seed=9)[0], *(step[0] for step in play(env, 2, 20))] for _ in range(2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    advice = check_env(env, steps=20)  # which raises where something is wrong
    assert not any("observation" in one or "action" in one for one in advice)

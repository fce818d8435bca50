"""Preprocessing of Atari games for DQN and its successors.

Order, from the game outwards:

    MonitorEnv      returns of whole games, as shown on the screen
    NoopResetEnv    up to 30 no-ops at the start
    MaxAndSkipEnv   each action four times
    EpisodicLifeEnv a lost life ends the episode, but not the game
    FireResetEnv    presses fire where the game waits for it
    WarpFrame       84 x 84, grey
    ClipRewardEnv   -1, 0, 1
    FrameStack      the last four frames
    TestEnv         for evaluation: reports when a number of whole games is over

With `whole_games=True`, for evaluations that play an episode at a time, `WholeGameEnv` after `FireResetEnv` joins the
lives of a game again, and rewards are not clipped. `make_atari` makes the game as well.

V. Mnih et al.: Human-level control through deep reinforcement learning, Nature 518 (2015), methods section.
"""

from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.env._vector_group import make_env
from parl_core.env.compat import AnyEnv, ApiWrapper, Step
from parl_core.env.wrappers import MonitorEnv, get_wrapper_by_cls
from parl_core.errors import HyperparameterError

__all__ = [
    "ClipRewardEnv",
    "EpisodicLifeEnv",
    "FireResetEnv",
    "FrameStack",
    "MaxAndSkipEnv",
    "NoopResetEnv",
    "TestEnv",
    "WarpFrame",
    "WholeGameEnv",
    "make_atari",
    "wrap_deepmind",
]

Frame = NDArray[np.uint8]
# ITU-R BT.601 luma, which cameras and image libraries use for red, green, blue.
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)

NOOP = 0


class MaxAndSkipEnv(ApiWrapper):
    """Repeats each action and returns the brighter of the last two screens at each pixel.

    (Atari draws some objects on every second screen only.) Rewards of the repeated steps are summed; an end of the
    episode ends the repetition.

    Args:
        env: An environment with image observations.
        skip: The number of times that an action is repeated, at least 1.
    """

    def __init__(self, env: Any, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = check_int("skip", skip)

    def _step(self, action: Any) -> Step:
        total = 0.0
        last_two: deque[Any] = deque(maxlen=2)
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            last_two.append(obs)
            total += float(reward)
            if terminated or truncated:
                break
        return np.maximum(last_two[0], last_two[-1]), total, terminated, truncated, info


class WarpFrame(ApiWrapper):
    """Turns screens into grey frames of `dim` x `dim`: each pixel is the mean of the area it covers.

    Pure numpy, so that results do not depend on which image library is installed.

    Args:
        env: An environment whose observations are uint8 screens `[height, width, 3]` or `[height, width]`.
        dim: Height and width of the frames.

    Raises:
        HyperparameterError: The observations are something else, or `dim` is below 1.
    """

    def __init__(self, env: Any, dim: int = 84) -> None:
        super().__init__(env)
        check_int("dim", dim)
        shape = self.env.observation_space.shape or ()
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
            raise HyperparameterError(f"WarpFrame needs screens [height, width, 3] or [height, width], got {shape}")
        self._rows = _area_weights(shape[0], dim)
        self._columns = np.ascontiguousarray(_area_weights(shape[1], dim).T)
        self.observation_space = gymnasium.spaces.Box(0, 255, (dim, dim), np.uint8)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Frame, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._warped(obs), info

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._warped(obs), float(reward), terminated, truncated, info

    def _warped(self, screen: NDArray[Any]) -> Frame:
        grey = screen.astype(np.float32) if screen.ndim == 2 else screen @ _LUMA
        small = self._rows @ grey @ self._columns
        return (small + 0.5).astype(np.uint8)  # rounded; means cannot leave [0, 255]


class FrameStack(ApiWrapper):
    """Returns the last `k` frames as one observation; the first frame of an episode fills the stack.

    Args:
        env: An environment with frames `[height, width]`.
        k: Number of frames.
        obs_format: `"NHWC"` gives `[height, width, k]`, `"NCHW"` `[k, height, width]`, the layout of torch,
            paddle and `FrameReplayMemory`.

    Raises:
        HyperparameterError: Another format, observations that are not frames, or `k` below 1.
    """

    def __init__(self, env: Any, k: int = 4, obs_format: str = "NHWC") -> None:
        super().__init__(env)
        check_int("k", k)
        if obs_format not in ("NHWC", "NCHW"):
            raise HyperparameterError(f"obs_format must be 'NHWC' or 'NCHW', got {obs_format!r}")
        space = self.env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 2:
            raise HyperparameterError(f"FrameStack needs frames [height, width], got {space}: use WarpFrame first")
        self._axis = 2 if obs_format == "NHWC" else 0
        self._frames: deque[Frame] = deque(maxlen=k)
        low, high = (np.stack([bound] * k, self._axis) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        # copies, because the game may change its own frames
        self._frames.extend([np.array(obs)] * (self._frames.maxlen or 0))
        return np.stack(self._frames, self._axis), info

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(np.array(obs))
        return np.stack(self._frames, self._axis), float(reward), terminated, truncated, info


def _area_weights(size: int, smaller: int) -> NDArray[np.float32]:
    """Return `[smaller, size]`: the share of each old pixel in each new one; rows sum to 1."""
    edges = np.linspace(0, size, smaller + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: NDArray[np.float32] = np.maximum(overlap, 0.0).astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


class NoopResetEnv(ApiWrapper):
    """Begins each episode with a random number of no-ops, so that games differ.

    Args:
        env: An environment whose action 0 is the no-op.
        noop_max: The largest number of no-ops; the number is drawn from 1 ... noop_max.

    Raises:
        HyperparameterError: Action 0 is something else, or `noop_max` is below 1.
    """

    def __init__(self, env: Any, noop_max: int = 30) -> None:
        super().__init__(env)
        if _meanings(self.env)[:1] != ["NOOP"]:
            raise HyperparameterError(f"NoopResetEnv needs a game whose action 0 is NOOP, got {_meanings(self.env)}")
        self.noop_max = check_int("noop_max", noop_max)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        rng: Any = self.unwrapped.np_random
        draw = rng.randint if isinstance(rng, np.random.RandomState) else rng.integers  # the former in gym's API
        for _ in range(draw(1, self.noop_max + 1)):
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class EpisodicLifeEnv(ApiWrapper):
    """Ends the episode (terminated) where a life is lost; `reset` then continues with the same game.

    Args:
        env: An Atari game, `env.unwrapped.ale.lives()` counts its lives.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    @property
    def reset_continues(self) -> bool:
        """Return whether a reset without a seed continues the running game."""
        return not self.was_real_done

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        over = self.was_real_done or seed is not None
        if not over:
            obs, _, terminated, truncated, info = self.env.step(NOOP)  # away from the lost life
            over = terminated or truncated
        if over:
            obs, info = self.env.reset(seed=seed, options=options)
        self.lives = self._lives()
        self.was_real_done = False
        return obs, info

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        # Some games stay at 0 lives for a few frames before they are over: that end comes from the game itself.
        lives = self._lives()
        lost = 0 < lives < self.lives
        self.lives = lives
        return obs, float(reward), terminated or lost, truncated, info

    def checkpoint_state(self) -> dict[str, Any]:
        """Return whether the next reset begins a new game."""
        return {"was_real_done": self.was_real_done}

    def restore_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `checkpoint_state`, also if this wrapper was reset before."""
        self.was_real_done = bool(state["was_real_done"])

    def _lives(self) -> int:
        game: Any = self.unwrapped
        return int(game.ale.lives())


class FireResetEnv(ApiWrapper):
    """Presses fire, and then the game's third action, at the start of an episode, because some games wait for it.

    Args:
        env: An environment whose action 1 is fire, with three or more actions.

    Raises:
        HyperparameterError: Action 1 is something else.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        if _meanings(self.env)[1:2] != ["FIRE"] or len(_meanings(self.env)) < 3:
            raise HyperparameterError(f"FireResetEnv needs a game whose action 1 is FIRE, got {_meanings(self.env)}")

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class ClipRewardEnv(ApiWrapper):
    """Replaces each reward by its sign, so that one learning rate fits all games."""

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(np.sign(float(reward))), terminated, truncated, info


class WholeGameEnv(ApiWrapper):
    """Starts the next life of a game automatically, so that an episode is a whole game.

    Rewards while the next life begins (fire, a no-op) are not counted; games have none there.

    Args:
        env: An environment with an `EpisodicLifeEnv` inside, and a `MonitorEnv` inside of that.

    Raises:
        HyperparameterError: One of them is missing.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        lives, monitor = get_wrapper_by_cls(self.env, EpisodicLifeEnv), get_wrapper_by_cls(self.env, MonitorEnv)
        if lives is None or monitor is None:
            raise HyperparameterError("WholeGameEnv needs an EpisodicLifeEnv around a MonitorEnv inside")
        self._lives, self._games = lives, monitor.get_episode_rewards()

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated and self._lives.reset_continues:
            games = len(self._games)
            obs, info = self.env.reset()
            terminated = len(self._games) > games  # it came to its end in the steps of that reset
        return obs, float(reward), terminated, truncated, info


class TestEnv(ApiWrapper):
    """Reports when a number of whole games is over, with their returns before clipping.

    Args:
        env: An environment with a `MonitorEnv` inside.
        test_episodes: Number of games of one evaluation.

    Raises:
        HyperparameterError: There is no `MonitorEnv`.
    """

    __test__ = False  # not a test, despite its name

    def __init__(self, env: Any, test_episodes: int = 3) -> None:
        super().__init__(env)
        monitor = get_wrapper_by_cls(self.env, MonitorEnv)
        if monitor is None:
            raise HyperparameterError("TestEnv needs a MonitorEnv inside: use wrap_deepmind(env, test=True)")
        self._monitor = monitor
        self._test_episodes = test_episodes
        self._end_episode = len(monitor.get_episode_rewards()) + test_episodes
        self._eval_rewards: list[float] | None = None

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        rewards = self._monitor.get_episode_rewards()
        self._eval_rewards = None
        if len(rewards) >= self._end_episode:
            self._eval_rewards = rewards[-self._test_episodes :]
            self._end_episode = len(rewards) + self._test_episodes
        return obs, info

    def get_real_done(self) -> bool:
        """Return whether the last `reset` completed an evaluation."""
        return self._eval_rewards is not None

    def get_eval_rewards(self) -> list[float] | None:
        """Return the returns of its games; None while the evaluation runs."""
        return self._eval_rewards


def wrap_deepmind(
    env: Any,
    dim: int = 84,
    framestack: bool = True,
    obs_format: str = "NHWC",
    test: bool = False,
    test_episodes: int = 3,
    *,
    whole_games: bool = False,
) -> ApiWrapper:
    """Wrap an Atari game as described in this module.

    Frames are skipped here when the game itself does not: ids with `NoFrameskip`, or made with `frameskip=1`.
    (`ALE/...-v5` skip four by themselves, without the maximum, and repeat an action with a probability of 25 %.)

    Args:
        env: A game of ale-py.
        dim: Height and width of the frames.
        framestack: Whether to stack four frames.
        obs_format: Order of a stack's axes: `"NHWC"`, or `"NCHW"` for torch, paddle and `FrameReplayMemory`.
        test: Whether it is for evaluation: adds `TestEnv`.
        test_episodes: Number of games of one evaluation.
        whole_games: Whether an episode is a whole game, with its own rewards.

    Raises:
        HyperparameterError: The environment is not an Atari game, or the format is unknown.
    """
    wrapped: ApiWrapper = NoopResetEnv(MonitorEnv(env), noop_max=30)
    if env.spec is not None and ("NoFrameskip" in env.spec.id or env.spec.kwargs.get("frameskip") == 1):
        wrapped = MaxAndSkipEnv(wrapped, skip=4)
    wrapped = EpisodicLifeEnv(wrapped)
    if "FIRE" in _meanings(env):
        wrapped = FireResetEnv(wrapped)
    wrapped = WarpFrame(WholeGameEnv(wrapped), dim) if whole_games else ClipRewardEnv(WarpFrame(wrapped, dim))
    if framestack:
        wrapped = FrameStack(wrapped, 4, obs_format)
    return TestEnv(wrapped, test_episodes) if test else wrapped


def make_atari(
    env_id: str,
    *,
    whole_games: bool = False,
    render_mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> ApiWrapper:
    """Make a game with DQN's preprocessing: every fourth frame, no sticky actions, `wrap_deepmind`.

    Args:
        env_id: The id of ale-py, such as `"ALE/Pong-v5"`.
        whole_games: Whether an episode is a whole game with its own rewards, for evaluations. In training a life is an
            episode, and rewards are -1, 0 or 1.
        render_mode: As in `gymnasium.make`.
        options: The options of the game, such as its difficulty.

    Returns:
        the game with observations uint8 `[4, 84, 84]`.

    Raises:
        ImportError: ale-py is not installed; the message is the `pip install` line.
        HyperparameterError: It is not an Atari game.
    """
    try:
        ale_py = import_module("ale_py")
    except ModuleNotFoundError:
        raise ImportError(f'{env_id} needs ale-py:\n    pip install "parl-core[atari]"', name="ale_py") from None
    gymnasium.register_envs(ale_py)
    usual = {"render_mode": render_mode, "frameskip": 1, "repeat_action_probability": 0.0}
    game = make_env(env_id, {**usual, **(options or {})})
    return wrap_deepmind(game, obs_format="NCHW", whole_games=whole_games)


def _meanings(env: AnyEnv) -> list[str]:
    game: Any = env.unwrapped
    if not hasattr(game, "get_action_meanings"):
        raise HyperparameterError(f"{game} is not an Atari game: it has no get_action_meanings()")
    return list(game.get_action_meanings())

"""Wrappers that make small stacks of grey frames out of a game's screen."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.env.wrapping import AnyEnv, AnyWrapper, Step
from parl_core.errors import HyperparameterError

__all__ = ["FrameStack", "MaxAndSkipEnv", "WarpFrame"]

Frame = NDArray[np.uint8]
# ITU-R BT.601 luma, which cameras and image libraries use for red, green, blue.
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class MaxAndSkipEnv(AnyWrapper):
    """Repeats each action and returns the brighter of the last two screens at each pixel.

    (Atari draws some objects on every second screen only.) Rewards of the repeated steps are summed; an end of the
    episode ends the repetition.

    Args:
        env: with image observations.
        skip: how often an action is repeated, at least 1.
    """

    def __init__(self, env: AnyEnv, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = check_int("skip", skip)

    def step(self, action: Any) -> Step:
        """Take up to `skip` steps with one action."""
        total = 0.0
        last_two: deque[Any] = deque(maxlen=2)
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            last_two.append(obs)
            total += float(reward)
            if terminated or truncated:
                break
        return np.maximum(last_two[0], last_two[-1]), total, terminated, truncated, info


class WarpFrame(AnyWrapper):
    """Turns screens into grey frames of `dim` x `dim`: each pixel is the mean of the area it covers.

    Pure numpy, so that results do not depend on which image library is installed.

    Args:
        env: observations are uint8 screens `[height, width, 3]` or `[height, width]`.
        dim: height and width of the frames.

    Raises:
        HyperparameterError: the observations are something else, or `dim` is below 1.
    """

    def __init__(self, env: AnyEnv, dim: int = 84) -> None:
        super().__init__(env)
        check_int("dim", dim)
        shape = env.observation_space.shape or ()
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
            raise HyperparameterError(f"WarpFrame needs screens [height, width, 3] or [height, width], got {shape}")
        self._rows = _area_weights(shape[0], dim)
        self._columns = np.ascontiguousarray(_area_weights(shape[1], dim).T)
        self.observation_space = gymnasium.spaces.Box(0, 255, (dim, dim), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._warped(obs), info

    def step(self, action: Any) -> Step:
        """Take a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._warped(obs), float(reward), terminated, truncated, info

    def _warped(self, screen: NDArray[Any]) -> Frame:
        grey = screen.astype(np.float32) if screen.ndim == 2 else screen @ _LUMA
        small = self._rows @ grey @ self._columns
        return (small + 0.5).astype(np.uint8)  # rounds; the means cannot leave [0, 255]


class FrameStack(AnyWrapper):
    """Returns the last `k` frames as one observation; the first frame of an episode fills the stack.

    Args:
        env: with frames `[height, width]`.
        k: number of frames.
        obs_format: `"NHWC"` gives `[height, width, k]`, `"NCHW"` `[k, height, width]`, which torch, paddle and
            `FrameReplayMemory` want.

    Raises:
        HyperparameterError: another format, observations that are no frames, or `k` below 1.
    """

    def __init__(self, env: AnyEnv, k: int = 4, obs_format: str = "NHWC") -> None:
        super().__init__(env)
        check_int("k", k)
        if obs_format not in ("NHWC", "NCHW"):
            raise HyperparameterError(f"obs_format must be 'NHWC' or 'NCHW', got {obs_format!r}")
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 2:
            raise HyperparameterError(f"FrameStack needs frames [height, width], got {space}: use WarpFrame first")
        self._axis = 2 if obs_format == "NHWC" else 0
        self._frames: deque[Frame] = deque(maxlen=k)
        low, high = (np.stack([bound] * k, self._axis) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([obs] * (self._frames.maxlen or 0))
        return np.stack(self._frames, self._axis), info

    def step(self, action: Any) -> Step:
        """Take a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(obs)
        return np.stack(self._frames, self._axis), float(reward), terminated, truncated, info


def _area_weights(size: int, smaller: int) -> NDArray[np.float32]:
    """Return `[smaller, size]`: which share of each new pixel each old one has; rows sum to 1."""
    edges = np.linspace(0, size, smaller + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: NDArray[np.float32] = np.maximum(overlap, 0.0).astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights

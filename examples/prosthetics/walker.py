"""A substitute for the challenge that runs everywhere: MuJoCo's Walker2d with a changing target speed."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from targets import SPEEDS, Speeds, TargetSpeed

__all__ = ["TargetSpeedWalker"]


class TargetSpeedWalker(gymnasium.Wrapper[NDArray[np.float32], Any, NDArray[np.float64], Any]):
    """Walker2d-v5 with rewards for a target speed, at most 1 per step.

        reward = max(0, 1 - |speed - target| / target) - 0.001 * |action|**2

    An action is repeated `frame_skip` times, and the speed is the mean over them. The observation is Walker2d's vector,
    followed by the target and the last error, `target - speed`. An episode ends when the walker falls; there is no time
    limit.

    Args:
        speeds: Default of `reset`.
        frame_skip: Number of steps of Walker2d (0.008 s each) with the same action.
        mean_steps: Mean duration of a target, in steps of this environment.
    """

    def __init__(self, speeds: Speeds = SPEEDS, frame_skip: int = 4, mean_steps: float = 75.0) -> None:
        super().__init__(gymnasium.make("Walker2d-v5", max_episode_steps=-1))
        self._speeds, self._frame_skip, self._mean_steps = speeds, frame_skip, mean_steps
        space: Any = self.env.observation_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (space.shape[0] + 2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `options={"speeds": (low, high)}` sets its range of target speeds."""
        obs, info = self.env.reset(seed=seed)
        speeds = Speeds(*(options or {}).get("speeds", self._speeds))
        self._target = TargetSpeed(speeds, self._mean_steps, self.np_random)
        return self._observed(obs, self._target.value, 0.0), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; `info` has `speed` and `target_speed`."""
        target, speeds = self._target.value, []
        for _ in range(self._frame_skip):
            obs, _, terminated, truncated, info = self.env.step(action)
            speeds.append(info["x_velocity"])
            if terminated or truncated:
                break
        speed = float(np.mean(speeds))
        reward = max(0.0, 1.0 - abs(speed - target) / target) - 1e-3 * float(np.square(action).sum())
        info |= {"speed": speed, "target_speed": target}
        return self._observed(obs, self._target.step(), speed), reward, bool(terminated), bool(truncated), info

    def _observed(self, obs: Any, target: float, speed: float) -> NDArray[np.float32]:
        return np.concatenate([obs, [target, target - speed]]).astype(np.float32)

"""Observations and rewards of about unit size, as continuous-control tasks need them; the statistics can be saved."""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.env.monitor import MonitorEnv
from parl_core.env.saved_statistics import SavedStatistics
from parl_core.env.wrapping import AnyEnv, AnyWrapper, Step, get_wrapper_by_cls
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.stats import RunningMeanStd

__all__ = ["TimeLimitMaskEnv", "VecNormalizeEnv", "cut", "get_ob_rms", "wrap_rms"]


class TimeLimitMaskEnv(AnyWrapper):
    """Adds `info["bad_transition"] = True` to the step at which an episode is truncated, for programs of PARL 2.x."""

    def step(self, action: Any) -> Step:
        """Take a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if truncated:
            info = {**info, "bad_transition": True}
        return obs, float(reward), terminated, truncated, info


class VecNormalizeEnv(SavedStatistics, AnyWrapper):
    """Shifts and scales observations by their running mean and standard deviation, and scales rewards.

    Rewards are divided by the standard deviation of the discounted sum of past rewards, and not shifted, so that
    their signs stay. A number that is NaN or infinite goes on as it is and is not counted.

    Args:
        env: its observation space is a `Box`.
        ob: whether to normalise observations.
        ret: whether to normalise rewards.
        clipob: observations are cut to [-clipob, clipob].
        cliprew: rewards are cut to [-cliprew, cliprew].
        gamma: discount of the sums whose spread scales the rewards.
        epsilon: added to variances before the division.

    Raises:
        HyperparameterError: the observation space is something else.
    """

    def __init__(
        self,
        env: AnyEnv,
        ob: bool = True,
        ret: bool = True,
        clipob: float = 10.0,
        cliprew: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise HyperparameterError(f"VecNormalizeEnv needs a Box observation space, got {space}")
        self._shape = space.shape if ob else None
        self.ob_rms = RunningMeanStd(space.shape) if ob else None
        self.ret_rms = RunningMeanStd() if ret else None
        if ob:
            self.observation_space = gymnasium.spaces.Box(-clipob, clipob, space.shape, np.float32)
        self.clipob, self.cliprew = clipob, cliprew
        self.gamma, self.epsilon = gamma, epsilon
        self.training = True
        self._discounted = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; its observation counts as well."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._discounted = 0.0
        return self._normalized(obs), info

    def step(self, action: Any) -> Step:
        """Take a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        scaled = float(reward)
        if self.ret_rms is not None:
            if math.isfinite(scaled):
                self._discounted = self._discounted * self.gamma + scaled
                if self.training:
                    self.ret_rms.update([self._discounted])
            scaled = float(cut(scaled / np.sqrt(self.ret_rms.var + self.epsilon), self.cliprew))
        return self._normalized(obs), scaled, terminated, truncated, info

    def train(self) -> None:
        """Let the statistics learn from what comes (as they do from the start)."""
        self.training = True

    def eval(self) -> None:
        """Keep the statistics as they are."""
        self.training = False

    def get_ob_rms(self) -> RunningMeanStd | None:
        """Return the statistics of observations themselves, not a copy: two environments may share them."""
        return self.ob_rms

    def set_ob_rms(self, ob_rms: RunningMeanStd | None) -> None:
        """Use these statistics of observations, such as those of the environment that was trained on."""
        self.ob_rms = ob_rms

    def set_state(self, state: Mapping[str, Any]) -> None:
        """As of the base; statistics of observations are made where `set_ob_rms(None)`, or `wrap_rms`, left none."""
        before = self.ob_rms
        if self.ob_rms is None and self._shape is not None:
            self.ob_rms = RunningMeanStd(self._shape)
        try:
            super().set_state(state)
        except CheckpointError:
            self.ob_rms = before
            raise

    def _statistics(self) -> dict[str, RunningMeanStd]:
        both = {"ob": self.ob_rms, "ret": self.ret_rms}
        return {part: rms for part, rms in both.items() if rms is not None}

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return all statistics as arrays, as `get_state` does; PyTorch's name."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, as `set_state` does.

        Raises:
            CheckpointError: as of `set_state`.
        """
        self.set_state(state)

    def _normalized(self, obs: Any) -> Any:
        if self.ob_rms is None:
            return obs
        if self.training and np.isfinite(obs).all():
            self.ob_rms.update(np.asarray(obs)[None])
        scaled = (obs - self.ob_rms.mean) / np.sqrt(self.ob_rms.var + self.epsilon)
        return cut(scaled, self.clipob).astype(np.float32)


def cut(scaled: Any, limit: float) -> NDArray[Any]:
    """Numbers within [-limit, limit], except for infinite ones, which whoever learns from them has to see."""
    clipped: NDArray[Any] = np.clip(scaled, -limit, limit)
    return clipped if np.isfinite(scaled).all() else np.where(np.isinf(scaled), scaled, clipped)


def get_ob_rms(env: AnyEnv) -> RunningMeanStd | None:
    """Return the observation statistics of the `VecNormalizeEnv` around an environment; None where there is none."""
    wrapper = get_wrapper_by_cls(env, VecNormalizeEnv)
    return None if wrapper is None else wrapper.get_ob_rms()


def wrap_rms(
    env: AnyEnv, gamma: float | None, test: bool = False, ob_rms: RunningMeanStd | None = None
) -> VecNormalizeEnv:
    """Wrap a continuous-control environment for training or evaluation.

    Marks truncated steps, keeps episode returns as the environment gives them in `info["episode"]`, and normalises
    observations and, in training, rewards; both are cut to [-10, 10].

    Args:
        env: its observation space is a `Box`.
        gamma: discount for scaling rewards; not used when testing.
        test: whether to leave rewards and statistics alone.
        ob_rms: statistics of the environment that was trained on (`get_ob_rms`), for testing. Without them observations
            stay what they are until some are restored: `restore(path)`, or `agent.restore(path, normalization=env)`.

    Raises:
        HyperparameterError: the observation space is no `Box`, or gamma is missing.
    """
    env = MonitorEnv(TimeLimitMaskEnv(env))
    if not test:
        if gamma is None:
            raise HyperparameterError("wrap_rms scales rewards by discounted sums: pass gamma, such as 0.99")
        return VecNormalizeEnv(env, gamma=gamma)
    wrapped = VecNormalizeEnv(env, ret=False)
    wrapped.eval()
    wrapped.set_ob_rms(ob_rms)
    return wrapped

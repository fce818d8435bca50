"""Observations and rewards of about unit size, as continuous-control tasks need them; the statistics can be saved.

One environment is normalised by `wrap_rms`; a vector of them by `NormalizeVector`, with one set of statistics, which
belongs to the checkpoint:

    train = NormalizeVector(make_vector_env("HalfCheetah-v5", 8), gamma=0.99)
    test_env = lambda: train.as_seen(gymnasium.make("HalfCheetah-v5"))
    agent.save("run/agent.ckpt", normalization=train)
"""

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from parl_core._closing import ClosingContext
from parl_core.checks import check_fraction, check_positive
from parl_core.env.autoreset import AnyVector, in_same_step
from parl_core.env.compat import AnyEnv, ApiWrapper, Step
from parl_core.env.wrappers import MonitorEnv, get_wrapper_by_cls
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.spaces import has_agents
from parl_core.stats import RunningMeanStd, SavedStatistics

__all__ = ["NormalizeVector", "TimeLimitMaskEnv", "VecNormalizeEnv", "get_ob_rms", "wrap_rms"]


class TimeLimitMaskEnv(ApiWrapper):
    """Adds `info["bad_transition"] = True` to the step at which an episode is truncated, for programs of PARL 2.x."""

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if truncated:
            info = {**info, "bad_transition": True}
        return obs, float(reward), terminated, truncated, info


class VecNormalizeEnv(SavedStatistics, ApiWrapper):
    """Shifts and scales observations by their running mean and standard deviation, and scales rewards.

    Rewards are divided by the standard deviation of the discounted sum of past rewards, and not shifted, so that
    their signs stay. A number that is NaN or infinite is passed on unchanged and is not counted.

    Args:
        env: An environment whose observation space is a `Box`.
        ob: Whether to normalise observations.
        ret: Whether to normalise rewards.
        clipob: The bound of observations, which are clipped to [-clipob, clipob].
        cliprew: The bound of rewards, which are clipped to [-cliprew, cliprew].
        gamma: Discount of the sums whose spread scales the rewards.
        epsilon: The number added to variances before the division.

    Raises:
        HyperparameterError: The observation space is something else.
    """

    def __init__(
        self,
        env: Any,
        ob: bool = True,
        ret: bool = True,
        clipob: float = 10.0,
        cliprew: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(env)
        space = self.env.observation_space
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

    @property
    def metadata(self) -> dict[str, Any]:
        """The environment's metadata; `running_statistics` is the name of this class while the statistics change."""
        changing = self.training and (self.ob_rms is not None or self.ret_rms is not None)
        found: dict[str, Any] = super().metadata
        return {**found, "running_statistics": type(self).__name__} if changing else found

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self._metadata = value

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._discounted = 0.0
        return self._normalized(obs), info

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        scaled = float(reward)
        if self.ret_rms is not None:
            if math.isfinite(scaled):
                self._discounted = self._discounted * self.gamma + scaled
                if self.training:
                    self.ret_rms.update([self._discounted])
            scaled = float(_clip_finite(scaled / np.sqrt(self.ret_rms.var + self.epsilon), self.cliprew))
        return self._normalized(obs), scaled, terminated, truncated, info

    def train(self) -> None:
        """Update the statistics at each step, which is the default."""
        self.training = True

    def eval(self) -> None:
        """Keep the statistics as they are."""
        self.training = False

    def get_ob_rms(self) -> RunningMeanStd | None:
        """Return the statistics of observations, not a copy of them: two environments may share them."""
        return self.ob_rms

    def set_ob_rms(self, ob_rms: RunningMeanStd | None) -> None:
        """Use these statistics of observations, such as those of the environment that was trained on."""
        self.ob_rms = ob_rms

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; statistics of observations are created if `set_ob_rms(None)` or `wrap_rms` left none."""
        before = self.ob_rms
        if self.ob_rms is None and self._shape is not None:
            self.ob_rms = RunningMeanStd(self._shape)
        try:
            super().set_state(state)
        except CheckpointError:
            self.ob_rms = before
            raise

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return all statistics as arrays, as `get_state` does; PyTorch's name."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, like `set_state`.

        Raises:
            CheckpointError: As in `set_state`.
        """
        self.set_state(state)

    def _normalized(self, obs: Any) -> Any:
        if self.ob_rms is None:
            return obs
        if self.training and np.isfinite(obs).all():
            self.ob_rms.update(np.asarray(obs)[None])
        scaled = (obs - self.ob_rms.mean) / np.sqrt(self.ob_rms.var + self.epsilon)
        return _clip_finite(scaled, self.clipob).astype(np.float32)


def _seen(env: AnyEnv, *, ob_rms: RunningMeanStd | None, clip_obs: float, epsilon: float) -> AnyEnv:
    """Return an environment with observations normalised by these statistics, which do not change."""
    if ob_rms is None:
        return env
    seen = VecNormalizeEnv(env, ret=False, clipob=clip_obs, epsilon=epsilon)
    seen.eval()
    seen.set_ob_rms(ob_rms)
    return seen


def _clip_finite(scaled: Any, limit: float) -> NDArray[Any]:
    """Return numbers clipped to [-limit, limit], except for infinite ones, which stay visible to checks."""
    clipped: NDArray[Any] = np.clip(scaled, -limit, limit)
    return clipped if np.isfinite(scaled).all() else np.where(np.isinf(scaled), scaled, clipped)


def get_ob_rms(env: AnyEnv) -> RunningMeanStd | None:
    """Return the observation statistics of the `VecNormalizeEnv` around an environment; None if there is none."""
    wrapper = get_wrapper_by_cls(env, VecNormalizeEnv)
    return None if wrapper is None else wrapper.get_ob_rms()


def wrap_rms(
    env: Any, gamma: float | None, test: bool = False, ob_rms: RunningMeanStd | None = None
) -> VecNormalizeEnv:
    """Wrap a continuous-control environment for training or evaluation.

    Marks truncated steps, keeps the environment's own episode returns in `info["episode"]`, and normalises
    observations and, in training, rewards; both are clipped to [-10, 10].

    Args:
        env: An environment whose observation space is a `Box`.
        gamma: Discount for scaling rewards; not used when testing.
        test: Whether to leave rewards and statistics unchanged.
        ob_rms: Statistics of the environment that was trained on (`get_ob_rms`), for testing. Without them observations
            are unchanged until some are restored: `restore(path)`, or `agent.restore(path, normalization=env)`.

    Raises:
        HyperparameterError: The observation space is not a `Box`, or gamma is missing.
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


class NormalizeVector(ClosingContext, SavedStatistics, VectorWrapper):
    """Shifts and scales observations by their running mean and deviation, and scales rewards.

    A NaN or infinite number would corrupt the statistics permanently. It is passed on unchanged, so that the loops
    raise an error, and the observations or rewards of that step are not counted.

    Rewards are divided by the standard deviation of the running discounted sums of past rewards, and not shifted. Last
    observations in `infos["final_obs"]` are normalised as well (a truncated episode bootstraps from them), without
    being counted. `infos["episode"]` has the returns of rewards that are not scaled: `r` and `l`, `[num_envs]`, with
    the mask `infos["_episode"]`, taken from the environments or counted here.

    Args:
        envs: A vector environment with `Box` observations, of any autoreset mode.
        obs: Whether to normalise observations.
        reward: Whether to scale rewards.
        clip_obs: The bound of observations, which are clipped to [-clip_obs, clip_obs].
        clip_reward: The bound of rewards, which are clipped to [-clip_reward, clip_reward].
        gamma: Discount of the sums whose spread scales the rewards, in [0, 1]: the algorithm's.
        epsilon: The number added to variances before the division.

    Replay memories hold unscaled values: `train_off_policy` stores `raw_obs`, `raw_reward` and `raw_final_obs`, and
    normalises a batch when it is drawn, with the statistics at that time.

    Attributes:
        raw_obs: Observations of the last step or reset, not normalised.
        raw_reward: Rewards of the last step, likewise.
        raw_final_obs: Last observations of the episodes that ended in it, in the form of `infos["final_obs"]`; else
            None.
        ob_rms: Statistics of observations; None if they are not normalised. Evaluation environments may share them.
        ret_rms: Statistics of the discounted sums; None if rewards are not scaled.
        training: Whether observations and rewards update the statistics.

    Raises:
        HyperparameterError: A number is out of its range, or the observations are not a `Box`.
    """

    def __init__(
        self,
        envs: AnyVector,
        *,
        obs: bool = True,
        reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(in_same_step(envs))
        self._envs: Any = self.env
        space = self._envs.single_observation_space
        if obs and not isinstance(space, gymnasium.spaces.Box):
            todo = "wrap each environment in gymnasium.wrappers.FlattenObservation"
            if has_agents(space):  # a flattened observation would lose its agents
                todo = "normalise each agent's observations inside the environment that JointEnv is given"
            raise HyperparameterError(
                f"NormalizeVector normalises Box observations, got {space}: {todo}, or pass obs=False"
            )
        self.clip_obs = check_positive("clip_obs", clip_obs)
        self.clip_reward = check_positive("clip_reward", clip_reward)
        self.gamma = check_fraction("gamma", gamma)
        self.epsilon = check_positive("epsilon", epsilon)
        shape = tuple(space.shape or ())
        self.ob_rms = RunningMeanStd(shape) if obs else None
        self.ret_rms = RunningMeanStd() if reward else None
        self.training = True
        self.raw_obs: Any = None
        self.raw_reward: Any = None
        self.raw_final_obs: Any = None
        self._sums = np.zeros(self.num_envs)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        if obs:
            self._single_observation_space = gymnasium.spaces.Box(-clip_obs, clip_obs, shape, np.float32)
            batched = (self.num_envs, *shape)
            self._observation_space = gymnasium.spaces.Box(-clip_obs, clip_obs, batched, np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment."""
        observations, infos = self._envs.reset(seed=seed, options=options)
        mask = None if options is None else options.get("reset_mask")
        begun = slice(None) if mask is None else mask
        self._sums[begun], self._returns[begun], self._lengths[begun] = 0.0, 0.0, 0
        self.raw_obs, self.raw_final_obs = observations, None
        return self._counted(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment once."""
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        self.raw_obs, self.raw_reward, self.raw_final_obs = observations, rewards, infos.get("final_obs")
        ended = np.asarray(terminated | truncated, np.bool_)  # some vectors return 0 and 1
        infos = self._with_episodes(rewards, ended, infos)
        if self.ret_rms is not None:
            if np.isfinite(rewards).all():
                self._sums = self._sums * self.gamma + rewards
                if self.training:
                    self.ret_rms.update(self._sums)
            rewards = self.normalize_reward(rewards)
            self._sums[ended] = 0.0
        observations = self._counted(observations)
        if self.ob_rms is not None and "final_obs" in infos:
            final_obs = np.full(self.num_envs, None, object)
            for index in np.flatnonzero(ended):
                final_obs[index] = self.normalize_obs(infos["final_obs"][index])
            infos = {**infos, "final_obs": final_obs}
        return observations, rewards, terminated, truncated, infos

    def normalize_obs(self, observations: Any) -> Any:
        """Return normalised observations `[..., *obs]`; they do not update the statistics."""
        if self.ob_rms is None:
            return observations
        scaled = (observations - self.ob_rms.mean) / np.sqrt(self.ob_rms.var + self.epsilon)
        return _clip_finite(scaled, self.clip_obs).astype(np.float32)

    def normalize_reward(self, rewards: Any, steps: float = 1.0) -> Any:
        """Return rewards scaled as for learning by the present statistics, without counting them.

        Args:
            rewards: Rewards of any shape.
            steps: The sum of the steps' weights, for rewards that are sums over several steps; it widens the limits.
        """
        if self.ret_rms is None:
            return rewards
        return _clip_finite(rewards / np.sqrt(self.ret_rms.var + self.epsilon), self.clip_reward * steps)

    @property
    def raw_observation_space(self) -> gymnasium.Space[Any]:
        """The space of one environment's stored observations."""
        found: gymnasium.Space[Any] = self._envs.single_observation_space
        return found

    def as_seen(self, env: AnyEnv) -> AnyEnv:
        """Return one environment with observations normalised in the same way, for evaluations; rewards do not change.

        It uses the present statistics of this wrapper, and does not update them.
        """
        return self._seen_by(self.ob_rms)(env)

    def present_view(self) -> Callable[[AnyEnv], AnyEnv]:
        """Return a function like `as_seen` that keeps the present statistics and can be sent to actors."""
        return self._seen_by(copy.deepcopy(self.ob_rms))

    def _seen_by(self, ob_rms: RunningMeanStd | None) -> Callable[[AnyEnv], AnyEnv]:
        return partial(_seen, ob_rms=ob_rms, clip_obs=self.clip_obs, epsilon=self.epsilon)

    def train(self) -> None:
        """Update the statistics at each step, which is the default."""
        self.training = True

    def eval(self) -> None:
        """Keep the statistics as they are."""
        self.training = False

    def checkpoint_state(self) -> dict[str, NDArray[np.float64]]:
        """Return the state for a checkpoint of a run: the statistics, and the sums of the running episodes."""
        running = {"sums": self._sums, "returns": self._returns, "lengths": self._lengths}
        return {**self.get_state(), **{name: array.astype(np.float64) for name, array in running.items()}}

    def restore_checkpoint(self, state: dict[str, Any]) -> None:
        """Restore a state that `checkpoint_state` returned.

        Raises:
            CheckpointError: As in `set_state`.
        """
        self.set_state(state)
        self._sums = np.array(state["sums"], np.float64)
        self._returns = np.array(state.get("returns", self._returns), np.float64)  # older checkpoints lack them
        self._lengths = np.array(state.get("lengths", self._lengths), np.int64)

    def _with_episodes(self, rewards: Any, ended: NDArray[np.bool_], infos: dict[str, Any]) -> dict[str, Any]:
        self._returns += rewards
        self._lengths += 1
        if not ended.any():
            return infos
        episode = {"r": np.where(ended, self._returns, 0.0), "l": np.where(ended, self._lengths, 0)}
        self._returns[ended], self._lengths[ended] = 0.0, 0
        return {"episode": episode, "_episode": ended, **infos}

    def _counted(self, observations: Any) -> Any:
        if self.ob_rms is not None and self.training and np.isfinite(observations).all():
            self.ob_rms.update(observations)
        return self.normalize_obs(observations)

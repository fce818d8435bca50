"""Running normalisation of a vector of environments, with one set of statistics, which belongs to the checkpoint.

    train = NormalizeVector(make_vector_env("HalfCheetah-v5", 8), gamma=0.99)
    test_env = lambda: train.as_seen(gymnasium.make("HalfCheetah-v5"))
    agent.save("run/agent.ckpt", normalization=train)

`normalize` has the same for a single environment.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from parl_core.checks import check_fraction, check_positive
from parl_core.env.normalize import VecNormalizeEnv, cut
from parl_core.env.same_step import AnyVector, in_same_step
from parl_core.env.saved_statistics import SavedStatistics
from parl_core.env.wrapping import AnyEnv
from parl_core.errors import HyperparameterError
from parl_core.stats import RunningMeanStd

__all__ = ["NormalizeVector"]


class NormalizeVector(SavedStatistics, VectorWrapper):
    """Shifts and scales observations by their running mean and deviation, and scales rewards.

    A NaN or infinite number, which would spoil the statistics for good, goes on as it is for the loops to refuse; of
    the observations or rewards of that step none are counted.

    Rewards are divided by the standard deviation of the running discounted sums of past rewards, and not shifted. Last
    observations in `infos["final_obs"]` are normalised as well (a truncated episode bootstraps from them), without
    being counted. `infos["episode"]` has the returns of rewards that are not scaled: `r` and `l`, `[num_envs]`, with
    the mask `infos["_episode"]`, as the environments tell them or as they are counted here.

    Args:
        envs: a vector environment with `Box` observations, of any autoreset mode.
        obs: whether to normalise observations.
        reward: whether to scale rewards.
        clip_obs: observations are cut to [-clip_obs, clip_obs].
        clip_reward: rewards are cut to [-clip_reward, clip_reward].
        gamma: discount of the sums whose spread scales the rewards, in [0, 1]: the algorithm's.
        epsilon: added to variances before the division.

    Attributes:
        ob_rms: statistics of observations; None where they are not normalised. Evaluation environments may share them.
        ret_rms: statistics of the discounted sums; None where rewards are not scaled.
        training: whether the statistics learn from what comes.

    Raises:
        HyperparameterError: a number is out of its range, or the observations are no `Box`.
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
            raise HyperparameterError(
                f"NormalizeVector normalises Box observations, got {space}: wrap each environment in "
                "gymnasium.wrappers.FlattenObservation, or pass obs=False"
            )
        self.clip_obs = check_positive("clip_obs", clip_obs)
        self.clip_reward = check_positive("clip_reward", clip_reward)
        self.gamma = check_fraction("gamma", gamma)
        self.epsilon = check_positive("epsilon", epsilon)
        shape = tuple(space.shape or ())
        self.ob_rms = RunningMeanStd(shape) if obs else None
        self.ret_rms = RunningMeanStd() if reward else None
        self.training = True
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
        return self._counted(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment once."""
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        infos = self._with_episodes(rewards, terminated | truncated, infos)
        if self.ret_rms is not None:
            if np.isfinite(rewards).all():
                self._sums = self._sums * self.gamma + rewards
                if self.training:
                    self.ret_rms.update(self._sums)
            rewards = cut(rewards / np.sqrt(self.ret_rms.var + self.epsilon), self.clip_reward)
            self._sums[terminated | truncated] = 0.0
        observations = self._counted(observations)
        if self.ob_rms is not None and "final_obs" in infos:
            ended = np.flatnonzero(terminated | truncated)
            final_obs = np.full(self.num_envs, None, object)
            for index in ended:
                final_obs[index] = self.normalize_obs(infos["final_obs"][index])
            infos = {**infos, "final_obs": final_obs}
        return observations, rewards, terminated, truncated, infos

    def normalize_obs(self, observations: Any) -> Any:
        """Observations `[..., *obs]` as the agent sees them; they are not counted."""
        if self.ob_rms is None:
            return observations
        scaled = (observations - self.ob_rms.mean) / np.sqrt(self.ob_rms.var + self.epsilon)
        return cut(scaled, self.clip_obs).astype(np.float32)

    def as_seen(self, env: AnyEnv) -> AnyEnv:
        """One environment whose observations are normalised in the same way, for evaluations: its rewards stay.

        The statistics are these, as they are at any time; they learn nothing from it.
        """
        if self.ob_rms is None:
            return env
        seen = VecNormalizeEnv(env, ret=False, clipob=self.clip_obs, epsilon=self.epsilon)
        seen.eval()
        seen.set_ob_rms(self.ob_rms)
        return seen

    def train(self) -> None:
        """Let the statistics learn from what comes (as they do from the start)."""
        self.training = True

    def eval(self) -> None:
        """Keep the statistics as they are."""
        self.training = False

    def checkpoint_state(self) -> dict[str, NDArray[np.float64]]:
        """What a checkpoint of a run holds: the statistics, and the sums of the running episodes."""
        running = {"sums": self._sums, "returns": self._returns, "lengths": self._lengths}
        return {**self.get_state(), **{name: array.astype(np.float64) for name, array in running.items()}}

    def restore_checkpoint(self, state: dict[str, Any]) -> None:
        """Go on from what `checkpoint_state` returned.

        Raises:
            CheckpointError: as of `set_state`.
        """
        self.set_state(state)
        self._sums = np.array(state["sums"], np.float64)
        self._returns = np.array(state.get("returns", self._returns), np.float64)  # older checkpoints have none
        self._lengths = np.array(state.get("lengths", self._lengths), np.int64)

    def _statistics(self) -> dict[str, RunningMeanStd]:
        both = {"ob": self.ob_rms, "ret": self.ret_rms}
        return {part: rms for part, rms in both.items() if rms is not None}

    def _with_episodes(self, rewards: Any, ended: NDArray[np.bool_], infos: dict[str, Any]) -> dict[str, Any]:
        self._returns += rewards
        self._lengths += 1
        if not ended.any():
            return infos
        told = {"r": np.where(ended, self._returns, 0.0), "l": np.where(ended, self._lengths, 0)}
        self._returns[ended], self._lengths[ended] = 0.0, 0
        return {"episode": told, "_episode": ended, **infos}

    def _counted(self, observations: Any) -> Any:
        if self.ob_rms is not None and self.training and np.isfinite(observations).all():
            self.ob_rms.update(observations)
        return self.normalize_obs(observations)

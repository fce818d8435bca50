"""Wrappers of PARL's programs, and lists of environments; each has the API of its environments.

    ActionMappingWrapper    a policy acts in [-1, 1], the environment in its own bounds
    MonitorEnv              returns and lengths of episodes, inside of wrappers that cut or clip
    PreviousStep            observations with the previous action and reward
    VectorEnv               of PARL 2.x: several environments as one, in lists

`parl_core.env.compat` has `CompatWrapper` and describes the two APIs.

`parl_core.env.atari` and `parl_core.env.normalize` have the wrappers of their tasks, `parl_core.env.vector` the vector
environments for training.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from parl_core._policy_outputs import action_mapping
from parl_core.env.compat import AnyEnv, AnyWrapper, Api, ApiWrapper, Step, api_of
from parl_core.errors import HyperparameterError
from parl_core.seeding import spawn_seeds
from parl_core.spaces import has_goals

__all__ = ["ActionMappingWrapper", "MonitorEnv", "PreviousStep", "VectorEnv", "get_wrapper_by_cls"]


W = TypeVar("W", bound=AnyWrapper)


def get_wrapper_by_cls(env: AnyEnv, cls: type[W]) -> W | None:
    """Return the outermost wrapper of a class around an environment, or None if there is none."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, cls):
            return env
        env = env.env
    return None


class ActionMappingWrapper(ApiWrapper):
    """Lets a policy act in [-1, 1]; each dimension is mapped linearly to its own [low, high].

    In a box of whole numbers, actions are rounded. `step` raises a ValueError for an action that is outside of
    [-1, 1] by more than rounding, or not a number.

    Args:
        env: An environment whose action space is a `Box` with finite bounds.

    Raises:
        HyperparameterError: The action space is something else.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
            raise HyperparameterError(f"ActionMappingWrapper needs a Box action space with finite bounds, got {space}")
        self.low_bound: NDArray[Any] = space.low
        self.high_bound: NDArray[Any] = space.high
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def _step(self, action: ArrayLike) -> Step:
        mapped = action_mapping(action, self.low_bound, self.high_bound)
        obs, reward, terminated, truncated, info = self.env.step(self._in_dtype(mapped))
        return obs, float(reward), terminated, truncated, info

    def _in_dtype(self, mapped: NDArray[Any]) -> NDArray[Any]:
        low, high = self.low_bound, self.high_bound
        if low.dtype.kind == "f":
            return mapped.astype(low.dtype)
        # float64 cannot represent the largest int64, and the next number above it would wrap around.
        top = np.nextafter(high, -np.inf, dtype=np.float64)
        whole = np.rint(mapped)
        return np.where(whole > top, high, np.minimum(whole, top).astype(low.dtype))


class MonitorEnv(ApiWrapper):
    """Wrapper that records the return and the length of every finished episode.

    The last step of an episode returns them in `info["episode"]`: `r` is the undiscounted return, `l` the number of
    steps, `t` the seconds since the wrapper was made. An episode that `reset` cuts short does not count.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._began = time.monotonic()
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._handed_out = 0
        self._return, self._length = 0.0, 0
        self._total_steps = 0

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def _step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        self._total_steps += 1
        if terminated or truncated:
            self._returns.append(self._return)
            self._lengths.append(self._length)
            seconds = round(time.monotonic() - self._began, 6)
            info = {**info, "episode": {"r": self._return, "l": self._length, "t": seconds}}
        return obs, float(reward), terminated, truncated, info

    def get_episode_rewards(self) -> list[float]:
        """Return the returns of all finished episodes."""
        return self._returns

    def get_episode_lengths(self) -> list[int]:
        """Return the steps of all finished episodes."""
        return self._lengths

    def get_total_steps(self) -> int:
        """Return the number of steps ever taken."""
        return self._total_steps

    def next_episode_results(self) -> Iterator[tuple[float, int]]:
        """Yield return and length of the episodes that finished since the last call."""
        while self._handed_out < len(self._returns):
            self._handed_out += 1
            yield self._returns[self._handed_out - 1], self._lengths[self._handed_out - 1]


class VectorEnv:
    """Steps a list of environments in turn, and begins new episodes after their ends.

    Arguments and results are lists with one entry for each environment, so that observations may be anything.
    `parl_core.env.vector` has the one for training, with arrays, and environments in other processes.

    Args:
        envs: The environments: at least one, all of the same API.

    Attributes:
        api: The API of the environments, "gymnasium" or "gym", which determines the form of `reset` and `step`.

    Raises:
        ValueError: The list is empty, or their APIs differ.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        if not envs:
            raise ValueError("VectorEnv needs at least one environment, got none")
        apis = sorted({api_of(env) for env in envs})
        if len(apis) > 1:
            raise ValueError("some environments have Gymnasium's API and some gym's: put CompatWrapper around all")
        self.api: Api = apis[0]
        self.envs = list(envs)
        self.envs_num = len(self.envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode in every environment.

        Args:
            seed: The seed for all of them; each gets a separate one derived from it. None lets their generators
                continue.
            options: The options for each environment's `reset`.

        Returns:
            Observations and infos; in gym's API observations alone.
        """
        seeds = [None] * self.envs_num if seed is None else spawn_seeds(seed, self.envs_num)
        if self.api == "gym":
            return [self._first(env, own, options) for env, own in zip(self.envs, seeds, strict=True)]
        starts = [env.reset(seed=own, options=options) for env, own in zip(self.envs, seeds, strict=True)]
        return [obs for obs, _ in starts], [info for _, info in starts]

    def step(self, actions: Sequence[Any]) -> Any:
        """Take a step in every environment.

        Where an episode ends, the returned observation is the first one of the next episode, and the info has the last
        observation in `final_obs` (bootstrap from it if the episode was truncated). In Gymnasium's API the info also
        has that of the last step, in `final_info`.

        Args:
            actions: One for each environment.

        Returns:
            Observations, rewards, terminated, truncated, infos; in gym's API observations, rewards, dones, infos.

        Raises:
            ValueError: There are more or fewer actions than environments, or there is one without an axis.
        """
        if getattr(actions, "shape", None) == ():
            raise ValueError(
                f"step got one action for {self.envs_num} environments: pass a list or an array with one for each. "
                "PPO.sample returns such an array, of which [0], which programs of PARL 2.x needed on paddle, takes "
                "the first action alone"
            )
        if len(actions) != self.envs_num:
            raise ValueError(f"step got {len(actions)} actions for {self.envs_num} environments: pass one for each")
        take = self._step_of_gym if self.api == "gym" else self._step
        steps = [take(env, action) for env, action in zip(self.envs, actions, strict=True)]
        return tuple(list(column) for column in zip(*steps, strict=True))

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    @staticmethod
    def _first(env: Any, seed: int | None, options: dict[str, Any] | None) -> Any:
        if seed is not None:
            env.seed(seed)
        return env.reset() if options is None else env.reset(options=options)

    @staticmethod
    def _step(env: Any, action: Any) -> Step:
        obs, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            final = deepcopy(obs)  # the reset may change the info
            obs, first_info = env.reset()
            info = {**first_info, "final_obs": final, "final_info": info}
        return obs, float(reward), terminated, truncated, info

    @staticmethod
    def _step_of_gym(env: Any, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        obs, reward, done, info = env.step(action)
        if done:
            info = {**info, "final_obs": deepcopy(obs)}
            obs = env.reset()
        return obs, float(reward), bool(done), info


class PreviousStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the previous action and reward to observations (Espeholt et al. 2018, figure 3).

        env = PreviousStep(gymnasium.make("CartPole-v1"))
        env.reset()[0]    # {"observation": ..., "previous_action": zeros(2), "previous_reward": zeros(1)}

    The entries of a dictionary stay beside the new ones; any other observation becomes the entry `observation`.

        previous_action     float32 vector, the result of `gymnasium.spaces.flatten`: one-hot for a choice
        previous_reward     float32 `[1]`, clipped to [-1, 1]

    Both are zeros in the first step of an episode.

    Args:
        env: An environment with actions that can be flattened to a vector.

    Raises:
        HyperparameterError: Actions have no fixed length, observations have goals (hindsight would have to change the
            added rewards as well), or an entry has the name of a new one.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        seen, action = env.observation_space, spaces.flatten_space(env.action_space)
        if not isinstance(action, spaces.Box):
            raise HyperparameterError(f"PreviousStep needs actions of a fixed length, got {env.action_space}")
        if has_goals(seen):
            raise HyperparameterError(
                "PreviousStep is not for observations with goals: a goal of hindsight changes the previous reward"
            )
        self._actions: Any = env.action_space
        self._is_dict = isinstance(seen, spaces.Dict)
        self._none: NDArray[np.float32] = np.zeros(action.shape, np.float32)
        added = {
            "previous_action": spaces.Box(action.low.astype(np.float32), action.high.astype(np.float32)),
            "previous_reward": spaces.Box(-1.0, 1.0, (1,), np.float32),
        }
        if self._is_dict and (taken := added.keys() & seen.keys()):
            raise HyperparameterError(f"observations have an entry {min(taken)!r} already; PreviousStep adds its own")
        self.observation_space = spaces.Dict({**(dict(seen) if self._is_dict else {"observation": seen}), **added})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode, which has no previous action."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with(observation, self._none.copy(), 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and return it and its reward with the observation."""
        taken = deepcopy(action)  # the environment may change its action
        observation, reward, terminated, truncated, info = self.env.step(action)
        done = np.asarray(spaces.flatten(self._actions, taken), np.float32)
        return self._with(observation, done, float(reward)), reward, terminated, truncated, info

    def _with(self, observation: Any, action: NDArray[np.float32], reward: float) -> dict[str, Any]:
        seen: Mapping[str, Any] = observation if self._is_dict else {"observation": observation}
        cut = np.array([min(max(reward, -1.0), 1.0)], np.float32)
        return {**seen, "previous_action": action, "previous_reward": cut}

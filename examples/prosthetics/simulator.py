"""The object in an actor: a simulator, and a copy of the agent that plays whole episodes in it.

    learner ── play(task, version, weights) ──> Simulator ── Played: one episode's transitions ──> learner

It plays the same episode for the same task and weights in this process, in another one or on another machine. After an
error, the simulator is made again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from targets import Speeds

from parl_core.training.acting import into_space
from parl_core.training.fragment import ActorSeconds

__all__ = ["Played", "Simulator", "Task"]


class Task(NamedTuple):
    """A request for one episode."""

    number: int
    seed: int
    head: int
    """The index of the head that acts."""
    noise: float
    """Standard deviation of the noise on actions."""
    speeds: Speeds


@dataclass
class Played:
    """One episode.

    Attributes:
        task: Its task.
        version: Number of updates of the weights.
        obs: float32 `[steps + 1, obs_dim]`, including the last observation.
        action: float32 `[steps, act_dim]`, in [-1, 1].
        reward: float32 `[steps]`.
        terminated: True if it terminated, False if it was truncated by a time limit.
        speed_error: Mean of |speed - target|, in metres per second.
        seconds: The actor's time by activity.
    """

    task: Task
    version: int
    obs: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: bool
    speed_error: float
    seconds: ActorSeconds

    def __len__(self) -> int:
        return len(self.reward)


class Simulator:
    """One simulator.

    Args:
        make_env: Function that makes the environment; its `reset` takes `options={"speeds": (low, high)}`, `info` of a
            step has `speed` and `target_speed`, and its episodes end.
        make_agent: Function that makes the agent; both are called for the first episode.
    """

    def __init__(self, make_env: Callable[[], Any], make_agent: Callable[[], Any]) -> None:
        self._make_env, self._make_agent = make_env, make_agent
        self._env: Any = None
        self._agent: Any = None
        self._idle_since = time.perf_counter()

    def play(self, task: Task, version: int, weights: Mapping[str, NDArray[Any]]) -> Played:
        """Play one episode with these weights, which result from `version` updates."""
        began = time.perf_counter()
        if self._agent is None:
            self._agent = self._make_agent()
        self._agent.set_weights(weights)
        try:
            if self._env is None:
                self._env = self._make_env()
            with self._agent.drawing_from(task.seed):
                played = self._episode(task, version)
        except Exception:
            self.close()
            raise
        finally:
            idle, self._idle_since = began - self._idle_since, time.perf_counter()
        env = played.seconds.env
        played.seconds = ActorSeconds(env, self._idle_since - began - env, idle)
        return played

    def close(self) -> None:
        """Close the simulator; the next episode makes another one."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _episode(self, task: Task, version: int) -> Played:
        env, clock = self._env, time.perf_counter
        valid = into_space(env.action_space, unit_box=True)
        began = clock()
        obs, _ = env.reset(seed=task.seed, options={"speeds": task.speeds})
        seconds = clock() - began
        seen, actions, rewards, errors = [obs], [], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            action = self._agent.sample(obs, head=task.head, noise=task.noise)
            began = clock()
            obs, reward, terminated, truncated, info = env.step(valid(action[None])[0])
            seconds += clock() - began
            seen.append(obs)
            actions.append(action)
            rewards.append(reward)
            errors.append(abs(info["speed"] - info["target_speed"]))
        return Played(
            task,
            version,
            np.asarray(seen, np.float32),
            np.asarray(actions, np.float32),
            np.asarray(rewards, np.float32),
            bool(terminated),
            float(np.mean(errors)),
            ActorSeconds(seconds),
        )

"""Returns and lengths of the episodes as the environment itself sees them, inside of wrappers that cut or clip."""

import time
from collections.abc import Iterator
from typing import Any

from parl_core.env.wrapping import AnyEnv, AnyWrapper, Step

__all__ = ["MonitorEnv"]


class MonitorEnv(AnyWrapper):
    """Keeps the return and the length of every finished episode.

    The last step of an episode has them in `info["episode"]`: `r` the undiscounted return, `l` the steps, `t` the
    seconds since the wrapper was made. An episode that is abandoned by `reset` does not count.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._began = time.monotonic()
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._handed_out = 0
        self._return, self._length = 0.0, 0
        self._total_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        """Take a step, and record the episode where it ends."""
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
        """Yield return and length of the episodes that finished since they were last asked for."""
        while self._handed_out < len(self._returns):
            self._handed_out += 1
            yield self._returns[self._handed_out - 1], self._lengths[self._handed_out - 1]

"""Several environments as one, in lists, without any requirement on their spaces."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from parl_core.env.wrapping import AnyEnv
from parl_core.seeding import spawn_seeds

__all__ = ["VectorEnv"]


class VectorEnv:
    """Steps a list of environments in turn, and begins a new episode where one has ended.

    Everything goes in and out as lists with one entry for each environment, so that any observation will do.
    `parl_core.env.vector` has the one for training: arrays, and environments in other processes.

    Args:
        envs: Gymnasium environments, at least one.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, envs: Sequence[AnyEnv]) -> None:
        if not envs:
            raise ValueError("VectorEnv needs at least one environment, got none")
        self.envs = list(envs)
        self.envs_num = len(self.envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Begin an episode in every environment.

        Args:
            seed: of all of them; each gets one of its own from it. None lets their generators go on.
            options: passed to each.

        Returns:
            Observations and infos.
        """
        seeds = [None] * self.envs_num if seed is None else spawn_seeds(seed, self.envs_num)
        starts = [env.reset(seed=own, options=options) for env, own in zip(self.envs, seeds, strict=True)]
        return [obs for obs, _ in starts], [info for _, info in starts]

    def step(
        self, actions: Sequence[Any]
    ) -> tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Take a step in every environment.

        Where an episode ends, the observation returned is the first one of the next episode, and the info has the
        last one of the old in `final_obs` (bootstrap from it where the episode was truncated) and the info of
        that step in `final_info`.

        Args:
            actions: one for each environment.

        Returns:
            Observations, rewards, terminated, truncated, infos.

        Raises:
            ValueError: there are more or fewer actions than environments.
        """
        if len(actions) != self.envs_num:
            raise ValueError(f"step got {len(actions)} actions for {self.envs_num} environments: pass one for each")
        steps = [self._step(env, action) for env, action in zip(self.envs, actions, strict=True)]
        obs, rewards, terminated, truncated, infos = (list(column) for column in zip(*steps, strict=True))
        return obs, rewards, terminated, truncated, infos

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    @staticmethod
    def _step(env: AnyEnv, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            final = deepcopy(obs)  # which the reset may change
            first, first_info = env.reset()
            info = {**first_info, "final_obs": final, "final_info": info}
            obs = first
        return obs, float(reward), terminated, truncated, info

"""The episodes that the environments of a vector are in the middle of."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.training.events import Episode

__all__ = ["RunningEpisodes"]


class RunningEpisodes:
    """Returns and lengths so far, one of each an environment.

    Args:
        num_envs: environments of the vector.
    """

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def step(self, reward: NDArray[Any], ended: NDArray[np.int64], infos: Mapping[str, Any]) -> list[Episode]:
        """Count a step of every environment.

        Args:
            reward: `[num_envs]`.
            ended: indices of the environments whose episodes ended with this step.
            infos: of the step. Where they have Gymnasium's `episode`, that counts: a wrapper may have scaled rewards.
                That of `final_info`, from inside of one environment, counts where its length is the one counted here.

        Returns:
            the episodes that ended.
        """
        self._returns += reward
        self._lengths += 1
        episodes = []
        for i in ended.tolist():
            counted = Episode(float(self._returns[i]), int(self._lengths[i]))
            inside = _told(infos.get("final_info", {}), i) or counted
            episodes.append(_told(infos, i) or (inside if inside.length == counted.length else counted))
            self._returns[i], self._lengths[i] = 0.0, 0
        return episodes

    def begin_again(self) -> None:
        """Forget them: all environments were reset."""
        self._returns[:], self._lengths[:] = 0.0, 0

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"returns": self._returns, "lengths": self._lengths}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._returns, self._lengths = state["returns"], state["lengths"]


def _told(infos: Mapping[str, Any], index: int) -> Episode | None:
    told, which = infos.get("episode"), infos.get("_episode")
    if not isinstance(told, Mapping) or which is None or not which[index]:
        return None
    return Episode(float(told["r"][index]), int(told["l"][index]))

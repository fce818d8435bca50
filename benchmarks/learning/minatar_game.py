"""MinAtar's games (Young & Tian 2019, arXiv:1903.03176) as Gymnasium environments.

The package registers its own environments; these return images `[channels, 10, 10]`, as convolutions require, and have
a time limit, because a ball in Breakout can repeat its path for ever.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

__all__ = ["GAMES", "MAX_FRAMES", "MinAtarGame"]

GAMES = {  # id: the package's name
    "MinAtar/Asterix-v1": "asterix",
    "MinAtar/Breakout-v1": "breakout",
    "MinAtar/Freeway-v1": "freeway",
    "MinAtar/SpaceInvaders-v1": "space_invaders",
}

MAX_FRAMES = 5_000  # twice Freeway's own limit; a good player of Breakout needs about twenty steps per brick


class MinAtarGame(gymnasium.Env[Any, Any]):
    """A game with sticky actions, rising difficulty and the minimal set of actions, as in the paper.

    Args:
        env_id: An id in `GAMES`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's class has it so

    def __init__(self, env_id: str) -> None:
        from minatar import Environment  # imported here, because only these gates need it

        self._game = Environment(GAMES[env_id])
        self._actions = self._game.minimal_action_set()
        height, width, channels = self._game.state_shape()
        self.observation_space = Box(0, 1, (channels, height, width), np.uint8)
        self.action_space = Discrete(len(self._actions))
        self._frames = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._game.seed(seed % 2**32)  # numpy's old generators accept no larger seeds
        self._game.reset()
        # the package keeps the last game's generator, so that an episode would depend on the previous one
        self._game.last_action = 0
        self._frames = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, over = self._game.act(self._actions[int(action)])
        self._frames += 1
        return self._image(), float(reward), bool(over), self._frames >= MAX_FRAMES, {}

    def _image(self) -> Any:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1)).view(np.uint8)

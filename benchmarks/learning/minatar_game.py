"""MinAtar's games (Young & Tian 2019, arXiv:1903.03176) as Gymnasium environments.

The package registers environments of its own; these give images `[channels, 10, 10]`, as convolutions want them, and
have a time limit: a ball in Breakout can go the same way for ever.
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

MAX_FRAMES = 5_000  # twice what Freeway has; a good player of Breakout needs some twenty a brick


class MinAtarGame(gymnasium.Env[Any, Any]):
    """One game with sticky actions and rising difficulty, as in the paper, and its minimal set of actions.

    Args:
        env_id: one of `GAMES`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's class has it so

    def __init__(self, env_id: str) -> None:
        from minatar import Environment  # here, because only these gates need it

        self._game = Environment(GAMES[env_id])
        self._actions = self._game.minimal_action_set()
        height, width, channels = self._game.state_shape()
        self.observation_space = Box(0, 1, (channels, height, width), np.uint8)
        self.action_space = Discrete(len(self._actions))
        self._frames = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._game.seed(seed % 2**32)  # numpy's old generators take no larger ones
        self._game.reset()
        self._game.last_action = 0  # the package keeps the last game's, which made an episode depend on the one before
        self._frames = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, over = self._game.act(self._actions[int(action)])
        self._frames += 1
        return self._image(), float(reward), bool(over), self._frames >= MAX_FRAMES, {}

    def _image(self) -> Any:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1)).view(np.uint8)

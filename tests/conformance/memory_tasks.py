"""Tasks that need a memory: their best return is known, and what is best without a memory, too."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["Bandit", "Recall", "TMaze"]


class Bandit(gymnasium.Env[Any, Any]):
    """Two arms, one of which gives 1 and the other nothing; which one is drawn for each episode, and nothing shows it.

    After its first pull a policy that sees its previous action and reward, and remembers them, knows the arm: the best
    mean return is `pulls` - 0.5. Without both it is `pulls` / 2.
    """

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, pulls: int = 6) -> None:
        self._pulls = pulls

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._arm, self._step = int(self.np_random.integers(2)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.zeros(1, np.float32), float(int(action) == self._arm), self._step == self._pulls, False, {}


class Recall(gymnasium.Env[Any, Any]):
    """The first observation shows a number; nothing follows for some steps; the last action has to name the number.

    The best return is 1, without a memory 1 / choices.
    """

    def __init__(self, choices: int = 2, delay: int = 5) -> None:
        self._choices, self._delay = choices, delay
        self.observation_space = spaces.Box(0.0, 1.0, (choices + 1,), np.float32)
        self.action_space = spaces.Discrete(choices)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown, self._step = int(self.np_random.integers(self._choices)), 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_last = self._step == self._delay
        self._step += 1
        return self._observed(), float(is_last and int(action) == self._shown), is_last, False, {}

    def _observed(self) -> NDArray[np.float32]:
        observed = np.zeros(self._choices + 1, np.float32)
        if self._step == 0:
            observed[self._shown] = 1.0
        observed[-1] = self._step == self._delay
        return observed


class TMaze(gymnasium.Env[Any, Any]):
    """A corridor whose beginning shows at which arm of its end the reward is (Bakker 2001).

    Actions are a step ahead, and the two arms, which count at the end alone. The right arm gives 1 and the wrong one
    nothing; a step that does not lead on costs 0.1, and the episode is cut after three times the corridor's length. The
    best return is 1, without a memory 0.5.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 6) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._arm, self._place, self._steps = int(self.np_random.integers(1, 3)), 0, 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if action == 0 and self._place < self._length:
            self._place += 1
            return self._observed(), 0.0, False, self._steps >= 3 * self._length, {}
        if action and self._place == self._length:
            return self._observed(), float(action == self._arm), True, False, {}
        return self._observed(), -0.1, False, self._steps >= 3 * self._length, {}

    def _observed(self) -> NDArray[np.float32]:
        cue = 2.0 * self._arm - 3.0 if self._place == 0 and self._steps == 0 else 0.0
        return np.array([cue, self._place == self._length], np.float32)

"""Cooperative matrix games with known optima, with PettingZoo's parallel API (PettingZoo is not required).

    two_step        Rashid et al. 2018 (arXiv:1803.11485), section 6.1: optimum 8, VDN finds 7
    cued_two_step   the same behind a cue that is shown once, so that the team needs a memory: optimum 8
    climbing        Claus & Boutilier 1998, section 4: optimum 11
    penalty         the same, with k = -100: optimum 10

All agents get the same reward. `optimum` is the largest possible mean return of an episode.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from parl_core.errors import HyperparameterError

__all__ = ["GAMES", "MatrixGame", "TwoStepGame", "climbing", "penalty"]

Steps = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class _TeamGame:
    """Base of games whose agents have equal rewards, and begin and end together."""

    metadata: Mapping[str, Any] = MappingProxyType({"name": "matrix_game", "render_modes": []})
    render_mode = None
    optimum: float

    def __init__(self, choices: tuple[int, ...], state_size: int, obs_size: int | None = None) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(choices))]
        self.agents: list[str] = []
        self._acts = {name: spaces.Discrete(n) for name, n in zip(self.possible_agents, choices, strict=True)}
        self.state_space = spaces.Box(0.0, 1.0, (state_size,), np.float32)
        self._obs_space = spaces.Box(0.0, 1.0, (obs_size or state_size,), np.float32)

    def observation_space(self, agent: str) -> spaces.Box:  # noqa: ARG002 - equal for all
        """Return the space of an agent's observations."""
        return self._obs_space

    def action_space(self, agent: str) -> spaces.Discrete:
        """Return the space of an agent's actions."""
        return self._acts[agent]

    def reset(
        self,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002 - PettingZoo's
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode; returns observations and infos."""
        self.agents = list(self.possible_agents)
        self._begin(np.random.default_rng(seed))
        return self._observations(), {name: {} for name in self.possible_agents}

    def step(self, actions: Mapping[str, Any]) -> Steps:
        """Take one step of all agents."""
        reward, over = self._play([int(actions[name]) for name in self.possible_agents])
        names = self.possible_agents
        if over:
            self.agents = []
        return (
            self._observations(),
            dict.fromkeys(names, reward),
            dict.fromkeys(names, over),
            dict.fromkeys(names, False),
            {name: {} for name in names},
        )

    def state(self) -> NDArray[np.float32]:
        """Return the global state."""
        raise NotImplementedError

    def render(self) -> None:
        """Do nothing: a matrix game has no picture."""

    def close(self) -> None:
        """Do nothing: the game holds no resources."""

    def _observations(self) -> dict[str, Any]:
        return {name: self._seen_by(row) for row, name in enumerate(self.possible_agents)}

    def _seen_by(self, row: int) -> NDArray[np.float32]:  # noqa: ARG002 - all see the state here
        return self.state()

    def _begin(self, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _play(self, actions: list[int]) -> tuple[float, bool]:
        raise NotImplementedError


class MatrixGame(_TeamGame):
    """One step, and the payoff of the actions.

    Args:
        payoffs: Array with one axis per agent, at least two.

    Raises:
        HyperparameterError: It has fewer than two axes.
    """

    def __init__(self, payoffs: ArrayLike) -> None:
        self.payoffs = np.asarray(payoffs, np.float64)
        if self.payoffs.ndim < 2:
            raise HyperparameterError(f"payoffs must have one axis per agent, at least 2, got {self.payoffs.ndim}")
        super().__init__(self.payoffs.shape, 1)
        self.optimum = float(self.payoffs.max())

    def state(self) -> NDArray[np.float32]:
        """Return the only state, `[1]`."""
        return np.ones(1, np.float32)

    def _begin(self, rng: np.random.Generator) -> None:
        pass

    def _play(self, actions: list[int]) -> tuple[float, bool]:
        return float(self.payoffs[tuple(actions)]), True


class TwoStepGame(_TeamGame):
    """The first agent chooses one of two matrix games, which both agents play in the second step.

        game A: 7 whatever they do      game B: 0 1
                                                1 8

    Additive values (VDN) can represent the 8 as at most 6.5, so such a team chooses game A.

    Args:
        cued: Whether a first step shows only the first agent which of its actions will lead to game B, drawn anew in
            each episode; later observations do not contain it. A team without a memory reaches 7.5, one with a memory
            and additive values 7.
    """

    GAMES_AB = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])
    optimum = 8.0

    def __init__(self, cued: bool = False) -> None:
        super().__init__((2, 2), 6 if cued else 4)
        self._cued = cued
        self._at, self._cue = 0, 1

    def state(self) -> NDArray[np.float32]:
        """Return the stage of the game (before the choice, A, B, over) one-hot, `[4]`; with the cue `[6]`."""
        found = np.zeros(self.state_space.shape, np.float32)
        if self._at >= 0:
            found[self._at] = 1.0
        elif self._cued:
            found[4 + self._cue] = 1.0
        return found

    def _seen_by(self, row: int) -> NDArray[np.float32]:
        found = self.state()
        if row > 0:
            found[4:] = 0.0
        return found

    def _begin(self, rng: np.random.Generator) -> None:
        self._at = -1 if self._cued else 0
        self._cue = int(rng.integers(2)) if self._cued else 1

    def _play(self, actions: list[int]) -> tuple[float, bool]:
        if self._at < 0:
            self._at = 0
            return 0.0, False
        if self._at == 0:
            self._at = 2 if actions[0] == self._cue else 1
            return 0.0, False
        reward = float(self.GAMES_AB[self._at - 1][tuple(actions)])
        self._at = 3
        return reward, True


def climbing() -> MatrixGame:
    """Return the climbing game: the optimum 11 lies beside penalties of -30."""
    return MatrixGame([[11, -30, 0], [-30, 7, 6], [0, 0, 5]])


def penalty(k: float = -100.0) -> MatrixGame:
    """Return the penalty game: two optima of 10, and `k` where the agents choose different ones."""
    return MatrixGame(np.array([[10.0, 0.0, k], [0.0, 2.0, 0.0], [k, 0.0, 10.0]]))


GAMES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "two_step": TwoStepGame,
        "cued_two_step": lambda: TwoStepGame(cued=True),
        "climbing": climbing,
        "penalty": penalty,
    }
)
"""The games by their names for `make_joint_env`."""

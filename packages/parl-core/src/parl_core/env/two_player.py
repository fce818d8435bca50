"""Games of two players, for self-play: connect four, and matrix games such as rock-paper-scissors.

    ConnectFour, MatrixGame     one game each, in PettingZoo's AEC API: players act one after the other
    ConnectFourBoards           many positions of connect four as arrays, for a search that looks at all of them at once

PettingZoo itself is not needed. A further game is a subclass of `TurnGame` with four methods.

A side of connect four is a 49-bit number: bit `7 * column + row` is a stone, row 0 at the bottom, and row 6 stays
empty, so that no line of stones wraps around. Four in a row are found by shifts (Tromp, "John's connect four
playground").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.errors import HyperparameterError, ParlError

__all__ = ["ConnectFour", "ConnectFourBoards", "MatrixGame", "TurnGame", "rock_paper_scissors"]

ROWS, COLUMNS = 6, 7
_HEIGHT = ROWS + 1
_DIRECTIONS = (1, _HEIGHT, _HEIGHT - 1, _HEIGHT + 1)  # shifts: up, right, and both diagonals
_BOTTOM = tuple(1 << (_HEIGHT * column) for column in range(COLUMNS))
_TOP = tuple(bit << (ROWS - 1) for bit in _BOTTOM)
_FULL = sum(bit * ((1 << ROWS) - 1) for bit in _BOTTOM)

Bits = NDArray[np.uint64]
_BOTTOMS, _TOPS = np.array(_BOTTOM, np.uint64), np.array(_TOP, np.uint64)
_CELLS = np.array([[_HEIGHT * column + row for column in range(COLUMNS)] for row in range(ROWS)], np.uint64)
_ONE = np.uint64(1)


def _connects_four(stones: Any) -> Any:
    """Return nonzero where stones (a number or an array) have four in a row."""
    found = stones & 0
    for step in _DIRECTIONS:
        shift = np.uint64(step) if isinstance(stones, np.ndarray) else step
        pairs = stones & (stones >> shift)
        found = found | (pairs & (pairs >> (shift + shift)))
    return found


class TurnGame:
    """A game in which two players take turns, in the part of PettingZoo's AEC API that loops use.

        game.reset(seed=1)
        for player in game.agent_iter():
            observation, reward, terminated, truncated, info = game.last()
            game.step(None if terminated or truncated else choose(observation))

    A subclass sets `observation` and `action`, the spaces of both players, and defines `_begin`, `_seen`, `_possible`
    and `_play`.

    Attributes:
        possible_agents: `player_0`, which begins, and `player_1`.
        agents: The players that have not left; they leave one after the other when the game is over.
        agent_selection: The player to move.
        rewards: The rewards of the last step, by player.
        terminations, truncations: Whether the game is over, by player; games are never truncated.
        infos: The infos, empty, by player.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012 - as PettingZoo has it
    render_mode = "ansi"
    observation: gymnasium.Space[Any]
    action: gymnasium.spaces.Discrete

    def __init__(self) -> None:
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self.rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self._cumulative_rewards: dict[str, float] = {}

    @property
    def unwrapped(self) -> Self:
        """Return the game itself, which has no wrappers."""
        return self

    @property
    def num_agents(self) -> int:
        """Return the number of players that have not left."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Return 2."""
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002 - both have the same
        """Return the space of a player's observations."""
        return self.observation

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:  # noqa: ARG002
        """Return the space of a player's actions."""
        return self.action

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Begin a game; the seed has no effect, because games are deterministic."""
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._begin()

    def observe(self, agent: str) -> Any:
        """Return a player's present observation."""
        return self._seen(self.possible_agents.index(agent))

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the observation of the player to move, and its reward since its previous turn.

        Returns:
            observation (None if not requested), reward, terminated, truncated, info.
        """
        agent = self.agent_selection
        return (
            self.observe(agent) if observe else None,
            self._cumulative_rewards[agent],
            self.terminations[agent],
            self.truncations[agent],
            self.infos[agent],
        )

    def agent_iter(self, max_iter: int = 2**63) -> Any:
        """Yield the player to move, until all have left."""
        while self.agents and max_iter > 0:
            max_iter -= 1
            yield self.agent_selection

    def step(self, action: Any) -> None:
        """Play an action of the player to move; None if the game is over, so that the player leaves.

        Raises:
            ParlError: `reset` was never called, or all players have left.
            ValueError: The action is not possible now, or the game is over.
        """
        if not self.agents:
            raise ParlError("call reset() before step(): no game is running")
        agent = self.agent_selection
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        if self.terminations[agent]:
            if action is not None:
                raise ValueError(f"the game of {agent} is over: step takes None now, got {action!r}")
            self.agents.remove(agent)
            for column in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
                del column[agent]
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self.agent_selection = other
            return
        possible = self._possible()
        if not (isinstance(action, int | np.integer) and 0 <= action < len(possible) and possible[int(action)]):
            raise ValueError(
                f"{agent} may play {np.flatnonzero(possible).tolist()} now, got {action!r}: choose where the "
                "observation's action_mask is 1"
            )
        self._cumulative_rewards[agent] = 0.0
        found = self._play(int(action))
        pair = found or (0.0, 0.0)
        for player, reward in zip(self.possible_agents, pair, strict=True):
            self.rewards[player] = reward
            self._cumulative_rewards[player] += reward
            self.terminations[player] = found is not None
        self.agent_selection = other

    def render(self) -> str:
        """Return the position as text."""
        return f"{type(self).__name__}: it is {self.agent_selection}'s turn"

    def close(self) -> None:
        """Do nothing: a game holds no resources."""

    def _begin(self) -> None:
        raise NotImplementedError

    def _seen(self, player: int) -> Any:
        """Return the observation of player 0 or 1."""
        raise NotImplementedError

    def _possible(self) -> Sequence[bool]:
        """Return for each action whether the player to move may play it."""
        raise NotImplementedError

    def _play(self, action: int) -> tuple[float, float] | None:
        """Play a possible action; if the game is over, return the rewards of both players."""
        raise NotImplementedError


class ConnectFour(TurnGame):
    """Connect four on 6 rows and 7 columns: four stones in a row win 1, the other player loses 1; a draw gives 0.

    Actions are columns. Observations are a dictionary: `observation`, float32 `[84]`, 1 where a stone is, first the
    player's own 6 rows (the lowest first) of 7 columns, then the other's; and `action_mask`, int8 `[7]`, 1 for columns
    that are not full, all ones for the player whose turn it is not.
    """

    metadata = {**TurnGame.metadata, "name": "connect_four"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.observation = gymnasium.spaces.Dict(
            {
                "observation": gymnasium.spaces.Box(0.0, 1.0, (2 * ROWS * COLUMNS,), np.float32),
                "action_mask": gymnasium.spaces.Box(0, 1, (COLUMNS,), np.int8),
            }
        )
        self.action = gymnasium.spaces.Discrete(COLUMNS)
        self._sides = [0, 0]

    def render(self) -> str:
        """Return the board as text, player 0's stones as X."""
        lines = []
        for row in reversed(range(ROWS)):
            bits = [1 << (_HEIGHT * column + row) for column in range(COLUMNS)]
            lines.append(
                " ".join("X" if self._sides[0] & bit else "O" if self._sides[1] & bit else "." for bit in bits)
            )
        return "\n".join(lines)

    def _begin(self) -> None:
        self._sides = [0, 0]

    def _seen(self, player: int) -> Any:
        sides = np.array([self._sides[player], self._sides[1 - player]], np.uint64)
        planes = (sides[:, None, None] >> _CELLS) & _ONE
        turn = self.possible_agents.index(self.agent_selection) == player
        mask = self._possible() if turn else [True] * COLUMNS
        return {"observation": planes.reshape(-1).astype(np.float32), "action_mask": np.array(mask, np.int8)}

    def _possible(self) -> Sequence[bool]:
        taken = self._sides[0] | self._sides[1]
        return [not taken & top for top in _TOP]

    def _play(self, action: int) -> tuple[float, float] | None:
        player = self.possible_agents.index(self.agent_selection)
        taken = self._sides[0] | self._sides[1]
        self._sides[player] |= (taken + _BOTTOM[action]) & ~taken
        if _connects_four(self._sides[player]):
            return (1.0, -1.0) if player == 0 else (-1.0, 1.0)
        return (0.0, 0.0) if self._sides[0] | self._sides[1] == _FULL else None


class MatrixGame(TurnGame):
    """A zero-sum game of one action each, chosen without knowing the other's: player 0 gets `payoff[row, column]`.

    Observations are a constant, float32 `[1]`. For self-play of one policy in both seats the matrix is skew-symmetric.

    Args:
        payoff: The payoff of player 0, `[actions, actions]`; player 1 gets its negative.

    Raises:
        HyperparameterError: The matrix is not square, or a number is not finite.
    """

    metadata = {**TurnGame.metadata, "name": "matrix_game"}  # noqa: RUF012

    def __init__(self, payoff: ArrayLike) -> None:
        super().__init__()
        self.payoff = np.asarray(payoff, np.float64)
        if self.payoff.ndim != 2 or len(set(self.payoff.shape)) != 1 or not np.isfinite(self.payoff).all():
            raise HyperparameterError(
                f"payoff must be a square matrix of finite numbers, got shape {self.payoff.shape}: {payoff!r}"
            )
        self.observation = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action = gymnasium.spaces.Discrete(len(self.payoff))
        self._first: int | None = None

    def _begin(self) -> None:
        self._first = None

    def _seen(self, player: int) -> Any:  # noqa: ARG002 - nothing is seen
        return np.ones(1, np.float32)

    def _possible(self) -> Sequence[bool]:
        return [True] * len(self.payoff)

    def _play(self, action: int) -> tuple[float, float] | None:
        if self._first is None:
            self._first = action
            return None
        won = float(self.payoff[self._first, action])
        return won, -won


def rock_paper_scissors(
    paper: float = 1.0, rock: float = 1.0, scissors: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrix of rock, paper and scissors with given prizes, and its only equilibrium.

    Args:
        paper: The prize of paper over rock, above 0.
        rock: The prize of rock over scissors, above 0.
        scissors: The prize of scissors over paper, above 0.

    Returns:
        payoff `[3, 3]`, and probabilities `[3]` in proportion to (scissors, rock, paper), against which each action is
        worth 0.

    Raises:
        HyperparameterError: A prize is not above 0.
    """
    if min(paper, rock, scissors) <= 0.0:
        raise HyperparameterError(f"prizes must be above 0, got {paper=}, {rock=}, {scissors=}")
    payoff = np.array([[0.0, -paper, rock], [paper, 0.0, -scissors], [-rock, scissors, 0.0]])
    return payoff, np.array([scissors, rock, paper]) / (paper + rock + scissors)


@dataclass(frozen=True)
class ConnectFourBoards:
    """Positions of `n` games of connect four.

    Attributes:
        own: Stones of the player to move, uint64 `[n]`.
        taken: Stones of both, uint64 `[n]`.
    """

    own: Bits
    taken: Bits

    @classmethod
    def empty(cls, n: int) -> Self:
        """Return the beginning of `n` games."""
        return cls(np.zeros(n, np.uint64), np.zeros(n, np.uint64))

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: Any) -> "ConnectFourBoards":
        """Return some of the positions, `index` being a slice or an array."""
        return ConnectFourBoards(self.own[index], self.taken[index])

    def legal(self) -> NDArray[np.bool_]:
        """Return whether each column has a free cell, `[n, 7]`."""
        return np.asarray((self.taken[:, None] & _TOPS) == 0)

    def after(self, columns: ArrayLike) -> "ConnectFourBoards":
        """Return the positions after a move in each, from the other player's side.

        Args:
            columns: `[n]`; each must have a free cell, which is not checked.
        """
        bottoms = _BOTTOMS[np.asarray(columns)]
        return ConnectFourBoards(self.own ^ self.taken, self.taken | (self.taken + bottoms))

    def lost(self) -> NDArray[np.bool_]:
        """Return whether the other player, which moved last, has four in a row, `[n]`."""
        return np.asarray(_connects_four(self.own ^ self.taken) != 0)

    def full(self) -> NDArray[np.bool_]:
        """Return whether all columns are full, `[n]`."""
        return np.asarray(self.taken == np.uint64(_FULL))

    def over(self) -> NDArray[np.bool_]:
        """Return whether the game has ended, `[n]`."""
        return self.lost() | self.full()

    def observations(self) -> NDArray[np.float32]:
        """Return the observations of the player to move, `[n, 84]`, as in `ConnectFour`."""
        sides = np.stack([self.own, self.own ^ self.taken], axis=1)
        planes = (sides[:, :, None] >> _CELLS.reshape(-1)) & _ONE
        return planes.reshape(len(self), -1).astype(np.float32)

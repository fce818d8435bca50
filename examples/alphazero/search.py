"""Monte Carlo tree search over many games of connect four at once, in numpy.

One simulation follows one path in the tree of every game; all games take their steps together, and the leaf positions
are evaluated in one call: by a network (PUCT of AlphaZero), or by random playouts (plain Monte Carlo tree search, the
baseline).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.env.two_player import COLUMNS, ConnectFourBoards

Floats = NDArray[np.floating[Any]]
Evaluate = Callable[[ConnectFourBoards, np.random.Generator], tuple[Floats, Floats]]
"""Function that returns prior probabilities `[n, 7]` and the value `[n]` for the player to move, in [-1, 1]."""

NO_CHILD = -1


@dataclass(frozen=True)
class Search:
    """The settings of a player's search.

    Attributes:
        evaluate: Function that evaluates leaf positions.
        simulations: Simulations per game and move.
        c_puct: Weight of the prior probabilities; AlphaZero's own constant is not published, 2 is usual for this game.
        noise: Share of Dirichlet noise in the prior of the root; 0.25 in self-play, 0 in matches (Silver et al. 2018).
        alpha: Concentration of that noise; about 10 divided by the number of moves.
    """

    evaluate: Evaluate
    simulations: int
    c_puct: float = 2.0
    noise: float = 0.0
    alpha: float = 1.0

    def visits(self, roots: ConnectFourBoards, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the visit counts of each move, `[n, 7]`, in positions of games that are not over."""
        trees = _Trees(roots, self.simulations + 1)
        prior, _ = self.evaluate(roots, rng)
        if self.noise:
            drawn = rng.dirichlet(np.full(COLUMNS, self.alpha), len(roots))
            prior = (1 - self.noise) * prior + self.noise * drawn
        trees.expand(np.arange(len(roots)), np.zeros(len(roots), np.int64), prior)
        for _ in range(self.simulations):
            trees.simulate(self, rng)
        return trees.visits[:, 0]


class _Trees:
    """One tree a game; node 0 is its root."""

    def __init__(self, roots: ConnectFourBoards, nodes: int) -> None:
        shape = (len(roots), nodes)
        self.own, self.taken = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        self.own[:, 0], self.taken[:, 0] = roots.own, roots.taken
        self.child = np.full((*shape, COLUMNS), NO_CHILD)
        self.prior = np.zeros((*shape, COLUMNS))  # 0 for impossible moves
        self.visits = np.zeros((*shape, COLUMNS), np.int64)
        self.total = np.zeros((*shape, COLUMNS))  # sums of values for the player to move
        self.is_over = np.zeros(shape, bool)
        self.outcome = np.zeros(shape)
        self.count = np.ones(len(roots), np.int64)

    def boards(self, games: NDArray[Any], nodes: NDArray[Any]) -> ConnectFourBoards:
        return ConnectFourBoards(self.own[games, nodes], self.taken[games, nodes])

    def expand(self, games: NDArray[Any], nodes: NDArray[Any], prior: Floats) -> None:
        """Store the prior probabilities of the possible moves."""
        possible = np.where(self.boards(games, nodes).legal(), np.maximum(prior, 1e-8), 0.0)
        self.prior[games, nodes] = possible / possible.sum(axis=1, keepdims=True)

    def simulate(self, search: Search, rng: np.random.Generator) -> None:
        games = np.arange(len(self.count))
        node = np.zeros(len(games), np.int64)
        path: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        leaf = node.copy()
        while len(games):
            move = self._best(games, node, search.c_puct)
            path.append((games, node, move))
            below = self.child[games, node, move]
            is_new = below == NO_CHILD
            if is_new.any():
                at, parents, moves = games[is_new], node[is_new], move[is_new]
                fresh = self.count[at]
                self.count[at] += 1
                self.child[at, parents, moves] = fresh
                after = self.boards(at, parents).after(moves)
                self.own[at, fresh], self.taken[at, fresh] = after.own, after.taken
                lost = after.lost()
                self.is_over[at, fresh] = lost | after.full()
                self.outcome[at, fresh] = np.where(lost, -1.0, 0.0)
                below[is_new] = fresh
            leaf[games] = below
            goes_on = ~(is_new | self.is_over[games, below])
            games, node = games[goes_on], below[goes_on]
        everyone = np.arange(len(leaf))
        value = self.outcome[everyone, leaf].copy()
        open_ones = np.flatnonzero(~self.is_over[everyone, leaf])
        if len(open_ones):
            prior, found = search.evaluate(self.boards(open_ones, leaf[open_ones]), rng)
            self.expand(open_ones, leaf[open_ones], prior)
            value[open_ones] = found
        for at, nodes, moves in reversed(path):  # the value of a child is the other player's
            value[at] = -value[at]
            self.visits[at, nodes, moves] += 1
            self.total[at, nodes, moves] += value[at]

    def _best(self, games: NDArray[Any], node: NDArray[Any], c_puct: float) -> NDArray[np.int64]:
        """Return the moves with the largest `Q + c_puct * P * sqrt(sum N) / (1 + N)`, Silver et al. 2018."""
        visits, prior = self.visits[games, node], self.prior[games, node]
        value = self.total[games, node] / np.maximum(visits, 1)
        root = np.sqrt(np.maximum(visits.sum(axis=1, keepdims=True), 1))
        scores = np.where(prior > 0.0, value + c_puct * prior * root / (1 + visits), -np.inf)
        best: NDArray[np.int64] = scores.argmax(axis=1)
        return best


def by_random_games(boards: ConnectFourBoards, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Evaluate positions by one random playout each, with equal prior probabilities."""
    value, sign = np.zeros(len(boards)), np.ones(len(boards))
    games, now = np.arange(len(boards)), boards
    while len(games):
        lost = now.lost()
        value[games[lost]] = -sign[games[lost]]
        goes_on = ~(lost | now.full())
        games, now = games[goes_on], now[goes_on]
        if len(games):
            now = now.after(np.where(now.legal(), rng.random((len(games), COLUMNS)), -1.0).argmax(axis=1))
            sign[games] = -sign[games]
    return np.full((len(boards), COLUMNS), 1.0 / COLUMNS), value


def drawn_moves(visits: NDArray[np.int64], rng: np.random.Generator, explores: bool) -> NDArray[np.int64]:
    """Return a move for each game: drawn in proportion to visits, or the most visited."""
    if not explores:
        return np.asarray(visits.argmax(axis=1))
    cumulated = visits.cumsum(axis=1)
    return np.asarray((cumulated <= rng.random((len(visits), 1)) * cumulated[:, -1:]).sum(axis=1))


def play_match(
    first: Search, second: Search, games: int, rng: np.random.Generator, explore_moves: int = 4
) -> tuple[int, int, int]:
    """Return wins, draws and losses of the first player, who begins in each game.

    Args:
        first: The player who begins.
        second: The other player.
        games: Number of parallel games.
        rng: Generator of the draws.
        explore_moves: Number of moves at the beginning that are drawn by visits, so that games differ.
    """
    boards, at = ConnectFourBoards.empty(games), np.arange(games)
    result = np.zeros(games, np.int64)
    for ply in range(42):
        player = first if ply % 2 == 0 else second
        boards = boards.after(drawn_moves(player.visits(boards, rng), rng, ply < explore_moves))
        result[at[boards.lost()]] = 1 if ply % 2 == 0 else -1
        goes_on = ~boards.over()
        boards, at = boards[goes_on], at[goes_on]
        if not len(at):
            break
    return int((result > 0).sum()), int((result == 0).sum()), int((result < 0).sum())

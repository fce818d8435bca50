"""Rock-paper-scissors with unequal prizes, a game for self-play with the only equilibrium (1/3, 1/2, 1/6)."""

from parl_core.env.two_player import MatrixGame, rock_paper_scissors

__all__ = ["unequal"]


def unequal(name: str) -> MatrixGame:  # noqa: ARG001 - recipes' makers get the name of the task
    """Return the game with prizes of 3 for rock, 2 for scissors and 1 for paper."""
    payoff, _ = rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)
    return MatrixGame(payoff)

"""Processes that learn one model together: which of how many this one is."""

from typing import NamedTuple

from parl_core import backends

__all__ = ["Learners", "join_learners"]


class Learners(NamedTuple):
    """This process among those that learn together."""

    rank: int
    """from 0"""
    size: int
    """how many"""

    @property
    def first(self) -> bool:
        """Whether this is the one that evaluates, saves and prints."""
        return self.rank == 0


def join_learners() -> Learners:
    """Become one of the processes that a launcher started, so that their updates are those of one large batch.

    The launchers are the frameworks' own: `torchrun --nproc-per-node=2 train.py`, or
    `python -m paddle.distributed.launch --nproc_per_node=2 train.py`. Started without one, the program learns alone and
    unchanged. The backend is that of the facade `parl`.

        learners = training.join_learners()
        training.seed_everything(seed)                   # equal weights everywhere
        agent = make_agent()
        training.seed_everything(seed + learners.rank)   # other actions
        train_on_policy(agent, envs, settings, seed=seed + learners.rank)

    Each process must bring batches of the same size and make the same updates; one that ends early leaves the others
    waiting, so let the budget end the loop, or stop in all of them at once. Evaluate, print and save where
    `learners.first`.
    """
    joined: Learners = backends.current().data_parallel.join()
    return joined

"""The documents' online loop in one process: sample, log, update, save, over and over.

    model_dir_N ─► samples ─► log ─► update ─► model_dir_N+1 ─► ...

Everything goes through the same log and directories as with the three commands, so that each round can be looked into
or recomputed, and the loop goes on where it, or the commands, stopped.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parl_evokit.agent import ESAgent
from parl_evokit.environments import NamedEpisode
from parl_evokit.errors import NothingToUpdate
from parl_evokit.log import LogWriter
from parl_evokit.online import sample_episodes
from parl_evokit.report import UpdateReport

__all__ = ["Round", "online_rounds", "play"]


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        number: 1 for the first.
        model_iter_id: Of the model after it.
        rewards: Of its samples.
        report: Of its update; None where samples were too few yet (CMA waits for its population).
    """

    number: int
    model_iter_id: int
    rewards: list[float]
    report: UpdateReport | None


def online_rounds(
    agent: ESAgent,
    episode: NamedEpisode,
    log: Path,
    warehouse: Path,
    *,
    rounds: int,
    episodes: int,
    workers: int = 1,
) -> Iterator[Round]:
    """Run rounds, and yield each when its model is saved.

    Args:
        agent: With a solver.
        episode: What models are evaluated in.
        log: Directory of the log.
        warehouse: Where `model_dir_N` is written, N being the model's number.
        rounds: How many.
        episodes: Samples of a round.
        workers: See `sample_episodes`.
    """
    for number in range(1, rounds + 1):
        with LogWriter(log) as writer:
            rewards = sample_episodes(agent, episode, episodes, writer.reward, workers)
        try:
            report, _ = agent.update_from_log(log)
        except NothingToUpdate as error:
            if error.report is None or error.report.set_aside.total:
                raise
            yield Round(number, agent.model_iter_id, rewards, None)
            continue
        agent.save(warehouse / f"model_dir_{agent.model_iter_id}")
        yield Round(number, agent.model_iter_id, rewards, report)


def play(agent: ESAgent, episode: NamedEpisode, count: int) -> list[float]:
    """Returns of the model without noise, in episodes that begin anywhere."""
    return [episode(agent, secrets.randbits(31)) for _ in range(count)]

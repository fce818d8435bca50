"""The steps of the PARL 1.x manual's programs: online sampling, offline update, and both in a loop.

    model_dir_N ─► episodes of perturbed models ─► log ─► update ─► model_dir_N+1 ─► ...

`evokit online-sampling` uses episodes of an environment as a service uses its visitors. The loop uses the same log and
directories as the commands, so that each round can be inspected or recomputed, and it continues where it, or the
commands, stopped.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from parl_evokit._directories import read_unchanged, update_lock
from parl_evokit._records import SamplingInfo
from parl_evokit._report import UpdateReport
from parl_evokit.agent import ESAgent
from parl_evokit.environments import NamedEpisode
from parl_evokit.errors import LogError, NothingToUpdate, StorageError
from parl_evokit.log import LogContents, LogWriter, write_raw
from parl_evokit.parallel._pool import open_pool, sample

__all__ = [
    "Round",
    "offline_update",
    "online_rounds",
    "play",
    "sample_episodes",
    "write_samples",
]


Write = Callable[[SamplingInfo, float], None]


def sample_episodes(agent: ESAgent, episode: NamedEpisode, count: int, write: Write, workers: int = 1) -> list[float]:
    """Evaluate perturbed models in one episode each; both halves of a mirrored pair get the same episode.

    Args:
        agent: An agent with a solver.
        episode: The episode that evaluates a model.
        count: The number of samples.
        write: Called with each sample and its reward, as soon as the reward is known.
        workers: The number of parallel processes; 1 plays in this process.

    Returns:
        The rewards.
    """
    if workers > 1:
        with open_pool("processes", workers) as pool:
            sampled = sample(agent, episode, count, pool, share=1.0)
        rewards = [float(reward) for reward in sampled.rewards]
        for info, reward in zip(sampled.infos, rewards, strict=True):
            write(info, reward)
        return rewards
    clone = agent.clone()
    rewards = []
    seed = 0
    for number in range(count):
        info = clone.add_noise()
        if number % 2 == 0:
            seed = secrets.randbits(31)
        rewards.append(episode(clone, seed))
        write(info, rewards[-1])
    return rewards


@contextlib.contextmanager
def write_samples(log: Path, raw: bool = False) -> Iterator[Write]:
    """Provide a function that logs a sample with its reward, in a `with` block.

    Args:
        log: A directory, to which a segment is added; with `raw` a file.
        raw: Write the raw form: one new file, whole or not at all.

    Raises:
        LogError: The log cannot be written, or the file exists.
        StorageError: The file cannot be written.
    """
    if not raw:
        with LogWriter(log) as writer:
            yield writer.reward
        return
    if os.path.lexists(log):
        raise LogError(f"{log} exists already, and its samples would be lost: choose another name")
    infos: list[SamplingInfo] = []
    rewards: list[float] = []

    def keep(info: SamplingInfo, reward: float) -> None:
        infos.append(info)
        rewards.append(reward)

    yield keep
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        write_raw(log, infos, rewards)
    except OSError as error:
        raise StorageError(f"{log} cannot be written: {error}") from error


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        number: 1 for the first.
        model_iter_id: The number of the model after it.
        rewards: The rewards of its samples.
        report: The report of its update; None while there are too few samples (CMA waits for its population).
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
    """Run rounds, and yield each after its model is saved.

    Args:
        agent: An agent with a solver.
        episode: The episode that evaluates a model.
        log: Directory of the log.
        warehouse: The directory for `model_dir_N`, where N is the model's number.
        rounds: The number of rounds.
        episodes: The number of samples of a round.
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
    """Return the return of each of `count` episodes of the model without noise, with random initial states."""
    return [episode(agent, secrets.randbits(31)) for _ in range(count)]


def offline_update(
    open_agent: Callable[[], ESAgent],
    logs: Iterable[str | PathLike[str]],
    model_dir: Path,
    updated_model_dir: Path,
    *,
    max_damage: float = 0.01,
    wait_s: float = 0.0,
    waiting: Callable[[str], None] | None = None,
) -> tuple[UpdateReport, LogContents]:
    """Update the model in a directory from logs, and write it into a directory, which may be the same.

    Args:
        open_agent: Function that returns an agent with the model and the solver of `model_dir`.
        logs: See `ESAgent.update_from_log`.
        model_dir: The directory of the present model.
        updated_model_dir: The directory of the new model.
        max_damage: See `ESAgent.update_from_log`.
        wait_s: Maximum time to wait for another update of `updated_model_dir`, in seconds.
        waiting: See `update_lock`.

    Raises:
        UpdateLocked: Another update of that directory is still in progress.
        NothingToUpdate: Too few new samples could be used; nothing was written.
        LogError: See `read_log`; or `updated_model_dir` is one of the logs.
        StorageError: The new directory cannot be written; it is unchanged.
    """
    logs = list(logs)
    if os.path.realpath(updated_model_dir) in map(os.path.realpath, logs):
        raise LogError(f"{updated_model_dir} is one of the logs: choose another directory for the new model")
    with update_lock(updated_model_dir, wait_s, waiting):
        agent = read_unchanged(model_dir, open_agent)
        report, contents = agent.update_from_log(logs, max_damage=max_damage)
        agent.save(updated_model_dir)
    return report, contents

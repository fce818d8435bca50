"""Online sampling in the small: episodes of perturbed models, their records and rewards in a log.

What a service does with its users, `evokit online-sampling` does with episodes of an environment.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from parl_evokit.agent import ESAgent
from parl_evokit.environments import NamedEpisode
from parl_evokit.errors import StorageError
from parl_evokit.log import LogWriter, write_raw
from parl_evokit.records import SamplingInfo

__all__ = ["sample_episodes", "write_samples"]

Write = Callable[[SamplingInfo, float], None]


def sample_episodes(agent: ESAgent, episode: NamedEpisode, count: int, write: Write, workers: int = 1) -> list[float]:
    """Evaluate perturbed models, each in one episode; the halves of a mirrored pair get the same one.

    Args:
        agent: With a solver.
        episode: What a model is evaluated in.
        count: How many samples.
        write: Called with each sample and its reward, as soon as it is known.
        workers: Processes that play side by side; 1 plays here.

    Returns:
        The rewards.
    """
    if workers > 1:
        from parl_evokit.parallel import open_pool, sample

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
    """A function that logs a sample with its reward.

    Args:
        log: A directory, to which a segment is added; with `raw` a file.
        raw: Write the documents' form: a new file, whole, in place of an old one.

    Raises:
        LogError: The log cannot be written.
        StorageError: The file cannot be written.
    """
    if not raw:
        with LogWriter(log) as writer:
            yield writer.reward
        return
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
        raise StorageError(f"{log} cannot be written: {error}; it is as it was") from error

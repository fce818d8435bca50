"""`sample`: draw samples of an agent, evaluate them in a pool, and return records with rewards."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._records import SamplingInfo
from parl_evokit._sampling_agent import SamplingAgent
from parl_evokit.errors import EvaluationFailed, EvolutionError, WorkersLost
from parl_evokit.parallel._observations import ObservationStatistics, ObservationSums
from parl_evokit.parallel._pool import Pool, ProcessPool, ThreadPool
from parl_evokit.parallel._worker import Done, Evaluate

__all__ = ["Sampled", "open_pool", "sample"]

SHARE = 0.9
GRACE_S = 0.3


@dataclass
class Sampled:
    """The samples of a round; `agent.update(*sampled)` is the update.

    Attributes:
        infos: Records of the samples, in the order in which they were drawn, and then late ones of earlier rounds.
        rewards: Of these samples, float64 `[len(infos)]`, each rounded to float32.
        late: Number of `infos` from earlier rounds.
        missing: Number of samples of this round that have no result yet.
    """

    infos: list[SamplingInfo] = field(default_factory=list)
    rewards: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    late: int = 0
    missing: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield infos, then rewards."""
        return iter((self.infos, self.rewards))

    def __len__(self) -> int:
        return len(self.infos)


def sample(
    agent: Any,
    evaluate: Evaluate,
    n: int,
    pool: Pool | str | None = None,
    *,
    share: float | None = None,
    grace_s: float = GRACE_S,
    observations: ObservationStatistics | None = None,
    alike: bool | None = None,
) -> Sampled:
    """Draw `n` samples and evaluate them side by side.

    With counted keys (`keys: COUNTER`) and a function that depends on nothing but agent and seed, every pool of any
    size gives the same samples and rewards, unless stragglers are left behind.

    Args:
        agent: An `ESAgent`, or whatever else has clones.
        evaluate: A function (agent) or (agent, seed) that gives a reward; larger is better. The agent's `predict` is
            that of the perturbed model; the seed, 0 to 2**31 - 1, is a function of the sample's key. Or a class whose
            instances are such functions: each worker makes one, so that each has an environment of its own.
        n: How many samples, 1 or more.
        pool: A pool, which serves many rounds; or `threads`, `processes` or `remote` for one that is opened for this
            round only. Default: `threads`, and for models of paddle `processes`.
        share: Above 0 to 1. Once this share of the samples has come back, those are left behind that take more than
            twice as long as any other has; they come with a later round (see `Sampled.late`) and count as stale then.
            Default: 0.9, and 1 where the algorithm cannot use stale samples (CMA).
        grace_s: No worker that has been silent for less than this is left behind, in seconds.
        observations: Have `predict` normalise its inputs by these statistics, which stand still during the round and
            count afterwards what all samples have seen.
        alike: Whether both halves of a mirrored pair get the same seed, so that what the start decides does not count
            in their difference. Default: they do, but for ARS, which is published with episodes that all start anew:
            its step is as long for two returns that hardly differ, and pairs that start alike follow every slope.

    Returns:
        Records and rewards.

    Raises:
        EvaluationFailed: `evaluate` raised; what had come back by then is the error's `sampled`. The pool goes on.
        WorkersLost: Workers end again and again; the same. One that dies now and then is replaced, and its unfinished
            samples are evaluated by others.
        EvolutionError: The agent has no clones, or something cannot be sent to the workers.
    """
    if n < 1:
        raise ValueError(f"n is 1 or more, not {n}")
    if share is not None and not 0.0 < share <= 1.0:
        raise ValueError(f"share is above 0 to 1, not {share}")
    if not hasattr(agent, "clone"):
        raise EvolutionError(f"samples are drawn of an ESAgent, which has clones; {type(agent).__name__} has none")
    drawing: SamplingAgent = agent.clone()
    if not isinstance(pool, Pool):
        with open_pool(pool or _default_kind(drawing)) as opened:
            return sample(
                agent, evaluate, n, opened, share=share, grace_s=grace_s, observations=observations, alike=alike
            )
    if share is None:
        share = SHARE if drawing.source.takes_stale_samples else 1.0
    if alike is None:
        alike = drawing.source.pairs_alike
    infos = drawing.draw(n)
    rows = _Rows(infos)
    pool.assign(agent, evaluate)
    normalizer = None if observations is None else observations.normalizer()
    model = pool.model_of(drawing.source.sampler, normalizer, alike)
    try:
        pool.run(infos, model, share=share, grace_s=grace_s, collect=rows.add)
    except (EvaluationFailed, WorkersLost) as error:
        error.sampled = rows.sampled(observations)
        raise
    return rows.sampled(observations)


def open_pool(kind: str = "threads", workers: int | None = None, **options: Any) -> Pool:
    """Open a pool by its name.

    Args:
        kind: `threads`, `processes` or `remote`.
        workers: How many. Default: one a core, or as many as the cluster has slots.
        options: Of `ProcessPool` or `Pool`.

    Raises:
        ValueError: There is no such kind.
        ImportError: `remote` without parl-remote.
    """
    if kind == "threads":
        return ThreadPool(workers, **options)
    if kind == "processes":
        return ProcessPool(workers, **options)
    if kind == "remote":
        return Pool(kind, workers, **options)
    raise ValueError(f"a pool is threads, processes or remote, not {kind!r}")


class _Rows:
    """Samples as they come back."""

    def __init__(self, infos: list[SamplingInfo]) -> None:
        self._places = {id(info): place for place, info in enumerate(infos)}
        self._infos = infos
        self._own: dict[int, Done] = {}
        self._late: list[tuple[SamplingInfo, Done]] = []

    def add(self, info: SamplingInfo, done: Done) -> None:
        place = self._places.get(id(info))
        if place is None:
            self._late.append((info, done))
        else:
            self._own[place] = done

    def sampled(self, observations: ObservationStatistics | None) -> Sampled:
        rows = [(self._infos[place], self._own[place]) for place in sorted(self._own)] + self._late
        if observations is not None:
            for _, done in rows:
                if isinstance(done.sums, ObservationSums):
                    observations.add(done.sums)
        rewards = np.array([done.reward for _, done in rows], np.float64)
        return Sampled([info for info, _ in rows], rewards, len(self._late), len(self._infos) - len(self._own))


def _default_kind(clone: SamplingAgent) -> str:
    return "threads" if getattr(clone.model, "samples_in_threads", True) else "processes"

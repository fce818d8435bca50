"""A worker of parallel sampling: it perturbs a clone, calls the user's function, and returns rewards.

    equip(clone, evaluate) ─► take(model) ─► evaluate(keys) ─► Reply: one reward per key, or those until an error

`Worker` is the class of an actor (`parl_core.actors`), so this module has no queues, pipes or threads.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from parl_evokit._sampler import Sampler
from parl_evokit._samples import as_float
from parl_evokit._sampling_agent import FixedModel, SamplingAgent
from parl_evokit.noise._spec import splitmix64
from parl_evokit.parallel._observations import NormalizedAgent, Normalizer, ObservationSums

__all__ = ["Done", "Evaluate", "Failure", "Model", "Reply", "Worker", "seed_of"]

Evaluate = Callable[..., float]
SEED_INDEX = 2**32 + 2  # blocks of noise, parents and control traffic have the indices below
OWN_SEED_INDEX = 2**32 + 3


@dataclass(frozen=True, eq=False)
class Model:
    """The model to sample.

    Attributes:
        sampler: Parameters and noise.
        normalizer: The normalizer of observations, whose sums are then recorded; or None.
        alike: True if both halves of a mirrored pair get the same seed.
    """

    sampler: Sampler
    normalizer: Normalizer | None
    alike: bool = True


class Done(NamedTuple):
    """The reward of one sample, and the sums of its observations if they were recorded."""

    reward: float
    sums: ObservationSums | None = None


class Failure(NamedTuple):
    """An exception of the user's function; later samples of the call were not evaluated.

    Attributes:
        summary: The exception in one line.
        trace: Its traceback.
    """

    summary: str
    trace: str


class Reply(NamedTuple):
    """The outcome of some samples, in few bytes.

    Attributes:
        rewards: Rewards in the order of the keys, float64; fewer than keys if an evaluation failed.
        sums: Sums of the observations of each sample, if they were recorded.
        failure: The failure of the first sample without a reward.
        seconds: Duration of the evaluations.
    """

    rewards: bytes
    sums: list[ObservationSums | None] | None
    failure: Failure | None
    seconds: float

    def answers(self, samples: int) -> bool:
        """Return whether the reply has a reward for each of a number of samples, or a failure after the last reward."""
        n, rest = divmod(len(self.rewards), 8)
        return not rest and (n == samples if self.failure is None else n < samples)

    def done(self) -> list[Done]:
        """Return the samples that have a reward."""
        rewards = np.frombuffer(self.rewards, "<f8").tolist()
        return list(map(Done, rewards, self.sums or [None] * len(rewards)))


def seed_of(key: int, alike: bool = True) -> int:
    """Return the seed of a sample's episodes, 0 to 2**31 - 1; `alike`: the same for both halves of a mirrored pair."""
    return (splitmix64(key >> 1, SEED_INDEX) if alike else splitmix64(key, OWN_SEED_INDEX)) >> 33


class Worker:
    """One clone and the user's function."""

    def __init__(self) -> None:
        self._clone: SamplingAgent | None = None
        self._source: FixedModel | None = None
        self._alike = True
        self._call: Callable[[Any, int], float] = _not_equipped
        self._agent: Any = None
        self._counting: NormalizedAgent | None = None

    def equip(self, clone: SamplingAgent, evaluate: Evaluate) -> Failure | None:
        """Use this clone and this function, or an instance of this class, from now on."""
        self._clone, self._source = clone, None
        try:
            self._call = _with_seed(evaluate() if isinstance(evaluate, type) else evaluate)
        except BaseException as error:  # an exception of the user's class, or an exit, is the caller's
            return _failure_of(error)
        return None

    def take(self, model: Model) -> None:
        """Use this model from now on."""
        assert self._clone is not None
        if self._source is None:
            self._source = FixedModel(model.sampler, self._clone.source.keys)
            self._clone.follow(self._source)
        self._source.sampler, self._alike = model.sampler, model.alike
        self._agent, self._counting = self._clone, None
        if model.normalizer is not None:
            self._agent = self._counting = NormalizedAgent(self._clone, model.normalizer, counts=True)

    def evaluate(self, keys: Sequence[int]) -> Reply:
        """Evaluate the samples with these keys; instead of key 0 they have minus their identity."""
        assert self._clone is not None
        assert self._source is not None
        began = monotonic()
        rewards: list[float] = []
        sums: list[ObservationSums | None] | None = None if self._counting is None else []
        failure = None
        for key in keys:
            try:
                self._clone.take(key)
                reward = as_float(self._call(self._agent, seed_of(abs(key), self._alike)))
            except BaseException as error:  # an exception of the user's function, or an exit, is the caller's
                failure = _failure_of(error)
                break
            rewards.append(reward)
            if sums is not None and self._counting is not None:
                sums.append(self._counting.take_sums())
        packed = np.array(rewards, "<f8").tobytes()
        return Reply(packed, sums, failure, monotonic() - began)


def _failure_of(error: BaseException) -> Failure:
    """Return the exception that is being handled as text that any process can read."""
    return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def _with_seed(evaluate: Evaluate) -> Callable[[Any, int], float]:
    """Return the function as one of agent and seed; many take the agent alone."""
    if not callable(evaluate):
        raise TypeError(f"evaluate must be a function of an agent (and a seed), not {evaluate!r}")
    try:
        signature = inspect.signature(evaluate)
    except ValueError:  # some functions written in C have no signature
        return lambda agent, _: evaluate(agent)
    try:
        signature.bind(None, 0)
    except TypeError:
        return lambda agent, _: evaluate(agent)
    return evaluate


def _not_equipped(*_: object) -> float:
    raise AssertionError("samples came before the function that evaluates it")

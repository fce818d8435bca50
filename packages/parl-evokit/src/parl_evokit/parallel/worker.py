"""What a worker does, wherever it lives: it perturbs its clone as told, calls the user's function, and gives rewards.

    Equip(clone, evaluate) ─► Model(sampler) ─► Batch(numbers, keys) ─► Done, Done, ... (or Failure)

No queues, pipes or threads here: the pools bring the messages and carry the outcomes.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parl_evokit.noise.generators import splitmix64
from parl_evokit.parallel.observations import NormalizedAgent, Normalizer, ObservationSums
from parl_evokit.records import SamplingInfo
from parl_evokit.sampler import Sampler
from parl_evokit.sampling_agent import FixedModel, SamplingAgent

__all__ = ["Batch", "Done", "Equip", "Evaluate", "Failure", "Message", "Model", "Outcome", "Worker", "seed_of"]

Evaluate = Callable[..., float]
SEED_INDEX = 2**32 + 2  # blocks of noise, parents and control traffic have the indices below


@dataclass(frozen=True, eq=False)
class Equip:
    """Begin to work for an agent: its clone, and the function (or class of functions) that evaluates."""

    clone: SamplingAgent
    evaluate: Evaluate


@dataclass(frozen=True, eq=False)
class Model:
    """Sample this model from now on; with a normalizer, normalise and count what it is given."""

    sampler: Sampler
    normalizer: Normalizer | None


class Batch(NamedTuple):
    """Evaluate these keys; the numbers name the samples in the outcomes."""

    numbers: list[int]
    keys: list[int]


class Done(NamedTuple):
    """One sample's reward, rounded to float32 as logs hold it, and what it saw if that was counted."""

    number: int
    reward: float
    sums: ObservationSums | None = None


class Failure(NamedTuple):
    """The user's function raised; what was left of the batch has not been begun.

    Attributes:
        number: For which sample; None while the worker was made ready.
        summary: The exception in one line.
        trace: Its traceback.
    """

    number: int | None
    summary: str
    trace: str


Message = Equip | Model | Batch
Outcome = Done | Failure


def seed_of(key: int) -> int:
    """The seed of a sample's episodes, 0 to 2**31 - 1: both halves of a mirrored pair have the same."""
    return splitmix64(key >> 1, SEED_INDEX) >> 33


class Worker:
    """One clone and the user's function."""

    def __init__(self) -> None:
        self._clone: SamplingAgent | None = None
        self._source: FixedModel | None = None
        self._call: Callable[[Any, int], float] = _not_equipped
        self._agent: Any = None
        self._counting: NormalizedAgent | None = None

    def handle(self, message: Message) -> Iterator[Outcome]:
        """Do what the message says; the outcomes come one by one."""
        match message:
            case Equip():
                yield from self._equip(message)
            case Model():
                self._take(message)
            case Batch():
                yield from self._evaluate(message)

    def _equip(self, message: Equip) -> Iterator[Failure]:
        self._clone, self._source = message.clone, None
        try:
            evaluate = message.evaluate() if isinstance(message.evaluate, type) else message.evaluate
            self._call = _with_seed(evaluate)
        except (Exception, SystemExit) as error:  # of the user's class: it belongs to the caller
            yield failure_of(None, error)

    def _take(self, message: Model) -> None:
        assert self._clone is not None
        if self._source is None:
            self._source = FixedModel(message.sampler, self._clone.source.keys)
            self._clone.follow(self._source)
        self._source.sampler = message.sampler
        self._agent, self._counting = self._clone, None
        if message.normalizer is not None:
            self._agent = self._counting = NormalizedAgent(self._clone, message.normalizer, counts=True)

    def _evaluate(self, batch: Batch) -> Iterator[Outcome]:
        assert self._clone is not None
        assert self._source is not None
        sampler, info = self._source.sampler, SamplingInfo()
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and the update sets it aside
            for number, key in zip(batch.numbers, batch.keys, strict=True):
                info.fill(key, sampler.model_iter_id, sampler.fingerprint)
                try:
                    self._clone.apply_noise(info)
                    reward = float(np.float32(float(self._call(self._agent, seed_of(key)))))
                except (Exception, SystemExit) as error:  # of the user's function: it belongs to the caller
                    yield failure_of(number, error)
                    return
                yield Done(number, reward, self._counting.take_sums() if self._counting else None)


def failure_of(number: int | None, error: BaseException) -> Failure:
    """The exception that is being handled, as text that any process can read."""
    return Failure(number, f"{type(error).__name__}: {error}", traceback.format_exc())


def _with_seed(evaluate: Evaluate) -> Callable[[Any, int], float]:
    """The function as one of agent and seed; many take the agent alone."""
    if not callable(evaluate):
        raise TypeError(f"evaluate is a function of an agent (and a seed), not {evaluate!r}")
    try:
        signature = inspect.signature(evaluate)
    except ValueError:  # some functions written in C have none
        return lambda agent, _: evaluate(agent)
    try:
        signature.bind(None, 0)
    except TypeError:
        return lambda agent, _: evaluate(agent)
    return evaluate


def _not_equipped(*_: object) -> float:
    raise AssertionError("a batch came before the function that evaluates it")

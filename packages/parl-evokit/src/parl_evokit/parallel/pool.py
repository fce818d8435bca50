"""The engine behind every pool: it keeps workers equipped and busy, and replaces those that end.

sampling.sample ──► Pool.run(round) ──► Schedule (who does what)
                          │ Equip, Model, Batch      ▲ Done, Failure, Lost
                          ▼                          │
                    Transport (threads, processes, actors)
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from parl_evokit.errors import EvaluationFailed, EvolutionError, WorkersLost
from parl_evokit.parallel.observations import Normalizer
from parl_evokit.parallel.schedule import MOST_DEATHS, Schedule
from parl_evokit.parallel.worker import Batch, Done, Equip, Evaluate, Failure, Message, Model, Outcome
from parl_evokit.records import SamplingInfo
from parl_evokit.sampler import Sampler
from parl_evokit.sampling_agent import SamplingAgent

__all__ = ["Lost", "News", "Pool", "Transport"]

MOST_FAILED_STARTS = 3
MOST_LOST_HOSTS = 20  # in a row, before anything was evaluated: what is evaluated may bring hosts down


class Lost(NamedTuple):
    """A worker has ended, and why.

    Attributes:
        reason: In words.
        from_outside: Whether what it was doing cannot have caused that: its host is gone, or somebody ended it.
    """

    reason: str
    from_outside: bool = False


class News(NamedTuple):
    """What has come from a worker."""

    worker: int
    outcomes: list[Outcome]
    lost: Lost | None = None


class Transport(Protocol):
    """Where workers live. Numbers of workers are given by the pool and never used again."""

    def start(self, worker: int) -> None:
        """Make a worker; that it could not be made may also be news later.

        Raises:
            WorkersLost: There is no room.
        """

    def send(self, worker: int, message: Message) -> None:
        """Bring a message to an idle worker; that it is gone is news, not an error.

        Raises:
            EvolutionError: The message cannot be sent.
        """

    def receive(self, timeout_s: float | None) -> list[News]:
        """Wait for news; none when the time is over."""

    def end(self, worker: int) -> None:
        """Give up a worker, which may be busy; nothing more is heard from it."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class _Member:
    """What a worker has: the job it is equipped for, and the model."""

    job: object = None
    model: Model | None = None
    proved: bool = False  # it has answered once


class Pool:
    """Workers that evaluate samples; made as `ThreadPool`, `ProcessPool` or `ActorPool`, used by `sample`.

    Workers stay from round to round. Use it in a `with` statement, or close it.

    Args:
        transport: Where the workers live.
        workers: How many; 1 or more.
    """

    def __init__(self, transport: Transport, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"a pool has 1 worker or more, not {workers}")
        self._transport = transport
        self._size = workers
        self._members: dict[int, _Member] = {}
        self._next_worker = self._next_number = 0
        self._schedule = Schedule()
        self._infos: dict[int, SamplingInfo] = {}  # handed out and not returned, of all rounds
        self._job: tuple[object, Evaluate] | None = None
        self._clone: Callable[[], SamplingAgent] | None = None
        self._model: Model | None = None
        self._failed_starts = self._lost_hosts = 0
        self._closed = False

    @property
    def workers(self) -> int:
        """How many workers the pool keeps."""
        return self._size

    def assign(self, agent: Any, evaluate: Evaluate) -> None:
        """Work for this agent with this function from now on; late samples of another are dropped.

        Raises:
            EvolutionError: The pool is closed.
        """
        if self._closed:
            raise EvolutionError("the pool is closed: open another one")
        if self._job is None or self._job[0] is not agent or self._job[1] is not evaluate:
            self._infos.clear()
            self._job, self._clone = (agent, evaluate), agent.clone

    def model_of(self, sampler: Sampler, normalizer: Normalizer | None) -> Model:
        """What workers get of a model: the same object while nothing has changed, so that it is sent once."""
        if self._model is None or self._model.sampler is not sampler or self._model.normalizer is not normalizer:
            self._model = Model(sampler, normalizer)
        return self._model

    def run(
        self,
        infos: list[SamplingInfo],
        model: Model,
        *,
        share: float,
        grace_s: float,
        collect: Callable[[SamplingInfo, Done], None],
    ) -> None:
        """Evaluate samples; returns when all are done, or `share` of them and the rest are stragglers.

        Args:
            infos: Samples of `model`.
            model: What the workers shall have.
            share: See `Schedule.begin`.
            grace_s: See there.
            collect: Called with each sample that has come back, late ones of earlier rounds among them.

        Raises:
            EvaluationFailed: The user's function raised.
            WorkersLost: Workers end again and again.
        """
        numbers = range(self._next_number, self._next_number + len(infos))
        self._next_number += len(infos)
        late = self._schedule.running()
        self._infos = {number: info for number, info in self._infos.items() if number in late}
        self._infos.update(zip(numbers, infos, strict=True))
        self._failed_starts = self._lost_hosts = 0  # what ended workers before need not end these
        self._schedule.begin(numbers, share=share, grace_s=grace_s)
        try:
            while True:
                self._fill_up()
                self._hand_out(model)
                now = time.monotonic()
                if self._schedule.complete(now):
                    break
                if stuck := self._schedule.stuck(now):
                    for worker in stuck:  # they hold a late sample, and nobody else is free
                        self._remove(worker)
                        self._transport.end(worker)
                    continue
                errors = [
                    error
                    for news in self._transport.receive(self._schedule.wait_s(now))
                    for error in self._take(news, collect)
                ]
                if errors:
                    raise errors[0]
        finally:
            self._schedule.abandon()

    def close(self) -> None:
        """End all workers; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._transport.close()
            self._members.clear()
            self._infos.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill_up(self) -> None:
        while len(self._members) < self._size:
            worker = self._next_worker
            self._next_worker += 1
            self._members[worker] = _Member()
            try:
                self._transport.start(worker)
            except WorkersLost:
                del self._members[worker]
                if not self._members:
                    raise
                return  # fewer workers do it as well

    def _hand_out(self, model: Model) -> None:
        assert self._job is not None
        assert self._clone is not None
        for worker, member in self._members.items():
            if self._schedule.busy(worker):
                continue
            batch = self._schedule.next_batch(worker, len(self._members), time.monotonic())
            if not batch:
                continue
            if member.job is not self._job:
                self._transport.send(worker, Equip(self._clone(), self._job[1]))
                member.job, member.model = self._job, None
            if member.model is not model:
                self._transport.send(worker, model)
                member.model = model
            self._transport.send(worker, Batch(batch, [self._infos[number].noise_key for number in batch]))

    def _take(self, news: News, collect: Callable[[SamplingInfo, Done], None]) -> Iterator[EvolutionError]:
        """Take in what a worker says; gives the errors that end the round."""
        member = self._members.get(news.worker)
        if member is None:
            return
        done = {outcome.number: outcome for outcome in news.outcomes if isinstance(outcome, Done)}
        if news.outcomes:
            member.proved = True
            self._failed_starts = self._lost_hosts = 0
        for number in self._schedule.settle(news.worker, done, time.monotonic()):
            if (info := self._infos.pop(number, None)) is not None:
                collect(info, done[number])
        for outcome in news.outcomes:
            if isinstance(outcome, Failure):
                self._schedule.forget(news.worker)
                if outcome.number is None:  # it could not be made ready: next time anew
                    member.job = None
                    yield EvaluationFailed(outcome.summary, outcome.trace)
                elif (info := self._infos.pop(outcome.number, None)) is not None:
                    yield EvaluationFailed(outcome.summary, outcome.trace, info)
        if news.lost is not None:
            yield from self._lost(news.worker, member, news.lost)

    def _lost(self, worker: int, member: _Member, lost: Lost) -> Iterator[WorkersLost]:
        culprit = self._schedule.lost(worker, from_outside=lost.from_outside)
        self._remove(worker)
        if culprit is not None:
            yield WorkersLost(f"{MOST_DEATHS} workers ended while they evaluated the same sample, {lost.reason}")
        if member.proved:
            return
        if lost.from_outside:
            self._lost_hosts += 1
        else:
            self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS or self._lost_hosts >= MOST_LOST_HOSTS:
            ended = self._failed_starts + self._lost_hosts
            yield WorkersLost(f"{ended} workers in a row ended before they had evaluated anything, {lost.reason}")

    def _remove(self, worker: int) -> None:
        self._schedule.lost(worker)
        self._members.pop(worker, None)

"""`sample`, which evaluates samples in parallel, and the pools of workers that it uses.

A pool records the messages to each worker and its work, and decides when a worker is abandoned:

sample ──► Pool.run(round) ──► Schedule (who does what)
                │ equip, take, evaluate     ▲ Answer
                ▼                           │
      parl_core.worker_pool.WorkerPool: spawns workers, and replaces those that were lost
                │                           ▲
                ▼                           │
      parl_core.actors: threads, processes, or actors on other machines

A batch is sent at once, as calls of one sample each, or of several samples if the answers would overload the caller.
So no worker waits for messages, and the loss of a worker loses little work.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core._closing import ClosingContext
from parl_core._subprocess_actors import SubprocessActors
from parl_core.actors import ActorSystem, ThreadActors, open_actors, usable_cores
from parl_core.errors import LostActor
from parl_core.worker_pool import Answer, Work, WorkerPool
from parl_evokit._records import SamplingInfo
from parl_evokit._sampler import Sampler
from parl_evokit._sampling_agent import SamplingAgent
from parl_evokit.errors import EvaluationFailed, EvolutionError, WorkersLost
from parl_evokit.parallel._observations import Normalizer, ObservationStatistics, ObservationSums
from parl_evokit.parallel._schedule import MOST_DEATHS, Schedule
from parl_evokit.parallel._worker import Done, Evaluate, Failure, Model, Reply, Worker

__all__ = ["Pool", "ProcessPool", "Sampled", "ThreadPool", "open_pool", "sample"]

SHARE = 0.9
GRACE_S = 0.3
MOST_FAILED_STARTS = 3
MOST_LOST_HOSTS = 20  # consecutive losses before any evaluation; evaluations themselves may crash hosts
CALLS_PER_S = 1000  # calls per second of all workers, each of which takes the caller about 0.1 ms
UNKNOWN_AHEAD = 2  # calls of a worker while the duration of a sample is unknown


@dataclass(eq=False)
class _Member:
    """The messages to a worker: its job, the model, and calls."""

    job: object = None
    model: Model | None = None
    unsent: deque[int] = field(default_factory=deque)  # samples of its batch
    calls: int = 0  # that evaluate, and are not answered
    each_s: float = 0.0  # duration of a sample; 0 while unknown
    proved: bool = False  # it has answered once


class _Losses:
    """The `RestartPolicy` of a pool, which records losses; the round decides when all answers are counted."""

    def __init__(self) -> None:
        self.found: list[tuple[int, Exception]] = []

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:  # noqa: ARG002
        self.found.append((slot, error))

    def not_spawned(self, slot: int, error: Exception) -> None:
        self.found.append((slot, error))


class Pool(ClosingContext):
    """A pool of actors that evaluate samples, used by `sample`; `ThreadPool` and `ProcessPool` choose the actors.

    Workers are kept between rounds. Use the pool in a `with` statement, or close it.

    Args:
        actors: The system that makes the workers: an `ActorSystem`, which stays open when the pool is closed; or the
            name of one for `parl_core.actors.open_actors`, which is closed with the pool.
        workers: Number of workers. Default: the number of slots of the system, else one per core.
        options: Options of `open_actors`, such as `address="10.0.0.1:8010"` of a cluster, or `cpu_num=4` of a private
            one. Without options, `remote` uses the connection of the program, or a private cluster of this machine.

    Raises:
        ImportError: No installed package offers actors of that name: `pip install parl-evokit[remote]`.
        ValueError: `workers` is below 1.
    """

    def __init__(self, actors: ActorSystem | str = "remote", workers: int | None = None, **options: Any) -> None:
        if workers is not None:
            _require_some(workers)
        self._owned = isinstance(actors, str)
        self._actors = open_actors(actors, **options) if isinstance(actors, str) else actors
        self._size = workers or self._actors.slots or usable_cores()
        self._losses = _Losses()
        self._workers = WorkerPool(lambda _: self._actors.create(Worker), self._size, self._losses)
        self._members = [_Member() for _ in range(self._size)]
        self._started = self._closed = False
        self._next_number = 0
        self._schedule = Schedule()
        self._infos: dict[int, SamplingInfo] = {}  # handed out and not returned, of all rounds
        self._job: tuple[object, Evaluate] | None = None
        self._clone: Callable[[], SamplingAgent] | None = None
        self._model: Model | None = None
        self._stored: tuple[Model, Any] | None = None  # the model, and the data sent to workers
        self._failed_starts = self._lost_hosts = 0
        self._start_hint = ""

    @property
    def workers(self) -> int:
        """Number of workers that the pool keeps."""
        return self._size

    def assign(self, agent: Any, evaluate: Evaluate) -> None:
        """Use this agent and this function from now on; late samples of another agent or function are dropped.

        Raises:
            EvolutionError: The pool is closed.
        """
        if self._closed:
            raise EvolutionError("the pool is closed: open another one")
        if self._job is None or self._job[0] is not agent or self._job[1] is not evaluate:
            self._infos.clear()
            self._job, self._clone = (agent, evaluate), agent.clone

    def model_of(self, sampler: Sampler, normalizer: Normalizer | None, alike: bool) -> Model:
        """Return the model for workers, the same object while it does not change, so that it is sent once."""
        model = self._model
        if model is None or (model.sampler, model.normalizer, model.alike) != (sampler, normalizer, alike):
            model = self._model = Model(sampler, normalizer, alike)
        return model

    def run(
        self,
        infos: list[SamplingInfo],
        model: Model,
        *,
        share: float,
        grace_s: float,
        collect: Callable[[SamplingInfo, Done], None],
    ) -> None:
        """Evaluate samples until all are done, or until `share` of them are and the rest are stragglers.

        Args:
            infos: Samples of `model`.
            model: The model that the workers perturb.
            share: As for `sample`.
            grace_s: As for `sample`.
            collect: Called with each returned sample, late ones of earlier rounds included.

        Raises:
            EvaluationFailed: The function of the user raised.
            WorkersLost: Too many workers were lost, or no worker can be started.
            EvolutionError: Something cannot be sent to the workers, or a worker runs another version of this package.
        """
        numbers = range(self._next_number, self._next_number + len(infos))
        self._next_number += len(infos)
        late = self._schedule.running()
        self._infos = {number: info for number, info in self._infos.items() if number in late}
        self._infos.update(zip(numbers, infos, strict=True))
        self._failed_starts = self._lost_hosts = 0  # earlier causes of losses may not recur
        self._schedule.begin(numbers, share=share, grace_s=grace_s)
        try:
            if not self._started:
                self._started = True
                self._workers.start()
            errors: list[EvolutionError] = list(self._count_losses())
            while not errors:
                self._hand_out(model)
                now = time.monotonic()
                if self._schedule.complete(now):
                    break
                if overdue := self._schedule.overdue(now):
                    for slot in overdue:  # they hold a late sample, and no other is free
                        self._forget(slot)
                        self._workers.replace(slot)
                    continue
                answers = self._workers.gather(self._schedule.wait_s(now), or_spawned=True)
                # all are counted before one ends the round
                errors = [*self._take(answers, collect), *self._count_losses()]
            for error in errors:
                raise error
        finally:
            self._schedule.abandon()

    def close(self) -> None:
        """Stop all workers; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._workers.stop()
            if self._owned:
                self._actors.close()
            self._infos.clear()

    def _hand_out(self, model: Model) -> None:
        assert self._job is not None
        assert self._clone is not None
        ready = self._workers.ready()
        for slot in ready:
            if self._schedule.busy(slot):
                continue
            batch = self._schedule.next_batch(slot, len(ready), time.monotonic())
            if not batch:
                continue
            member = self._members[slot]
            if member.job is not self._job:
                self._submit(slot, "equip", self._clone(), self._job[1])
                member.job, member.model = self._job, None
            if member.model is not model:
                self._submit(slot, "take", self._store(model))
                member.model = model
            member.unsent = deque(batch)
            self._send_calls(slot)

    def _store(self, model: Model) -> Any:
        if self._stored is None or self._stored[0] is not model:
            self._stored = model, self._actors.put(model)
        return self._stored[1]

    def _submit(self, slot: int, method: str, *args: Any, numbers: Sequence[int] = ()) -> None:
        self._workers.submit(Work(slot, method, args, (self._members[slot], numbers)))

    def _send_calls(self, slot: int) -> None:
        member = self._members[slot]
        if needless := [number for number in member.unsent if number not in self._infos]:
            # Others have returned them, or they were drawn for another agent or function.
            self._schedule.settle(slot, needless, time.monotonic())
            member.unsent = deque(number for number in member.unsent if number in self._infos)
        while member.unsent and (member.each_s or member.calls < UNKNOWN_AHEAD):
            # Samples that may delay their worker are sent alone, because an answer arrives when all samples of a call
            # are done.
            alone = not member.each_s or self._schedule.is_shared(member.unsent[0])
            size = 1 if alone else max(1, int(self._size / CALLS_PER_S / member.each_s))
            numbers = [member.unsent.popleft() for _ in range(min(size, len(member.unsent)))]
            member.calls += 1
            keys = [info.noise_key or -info.identity for info in map(self._infos.__getitem__, numbers)]
            self._submit(slot, "evaluate", keys, numbers=numbers)

    def _take(
        self, answers: Sequence[Answer], collect: Callable[[SamplingInfo, Done], None]
    ) -> Iterator[EvolutionError]:
        """Take in answers; yield the errors that end the round."""
        for work, value, failed in answers:
            member, numbers = work.tag
            if self._members[work.slot] is not member or isinstance(value, LostActor):
                continue  # from a worker that was abandoned, or will be
            if failed:  # exceptions of the user's function are in replies: this is an error of the message or the actor
                self._forget(work.slot)
                yield EvolutionError(
                    f"this cannot be sent to a worker: {value}. Models and functions for a ProcessPool are defined at "
                    "the top level of a module; threads and remote actors accept any"
                )
            elif isinstance(value, Failure):  # it could not be prepared, and is prepared again next time
                self._forget(work.slot)
                if member.job is self._job:  # otherwise an earlier function failed, which has been reported
                    yield EvaluationFailed(value.summary, value.trace)
            elif isinstance(value, Reply):
                member.calls -= 1
                if value.answers(len(numbers)):
                    yield from self._take_reply(work.slot, numbers, value, collect)
                    continue
                self._forget(work.slot)
                yield EvolutionError(
                    f"a worker answered {len(numbers)} samples with {len(value.rewards)} bytes of rewards: all "
                    "machines need the same version of parl-evokit"
                )

    def _take_reply(
        self, slot: int, numbers: Sequence[int], reply: Reply, collect: Callable[[SamplingInfo, Done], None]
    ) -> Iterator[EvaluationFailed]:
        member, done = self._members[slot], dict(zip(numbers, reply.done(), strict=False))
        member.proved = True
        self._failed_starts = self._lost_hosts = 0
        if done:
            member.each_s = max(reply.seconds / len(done), 1e-9)
        for number in self._schedule.settle(slot, done, time.monotonic()):
            if (info := self._infos.pop(number, None)) is not None:
                collect(info, done[number])
        if reply.failure is None:
            if all(slot != lost for lost, _ in self._losses.found):
                self._send_calls(slot)
            return
        # The worker answers the rest of this batch later, which must not end the next one.
        self._members[slot] = replace(member, unsent=deque(), calls=0)
        self._schedule.forget(slot)
        if (info := self._infos.pop(numbers[len(done)], None)) is not None:
            yield EvaluationFailed(reply.failure.summary, reply.failure.trace, info)

    def _count_losses(self) -> Iterator[WorkersLost]:
        """Count workers that were lost or could not be made; yield the errors that end the round."""
        losses, self._losses.found = self._losses.found, []
        for slot, error in losses:
            proved, outside = self._members[slot].proved, isinstance(error, LostActor) and error.from_outside
            reason = f"{type(error).__name__}: {error}"
            culprit = self._forget(slot, from_outside=outside)
            if culprit is not None:
                yield WorkersLost(f"{MOST_DEATHS} workers ended while they evaluated the same sample, {reason}")
            if not isinstance(error, LostActor):
                if not self._workers.is_alive:  # otherwise fewer workers suffice
                    yield WorkersLost(f"no worker could be started: {error}")
                continue
            if proved:
                continue
            if outside:
                self._lost_hosts += 1
            else:
                self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS or self._lost_hosts >= MOST_LOST_HOSTS:
                ended = self._failed_starts + self._lost_hosts
                yield WorkersLost(
                    f"{ended} workers in a row ended before they had evaluated anything, {reason}{self._start_hint}"
                )

    def _forget(self, slot: int, *, from_outside: bool = False) -> int | None:
        """Forget the state of a worker; return a sample that has ended too many workers."""
        self._members[slot] = _Member()
        return self._schedule.lost(slot, from_outside=from_outside)


class ThreadPool(Pool):
    """A pool of threads of this process, for models and environments that release the interpreter's lock.

    Nothing is copied or pickled, so functions and models may be of any kind.

    Args:
        workers: Number of threads. Default: one for each core that this process may use.
    """

    def __init__(self, workers: int | None = None) -> None:
        workers = usable_cores() if workers is None else _require_some(workers)
        super().__init__(ThreadActors(workers), workers)
        self._owned = True


class ProcessPool(Pool):
    """A pool of processes on this machine, for evaluations in plain Python.

    The processes end with this one, even if it is killed.

    Args:
        workers: Number of processes. Default: one for each core that this process may use.
        start_method: `spawn` works beside threads and frameworks; functions must then be importable by name, and a
            program that makes a pool needs `if __name__ == "__main__":`. `fork` (Linux) is safe while neither threads
            nor a framework are in use, and needs no such line.

    Raises:
        ValueError: The start method is unknown.
    """

    def __init__(self, workers: int | None = None, *, start_method: str = "spawn") -> None:
        workers = usable_cores() if workers is None else _require_some(workers)
        super().__init__(SubprocessActors(workers, start_method=start_method), workers)
        self._owned = True
        if start_method == "fork":  # not with other threads
            self._workers.in_thread = False
        if start_method == "spawn":
            self._start_hint = (
                ' (see its message above; programs that make a ProcessPool need `if __name__ == "__main__":`)'
            )


def _require_some(workers: int) -> int:
    if workers < 1:
        raise ValueError(f"a pool must have 1 worker or more, not {workers}")
    return workers


@dataclass
class Sampled:
    """The samples of a round, for `agent.update(*sampled)`.

    Attributes:
        infos: Records of the samples, in the order in which they were drawn, followed by late ones of earlier rounds.
        rewards: Rewards of these samples, float64 `[len(infos)]`.
        late: Number of `infos` from earlier rounds.
        missing: Number of samples of this round that have no result yet.
    """

    infos: list[SamplingInfo] = field(default_factory=list)
    rewards: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    late: int = 0
    missing: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield `infos`, then `rewards`."""
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
    alike: bool = True,
) -> Sampled:
    """Draw `n` samples and evaluate them in parallel.

    With counted keys (`keys: COUNTER`) and a function that depends only on agent and seed, pools of any kind and size
    return the same samples and rewards, unless stragglers are left out.

    Args:
        agent: An `ESAgent`, or another agent with a method `clone`.
        evaluate: A function (agent) or (agent, seed) that returns a reward; larger is better. `predict` of the agent
            is that of the perturbed model; the seed, 0 to 2**31 - 1, is a function of the sample's key. Or a class
            whose instances are such functions: each worker makes one, so that each has its own environment.
        n: Number of samples, 1 or more.
        pool: A pool, which serves many rounds; or `threads`, `processes` or `remote` for one that is opened for this
            round only. Default: `threads`, and for models of paddle `processes`.
        share: Share of the samples that the round waits for, above 0 to 1. When it is reached, the round leaves out
            each sample that has taken more than twice as long as any finished one; its reward is part of a later
            round (see `Sampled.late`) and is then stale. Default: 0.9, and 1 if the algorithm cannot use stale samples
            (CMA).
        grace_s: Time for which the round waits for a silent worker at least, in seconds.
        observations: Statistics by which `predict` normalises its inputs. They are constant during the round, and
            include the observations of all its samples afterwards.
        alike: True to give both halves of a mirrored pair the same seed, so that the initial state has no influence on
            their difference. The papers of OpenAI-ES and ARS start all episodes at random.

    Returns:
        Records and rewards.

    Raises:
        ValueError: `n` or `share` is out of its range.
        EvaluationFailed: `evaluate` raised; `sampled` of the error has the finished samples. The pool can still be
            used.
        WorkersLost: Too many workers were lost, or none can be started; `sampled` as above. A single lost worker is
            replaced, and other workers evaluate its unfinished samples.
        EvolutionError: The agent has no clones, something cannot be sent to the workers, or a worker runs another
            version of this package.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, not {n}")
    if share is not None and not 0.0 < share <= 1.0:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")
    if not hasattr(agent, "clone"):
        raise EvolutionError(
            f"sample() needs an agent with a method clone, such as an ESAgent; {type(agent).__name__} has none"
        )
    drawing: SamplingAgent = agent.clone()
    if not isinstance(pool, Pool):
        with open_pool(pool or _default_kind(drawing)) as opened:
            return sample(
                agent, evaluate, n, opened, share=share, grace_s=grace_s, observations=observations, alike=alike
            )
    if share is None:
        share = SHARE if drawing.source.takes_stale_samples else 1.0
    infos = drawing.draw(n)
    rows = _SampleRows(infos)
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
        workers: Number of workers. Default: one per core, or the number of slots of the cluster.
        options: Options of `ProcessPool` or `Pool`.

    Raises:
        ValueError: The kind is unknown, or `workers` is below 1.
        ImportError: `remote` needs parl-remote, which is not installed.
    """
    if kind == "threads":
        return ThreadPool(workers, **options)
    if kind == "processes":
        return ProcessPool(workers, **options)
    if kind == "remote":
        return Pool(kind, workers, **options)
    raise ValueError(f"a pool must be threads, processes or remote, not {kind!r}")


class _SampleRows:
    """Samples in the order of their arrival."""

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

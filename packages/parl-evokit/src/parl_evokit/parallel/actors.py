"""Workers that are actors: on this machine or on many, wherever an installed package offers them.

A batch is sent as a few calls at once, each of some milliseconds of work, so that no actor waits for the network and
the death of one costs little. `parl_core.actors` knows where actors can be made; parl-remote registers `remote` there.
"""

import contextlib
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from parl_core.actors import ActorFuture, ActorHandle, ActorSystem, open_actors
from parl_core.errors import LostActor
from parl_evokit.errors import WorkersLost
from parl_evokit.parallel.cores import available_cores
from parl_evokit.parallel.pool import Lost, News, Pool
from parl_evokit.parallel.worker import Batch, Message, Outcome, Worker

__all__ = ["ActorPool", "EvaluatingActor"]

LOOK_S = 0.002  # between two looks at calls that do not report their ends
CALL_S = 0.01  # how long a call shall work: a hundred times what it costs on one machine


class ActorPool(Pool):
    """A pool of actors.

    Args:
        system: Where they are made: an `ActorSystem`, which stays open when the pool is closed; or the name of one
            for `parl_core.actors.open_actors`, which closes with the pool.
        workers: How many actors. Default: as many as the system says it has room for, else one a core.
        options: For `open_actors`, such as `address="10.0.0.1:8010"` of a cluster, or `cpu_num=4` of a private one;
            with `remote` and none, the connection that the program has, or a private cluster of this machine.

    Raises:
        ImportError: No installed package offers actors of that name: `pip install parl-evokit[remote]`.
    """

    def __init__(self, system: ActorSystem | str = "remote", workers: int | None = None, **options: Any) -> None:
        opened = isinstance(system, str)
        if isinstance(system, str):
            system = open_actors(system, **options)
        try:
            super().__init__(_Actors(system, opened), workers or system.slots or available_cores())
        except BaseException:
            if opened:
                system.close()
            raise


class EvaluatingActor:
    """What lives in an actor: a worker, called with messages."""

    def __init__(self) -> None:
        self._worker = Worker()

    def handle(self, message: Message) -> tuple[list[Outcome], float]:
        """All outcomes of a message, and the seconds that it took."""
        began = monotonic()
        return list(self._worker.handle(message)), monotonic() - began


class _Actors:
    """The `Transport` of `ActorPool`."""

    def __init__(self, system: ActorSystem, owned: bool) -> None:
        self._system = system
        self._owned = owned
        self._handles: dict[int, ActorHandle] = {}
        self._answers: SimpleQueue[tuple[int, ActorFuture]] = SimpleQueue()
        self._silent: list[tuple[int, ActorFuture]] = []  # calls whose ends nobody reports
        self._each_s: dict[int, float] = {}  # a sample's time by worker

    def start(self, worker: int) -> None:
        """See `Transport`."""
        try:
            self._handles[worker] = self._system.create(EvaluatingActor)
        except Exception as error:  # every system has errors of its own
            raise WorkersLost(f"no actor could be made: {error}") from error

    def send(self, worker: int, message: Message) -> None:
        """See `Transport`."""
        if not isinstance(message, Batch):
            self._submit(worker, message)
            return
        first, each = 0, self._each_s.get(worker)
        while first < len(message.numbers):
            stop = first + (1 if each is None else max(1, int(CALL_S / max(each, 1e-9))))
            self._submit(worker, Batch(message.numbers[first:stop], message.keys[first:stop]))
            first = stop

    def receive(self, timeout_s: float | None) -> list[News]:
        """See `Transport`."""
        end = None if timeout_s is None else monotonic() + timeout_s
        answers = self._arrived(self._pause(end))
        while not answers and (end is None or monotonic() < end):
            answers = self._arrived(self._pause(end))
        return [self._news(worker, future) for worker, future in answers if worker in self._handles]

    def _pause(self, end: float | None) -> float | None:
        """How long to wait for a call that reports itself; None: for ever."""
        left = None if end is None else max(0.0, end - monotonic())
        if not self._silent:
            return left
        return LOOK_S if left is None else min(LOOK_S, left)

    def _arrived(self, wait_s: float | None) -> list[tuple[int, ActorFuture]]:
        answers = [(worker, future) for worker, future in self._silent if future.done()]
        self._silent = [pair for pair in self._silent if pair not in answers]
        with contextlib.suppress(Empty):
            if not answers:
                answers.append(self._answers.get(timeout=wait_s))
            while True:
                answers.append(self._answers.get_nowait())
        return answers

    def end(self, worker: int) -> None:
        """See `Transport`."""
        self._handles.pop(worker).close()

    def close(self) -> None:
        """See `Transport`."""
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()
        if self._owned:
            self._system.close()

    def _submit(self, worker: int, message: Message) -> None:
        future: Any = self._handles[worker].submit("handle", message)
        answers = self._answers
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda done: answers.put((worker, done)))
        else:  # all that an `ActorFuture` promises is to say whether it is done
            self._silent.append((worker, future))

    def _news(self, worker: int, future: ActorFuture) -> News:
        try:
            outcomes, seconds = future.result()
        except Exception as error:  # what the user's function raises comes as an outcome: this is the actor itself
            self._handles.pop(worker).close()
            outside = isinstance(error, LostActor) and error.from_outside
            return News(worker, [], Lost(f"{type(error).__name__}: {error}", outside))
        if outcomes:
            self._each_s[worker] = seconds / len(outcomes)
        return News(worker, outcomes)

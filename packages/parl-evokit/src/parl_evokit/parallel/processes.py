"""Workers that are processes of this machine: for evaluations that are plain Python.

    pool ── messages ──► worker process: main thread evaluates ──► outcomes ──► flusher thread ── pipe ──► pool

Outcomes wait a few milliseconds for others, because a message each would cost short episodes a tenth of their time; the
flusher sends them also while the main thread is held up by the next evaluation.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from parl_evokit.errors import EvolutionError
from parl_evokit.parallel.cores import available_cores
from parl_evokit.parallel.observations import ObservationSums
from parl_evokit.parallel.pool import Lost, News, Pool
from parl_evokit.parallel.worker import Done, Failure, Message, Outcome, Worker, failure_of

__all__ = ["ProcessPool"]

RESULT = np.dtype([("number", "<u8"), ("reward", "<f4")])
FLUSH_S = 0.005
LOOK_FOR_PARENT_S = 2.0
END_S = 1.0  # for processes that are told to end; a busy one is killed after it

Packet = tuple[bytes, list[ObservationSums | None] | None, Failure | None]


class ProcessPool(Pool):
    """A pool of processes on this machine. They end with this one, however it ends.

    Args:
        workers: How many processes. Default: one for each core that this process may use.
        start_method: `spawn` works beside threads and frameworks; functions must then be importable by name, and a
            program that makes a pool needs `if __name__ == "__main__":`. `fork` (Linux) takes any function, and is
            safe while neither threads nor a framework are in use.

    Raises:
        ValueError: This system has no such start method.
    """

    def __init__(self, workers: int | None = None, *, start_method: str = "spawn") -> None:
        super().__init__(_Processes(start_method), available_cores() if workers is None else workers)


class _Processes:
    """The `Transport` of `ProcessPool`."""

    def __init__(self, start_method: str) -> None:
        self._context: Any = multiprocessing.get_context(start_method)
        self._method = start_method
        self._processes: dict[int, BaseProcess] = {}
        self._connections: dict[int, Connection] = {}

    def start(self, worker: int) -> None:
        """See `Transport`."""
        here, there = self._context.Pipe()
        # A forked process has copies of the pool's ends; while it holds them, nobody sees them closed.
        inherited = [*self._connections.values(), here] if self._method == "fork" else []
        process = self._context.Process(
            target=serve, args=(there, os.getpid(), inherited), name=f"evokit-worker-{worker}", daemon=True
        )
        process.start()
        there.close()
        self._processes[worker], self._connections[worker] = process, here

    def send(self, worker: int, message: Message) -> None:
        """See `Transport`."""
        try:
            self._connections[worker].send(message)
        except (BrokenPipeError, ConnectionResetError):  # it has ended: `receive` says so
            pass
        except Exception as error:  # whatever a class of the user's raises while it is pickled
            raise EvolutionError(
                f"this cannot be sent to a process: {error}. Models and functions for a ProcessPool are defined at the "
                "top level of a module; a ThreadPool and an ActorPool take any"
            ) from error

    def receive(self, timeout_s: float | None) -> list[News]:
        """See `Transport`."""
        by_connection = {connection: worker for worker, connection in self._connections.items()}
        news = []
        for connection in wait(list(by_connection), timeout_s):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            try:
                news.append(News(worker, _unpacked(connection.recv())))
            except (EOFError, OSError):
                news.append(News(worker, [], Lost(self._obituary(worker))))
        return news

    def end(self, worker: int) -> None:
        """See `Transport`."""
        self._connections.pop(worker).close()
        process = self._processes.pop(worker)
        process.kill()
        process.join()
        process.close()

    def close(self) -> None:
        """See `Transport`."""
        for connection in self._connections.values():
            connection.close()
        deadline = time.monotonic() + END_S
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._connections.clear()
        self._processes.clear()

    def _obituary(self, worker: int) -> str:
        self._connections.pop(worker).close()
        process = self._processes.pop(worker)
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()
            return f"process {process.pid} had closed its connection"
        code = process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = ""
        if self._method == "spawn" and code == 1:
            hint = ' (see its message above; programs that make a ProcessPool need `if __name__ == "__main__":`)'
        return f"process {process.pid} {how}{hint}"


def serve(connection: Connection, parent: int, inherited: Sequence[Connection]) -> None:
    """The whole life of a worker process.

    Args:
        connection: To the pool.
        parent: The pool's process; when it is gone, this one ends.
        inherited: Connections that are none of its business.
    """
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pool's process, which ends this one
    worker, outbox = Worker(), _Outbox(connection)
    threading.Thread(target=outbox.flush_now_and_then, name="evokit-flusher", daemon=True).start()
    try:
        while True:
            while not connection.poll(LOOK_FOR_PARENT_S):
                if os.getppid() != parent:
                    return
            try:
                message = connection.recv()
            except EOFError:
                return
            except Exception as error:  # whatever a class of the user's raises while it is unpickled
                outbox.add(failure_of(None, error))
                outbox.flush()
                continue
            for outcome in worker.handle(message):
                outbox.add(outcome)
            outbox.flush()
    except (BrokenPipeError, ConnectionResetError):  # the pool is gone
        return


class _Outbox:
    """Outcomes on their way to the pool."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outcomes: list[Outcome] = []
        self._lock = threading.Lock()
        self._something = threading.Event()

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._something.set()

    def flush(self) -> None:
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
            self._something.clear()
            if outcomes:
                self._connection.send(_packed(outcomes))

    def flush_now_and_then(self) -> None:
        rest = threading.Event()
        try:
            while True:
                self._something.wait()
                rest.wait(FLUSH_S)
                self.flush()
        except (BrokenPipeError, ConnectionResetError):  # the main thread sees it too
            return


def _packed(outcomes: list[Outcome]) -> Packet:
    done = [outcome for outcome in outcomes if isinstance(outcome, Done)]
    failure = next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)
    rewards = np.array([(outcome.number, outcome.reward) for outcome in done], RESULT)
    sums = [outcome.sums for outcome in done] if any(outcome.sums is not None for outcome in done) else None
    return rewards.tobytes(), sums, failure


def _unpacked(packet: Packet) -> list[Outcome]:
    rewards, sums, failure = packet
    rows = np.frombuffer(rewards, RESULT).tolist()
    seen = sums or [None] * len(rows)
    outcomes: list[Outcome] = [Done(number, reward, saw) for (number, reward), saw in zip(rows, seen, strict=True)]
    return [*outcomes, failure] if failure is not None else outcomes

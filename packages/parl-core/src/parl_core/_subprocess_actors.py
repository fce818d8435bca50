"""Actors in plain processes of this machine, without parl-remote: one process and one socket pair per actor.

    SubprocessActors ── create ──> Popen ──> _actor_process.main
    handle.submit ── frame ──> process ── frame ──> future.result()

A process is a fresh Python by default: it does not import the program that made it, so scripts need no `if __name__ ==
"__main__"`, and no locks or threads are inherited. Numeric libraries use one thread there, unless OMP_NUM_THREADS or a
similar variable is set: with more, the small networks of several actors would wait for each other's threads.
parl-remote's actors are faster and can run on other machines.
"""

import contextlib
import functools
import itertools
import multiprocessing.spawn
import operator
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from parl_core import _actor_process
from parl_core._actor_process import HEADER, by_value, unwrapped
from parl_core._closing import ClosingContext
from parl_core._config import one_thread_unless_chosen
from parl_core.checks import check_int
from parl_core.errors import ActorProcessLost, HyperparameterError, ParlError

__all__ = ["SubprocessActors"]

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from parl_core._actor_process import main; "
    "main({link}, {lifeline}, {program!r})"
)
CLOSE_TIMEOUT_S = 5.0
"""Seconds after which a process whose connection was closed is killed."""
STUCK_TIMEOUT_S = 1.0
"""Seconds after which a process is killed that has not begun its last call, because its step does not end."""
_CHUNK = 1 << 18
FRESH, SPAWN, FORK = "fresh", "spawn", "fork"


class SubprocessActors(ClosingContext):
    """An actor system (`parl_core.actors.ActorSystem`) of processes on this machine.

    Args:
        processes: The planned number of actors, started at once; default: the cores that this process may use.
        start_method: `"fresh"` starts a Python that does not import the program; `"spawn"` one that imports it under
            the name `__mp_main__`, as `multiprocessing` does, so that arguments may be functions and classes of the
            program, which needs `if __name__ == "__main__":`; `"fork"` copies this process, which is safe while
            neither threads nor a framework are in use.

    Raises:
        HyperparameterError: The number is below 1, or there is no such start method.
        RuntimeError: With `"spawn"`, the program makes actors while it is imported by one.
    """

    def __init__(self, processes: int | None = None, *, start_method: str = FRESH) -> None:
        if start_method not in (FRESH, SPAWN, FORK):
            raise HyperparameterError(f"start_method is fresh, spawn or fork, not {start_method!r}")
        if start_method == SPAWN and _actor_process.program_is_being_imported():
            raise RuntimeError(
                "this program makes actors while an actor's process imports it: put the main part of the "
                'program below `if __name__ == "__main__":`'
            )
        count = len(os.sched_getaffinity(0)) if processes is None else check_int("processes", processes)
        self._slots = count
        self._start_method = start_method
        self._handles: list[_Process] = []
        self._spare: deque[_Process] = deque()
        try:
            for _ in range(count):
                self._spare.append(self._start())
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Number of planned actors; more can be made."""
        return self._slots

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> "_Process":
        """Construct `cls(*args, **kwargs)` in a process of its own; an exception of the constructor is raised here."""
        process = self._spare.popleft() if self._spare else self._start()
        self._handles.append(process)
        try:
            process.send_object((_shipped((cls, args, kwargs)), (), {})).result()
        except BaseException:
            process.close()
            raise
        return process

    def put(self, value: Any, /) -> Any:
        """Return the value itself, which is sent with each call."""
        return value

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        for process in [*self._handles, *self._spare]:
            process.begin_close()
        for process in [*self._handles, *self._spare]:
            process.close()
        self._handles.clear()
        self._spare.clear()

    def _start(self) -> "_Process":
        return _Process(self._start_method, [*self._handles, *self._spare])


class _Started(Protocol):
    """The interface of a started process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class _Forked:
    """A copy of this process, as `_Started`."""

    def __init__(self, link: int, lifeline: int, inherited: Sequence[int]) -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve_forked, args=(link, lifeline, inherited), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("actor", timeout or 0.0)
        return code


def _serve_forked(link: int, lifeline: int, inherited: Sequence[int]) -> None:
    for descriptor in inherited:
        os.close(descriptor)
    _actor_process.main(link, lifeline)


def _started(method: str, link: int, lifeline: int, inherited: Sequence[int]) -> _Started:
    if method == FORK:
        return _Forked(link, lifeline, inherited)
    program: dict[str, object] = {}
    if method == SPAWN:
        found: dict[str, object] = multiprocessing.spawn.get_preparation_data("actor")
        program = {name: found[name] for name in ("sys_argv", *_actor_process.PROGRAM_NAMES) if name in found}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM.format(path=sys.path, link=link, lifeline=lifeline, program=program)],
        stdin=subprocess.DEVNULL,
        pass_fds=(link, lifeline),
        env=one_thread_unless_chosen(os.environ),
    )


class _Process:
    """One actor's process, with its pending calls by number.

    Args:
        method: See `SubprocessActors`.
        others: Other processes of the same system; a forked process has copies of their descriptors and must close
            them.
    """

    def __init__(self, method: str, others: Sequence["_Process"]) -> None:
        ours, theirs = socket.socketpair()
        lifeline_end, self._lifeline = os.pipe()
        inherited = [ours.fileno(), self._lifeline]
        inherited += [number for other in others for number in other.descriptors()]
        try:
            self._process = _started(method, theirs.fileno(), lifeline_end, inherited)
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline_end)
        ours.setblocking(False)
        self._socket = ours
        self._lock, self._end_lock = threading.RLock(), threading.Lock()
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._outgoing: tuple[bytes, list[int]] = b"", []  # the newest message, and the size that each `send` accepted
        self._received = bytearray()
        self._closed = False
        self._loss = ""  # how the process ended, if it ended by itself
        self._ends_by = 0.0  # time of the clock; set when it was told to end
        self._incoming, self._both = select.poll(), select.poll()
        self._incoming.register(ours, select.POLLIN)
        self._both.register(ours, select.POLLIN | select.POLLOUT)

    def descriptors(self) -> list[int]:
        """Return the descriptors that are open here."""
        return [number for number in (self._socket.fileno(), self._lifeline) if number >= 0]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.submit(method, *args, **kwargs).result()

    def submit(self, method: str, *args: Any, **kwargs: Any) -> "_Answer":
        if self._closed and not self._loss:
            raise ParlError(f"{method!r} was called on an actor that is closed; create a new one")
        return self.send_object((method, args, kwargs))

    def send_object(self, message: Any) -> "_Answer":
        future: Future[Any] = Future()
        try:
            payload = pickle.dumps(message, 5)
        except Exception as error:  # any exception of the argument's own methods
            error.add_note("an argument of a call on an actor could not be pickled")
            future.set_exception(error)
            return _Answer(self, future)
        with self._lock:
            self._send()  # the rest of a message that Ctrl-C interrupted
            number = next(self._numbers)
            self._pending[number] = future
            if self._loss:
                self._fail(self._loss)
            else:
                self._outgoing = HEADER.pack(len(payload), number) + payload, []
                self._send()
        return _Answer(self, future)

    def begin_close(self, *, was_waited_for: bool = False) -> None:
        """Signal the process to end, without waiting for it.

        Args:
            was_waited_for: True if the time for its last call, such as the `close` of environments, is over; a process
                that has not begun this call is killed after `STUCK_TIMEOUT_S`.
        """
        self._loss = ""
        if not self._closed:
            self._closed = True
            is_stuck = was_waited_for and len(self._pending) > 1
            self._ends_by = time.monotonic() + (STUCK_TIMEOUT_S if is_stuck else CLOSE_TIMEOUT_S)
            self._socket.close()
            self._fail("its handle was closed")

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self.begin_close()
        with self._end_lock:  # the thread that fails to make an actor closes it, and the owner of the system closes all
            if self._lifeline < 0:
                return
            try:
                self._process.wait(max(0.0, self._ends_by - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._lifeline)
            self._lifeline = -1

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def fileno(self) -> int:
        """Return the descriptor on which answers arrive."""
        return self._socket.fileno()

    def receive(self, future: Future[Any], timeout: float | None) -> None:
        """Read answers until this one arrives; `timeout` is the maximum silence in seconds."""
        with self._lock:
            while not future.done():
                if not self._incoming.poll(None if timeout is None else timeout * 1000):
                    raise TimeoutError(f"the actor's process {self._process.pid} did not answer within {timeout} s")
                self._read()

    # Ctrl-C may interrupt the two methods below after any call; the next call continues there. Python handles no
    # signals within `extend` and `reduce`, so sent bytes are counted and received bytes are kept.

    def _send(self) -> None:
        frame, sent = self._outgoing
        while not self._closed and (rest := memoryview(frame)[sum(sent) :]):
            try:
                sent.extend(map(self._socket.send, (rest,)))
            except BlockingIOError:
                # Answers are read meanwhile, because a process that cannot send an answer receives no call.
                if self._both.poll()[0][1] & ~select.POLLOUT:
                    self._read()
            except OSError:
                self._lost()

    def _read(self) -> None:
        received = self._received
        before = len(received)
        try:
            functools.reduce(operator.iadd, map(self._socket.recv, (_CHUNK,)), received)
        except BlockingIOError:
            return
        except OSError:
            pass
        if len(received) == before:
            self._lost()
        while len(received) >= HEADER.size:
            length, number = HEADER.unpack_from(received)
            end = HEADER.size + length
            if len(received) < end:
                return
            future = self._pending.get(number)
            if future is not None and not future.done():
                self._answer(future, bytes(memoryview(received)[HEADER.size : end]))
            self._pending.pop(number, None)
            del received[:end]

    @staticmethod
    def _answer(future: Future[Any], frame: bytes) -> None:
        try:
            kind, value = pickle.loads(frame)
        except Exception as error:  # any exception: the answer's class may not be importable here
            error.add_note("an answer of an actor could not be unpickled")
            future.set_exception(error)
            return
        if kind == "error":
            future.set_exception(unwrapped(value))
        else:
            future.set_result(value)

    def _lost(self) -> None:
        if self._closed:
            return
        try:
            code = self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended with exit code {code}"
        self._end(f"it {how}; see its output, and create a new one")

    def _end(self, reason: str) -> None:
        self._closed, self._loss = True, reason
        self._ends_by = time.monotonic() + CLOSE_TIMEOUT_S
        self._socket.close()
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        while self._pending:
            _, future = self._pending.popitem()
            future.set_exception(ActorProcessLost(f"the actor's process {self._process.pid} does not answer: {reason}"))


class _Answer:
    """The answer of one call; the thread that requests it reads from the socket."""

    def __init__(self, process: _Process, future: Future[Any]) -> None:
        self._process, self._future = process, future

    def result(self, timeout: float | None = None) -> Any:
        if not self._future.done():
            self._process.receive(self._future, timeout)
        return self._future.result()

    def fileno(self) -> int:
        return self._process.fileno()

    def done(self) -> bool:
        if not self._future.done():
            try:
                self._process.receive(self._future, 0.0)
            except TimeoutError:
                return False
        return self._future.done()


def _shipped(constructor: tuple[Any, ...]) -> Any:
    """Return the object to send, pickled by value if it needs that and cloudpickle is installed.

    Lambdas and classes of the main program need it; cloudpickle is a dependency of Gymnasium.
    """
    with contextlib.suppress(Exception):  # any exception of the arguments' own methods; pickling by value may work
        if b"__main__" not in pickle.dumps(constructor, 5):
            return constructor
    try:
        return by_value(constructor)
    except ImportError:
        return constructor

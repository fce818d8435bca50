"""Actors' processes without fork: programs of their own, without preloaded modules. Replaces `zygote`.

    worker --fork(n)--> Popen: python, `main` of this module  {"forked": n, "pid": p} once it listens at <dir>/a<n>.sock
           --kill(n)--> SIGKILL to its process group, or TerminateProcess to it and what it has started
    a thread for each   reads its first line, then waits for its end --> {"ended": n, "status": s, "peak": b}

    stdin of a program    a pipe that carries nothing: its end is the end of the worker, and then of the program
    stdout of a program   one line, {"ready": pid, "failed": {module: why}}, once it listens; then the same as stderr

The worker alone holds the other end of that pipe: when it is gone, however it ended, its actors see that and end, too.
From `run_actor` on such a program is as any other actor's process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from parl_remote._actor.reports import STACK_SIGNAL, ignore_stack_signal
from parl_remote._portable.processes import descendants
from parl_remote._system.facilities import Waker
from parl_remote._system.processes import chosen_by_user, python_command, set_variables
from parl_remote._transport.unix import Listening, listen_at

__all__ = ["Spawner", "main"]


# Only the actor's program imports `run_actor`: the node, which imports this module, loads nothing that unpickles.
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from parl_remote._actor.process import run_actor
from parl_remote._portable.spawner import main
main(sys.argv[1], run_actor)
"""
_LAST_WORK_S = 5.0  # to reap what was killed


class Spawner:
    """Starts actors' processes, with the methods of `zygote.ZygoteProcess`.

    Args:
        directory: The node's private directory.
        preload: Modules that each actor imports before it is ready.
        clear: Whether the last process removes the directory when this one is gone.
    """

    def __init__(self, directory: str | Path, preload: tuple[str, ...] = (), *, clear: bool = False) -> None:
        self.pid = os.getpid()
        self._directory = str(directory)
        self._preload = preload
        self._clear = clear
        self._waker = Waker()
        self._reports: deque[dict[str, object]] = deque()
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._failed: set[str] = set()  # modules that were reported already
        self._closed = False

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are reports."""
        return self._waker.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def fork(self, number: int) -> None:
        """Start actor `number`."""
        settings = json.dumps([self._path_of(number), self._preload, self._clear])
        try:
            process = subprocess.Popen(
                [*python_command(), "-P", "-c", _PROGRAM.format(path=sys.path), settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:  # there are no processes, no descriptors or no memory left
            self._report(refused=number, reason=error.strerror or str(error))
            return
        with self._lock:
            self._running[number] = process
        thread = threading.Thread(target=self._watch, args=(number, process), name=f"parl-actor-{number}", daemon=True)
        self._threads[number] = thread
        thread.start()

    def kill(self, number: int) -> None:
        """Kill actor `number` and its descendants."""
        with self._lock:  # no thread reaps under the lock, so the pid cannot have been reused
            process = self._running.get(number)
            if process is not None:
                _kill(process)

    def dump(self, number: int) -> None:
        """Make actor `number` print its stacks, on systems with signals for that."""

        with self._lock:
            process = self._running.get(number)
            if process is not None and STACK_SIGNAL:
                os.kill(process.pid, STACK_SIGNAL)

    def reports(self) -> list[dict[str, object]] | None:
        """Return the reports received; never None, because this is the worker itself."""
        self._waker.clear()
        reports: list[dict[str, object]] = []
        while self._reports:
            report = self._reports.popleft()
            if "ended" in report and isinstance(number := report["ended"], int):
                self._threads.pop(number, None)
            reports.append(report)
        return reports

    def close(self) -> None:
        """Kill all actors and wait for them."""
        self._closed = True
        with self._lock:
            for process in self._running.values():
                _kill(process)
        for thread in list(self._threads.values()):
            thread.join(_LAST_WORK_S)
        if self._clear:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        """Follow a process, in a thread of its own, from its first line of output to its end."""
        pipe = process.stdout
        said = pipe.readline() if pipe is not None else b""
        if said:
            self._failed_imports(json.loads(said))
            self._report(forked=number, pid=process.pid)
        returned = self._reap(number, process)
        with contextlib.suppress(OSError):
            os.unlink(self._path_of(number))
        if said:
            status = -returned if returned < 0 else returned << 8
            self._report(ended=number, status=status, peak=0)
        else:
            self._report(refused=number, reason=f"its process ended at once, with {returned}; see the node's log")

    def _reap(self, number: int, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a process, and kill its descendants."""
        if hasattr(os, "waitid") and hasattr(os, "WNOWAIT"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                _kill_group(process)
                return self._forget(number, process)
        process.wait()
        with self._lock:
            return self._forget(number, process)

    def _forget(self, number: int, process: subprocess.Popen[bytes]) -> int:
        del self._running[number]
        returned = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        return returned

    def _failed_imports(self, said: dict[str, object]) -> None:
        """Report modules that cannot be imported, once, although every process tries to import them."""
        failed = said.get("failed")
        if isinstance(failed, dict) and failed.keys() - self._failed:
            self._failed |= failed.keys()
            self._report(ready=said.get("ready"), failed=failed)

    def _path_of(self, number: int) -> str:
        return os.path.join(self._directory, f"a{number}.sock")

    def _report(self, **report: object) -> None:
        self._reports.append(report)
        self._waker.wake()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants; methods of `Popen` would reap it before the thread that waits for its end."""
    if hasattr(os, "killpg"):
        _kill_group(process)
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
        return
    for pid in (*reversed(list(descendants(process.pid))), process.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)  # TerminateProcess: it is not asked


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


_WARM = ("numpy", "cloudpickle", "parl", "parl_remote._decorator")
_STDOUT, _STDERR = 1, 2


def main(settings_json: str, run_actor: Callable[[Listening, int], object]) -> None:
    """Run an actor's process; never returns.

    Args:
        settings_json: The socket's path, the modules to preload, whether to clear the node's directory when the node is
            gone.
        run_actor: Runs the actor, given its listening socket and the node's process id.
    """
    path, preload, clear = json.loads(settings_json)
    directory = os.path.dirname(path)
    ignore_stack_signal()
    life = os.dup(0)
    threading.Thread(target=_end_with, args=(life, directory if clear else ""), name="parl-life", daemon=True).start()
    if not chosen_by_user(os.environ):
        set_variables(os.environ, 1)
    failed = {}
    for name in (*_WARM, *preload):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    listening = listen_at(path)
    os.write(_STDOUT, json.dumps({"ready": os.getpid(), "failed": failed}).encode() + b"\n")
    os.dup2(_STDERR, _STDOUT)
    sys.argv[:] = [""]
    run_actor(listening, os.getppid())


def _end_with(life: int, directory: str) -> None:
    """Wait for the end of the worker, which closes the pipe, and end this process."""
    while os.read(life, 1):
        pass
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)

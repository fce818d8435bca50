"""The process that actors are forked from: warm, single-threaded, and the one who knows first when an actor ends.

    worker --{"fork": n}-->  zygote --fork--> actor n, listening at <dir>/a<n>.sock
           --{"kill": n}-->         --SIGKILL--> actor n and its process group
           <--{"ready": ...}-- {"forked": n, "pid": p} -- {"ended": n, "status": s}

It has imported numpy and cloudpickle (and what `preload` names), so that an actor costs a fork and shares the memory.
When the worker's end of the connection closes it kills all actors, clears the directory and ends; when it is killed
itself, the kernel kills its actors (they asked for that).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from parl_remote import processes
from parl_remote.thread_counts import chosen_by_user, set_variables
from parl_remote.transport_unix import listen_at

__all__ = ["ZygoteProcess", "main", "start_zygote", "zygote_main"]

_LARGEST = 65536

# What an actor needs before it runs the first line of the user's.
_WARM = ("numpy", "numpy.random", "cloudpickle", "parl_remote.decorator", "parl_remote.actor_process")


class _Zygote:
    def __init__(self, control: socket.socket, directory: str, clear: bool) -> None:
        self._control = control
        self._directory = directory
        self._clear = clear
        self._poller = select.poll()
        self._poller.register(control.fileno(), select.POLLIN)
        self._pids: dict[int, int] = {}
        self._by_pidfd: dict[int, int] = {}

    def run(self) -> NoReturn:
        control = self._control.fileno()
        while True:
            for fd, _ in self._poller.poll():
                if fd == control:
                    self._obey()
                elif fd in self._by_pidfd:
                    self._reap(fd)

    def _obey(self) -> None:
        try:
            command = json.loads(self._control.recv(_LARGEST) or b"{}")
        except ConnectionError:
            command = {}
        if "fork" in command:
            self._fork(command["fork"])
        elif "kill" in command:
            self._kill(command["kill"])
        else:
            self._end()

    def _fork(self, number: int) -> None:
        listening = listen_at(f"{self._directory}/a{number}.sock")
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _become_actor(listening, parent)
        listening.close()
        self._pids[number] = pid
        pidfd = os.pidfd_open(pid)
        self._by_pidfd[pidfd] = number
        self._poller.register(pidfd, select.POLLIN)
        self.tell(forked=number, pid=pid)

    def _kill(self, number: int) -> None:
        pid = self._pids.get(number)  # it is still our child, so the number cannot have gone to another process
        if pid is not None:
            _kill_group(pid)

    def _reap(self, pidfd: int) -> None:
        number = self._by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = self._pids.pop(number)
        _kill_group(pid)  # what the actor has started goes with it; before waitpid, while the number is still ours
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.unlink(f"{self._directory}/a{number}.sock")
        self.tell(ended=number, status=status)

    def _end(self) -> NoReturn:
        for pid in self._pids.values():
            _kill_group(pid)
        for pid in self._pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._clear:
            shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)

    def tell(self, **report: object) -> None:
        try:
            self._control.send(json.dumps(report).encode())
        except ConnectionError:
            self._end()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # in case it had no time to make its group


def _become_actor(listening: socket.socket, parent: int) -> NoReturn:
    """The child's side of the fork."""
    from parl_remote.actor_process import run_actor

    try:
        os.setpgid(0, 0)
        processes.set_name("parl:spare")
        processes.close_descriptors_except({listening.fileno()})
        if "numpy" in sys.modules:
            # Else all actors would draw the same numbers. Thirty-two bits are what a user's own seed has, too.
            sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
        run_actor(listening, parent)
    finally:
        os._exit(1)


def zygote_main(control: socket.socket, directory: str, preload: tuple[str, ...], clear: bool) -> NoReturn:
    """Be the zygote; never returns.

    Args:
        control: The connection to the worker.
        directory: The node's private directory.
        preload: Modules to import once for all actors.
        clear: Whether to remove the directory when the worker is gone.
    """
    try:
        processes.reset_signals()
        processes.set_name("parl:zygote")
        if not chosen_by_user(os.environ):
            set_variables(os.environ, 1)
        failed = _import_all((*_WARM, *preload))
        gc.collect()
        gc.freeze()  # collections in actors leave the shared pages alone
        zygote = _Zygote(control, directory, clear)
        zygote.tell(ready=os.getpid(), failed=failed)
        zygote.run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _import_all(names: tuple[str, ...]) -> dict[str, str]:
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


class ZygoteProcess:
    """The worker's side: a zygote that runs.

    Attributes:
        pid: Its process number.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def fileno(self) -> int:
        """Readable while there are reports."""
        return self._control.fileno()

    def pending(self) -> bool:
        """Always false: the descriptor says it all."""
        return False

    def fork(self, number: int) -> None:
        """Ask for actor `number`."""
        self._tell(fork=number)

    def kill(self, number: int) -> None:
        """Have actor `number` killed."""
        self._tell(kill=number)

    def reports(self) -> list[dict[str, object]] | None:
        """What it has to say; None once it is gone."""
        reports: list[dict[str, object]] = []
        while True:
            try:
                message = self._control.recv(_LARGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return reports
            except ConnectionError:
                message = b""
            if not message:
                return reports or None
            reports.append(json.loads(message))

    def close(self) -> None:
        """Let it end its actors and itself, and wait for that."""
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, **command: object) -> None:
        with contextlib.suppress(ConnectionError):  # its end is reported by `reports`
            self._control.send(json.dumps(command).encode())


def start_zygote(directory: str | Path, preload: tuple[str, ...] = (), *, clear: bool = False) -> ZygoteProcess:
    """Start a zygote: by fork, which is quick, or as a new program where this process has threads already.

    Args:
        directory: The node's private directory.
        preload: Modules to import once for all actors.
        clear: Whether the zygote removes the directory when this process is gone.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            pid = _spawn(theirs, str(directory), preload, clear)
        else:
            pid = os.fork()
            if not pid:
                _become_zygote(theirs, str(directory), preload, clear)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ZygoteProcess(pid, ours)


def _become_zygote(control: socket.socket, directory: str, preload: tuple[str, ...], clear: bool) -> NoReturn:
    """The child's side of the fork."""
    try:
        processes.close_descriptors_except({control.fileno()})
        zygote_main(control, directory, preload, clear)
    finally:
        os._exit(1)


_PROGRAM = "import sys; sys.path[:] = {path!r}; from parl_remote.zygote import main; main(sys.argv[1])"


def _spawn(control: socket.socket, directory: str, preload: tuple[str, ...], clear: bool) -> int:
    """A fork of a process with threads may hold their locks for ever; a new program does not."""
    descriptor = control.fileno()
    settings = json.dumps([descriptor, directory, preload, clear])
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", _PROGRAM.format(path=sys.path), settings]
    return os.posix_spawn(sys.executable, command, os.environ)


def main(settings_json: str) -> NoReturn:
    """The zygote as a program of its own."""
    descriptor, directory, preload, clear = json.loads(settings_json)
    os.set_inheritable(descriptor, False)
    processes.close_descriptors_except({descriptor})
    zygote_main(socket.socket(fileno=descriptor), directory, tuple(preload), clear)

"""The process that actors are forked from: warm, single-threaded, and the one who knows first when an actor ends.

    worker --{"fork": n}-->  zygote --fork--> actor n, listening at <dir>/a<n>.sock
           --{"kill": n}-->         --SIGKILL--> actor n and its process group
           --{"dump": n}-->         --STACK_SIGNAL--> actor n
           <--{"ready": ...}-- {"forked": n, "pid": p} | {"refused": n, "reason": r} -- {"ended": n, "status": s, ...}

It has imported numpy and cloudpickle (and what `preload` names), so that an actor costs a fork and shares the memory.
When the worker's end of the connection closes it kills all actors, clears the directory and ends; when it is killed
itself, the kernel kills its actors (they asked for that).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from parl_remote.system import processes
from parl_remote.system.facilities import is_portable
from parl_remote.worker.zygote_loop import zygote_main

if TYPE_CHECKING:
    from parl_remote.portable.spawner import Spawner

__all__ = ["ActorSource", "ZygoteProcess", "main", "start_zygote"]

_LARGEST_REPORT = 65536
_LAST_WORK_S = 1.0  # killing hundreds of actors takes some tenths of it on a busy machine


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

    def dump(self, number: int) -> None:
        """Have actor `number` print its stacks, see `stack_dumps`."""
        self._tell(dump=number)

    def reports(self) -> list[dict[str, object]] | None:
        """What it has to say; None once it is gone."""
        reports: list[dict[str, object]] = []
        while True:
            try:
                message = self._control.recv(_LARGEST_REPORT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return reports
            except ConnectionError:
                message = b""
            if not message:
                return reports or None
            reports.append(json.loads(message))

    def close(self) -> None:
        """Let it end its actors and itself, and wait for that; one that does not, because it was stopped, is killed."""
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            if not processes.ends_within(self.pid, _LAST_WORK_S):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _tell(self, **command: object) -> None:
        with contextlib.suppress(ConnectionError):  # its end is reported by `reports`
            self._control.send(json.dumps(command).encode())


ActorSource: TypeAlias = "ZygoteProcess | Spawner"


def start_zygote(directory: str | Path, preload: tuple[str, ...] = (), *, clear: bool = False) -> ActorSource:
    """Start a zygote: by fork, which is quick, or as a new program where this process has threads already.

    Where there is no fork, what stands in for it starts a program for each actor.

    Args:
        directory: The node's private directory.
        preload: Modules to import once for all actors.
        clear: Whether the zygote removes the directory when this process is gone.
    """
    if is_portable():
        from parl_remote.portable.spawner import Spawner  # which needs psutil

        return Spawner(directory, preload, clear=clear)
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


_PROGRAM = "import sys; sys.path[:] = {path!r}; from parl_remote.worker.zygote import main; main(sys.argv[1])"


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

"""The process that actors are forked from: warm, single-threaded, and the first to know when an actor ends.

    worker --{"fork": n}-->  zygote --fork--> actor n, listening at <dir>/a<n>.sock
           --{"kill": n}-->         --SIGKILL--> actor n and its process group
           --{"dump": n}-->         --STACK_SIGNAL--> actor n
           <--{"ready": ...}-- {"forked": n, "pid": p} | {"refused": n, "reason": r} -- {"ended": n, "status": s, ...}

It has imported numpy and cloudpickle (and the `preload` modules), so that an actor costs a fork and shares the memory.
When the worker's end of the connection closes it kills all actors, clears the directory and ends; when it is killed
itself, the kernel kills its actors (by their parent-death signal).

A node forks its zygote before it imports anything else, and both then import side by side. So this module imports
little, and what the zygote alone needs is imported in its process.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from parl_remote._actor.reports import STACK_SIGNAL, ignore_stack_signal
from parl_remote._config import Limits
from parl_remote._data import object_memory, ownership
from parl_remote._portable.spawner import Spawner
from parl_remote._system import processes
from parl_remote._system.facilities import is_portable
from parl_remote._system.processes import chosen_by_user, set_variables
from parl_remote._transport.unix import listening_socket

__all__ = ["ActorSource", "ZygoteProcess", "main", "start_zygote"]


_LARGEST_COMMAND = 65536

# What an actor needs before it runs the user's code; the user's modules begin with `import parl`.
_WARM = ("numpy", "numpy.random", "cloudpickle", "parl", "parl_remote._decorator", "parl_remote._actor.process")


# What an actor needs when it makes or receives another one; imported while no actor is requested, so that it does not
# delay the first actor of a program.
_LATER = ("parl_remote._program.client", "parl_remote._messages.parts")
_QUIET_MS = 250


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
        patience_ms: int | None = _QUIET_MS
        while True:
            ready = self._poller.poll(patience_ms)
            if not ready:
                patience_ms = None
                _import_and_freeze(_LATER)
            for fd, _ in ready:
                if fd == control:
                    self._handle_command()
                elif fd in self._by_pidfd:
                    self._reap(fd)

    def _handle_command(self) -> None:
        try:
            command = json.loads(self._control.recv(_LARGEST_COMMAND) or b"{}")
        except ConnectionError:
            command = {}
        if "fork" in command:
            self._fork(command["fork"])
        elif "kill" in command:
            self._kill(command["kill"])
        elif "dump" in command:
            self._dump(command["dump"])
        else:
            self._end()

    def _fork(self, number: int) -> None:
        parent = os.getpid()
        pid = 0
        try:
            with listening_socket(self._socket_of(number)) as listening:
                pid = os.fork()
                if not pid:
                    _become_actor(listening, parent)
            pidfd = os.pidfd_open(pid)
        except OSError as error:  # there are no processes, no descriptors or no memory left
            if pid:
                _kill_group(pid)
                os.waitpid(pid, 0)
            self._unlink(number)
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError):  # the folder of sockets; `bind` does not name it
                reason += f": {self._socket_of(number)}"
            self.tell(refused=number, reason=reason)
            return
        self._pids[number] = pid
        self._by_pidfd[pidfd] = number
        self._poller.register(pidfd, select.POLLIN)
        self.tell(forked=number, pid=pid)

    def _kill(self, number: int) -> None:
        pid = self._pids.get(number)  # it is still a child of this process, so the pid cannot have been reused
        if pid is not None:
            _kill_group(pid)

    def _dump(self, number: int) -> None:
        pid = self._pids.get(number)  # as above; from any other process the signal could end an unrelated process
        if pid is not None:
            os.kill(pid, STACK_SIGNAL)

    def _reap(self, pidfd: int) -> None:
        number = self._by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = self._pids.pop(number)
        # processes that the actor has started end with it; before waitpid, while the number is still reserved
        _kill_group(pid)
        _, status, used = os.wait4(pid, 0)
        self.tell(ended=number, status=status, peak=used.ru_maxrss * 1024)
        self._unlink(number)  # after that: somebody may wait for the actor's resources

    def _end(self) -> NoReturn:
        for pid in self._pids.values():
            _kill_group(pid)
        for pid in self._pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._clear:
            shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)

    def _socket_of(self, number: int) -> str:
        return f"{self._directory}/a{number}.sock"

    def _unlink(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._socket_of(number))

    def tell(self, **report: object) -> None:
        try:
            self._control.send(json.dumps(report).encode())
        except ConnectionError:
            self._end()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have created its group yet


def _become_actor(listening: socket.socket, parent: int) -> NoReturn:
    """Run an actor in the forked child."""
    from parl_remote._actor.process import run_actor  # imported before the first fork, see `_WARM`

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
    """Run the zygote; never returns.

    Args:
        control: The connection to the worker.
        directory: The node's private directory.
        preload: Modules to import once for all actors.
        clear: Whether to remove the directory when the worker is gone.
    """
    try:
        processes.reset_signals()
        ignore_stack_signal()
        processes.set_name("parl:zygote")
        if not chosen_by_user(os.environ):
            set_variables(os.environ, 1)
        failed = _import_and_freeze(_WARM)
        _expect_elsewhere()
        failed |= _import_and_freeze(preload)
        _set_value_directory(directory)
        zygote = _Zygote(control, directory, clear)
        zygote.tell(ready=os.getpid(), failed=failed)
        zygote.run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _set_value_directory(directory: str) -> None:
    """Determine, once for all actors, the directory of values of `put`."""
    object_memory.set_directory(directory)


def _expect_elsewhere() -> None:
    """Record, once for all actors, that the modules imported so far need no check, which would copy 2 MB in each."""
    ownership.expect_elsewhere()


def _import_and_freeze(names: Sequence[str]) -> dict[str, str]:
    """Import modules for all later actors; return those that failed, with the reasons."""
    gc.disable()  # imports leave little to collect, and freeing it would leave holes in pages that will be shared
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    _clear_attribute_cache()
    gc.freeze()  # collections in actors leave the shared pages alone
    gc.enable()
    return failed


def _clear_attribute_cache() -> None:
    """Clear the interpreter's cache of attributes, which counts references to their names.

    An actor that puts its own in their place would copy the pages of all of them, a quarter of a megabyte.
    """
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # Python 3.13 has the former
    clear()


_LARGEST_REPORT = 65536
# Of the grace of `xparl stop`. The zygote kills all actors within milliseconds of it; on a busy machine, where hundreds
# take longer to end, they need nobody for that.
_LAST_WORK_S = Limits.shutdown_grace_s / 3


class ZygoteProcess:
    """The worker's side of a running zygote.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are reports."""
        return self._control.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def fork(self, number: int) -> None:
        """Request the fork of actor `number`."""
        self._tell(fork=number)

    def kill(self, number: int) -> None:
        """Request the kill of actor `number`."""
        self._tell(kill=number)

    def dump(self, number: int) -> None:
        """Make actor `number` print its stacks, see `reports.allow_stack_dumps`."""
        self._tell(dump=number)

    def reports(self) -> list[dict[str, object]] | None:
        """Return the reports received; None once the zygote is gone."""
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
        """Make the zygote end its actors and itself, and wait for that; kill them all if it does not end in time."""
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            if not processes.ends_within(self.pid, _LAST_WORK_S):
                for pid in processes.descendants([self.pid]):  # as long as it lives the numbers are theirs
                    _kill_group(pid)
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _tell(self, **command: object) -> None:
        with contextlib.suppress(ConnectionError):  # its end is reported by `reports`
            self._control.send(json.dumps(command).encode())


ActorSource: TypeAlias = ZygoteProcess | Spawner


def start_zygote(directory: str | Path, preload: tuple[str, ...] = (), *, clear: bool = False) -> ActorSource:
    """Start a zygote: by fork, which is fast, or as a new program if this process has threads already.

    Where fork is not available, a `Spawner` starts a program for each actor instead.

    Args:
        directory: The node's private directory.
        preload: Modules to import once for all actors.
        clear: Whether the zygote removes the directory when this process is gone.
    """
    if is_portable():
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
    """Run the zygote in the forked child."""
    try:
        processes.close_descriptors_except({control.fileno()})
        zygote_main(control, directory, preload, clear)
    finally:
        os._exit(1)


_PROGRAM = "import sys; sys.path[:] = {path!r}; from parl_remote._worker.zygote import main; main(sys.argv[1])"


def _spawn(control: socket.socket, directory: str, preload: tuple[str, ...], clear: bool) -> int:
    """Start a new program: a fork of a process with threads may hold their locks forever."""
    descriptor = control.fileno()
    settings = json.dumps([descriptor, directory, preload, clear])
    os.set_inheritable(descriptor, True)
    command = [*processes.python_command(), "-P", "-c", _PROGRAM.format(path=sys.path), settings]
    return os.posix_spawn(sys.executable, command, os.environ)


def main(settings_json: str) -> NoReturn:
    """Run the zygote as a program of its own."""
    descriptor, directory, preload, clear = json.loads(settings_json)
    os.set_inheritable(descriptor, False)
    processes.close_descriptors_except({descriptor})
    zygote_main(socket.socket(fileno=descriptor), directory, tuple(preload), clear)

"""Processes and the operating system: signals, death with the parent, names, logs, threads, causes of exits.

What differs between Linux and other systems is chosen here: /proc and pidfd, or `portable.processes`, or nothing. Only
`worker.zygote` calls fork.

Both streams of an actor go to one file, in the order in which they came; marks record the parts that came by
`sys.stderr`:

    sys.stdout --> fd 1 -----------------> actor-7.log
    sys.stderr --> fd 2 -----------------> actor-7.log          | start u64 | length u32 | for each write
                    `-- where it went ---> .actor-7.log.streams

What programs that an actor starts write to their stderr, and what C code does, is not marked and counts as stdout.

Numeric libraries get as many threads in an actor as it has CPUs; otherwise eight actors on eight cores would start
sixty-four threads. Libraries read the environment when they are loaded, which suffices for those that the actor loads
itself: torch, paddle, MKL, numexpr, numba. Those that the zygote has loaded already, numpy's OpenBLAS and the `preload`
modules, are set through their own functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import io
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from parl_core._config import VARIABLES, chosen_variables
from parl_remote._portable import processes as portable
from parl_remote._system.facilities import CLOSE_ON_EXEC, IN, is_portable, missing, wait_once
from parl_remote._system.texts import visible
from parl_remote.errors import DeathCause, DeathKind

__all__ = [
    "VARIABLES",
    "above_stderr",
    "chosen_by_user",
    "chosen_number",
    "chosen_variables",
    "close_descriptors_except",
    "death_of",
    "die_with_parent",
    "ends_within",
    "ignore_hang_up",
    "is_stopped",
    "limit_numeric_threads",
    "listener_at",
    "marks_of",
    "python_command",
    "raise_descriptor_limit",
    "read_marks",
    "redirect_output",
    "reset_signals",
    "resident_bytes",
    "set_name",
    "set_variables",
    "tail",
    "write_marks",
]


listener_at = portable.listener_at  # psutil's on Linux, too: only error messages use it

_MARK = struct.Struct("<QI")
_AT_ONCE = 1000 * _MARK.size


class _MarkedStderr(io.FileIO):
    """A raw stream on descriptor 2, opened for it alone, so that its position is the end of its last write."""

    def __init__(self, log: str) -> None:
        super().__init__(2, "w", closefd=False)
        self._log = log
        self._marks = -1

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        with contextlib.suppress(OSError):  # a full disk, or the user has put a pipe in its place
            end = os.lseek(2, 0, os.SEEK_CUR)
            if self._marks < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC
                self._marks = os.open(marks_of(Path(self._log)), flags, 0o600)
            os.write(self._marks, _MARK.pack(end - written, written))
        return written


def mark_stderr(log: str) -> None:
    """Make Python's stderr write marks beside the log that descriptor 2 was opened for."""
    raw = io.BufferedWriter(_MarkedStderr(log))
    sys.stderr = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", line_buffering=True)


def marks_of(log: Path) -> Path:
    """Return the file of a log's marks, which does not exist before the first one."""
    return log.with_name(f".{log.name}.streams")


def read_marks(log: Path, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of a range of a log's bytes that were written to stderr, as (start, stop), in order."""
    found: list[tuple[int, int]] = []
    try:
        with open(marks_of(log), "rb") as file:
            file.seek(_first_after(file, start) * _MARK.size)
            while data := file.read(_AT_ONCE):
                for at, length in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]):
                    if at >= stop:
                        return found
                    if at + length > start:
                        found.append((max(at, start), min(at + length, stop)))
    except OSError:  # it has not written to stderr
        pass
    return found


def write_marks(log: Path, spans: list[tuple[int, int]]) -> None:
    """Rewrite the marks of a log; without spans, remove the file."""
    if not spans:
        marks_of(log).unlink(missing_ok=True)
        return
    descriptor = os.open(marks_of(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(b"".join(_MARK.pack(start, stop - start) for start, stop in spans))


def _first_after(file: io.BufferedReader, position: int) -> int:
    """Return the number of the first mark that may extend beyond a position; only races of threads break the order."""
    low, high = 0, file.seek(0, os.SEEK_END) // _MARK.size
    while low < high:
        middle = (low + high) // 2
        file.seek(middle * _MARK.size)
        at, length = _MARK.unpack(file.read(_MARK.size))
        if at + length <= position:
            low = middle + 1
        else:
            high = middle
    return max(0, low - 1)


with contextlib.suppress(ImportError):  # Windows has neither
    import fcntl
    import resource


_TAIL_BYTES = 2**18  # fifty lines of usual length several times over
_LINE_SHOWN = 500  # characters; the last lines of thousands of actors are kept
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


_STATES = {
    "T": "stopped by a signal (SIGCONT lets it go on)",
    "t": "held by a debugger",
    "D": "waiting for a device or a file system, and takes no signals meanwhile",
    "R": "running",
    "S": "sleeping",
    "Z": "ending",
}


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    _libc().prctl(option, argument, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process once the thread that forked it ends.

    Args:
        parent: The parent's process id; if it is already gone, this process exits.
    """
    if is_portable():  # it watches a pipe, see `portable.spawner`
        return
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def python_command() -> list[str]:
    """Return the command that runs this Python with this process's options: -O, -W and -X utf8, for example."""
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]  # as multiprocessing


def set_name(name: str) -> None:
    """Name the process for `ps` and `top`; 15 bytes are kept."""
    if is_portable():
        return
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_NAME, name.encode()[:15])


def reset_signals() -> None:
    """Ignore SIGINT, which the driver handles, and reset all other signals to those of a fresh process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGCHLD", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_hang_up() -> None:
    """Ignore the loss of the terminal, on systems with that signal."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def above_stderr(descriptor: int) -> int:
    """Return a duplicate of a descriptor with a number of at least 3, and close the original.

    In a program started without stdin or stdout, the first files opened get their numbers, and a child that is to
    inherit such a file gets its own stdin or stdout instead.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def close_descriptors_except(keep: set[int]) -> None:
    """Close every descriptor from 3 up that is not in `keep`."""
    start = 3
    for kept in (*sorted(keep), os.sysconf("SC_OPEN_MAX")):
        os.closerange(start, kept)  # one system call per gap
        start = kept + 1


def raise_descriptor_limit() -> None:
    """Raise the descriptor limit to the hard limit: each peer of a node and each of its actors needs some."""
    if "resource" in missing():  # Windows limits descriptors otherwise
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS calls it unlimited and does not grant that
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def redirect_output(path: str) -> None:
    """Send stdout and stderr, of Python and of C code, to the end of a file; stdin is empty from now on.

    Lines are written at once, and a crash in C code leaves Python's stack, because death reports show the last
    lines.
    """
    for stream in (1, 2):  # opened for each, so that the position of one is the end of its own last write
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC, 0o600)
        os.dup2(log, stream)
        os.close(log)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    mark_stderr(path)
    faulthandler.enable(2)


def death_of(status: int) -> DeathCause:
    """Return the cause of death of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return DeathCause(DeathKind.SIGNAL, signal=-code)
    return DeathCause(DeathKind.EXIT, exit_code=code)


def tail(path: str | Path, lines: int) -> tuple[str, ...]:
    """Return the last lines of a text file, none if it cannot be read; very long ones are truncated with a note."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - _TAIL_BYTES)
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    found = visible(text).splitlines()
    if begin and len(found) > 1:
        del found[0]  # its beginning is missing
    return tuple(
        line if len(line) <= _LINE_SHOWN else f"{line[:_LINE_SHOWN]}... ({len(line) - _LINE_SHOWN} more)"
        for line in found[-lines:]
    )


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal; one held by a debugger does not count."""
    if is_portable():
        return portable.is_stopped(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def ends_within(child: int, seconds: float) -> bool:
    """Wait for the end of a child of this process, without reaping it; return whether it has ended.

    Raises:
        ChildProcessError: It has been reaped already.
    """
    try:
        descriptor = os.pidfd_open(child)
    except ProcessLookupError:
        raise ChildProcessError(f"process {child} is not there any more") from None
    try:
        return bool(wait_once(descriptor, IN, seconds * 1000))
    finally:
        os.close(descriptor)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 if it is gone.

    Pages of files and shared memory are excluded: they exist once, however many processes map them, and an actor must
    not be ended because it reads a value of `put`.
    """
    if is_portable():
        return portable.resident_bytes(pid)
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, pages, shared, *_ = file.read().split()
        return (int(pages) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds; 0 if it is gone."""
    if is_portable():
        return portable.cpu_seconds(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)
    except (OSError, IndexError, ValueError):
        return 0.0


def descendants(roots: Sequence[int]) -> Iterator[int]:
    """Yield the pids of the running descendants of some processes."""
    if is_portable():
        for root in roots:
            yield from portable.descendants(root)
        return
    children: dict[int, list[int]] = {}
    for pid, _, parent, _ in _all_processes():
        children.setdefault(parent, []).append(pid)
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            yield pid


def in_session(number: int, prefix: str) -> Iterator[int]:
    """Yield the pids of the running members of a session whose names (see `set_name`) begin with a prefix.

    A process stays a member when its parent ends, or the first process of the session, whose pid is the number.
    """
    if not is_portable():  # else there are no sessions
        for pid, name, _, session in _all_processes():
            if session == number and name.startswith(prefix):
                yield pid


def _all_processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield pid, name, parent and session of each process of this machine."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", "rb") as file:
                before, _, after = file.read().partition(b"(")[2].rpartition(b") ")
                _, parent, _, session, _ = after.split(maxsplit=4)
                yield int(entry), before.decode(errors="replace"), int(parent), int(session)


def start_of(pid: int) -> int:
    """Return the start time of a process, which together with the pid identifies it on this host.

    Raises:
        ProcessLookupError: There is no such process, or it has ended.
    """
    if is_portable():
        return portable.started(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    if fields[0] in {b"Z", b"X"}:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[19])


def ended_within(pid: int, began: int, seconds: float | None) -> bool:
    """Wait for the end of the process with that start time (`start_of`); return whether it has ended."""
    if is_portable():
        return portable.ended_within(pid, began, seconds)
    descriptor = _opened(pid, began)
    if descriptor is None:
        return True
    try:
        return bool(wait_once(descriptor, IN, None if seconds is None else max(0.0, seconds) * 1000))
    finally:
        os.close(descriptor)


def send_signal(pid: int, began: int, number: signal.Signals) -> bool:
    """Send a signal to exactly the process with that start time (`start_of`); return False if it has ended."""
    if is_portable():
        return portable.send_signal(pid, began, int(number))
    descriptor = _opened(pid, began)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _opened(pid: int, began: int) -> int | None:
    """Return a descriptor of the process, readable once it has ended; None if it has ended already."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(ProcessLookupError):
        if start_of(pid) == began:  # the descriptor keeps referring to the same process
            return descriptor
    os.close(descriptor)
    return None


def state_of(pid: int) -> str:
    """Return the state of a process in the kernel: "process 12 is asleep, in the kernel at ..."."""
    if is_portable():
        return f"process {pid} is {portable.state_of(pid)}"
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        where = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip("0\n ")
    except (OSError, IndexError):
        return f"process {pid} is gone"
    state = _STATES.get(status, f"in state {status}")
    return f"process {pid} is {state}{f', in the kernel at {where}' if where else ''}"


_SETTERS = {  # by the name of the library's file; the functions take the number as a C int
    "openblas": ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "gomp": ("omp_set_num_threads",),
    "iomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
}
_MODULES = ("torch", "numexpr")  # each has a function set_num_threads


def chosen_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads that an environment sets for all libraries, or else for one of them."""
    numbers = (text.partition(",")[0].strip() for text in chosen_variables(environment).values())
    return next((int(number) for number in numbers if number.isdecimal() and int(number) > 0), None)


def chosen_by_user(environment: Mapping[str, str]) -> bool:
    """Return whether the environment sets a number of threads that must be respected."""
    return bool(chosen_variables(environment))


def set_variables(environment: MutableMapping[str, str], threads: int) -> None:
    """Set the number of threads for libraries that are loaded later."""
    for name in VARIABLES:
        environment[name] = str(threads)


def limit_numeric_threads(threads: int | None) -> None:
    """Set the number of threads for libraries loaded now or later; None changes nothing."""
    if threads is None:
        return
    set_variables(os.environ, threads)
    if threads > 1:  # the zygote has loaded everything with one
        _tell_loaded_libraries(threads)
        _tell_loaded_modules(threads)


def _tell_loaded_libraries(threads: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {fields[5].strip() for line in maps if len(fields := line.split(maxsplit=5)) > 5}
        for path in paths:
            name = os.path.basename(path)
            setters = next((names for part, names in _SETTERS.items() if part in name and ".so" in name), ())
            for setter in setters:
                _call(path, setter, threads)


def _call(path: str, name: str, number: int) -> None:
    with contextlib.suppress(OSError):
        function = getattr(ctypes.CDLL(path), name, None)
        if function is not None:
            function(ctypes.c_int(number))


def _tell_loaded_modules(threads: int) -> None:
    for name in _MODULES:
        setter = getattr(sys.modules.get(name), "set_num_threads", None)
        if setter is not None:
            with contextlib.suppress(Exception):  # numexpr refuses more than it has prepared for
                setter(threads)

"""What the operating system has to do for actors: signals, death with the parent, names, logs, exit causes.

Only `zygote` and `zygote_loop` call fork. What Linux does by itself and other systems do not, is left out there or done
by `portable.processes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import io
import os
import signal
import sys
from pathlib import Path

from parl_remote.death import DeathCause, DeathKind
from parl_remote.system.facilities import CLOSE_ON_EXEC, is_portable, missing
from parl_remote.system.output_streams import mark_stderr
from parl_remote.system.pollers import IN, wait_once

with contextlib.suppress(ImportError):  # neither is there on Windows
    import fcntl
    import resource

__all__ = [
    "beyond_standard",
    "close_descriptors_except",
    "death_of",
    "die_with_parent",
    "ends_within",
    "ignore_hang_up",
    "is_stopped",
    "raise_descriptor_limit",
    "redirect_output",
    "reset_signals",
    "resident_bytes",
    "set_name",
    "tail",
]

_TAIL_BYTES = 2**18  # fifty lines of usual length several times over
_LINE_SHOWN = 500  # characters; the last lines of thousands of actors are kept
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    _libc().prctl(option, argument, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process once the thread that forked it ends.

    Args:
        parent: The process that forked; if it is already gone, this process ends here.
    """
    if is_portable():  # it watches a pipe, see `portable.spawned`
        return
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    """Name the process for `ps` and `top`; 15 bytes are kept."""
    if is_portable():
        return
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_NAME, name.encode()[:15])


def reset_signals() -> None:
    """Ctrl-C is the driver's business: ignore SIGINT; everything else as a fresh process has it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGCHLD", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_hang_up() -> None:
    """Stay when the terminal goes, where there is such a signal."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def beyond_standard(descriptor: int) -> int:
    """The same file under a number from 3 up, the given one closed.

    A program that was started without stdin or stdout gives their numbers to what it opens first, and a child that is
    to inherit that gets its own stdin or stdout in its place.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def close_descriptors_except(keep: set[int]) -> None:
    """Close every descriptor from 3 up that is not in `keep`."""
    start = 3
    for kept in (*sorted(keep), os.sysconf("SC_OPEN_MAX")):
        os.closerange(start, kept)  # one system call for each gap
        start = kept + 1


def raise_descriptor_limit() -> None:
    """Take all descriptors that the hard limit allows: each peer of a node and each of its actors needs some."""
    if "resource" in missing():  # Windows limits descriptors otherwise
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS calls it unlimited and does not grant that
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def redirect_output(path: str) -> None:
    """Send stdout and stderr, of Python and of C code, to the end of a file; stdin is empty from now on.

    Lines are written at once, and a crash in C code leaves Python's stack: the last lines are what a report shows.
    """
    for stream in (1, 2):  # opened for each, so that the position of one says where its own last write ended
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC, 0o600)
        os.dup2(log, stream)
        os.close(log)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    mark_stderr(Path(path))
    faulthandler.enable(2)


def death_of(status: int) -> DeathCause:
    """The cause that a wait status tells."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return DeathCause(DeathKind.SIGNAL, signal=-code)
    return DeathCause(DeathKind.EXIT, exit_code=code)


def tail(path: str | Path, lines: int) -> tuple[str, ...]:
    """The last lines of a text file, none if it cannot be read; very long ones are cut and say so."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - _TAIL_BYTES)
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    found = text.splitlines()
    if begin and len(found) > 1:
        del found[0]  # its beginning is missing
    return tuple(
        line if len(line) <= _LINE_SHOWN else f"{line[:_LINE_SHOWN]}... ({len(line) - _LINE_SHOWN} more)"
        for line in found[-lines:]
    )


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped the process with a signal; one that a debugger holds does not count."""
    if is_portable():
        from parl_remote.portable.processes import is_stopped as stopped

        return stopped(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def ends_within(child: int, seconds: float) -> bool:
    """Wait for a child of this process, which still has to be reaped then.

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
    """Bytes of a process in memory, 0 if it is gone.

    Without pages of files and of memory that processes share: they are there once, however many have them mapped, and
    an actor shall not end because it looks at a value of `put`.
    """
    if is_portable():
        from parl_remote.portable.processes import resident_bytes as resident

        return resident(pid)
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, pages, shared, *_ = file.read().split()
        return (int(pages) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0

"""The facilities of this operating system: all that Linux has, or only those that every system has.

                     all facilities present (Linux)          some missing: the portable implementation
    local sockets    unix, checked by the peer's user        TCP on loopback, checked by a secret    portable.sockets
    waiting          epoll, which nests                      selectors and a thread                  system.polling
    actors start     by fork from a warm process             as programs, some ahead                 portable.spawner
    large frames     shared memory                           through the socket
    processes        /proc, pidfd                            psutil                                  portable.processes

It is one decision, not a dozen: two complete variants can be tested, a thousand mixtures cannot. `PARL_PORTABLE=1`
selects the portable one on Linux, too, which is how it is tested.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import select
import signal
import socket
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from parl_remote._config import portable_wanted

__all__ = [
    "BINARY",
    "CLOSE_ON_EXEC",
    "NO_FOLLOW",
    "Waker",
    "cpu_count",
    "crowded_out",
    "is_portable",
    "missing",
    "most_unproved",
    "own_user",
]

_Key = TypeVar("_Key")

# Flags for os.open where they exist. On other systems descriptors are not inherited, and links need privileges.
BINARY = getattr(os, "O_BINARY", 0)  # Windows would write two bytes for an end of line
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)

_NEEDED = (
    (os, ("fork", "memfd_create", "pidfd_open", "pipe2", "posix_spawn", "getuid", "geteuid", "sched_getaffinity")),
    (os, ("eventfd", "killpg", "wait4", "setpgid", "posix_fallocate")),
    (select, ("epoll", "poll")),
    (signal, ("pidfd_send_signal", "SIGHUP", "SIGKILL", "pthread_sigmask")),
    (socket, ("AF_UNIX", "SO_PEERCRED", "SOCK_SEQPACKET", "MSG_DONTWAIT", "MSG_NOSIGNAL")),
)
_NEEDED_MODULES = ("fcntl", "resource", "termios")
_MANY = 4096


@functools.cache
def missing() -> tuple[str, ...]:
    """Return the required facilities that this system lacks, such as "os.fork"; empty on Linux."""
    names = [f"{place.__name__}.{name}" for place, wanted in _NEEDED for name in wanted if not hasattr(place, name)]
    names += [name for name in _NEEDED_MODULES if not _can_import(name)]
    if not os.path.exists("/proc/self/stat"):
        names.append("/proc")
    return tuple(names)


@functools.cache
def is_portable() -> bool:
    """Return whether this process uses only portable facilities; decided once, on first use."""
    return portable_wanted() or bool(missing())


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def own_user() -> int | None:
    """Return the user's id, None on systems without user ids."""
    return os.geteuid() if hasattr(os, "geteuid") else None


_MOST_UNPROVED = 1024  # a thousand workers may come back at the same moment
_SHARE_UNPROVED = 8


def most_unproved() -> int:
    """Return how many connections may be open that have not authenticated themselves, before the oldest is closed.

    It is a small part of the descriptors that this process may have, so that outsiders cannot use these up.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):  # Windows limits descriptors otherwise
        return _MOST_UNPROVED
    return max(_SHARE_UNPROVED, min(_MOST_UNPROVED, limit // _SHARE_UNPROVED)) if limit > 0 else _MOST_UNPROVED


def crowded_out(owners: Mapping[_Key, Hashable]) -> _Key:
    """Return the oldest entry of the owner who has most of them, so that a crowd gets into its own way only."""
    crowd = Counter(owners.values()).most_common(1)[0][0]
    return next(key for key, owner in owners.items() if owner == crowd)


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, as far as the system tells; all of them otherwise."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Waker:
    """Readable from `wake` to `clear`; a pipe that closes itself when nobody refers to it any more.

    Where pipes cannot be waited for (Windows) it is a pair of sockets.
    """

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if is_portable():
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self._read, self._write = (end.fileno() for end in self._pair)
        else:
            self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken = False

    def fileno(self) -> int:
        """Return the end to wait for; -1 once the waker is closed."""
        return self._read

    def wake(self) -> None:
        """Make the descriptor readable; callable from any thread and any signal handler."""
        if not self._woken and self._write >= 0:
            self._woken = True
            with contextlib.suppress(BlockingIOError):  # a full pipe is readable enough
                if self._pair is None:
                    os.write(self._write, b"\0")
                else:
                    self._pair[1].send(b"\0")

    def clear(self) -> None:
        """Make it unreadable again. What it was woken for has to be looked at after this, or it may be missed."""
        with contextlib.suppress(BlockingIOError):
            if self._pair is None:
                os.read(self._read, _MANY)
            else:
                self._pair[0].recv(_MANY)
        self._woken = False  # last: a wake before this is looked at by whoever called, one after it writes again

    def close(self) -> None:
        """Give the descriptors back; a second call does nothing.

        Where other threads may wake it, drop the reference instead: a closed number may belong to another file.
        """
        read, self._read = self._read, -1
        write, self._write = self._write, -1
        if self._pair is not None:
            for end in self._pair:
                end.close()
            return
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_write"):  # pipe2 may have failed
            self.close()

"""The facilities of this operating system: all that Linux has, or only those that every system has.

                     all facilities present (Linux)          some missing: the portable implementation
    local sockets    unix, checked by the peer's user        TCP on loopback, checked by a secret    portable.sockets
    waiting          epoll, which nests                      selectors and a thread                  PortablePoller
    actors start     by fork from a warm process             as programs, some ahead                 portable.spawner
    large frames     shared memory                           through the socket
    processes        /proc, pidfd                            psutil                                  portable.processes

It is one decision, not a dozen: two complete variants can be tested, a thousand mixtures cannot. `PARL_PORTABLE=1`
selects the portable one on Linux, too, which is how it is tested.

What all processes wait with is here as well:

    Waker            wakes a thread that waits for descriptors
    new_poller()     epoll, or a `PortablePoller` with epoll's methods
    BusyPoll         polls for a moment before a wait that is expected to be short
    wait_once(...)   one descriptor, or several, once

A `PortablePoller` can itself be waited for as one descriptor, so that it can be registered with another poller or an
asyncio loop. `poll` uses a selector. From the first use of `fileno` on a thread polls as well: it makes that descriptor
readable, then pauses until `poll` is called. Registrations are level-triggered.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

from parl_remote._config import busy_poll_wanted, portable_wanted
from parl_remote._system.interrupts import interruptible, uninterrupted

__all__ = [
    "BINARY",
    "CLOSE_ON_EXEC",
    "IN",
    "NO_FOLLOW",
    "OUT",
    "BusyPoll",
    "Poller",
    "PortablePoller",
    "Waker",
    "cpu_count",
    "is_portable",
    "is_raised_by_handler",
    "max_unauthenticated",
    "missing",
    "new_poller",
    "oldest_of_largest_owner",
    "own_user",
    "wait_for_input",
    "wait_once",
    "waiting_bytes",
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


_MAX_UNAUTHENTICATED = 1024  # a thousand workers may come back at the same moment
_MIN_UNAUTHENTICATED = 8
_DESCRIPTORS_EACH = 8  # descriptors of this process for each unauthenticated connection


def max_unauthenticated() -> int:
    """Return how many unauthenticated connections may be open before the oldest is closed.

    It is a small part of the descriptors that this process may have, so that outsiders cannot use these up.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):  # Windows limits descriptors otherwise
        return _MAX_UNAUTHENTICATED
    if limit <= 0:
        return _MAX_UNAUTHENTICATED
    return max(_MIN_UNAUTHENTICATED, min(_MAX_UNAUTHENTICATED, limit // _DESCRIPTORS_EACH))


def oldest_of_largest_owner(owners: Mapping[_Key, Hashable]) -> _Key:
    """Return the oldest entry of the owner with most entries, so that an owner with many displaces its own first."""
    largest = Counter(owners.values()).most_common(1)[0][0]
    return next(key for key, owner in owners.items() if owner == largest)


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, if the system reports them; all of them otherwise."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_BUSY_POLL_S = 0.0001  # several times what it takes to wake a sleeping thread
_WITHOUT_IDLE_CPU_S = 0.00004  # longer than the other end of a small call takes
_LOAD = "/proc/loadavg"
_LOAD_EVERY_S = 0.002  # to read it takes 15 to 30 us, during which what is polled for may come
_WITHOUT_AT_FIRST = 4  # waits of a start, which are long
_MAX_BACKOFF = 8  # 2**8 waits without a poll, so that polls in vain take 0.4 us a wait


class BusyPoll:
    """Polls for a moment before a wait, as long as the input mostly comes within that time.

    The two ends of a connection that take turns otherwise sleep and wake at each message, which takes longer than a
    small call. After a poll in vain the next wait comes without one, then the next two, the next four, up to 256; each
    success takes one step back. So a thread whose input comes late, or whose peer waits for a CPU, hardly polls. A poll
    ends sooner where another thread of the machine is runnable and has no CPU.

    Args:
        source: A poller, or the descriptor to poll; -1, of what is closed, is not polled.
    """

    __slots__ = ("_backoff", "_poll", "_skipped")

    def __init__(self, source: Poller | int) -> None:
        self._backoff, self._skipped = 0, _WITHOUT_AT_FIRST
        if source == -1 or not busy_poll_wanted() or is_portable() or cpu_count() == 1:
            self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        elif isinstance(source, int):
            kernel = select.poll()
            kernel.register(source, IN)
            self._poll = kernel.poll
        else:
            self._poll = source.poll

    def poll(self) -> list[tuple[int, int]]:
        """Return the descriptors that are ready now or a moment later, with their events; none if it does not poll."""
        poll = self._poll
        if poll is None:
            return []
        if self._skipped:
            self._skipped -= 1
            return []
        begun = time.perf_counter()
        limit = _WITHOUT_IDLE_CPU_S
        while not (ready := poll(0)):
            if (now := time.perf_counter()) > begun + limit:
                if limit < _BUSY_POLL_S and not _load.exceeds_cpus(now):
                    limit = _BUSY_POLL_S
                    continue
                self._skipped = 2**self._backoff
                self._backoff = min(self._backoff + 1, _MAX_BACKOFF)
                return []
        if self._backoff:
            self._backoff -= 1
        return ready


class _Load:
    """Whether threads of this machine wait for a CPU, as the kernel said it a moment ago."""

    def __init__(self) -> None:
        self._exceeds_cpus = False
        self._read_again = -math.inf

    def exceeds_cpus(self, now: float) -> bool:
        """Return whether more threads are runnable than the machine has CPUs; False if the kernel does not say.

        Args:
            now: The time, in the seconds of `time.perf_counter`.
        """
        if now >= self._read_again:
            self._read_again = now + _LOAD_EVERY_S
            try:
                with open(_LOAD, "rb", buffering=0) as file:
                    runnable = int(file.read().split()[3].partition(b"/")[0])
            except (OSError, ValueError, IndexError):
                runnable = 0
            self._exceeds_cpus = runnable > (os.cpu_count() or 1)
        return self._exceeds_cpus


_load = _Load()


class Waker:
    """Readable from `wake` to `clear`; a pipe that closes itself when nothing refers to it any more.

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
        if self._woken or self._write < 0:
            return
        with uninterrupted, contextlib.suppress(BlockingIOError):  # a full pipe is readable enough
            self._woken = True  # before it is, or it might be after a `clear`
            if self._pair is None:
                os.write(self._write, b"\0")
            else:
                self._pair[1].send(b"\0")

    def clear(self) -> None:
        """Make it unreadable again, before the cause of the waking is handled, so that none is missed."""
        with contextlib.suppress(BlockingIOError):
            if self._pair is None:
                os.read(self._read, _MANY)
            else:
                self._pair[0].recv(_MANY)
        self._woken = False  # last: the caller sees a wake before this, and a wake after it writes again

    def close(self) -> None:
        """Close the descriptors; a second call does nothing.

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


IN, OUT = 1, 4  # as epoll's EPOLLIN and EPOLLOUT


class Poller(Protocol):
    """The common interface of `select.epoll` and `PortablePoller`."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Start watching a descriptor."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Change the watched events of a descriptor; 0 for none."""

    def unregister(self, fd: int, /) -> None:
        """Stop watching a descriptor, before it is closed."""

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait at most `timeout` seconds and return (descriptor, mask) of those that are ready."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` would return something."""

    def close(self) -> None:
        """Release all resources."""


class _Watch:
    """State that a poller and its thread share; it refers to no poller, so that an unused one is freed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.masks: dict[int, int] = {}
        self.outer = Waker()  # tells the thread that waits for the poller
        self.inner = Waker()  # tells the thread
        self.armed = True
        self.closed = False

    def run(self) -> None:
        while not self.closed:
            with self.lock:
                self.inner.clear()
                watched = dict(self.masks) if self.armed else {}
            if _ready({**watched, self.inner.fileno(): IN}, None, but=self.inner.fileno()):
                with self.lock:
                    self.armed = False
                    self.outer.wake()

    def end(self) -> None:
        self.closed = True
        self.inner.wake()


class PortablePoller:
    """A poller on `selectors`; one thread at a time may poll, any may register. Implements `Poller`."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._watch: _Watch | None = None
        self._closed = False

    def register(self, fd: int, eventmask: int, /) -> None:
        """Start watching a descriptor."""
        self._masks[fd] = eventmask
        if eventmask:
            self._selector.register(fd, _events(eventmask))
        self._tell()

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Change the watched events of a descriptor; 0 for none."""
        if self._masks[fd]:
            self._selector.unregister(fd)
        self.register(fd, eventmask)

    def unregister(self, fd: int, /) -> None:
        """Stop watching a descriptor."""
        if self._masks.pop(fd):
            self._selector.unregister(fd)
        self._tell()

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Return the ready descriptors, after at most `timeout` seconds."""
        if self._watch is not None:
            self._watch.outer.clear()
        try:
            found = self._selector.select(timeout)
            return [(key.fd, _mask(events)) for key, events in found]
        finally:
            self._tell(armed=True)

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` would return something; -1 once the poller is closed."""
        if self._closed:
            return -1
        if self._watch is None:
            self._watch = watch = _Watch()
            watch.masks = dict(self._masks)
            threading.Thread(target=watch.run, name="parl-poller", daemon=True).start()
            weakref.finalize(self, watch.end).atexit = False
        return self._watch.outer.fileno()

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._selector.close()
            if self._watch is not None:
                self._watch.end()

    def _tell(self, *, armed: bool = False) -> None:
        watch = self._watch
        if watch is not None and not watch.closed:
            with watch.lock:
                watch.masks = dict(self._masks)
                watch.armed = watch.armed or armed
                watch.inner.wake()


def _ready(masks: dict[int, int], timeout_s: float | None, *, but: int) -> bool:
    """Wait for descriptors; return whether one other than `but` is ready. Closed ones are left out."""
    with selectors.DefaultSelector() as selector:
        for fd, mask in masks.items():
            if mask:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    selector.register(fd, _events(mask))
        try:
            return any(key.fd != but for key, _ in selector.select(timeout_s))
        except (OSError, ValueError):  # a descriptor was closed meanwhile, and its owner has woken `but` before
            return False


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)


def _mask(events: int) -> int:
    return (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0)


def new_poller() -> Poller:
    """Return a poller for many descriptors, which can itself be waited for."""
    return PortablePoller() if is_portable() else select.epoll()


def wait_once(
    source: socket.socket | int, mask: int, timeout_ms: float | None, *, may_be_interrupted: bool = True
) -> int:
    """Wait for one descriptor.

    Args:
        source: A socket, or a descriptor.
        mask: `IN`, `OUT` or both.
        timeout_ms: The limit in milliseconds; None waits without limit.
        may_be_interrupted: Whether a signal's handler may end the wait, see `interrupts`.

    Returns:
        The events that it is ready for, errors included; 0 if the time has passed.
    """
    with interruptible if may_be_interrupted else uninterrupted:
        ready = _wait([source if isinstance(source, int) else source.fileno()], mask, timeout_ms)
    return ready[0][1] if ready else 0


def wait_for_input(sources: Sequence[int], timeout_ms: float | None) -> list[int]:
    """Wait until descriptors can be read, or have an error; return those, none if the time has passed."""
    with interruptible:
        return [descriptor for descriptor, _ in _wait(sources, IN, timeout_ms)]


def waiting_bytes(descriptor: int) -> int:
    """Return how many bytes a descriptor has for its reader; 0 where the system does not report it."""
    try:
        import fcntl
        import termios

        count = bytearray(4)
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except (ImportError, OSError):  # Windows has neither, and not every descriptor tells
        return 0
    return int.from_bytes(count, sys.byteorder)


def _wait(sources: Sequence[int], mask: int, timeout_ms: float | None) -> list[tuple[int, int]]:
    if is_portable():
        poller = PortablePoller()
        try:
            for source in sources:
                poller.register(source, mask)
            return list(poller.poll(None if timeout_ms is None else timeout_ms / 1000))
        finally:
            poller.close()
    kernel = select.poll()
    for source in sources:
        kernel.register(source, mask)
    return kernel.poll(timeout_ms)


_ASKING = ("parl_remote.", "socket", "select", "selectors")


def is_raised_by_handler(error: BaseException) -> bool:
    """Return whether an error came out of a signal's handler, as the `TimeoutError` of a program's `signal.alarm`.

    Python runs handlers between any two steps, and the exception of one looks like a failure of the interrupted system
    call. Its traceback ends in the handler.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return trace is not None and not f"{module}.".startswith(tuple(f"{name.rstrip('.')}." for name in _ASKING))

"""Waiting for descriptors, and waking of waiting threads: with epoll and pipes (Linux), or with portable means.

    new_poller()     epoll, or a `PortablePoller` with epoll's methods
    wait_once(...)   one descriptor, or several, once

A `PortablePoller` can itself be waited for as one descriptor, so that it can be registered with another poller or an
asyncio loop. `poll` uses a selector. From the first use of `fileno` on a thread polls as well: it makes that descriptor
readable, then pauses until `poll` is called. Registrations are level-triggered.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from parl_remote._system.facilities import Waker, is_portable

__all__ = [
    "IN",
    "OUT",
    "Poller",
    "PortablePoller",
    "is_raised_by_handler",
    "new_poller",
    "wait_for_input",
    "wait_once",
]


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
        self.outer = Waker()  # tells whoever waits for the poller
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
        except (OSError, ValueError):  # one was closed meanwhile, and its owner has woken `but` before
            return False


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)


def _mask(events: int) -> int:
    return (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0)


def new_poller() -> Poller:
    """Return a poller for many descriptors, which can itself be waited for."""
    return PortablePoller() if is_portable() else select.epoll()


def wait_once(source: socket.socket | int, mask: int, timeout_ms: float | None) -> int:
    """Wait for one descriptor.

    Args:
        source: A socket, or a descriptor.
        mask: `IN`, `OUT` or both.
        timeout_ms: The limit in milliseconds; None waits without limit.

    Returns:
        The events that it is ready for, errors included; 0 if the time has passed.
    """
    ready = _wait([source if isinstance(source, int) else source.fileno()], mask, timeout_ms)
    return ready[0][1] if ready else 0


def wait_for_input(sources: Sequence[int], timeout_ms: float | None) -> list[int]:
    """Wait until descriptors can be read, or have an error; return those, none if the time has passed."""
    return [descriptor for descriptor, _ in _wait(sources, IN, timeout_ms)]


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

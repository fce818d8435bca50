"""A poller with epoll's methods for systems without epoll; it, too, can be waited for as one descriptor.

    poll()      looks itself, with a selector
    fileno()    from its first use on, a thread looks as well: it rings a bell, then rests until poll() has looked

So a poller can be a member of another one, or of an asyncio loop. What is registered is level-triggered.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import weakref
from typing import Protocol

from parl_remote.system.bell import Bell

__all__ = ["IN", "OUT", "Poller", "PortablePoller"]

IN, OUT = 1, 4  # as epoll's EPOLLIN and EPOLLOUT


class Poller(Protocol):
    """What `select.epoll` and `PortablePoller` have in common."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Begin to watch a descriptor."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Watch it for something else; 0 for nothing."""

    def unregister(self, fd: int, /) -> None:
        """Stop watching it, before it is closed."""

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait at most so many seconds, and give (descriptor, mask) for those that are ready."""

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` would find something."""

    def close(self) -> None:
        """Give everything back."""


class _Watch:
    """What a poller and its thread share; it refers to no poller, so that one nobody uses can go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.masks: dict[int, int] = {}
        self.outer = Bell()  # tells whoever waits for the poller
        self.inner = Bell()  # tells the thread
        self.armed = True
        self.closed = False

    def run(self) -> None:
        while not self.closed:
            with self.lock:
                self.inner.quiet()
                watched = dict(self.masks) if self.armed else {}
            if _ready({**watched, self.inner.fileno(): IN}, None, but=self.inner.fileno()):
                with self.lock:
                    self.armed = False
                    self.outer.ring()

    def end(self) -> None:
        self.closed = True
        self.inner.ring()


class PortablePoller:
    """Fills `Poller` with `selectors`; one thread at a time polls, any may register."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._watch: _Watch | None = None
        self._closed = False

    def register(self, fd: int, eventmask: int, /) -> None:
        """Begin to watch a descriptor."""
        self._masks[fd] = eventmask
        if eventmask:
            self._selector.register(fd, _events(eventmask))
        self._tell()

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Watch it for something else; 0 for nothing."""
        if self._masks[fd]:
            self._selector.unregister(fd)
        self.register(fd, eventmask)

    def unregister(self, fd: int, /) -> None:
        """Stop watching it."""
        if self._masks.pop(fd):
            self._selector.unregister(fd)
        self._tell()

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """What is ready, after at most `timeout` seconds."""
        if self._watch is not None:
            self._watch.outer.quiet()
        try:
            found = self._selector.select(timeout)
            return [(key.fd, _mask(events)) for key, events in found]
        finally:
            self._tell(armed=True)

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` would find something; -1 once the poller is closed."""
        if self._closed:
            return -1
        if self._watch is None:
            self._watch = watch = _Watch()
            watch.masks = dict(self._masks)
            threading.Thread(target=watch.run, name="parl-poller", daemon=True).start()
            weakref.finalize(self, watch.end).atexit = False
        return self._watch.outer.fileno()

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
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
                watch.inner.ring()


def _ready(masks: dict[int, int], timeout_s: float | None, *, but: int) -> bool:
    """Wait for descriptors, and tell whether one of them other than `but` is ready; closed ones are left out."""
    with selectors.DefaultSelector() as selector:
        for fd, mask in masks.items():
            if mask:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    selector.register(fd, _events(mask))
        try:
            return any(key.fd != but for key, _ in selector.select(timeout_s))
        except (OSError, ValueError):  # one was closed meanwhile, and its owner has rung `but` before
            return False


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)


def _mask(events: int) -> int:
    return (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0)

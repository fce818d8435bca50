"""How to wait for descriptors: with epoll where it is, with the portable poller elsewhere."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parl_remote.portable.poller import IN, OUT, Poller, PortablePoller
from parl_remote.system.facilities import is_portable

if TYPE_CHECKING:
    import socket

__all__ = ["IN", "OUT", "Poller", "new_poller", "wait_for_input", "wait_once"]


def new_poller() -> Poller:
    """A poller for many descriptors, which is itself one that can be waited for."""
    return PortablePoller() if is_portable() else select.epoll()


def wait_once(source: socket.socket | int, mask: int, timeout_ms: float | None) -> int:
    """Wait for one descriptor.

    Args:
        source: A socket, or a descriptor.
        mask: `IN`, `OUT` or both.
        timeout_ms: How long, in milliseconds; None waits as long as it takes.

    Returns:
        What it is ready for, errors included; 0 if the time has passed.
    """
    ready = _wait([source if isinstance(source, int) else source.fileno()], mask, timeout_ms)
    return ready[0][1] if ready else 0


def wait_for_input(sources: Sequence[int], timeout_ms: float | None) -> list[int]:
    """Wait until one of several descriptors can be read, or has an error; none if the time has passed."""
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

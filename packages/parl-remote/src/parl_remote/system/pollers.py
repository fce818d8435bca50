"""How to wait for descriptors: with epoll where it is, with the portable poller elsewhere."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from parl_remote.portable.poller import IN, OUT, Poller, PortablePoller
from parl_remote.system.facilities import is_portable

if TYPE_CHECKING:
    import socket

__all__ = ["IN", "OUT", "Poller", "new_poller", "wait_once"]


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
    if is_portable():
        poller = PortablePoller()
        fd = source if isinstance(source, int) else source.fileno()
        try:
            poller.register(fd, mask)
            ready = poller.poll(None if timeout_ms is None else timeout_ms / 1000)
        finally:
            poller.close()
    else:
        kernel = select.poll()
        kernel.register(source, mask)
        ready = kernel.poll(timeout_ms)
    return ready[0][1] if ready else 0

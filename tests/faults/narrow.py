"""A socket that takes a limited number of bytes."""

import errno
import socket
from collections.abc import Sequence
from typing import Any


class Narrow:
    """A socket that takes a limited number of bytes.

    Attributes:
        takes: The number of bytes that it takes.
        shortages: How often the kernel has no memory before it takes any.
    """

    def __init__(self, wide: socket.socket) -> None:
        self._wide = wide
        self.takes = 2**62
        self.shortages = 0

    def sendmsg(self, parts: Sequence[Any], extra: Any = (), flags: int = 0) -> int:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.ENOBUFS, "No buffer space available")
        if not self.takes:
            raise BlockingIOError
        sent = self._wide.sendmsg([memoryview(part)[: self.takes] for part in parts[:1]], extra, flags)
        self.takes -= sent
        return sent

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg([data], (), flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wide, name)

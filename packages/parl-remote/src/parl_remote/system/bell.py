"""A descriptor to wait for that another thread, or a signal handler, can make readable."""

import contextlib
import os
import socket

from parl_remote.system.facilities import is_portable

__all__ = ["Bell"]

_MANY = 4096


class Bell:
    """Readable while it is rung; a pipe that closes itself when nobody refers to it any more.

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
        self._rung = False

    def fileno(self) -> int:
        """The end to wait for; -1 once the bell is closed."""
        return self._read

    def ring(self) -> None:
        """Make it readable; any thread and any signal handler may."""
        if not self._rung and self._write >= 0:
            self._rung = True
            with contextlib.suppress(BlockingIOError):  # a full pipe is readable enough
                if self._pair is None:
                    os.write(self._write, b"\0")
                else:
                    self._pair[1].send(b"\0")

    def quiet(self) -> None:
        """Make it unreadable again. What was rung for has to be looked at after this, or it may be missed."""
        with contextlib.suppress(BlockingIOError):
            if self._pair is None:
                os.read(self._read, _MANY)
            else:
                self._pair[0].recv(_MANY)
        self._rung = False  # last: a ring before this is looked at by whoever called, one after it writes again

    def close(self) -> None:
        """Give the descriptors back; a second call does nothing.

        Where other threads may ring, drop the reference instead: a number that was closed may belong to another file.
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

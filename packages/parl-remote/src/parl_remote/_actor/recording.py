"""The times of an actor's calls, for a while: a meter in the place of the usual one, which writes a line for each call.

    worker --RECORD: file, until when--> begin --> RecordingMeter --one line a call--> file --> worker.timeline
                                                     `-the time is up--> the usual meter is back

While nothing is recorded an actor has the usual meter and pays nothing. A line is written at once, so that it is there
if the process is killed: the method, when it began and ended (`time.perf_counter`), and the error's name, with tabs.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parl_remote._actor.reports import CallMeter
from parl_remote._links.call_messages import header_of, payload_of
from parl_remote._system.facilities import BINARY, CLOSE_ON_EXEC, NO_FOLLOW

if TYPE_CHECKING:
    from parl_remote._actor.host import ActorHost

__all__ = ["MOST_BYTES", "RecordingMeter", "begin", "wanted"]

MOST_BYTES = 64 * 2**20  # of one actor's file: a million calls


class RecordingMeter(CallMeter):
    """A meter that passes everything on to the usual one, and writes down the calls until its time is up.

    Args:
        host: The actor's host, whose meter it becomes.
        path: The file.
        until: When it ends, by `time.perf_counter`.

    Raises:
        OSError: The file cannot be opened.
    """

    __slots__ = ("_before", "_begun", "_file", "_host", "_left", "_names", "until")

    def __init__(self, host: ActorHost, path: str, until: float) -> None:
        self._host = host
        self._before = host.meter
        self._page = self._before._page
        self._bytes = self._before._bytes
        self._numbers = self._before._numbers
        self._method = self._before._method
        self._names: dict[float, str] = {}
        self._begun = threading.local()
        self._left = MOST_BYTES
        self.until = until
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC | NO_FOLLOW | BINARY
        self._file = os.open(path, flags, 0o600)
        host.meter = self

    @property
    def has_waiting(self) -> bool:  # type: ignore[override]  # of the usual one
        """Whether it reports waiting calls."""
        return self._before.has_waiting

    def publish(self, path: str | os.PathLike[str]) -> None:
        """See `CallMeter.publish`."""
        self._before.publish(path)

    def shared(self) -> CallMeter:
        """See `CallMeter.shared`."""
        self._before = self._before.shared()
        return self

    def began(self) -> float:
        """See `CallMeter.began`."""
        self._begun.at = began = self._before.began()
        return began

    def runs(self, method: str) -> None:
        """See `CallMeter.runs`."""
        self._names[getattr(self._begun, "at", 0.0)] = method
        self._before.runs(method)

    def ended(self, began: float) -> None:
        """See `CallMeter.ended`."""
        self._before.ended(began)
        self._note(began, "")

    def failed(self, began: float, error: BaseException) -> None:
        """See `CallMeter.failed`."""
        self._before.failed(began, error)
        self._note(began, type(error).__name__)

    def constructed(self, began: float) -> None:
        """See `CallMeter.constructed`."""
        self._before.constructed(began)
        self._note(began, "")

    def waiting(self, count: int) -> None:
        """See `CallMeter.waiting`."""
        self._before.waiting(count)

    def _note(self, began: float, error: str) -> None:  # type: ignore[override]  # the usual one has its own
        ended = time.perf_counter()
        method = self._names.pop(began, self._before._method)
        line = f"{method if method.isprintable() else ascii(method)}\t{began:.7f}\t{ended:.7f}\t{error}\n".encode()
        self._left -= len(line)
        if ended > self.until or self._left < 0:
            self._end()
        else:
            with contextlib.suppress(OSError):  # a full disk: the calls go on
                os.write(self._file, line)

    def _end(self) -> None:
        if self._host.meter is self:  # calls that run now end with this one, which is then no more than the usual one
            self._host.meter = self._before
            self._left = -1
            os.close(self._file)


def begin(host: ActorHost, path: str, until: float) -> None:
    """Record an actor's calls into a file until then; a recording that runs goes on for longer."""
    meter = host.meter
    if isinstance(meter, RecordingMeter):
        meter.until = max(meter.until, until)
    else:
        RecordingMeter(host, path, until)


def wanted(host: ActorHost, frames: Sequence[memoryview]) -> None:
    """Begin what a RECORD message wants."""
    settings = json.loads(bytes(payload_of(header_of(frames[0])[1], frames)[0]))
    begin(host, settings["path"], settings["until"])

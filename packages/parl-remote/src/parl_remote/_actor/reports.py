"""Reports of an actor's process to its worker: numbers of its calls, stacks on demand, and why it ends.

    numbers  CallMeter.began, runs, ended --stores--> page of 1 KiB, mapped from a file <--reads-- worker  read_stats
    stacks   STACK_SIGNAL --> faulthandler appends the stacks of all threads to the same file --> StackFile.read
    calls    RecordingMeter --a line for each--> a file <--reads-- worker          while `xparl timeline` wants them
    exit     ExitReport.send --> the worker's connection, before an end that is in order

    offset 0    eight-byte floats: layout, calls, errors, seconds in calls, begun, waiting, time of begin, of error
           128  the method that began last: length, UTF-8
           256  the last error: length, UTF-8

The actor only stores numbers, so a worker can look at one that is busy in C code, stopped or deadlocked. Numbers are
stored in one piece each; two of them may be from different moments, which is accurate enough for display. Times are
those of `time.perf_counter`, the same for all processes of a host.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from parl_remote._links.call_messages import Kind, header_of, pack, payload_of
from parl_remote._records import Record, record
from parl_remote._system.facilities import BINARY, CLOSE_ON_EXEC, NO_FOLLOW
from parl_remote._system.texts import class_name_of, text_of
from parl_remote.errors import ChannelClosed, DeathKind, RemoteProtocolError, ResultTimeout

if TYPE_CHECKING:
    from parl_remote._transport.unix import UnixChannel

__all__ = [
    "MOST_BYTES",
    "PAGE_BYTES",
    "STACK_SIGNAL",
    "CallMeter",
    "CallStats",
    "ExitReport",
    "RecordingMeter",
    "SharedCallMeter",
    "StackFile",
    "allow_stack_dumps",
    "begin_recording",
    "ignore_stack_signal",
    "last_method",
    "read_stats",
    "recording_wanted",
]


_LAYOUT = 1.0
PAGE_BYTES = 1024
_VERSION, _CALLS, _ERRORS, _BUSY, _BEGUN, _WAITING, _SINCE, _ERROR_AT = range(8)
_NUMBERS = 8
_METHOD = 128
_ERROR = 256
_clock = time.perf_counter


@record
class CallStats(Record):
    """A snapshot of an actor's page.

    Attributes:
        calls: Calls that it has answered, errors included.
        errors: The number of them that raised.
        busy_s: Seconds spent in calls, including the current ones.
        in_flight: Calls running now; more than one with `max_concurrency`.
        waiting: Calls received and not begun.
        running: The running method, the last that began if there are several; empty if none runs.
        running_s: Seconds since it began.
        last_error: The last error that a call raised, one line; empty if none did.
        error_age_s: Seconds since that error.
    """

    calls: int = 0
    errors: int = 0
    busy_s: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    running: str = ""
    running_s: float = 0.0
    last_error: str = ""
    error_age_s: float = 0.0


class CallMeter:
    """The actor's side, for calls of one thread. It counts from the start and is visible to others once published.

    Attributes:
        has_waiting: Return whether it reports waiting calls.
    """

    __slots__ = ("_bytes", "_method", "_numbers", "_page", "has_waiting")

    _method: str

    def __init__(self) -> None:
        self._use(bytearray(PAGE_BYTES))

    def publish(self, path: str | os.PathLike[str]) -> None:
        """Move the page into a file of its own, which the worker reads.

        Raises:
            OSError: The file cannot be made, for example because its disk is full; counting continues unseen.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | CLOSE_ON_EXEC | NO_FOLLOW | BINARY, 0o600)
        try:
            _reserve_space(descriptor)  # reserves the space: if the disk filled up later, writing would end the process
            page = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        page[:] = bytes(self._bytes)
        self._use(page)

    def began(self) -> float:
        """Begin a call and return the time; give it to `ended` or `failed`."""
        numbers = self._numbers
        numbers[_BEGUN] += 1.0
        numbers[_SINCE] = since = _clock()
        return since

    def runs(self, method: str) -> None:
        """Record the method of the call that began last."""
        if method is not self._method:
            self._method = method
            self._write(_METHOD, method, _ERROR - _METHOD)

    def ended(self, began: float) -> None:
        """Record the end of a call."""
        numbers = self._numbers
        numbers[_BUSY] += _clock() - began
        numbers[_CALLS] += 1.0

    def failed(self, began: float, error: BaseException) -> None:
        """Record the end of a call that raised."""
        self._note(error)
        self.ended(began)

    def constructed(self, began: float) -> None:
        """Record the end of the constructor, which counts as no call; only its time is added."""
        self._numbers[_BUSY] += _clock() - began
        self._numbers[_BEGUN] -= 1.0

    def shared(self) -> CallMeter:
        """Return the meter for concurrent calls of several threads, which takes this one's place."""
        return SharedCallMeter(self)

    def waiting(self, count: int) -> None:
        """Record the number of calls received and not begun."""
        self.has_waiting = count > 0
        self._numbers[_WAITING] = count

    def _note(self, error: BaseException) -> None:
        self._numbers[_ERRORS] += 1.0
        self._numbers[_ERROR_AT] = _clock()
        self._write(_ERROR, _one_line(error), PAGE_BYTES - _ERROR)

    def _use(self, page: bytearray | mmap.mmap) -> None:
        self._page = page  # a view alone would not keep the mapping alive
        self._bytes = memoryview(page)
        self._numbers = self._bytes[: _NUMBERS * 8].cast("d")
        self._numbers[_VERSION] = _LAYOUT
        self._method = ""
        self.has_waiting = self._numbers[_WAITING] > 0

    def _write(self, offset: int, text: str, size: int) -> None:
        data = text.encode(errors="replace")[: size - 2]
        self._bytes[offset + 2 : offset + 2 + len(data)] = data
        self._bytes[offset : offset + 2] = len(data).to_bytes(2, "little")


class SharedCallMeter(CallMeter):
    """A meter for concurrent calls of several threads.

    Args:
        before: The meter used so far, which must not be used afterwards.
    """

    __slots__ = ("_lock",)

    def __init__(self, before: CallMeter) -> None:
        self._lock = threading.Lock()
        self._use(before._page)

    def began(self) -> float:
        """Begin a call under the lock, and return the time."""
        with self._lock:
            return super().began()

    def runs(self, method: str) -> None:
        """Record the method of the call that began last, under the lock."""
        with self._lock:
            super().runs(method)

    def ended(self, began: float) -> None:
        """Record the end of a call, under the lock."""
        with self._lock:
            super().ended(began)

    def failed(self, began: float, error: BaseException) -> None:
        """Record the end of a call that raised, under the lock."""
        with self._lock:
            self._note(error)
            super().ended(began)


def read_stats(path: str | os.PathLike[str]) -> CallStats | None:
    """Return the statistics on an actor's page, or None if there is no page."""
    page = _page(path)
    if len(page) != PAGE_BYTES:
        return None
    numbers = memoryview(page)[: _NUMBERS * 8].cast("d")
    if numbers[_VERSION] != _LAYOUT:
        return None
    now = _clock()
    in_flight = max(0, round(numbers[_BEGUN] - numbers[_CALLS]))
    running_s = max(0.0, now - numbers[_SINCE]) if in_flight else 0.0
    return CallStats(
        calls=int(numbers[_CALLS]),
        errors=int(numbers[_ERRORS]),
        busy_s=numbers[_BUSY] + running_s * in_flight,
        in_flight=in_flight,
        waiting=max(0, int(numbers[_WAITING])),
        running=_read(page, _METHOD, _ERROR - _METHOD) if in_flight else "",
        running_s=running_s,
        last_error=_read(page, _ERROR, PAGE_BYTES - _ERROR),
        error_age_s=max(0.0, now - numbers[_ERROR_AT]) if numbers[_ERROR_AT] else 0.0,
    )


def last_method(path: str | os.PathLike[str]) -> str:
    """Return the method that began last, whether it still runs or not; empty if none did."""
    page = _page(path)
    return _read(page, _METHOD, _ERROR - _METHOD) if len(page) == PAGE_BYTES else ""


def _reserve_space(descriptor: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, PAGE_BYTES)
    else:
        os.write(descriptor, bytes(PAGE_BYTES))


def _page(path: str | os.PathLike[str]) -> bytes:
    """Return the page without any stack dump behind it (see `allow_stack_dumps`); empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(PAGE_BYTES)
    except OSError:
        return b""


def _read(page: bytes, offset: int, size_limit: int) -> str:
    size = min(int.from_bytes(page[offset : offset + 2], "little"), size_limit - 2)
    return page[offset + 2 : offset + 2 + size].decode(errors="replace")


def _one_line(error: BaseException) -> str:
    lines, name = text_of(error).strip().splitlines(), class_name_of(type(error))
    return f"{name}: {lines[0]}" if lines else name


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The exit report that an actor sends to its worker before it ends by itself.

    Attributes:
        kind: RELEASED, CLIENT_GONE, CONSTRUCTOR or IMPORT.
        detail: The error, in one line.
    """

    kind: DeathKind
    detail: str = ""

    def with_error(self, error: BaseException) -> ExitReport:
        """Return a copy with the error in one line as detail."""
        return ExitReport(self.kind, _one_line(error))

    def send(self, channel: UnixChannel) -> None:
        """Send the report to the worker; a worker that is gone or does not read misses it."""
        said = json.dumps({"kind": self.kind.value, "detail": self.detail}).encode()
        with contextlib.suppress(ChannelClosed, ResultTimeout):
            channel.send(pack(Kind.CLOSE, 0, 0, 0, [said]), 0.0)

    @classmethod
    def receive(cls, channel: UnixChannel) -> ExitReport | None:
        """Return the exit report that an actor has sent, None if it sent none."""
        with contextlib.suppress(ResultTimeout, ChannelClosed, RemoteProtocolError, ValueError, KeyError, IndexError):
            while True:
                frames = channel.receive(0.0)
                kind, flags, _, _ = header_of(frames[0])
                if kind == Kind.CLOSE:
                    said = json.loads(bytes(payload_of(flags, frames)[0]))
                    return cls(DeathKind(said["kind"]), str(said["detail"]))
        return None


# A signal that nothing else uses: the usual ones belong to the user's code.
STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", 0))) - 2 * hasattr(signal, "SIGRTMAX")
_MOST_BYTES = 256 * 1024  # a thousand threads of some ten frames


def ignore_stack_signal() -> None:
    """Ignore the stack signal until `allow_stack_dumps`, so that an early one does not end this process; inherited."""
    if STACK_SIGNAL:  # Windows has none for this
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def allow_stack_dumps(path: str | os.PathLike[str]) -> None:
    """Make this process print its stacks behind its page on `STACK_SIGNAL`, from now on.

    Args:
        path: The file of the page, see `CallMeter.publish`.

    Raises:
        OSError: The file cannot be opened.
    """
    if not hasattr(faulthandler, "register"):
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | CLOSE_ON_EXEC | NO_FOLLOW)
    faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True)  # keeps the descriptor open for ever


class StackFile:
    """The worker's side of one actor's stack file.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def clear(self) -> None:
        """Truncate the file to the page, for a new dump.

        Raises:
            OSError: There is no such file.
        """
        os.truncate(self._path, PAGE_BYTES)

    def size(self) -> int:
        """Return the number of bytes of a dump."""
        try:
            return max(0, self._path.stat().st_size - PAGE_BYTES)
        except OSError:
            return 0

    def read(self) -> str:
        """Return the dump."""
        try:
            with open(self._path, "rb") as file:
                file.seek(PAGE_BYTES)
                return _without_origin(file.read(_MOST_BYTES).decode(errors="replace"))
        except OSError:
            return ""


def _without_origin(text: str) -> str:
    """Return the dump without the lowest frames of every main thread, which show how the process was forked."""
    kept, skipping = [], False
    for line in text.splitlines():
        if not line.startswith("  "):
            skipping = False
        if not skipping:
            kept.append(line)
        skipping = skipping or line.endswith(" in run_actor")
    return "\n".join(kept) + "\n"


MOST_BYTES = 64 * 2**20  # of one actor's file: a million calls


class Metered(Protocol):
    """An object whose calls a meter counts: the actor's host."""

    meter: CallMeter


class RecordingMeter(CallMeter):
    """A meter that passes everything on to the usual one, and writes a line for each call until its time is up.

    A line is written at once, so that it is there if the process is killed: the method, when it began and ended
    (`time.perf_counter`), and the error's name, with tabs. While nothing is recorded an actor has the usual meter and
    pays nothing.

    Args:
        host: The actor's host, whose meter it becomes.
        path: The file.
        until: The time of its end, by `time.perf_counter`.

    Raises:
        OSError: The file cannot be opened.
    """

    __slots__ = ("_before", "_begun", "_file", "_host", "_left", "_names", "lock", "until")

    def __init__(self, host: Metered, path: str, until: float) -> None:
        self._host = host
        self._before = host.meter
        self._page = self._before._page
        self._bytes = self._before._bytes
        self._numbers = self._before._numbers
        self._method = self._before._method
        self._names: dict[float, str] = {}
        self._begun = threading.local()
        self._left = MOST_BYTES
        self.lock = threading.Lock()  # concurrent calls must not write into a file that one of them has closed
        self.until = until
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC | NO_FOLLOW | BINARY
        self._file = os.open(path, flags, 0o600)
        host.meter = self

    @property
    def has_waiting(self) -> bool:  # type: ignore[override]  # of the usual one
        """Return whether it reports waiting calls."""
        return self._before.has_waiting

    def publish(self, path: str | os.PathLike[str]) -> None:
        """Move the page of the usual meter into a file of its own."""
        self._before.publish(path)

    def shared(self) -> CallMeter:
        """Make the usual meter one for concurrent calls, and return this meter."""
        self._before = self._before.shared()
        return self

    def began(self) -> float:
        """Begin a call and return the time."""
        self._begun.at = began = self._before.began()
        return began

    def runs(self, method: str) -> None:
        """Record the method of the call that this thread began last."""
        self._names[getattr(self._begun, "at", 0.0)] = method
        self._before.runs(method)

    def ended(self, began: float) -> None:
        """Record the end of a call, and write its line."""
        self._before.ended(began)
        self._note(began, "")

    def failed(self, began: float, error: BaseException) -> None:
        """Record the end of a call that raised, and write its line with the type of the error."""
        self._before.failed(began, error)
        self._note(began, class_name_of(type(error)))

    def constructed(self, began: float) -> None:
        """Record the end of the constructor, and write its line."""
        self._before.constructed(began)
        self._note(began, "")

    def waiting(self, count: int) -> None:
        """Record the number of calls received and not begun."""
        self._before.waiting(count)

    def _note(self, began: float, error: str) -> None:  # type: ignore[override]  # the usual one has its own
        ended = time.perf_counter()
        method = self._names.pop(began, self._before._method)
        line = f"{_printable(method)}\t{began:.7f}\t{ended:.7f}\t{_printable(error)}\n".encode()
        with self.lock:
            self._left -= len(line)
            if ended > self.until or self._left < 0:
                self.end()
            else:
                with contextlib.suppress(OSError):  # a full disk: the calls continue
                    os.write(self._file, line)

    def end(self) -> None:
        """End the recording; called with the lock."""
        if self._host.meter is self:  # calls that run now end on this meter, which then only counts
            self._host.meter = self._before
            self._left = -1
            os.close(self._file)


def _printable(name: str) -> str:
    """Return a name without tabs and line breaks, which a program's own may have."""
    return name if name.isprintable() else ascii(name)


def begin_recording(host: Metered, path: str, until: float) -> None:
    """Record an actor's calls into a file until a time; extend a recording that is running."""
    meter = host.meter
    if isinstance(meter, RecordingMeter):
        with meter.lock:
            if time.perf_counter() <= meter.until:
                meter.until = max(meter.until, until)
                return
            meter.end()  # no call has ended since its time was up, and its file was removed
    RecordingMeter(host, path, until)


def recording_wanted(host: Metered, frames: Sequence[memoryview]) -> None:
    """Begin the recording that a RECORD message requests."""
    settings = json.loads(bytes(payload_of(header_of(frames[0])[1], frames)[0]))
    begin_recording(host, settings["path"], settings["until"])

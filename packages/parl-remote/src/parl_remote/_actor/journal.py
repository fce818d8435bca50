"""A journal of an actor's requests, and its replay in another process.

    actor, option `record`: begin --every message, its outcome--> <folder>/<class>-<id>.journal
    xparl replay: Journal.read --> Replay: a host like the actor's, the same messages in the same order --> compared

A journal is a line of JSON, then entries: a line of JSON each, and the frames that it announces. A message is written
before it is executed, so the journal of a process that died ends with the call that ended it. A value of `put` in
shared memory is written when it is first unpickled. Before the constructor, the states of the random number generators
are written (`random`, numpy's global generator, and torch's if torch is imported); a replay begins with them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from parl_remote import _current
from parl_remote._actor.host import ActorHost, Concurrency, ConcurrencyMode, Creation, HoldingReply, Run
from parl_remote._actor.loop_runner import construct_on, new_loop
from parl_remote._data import serialize
from parl_remote._data.answers import Failure, rebuild
from parl_remote._links.call_messages import Flag, Kind, header_of, pack, payload_of
from parl_remote._object_ref import ObjectRef, record_values, recorded
from parl_remote._streams import as_recorded, numbers_of, part_size
from parl_remote._system.texts import class_name_of
from parl_remote._transport import Buffer
from parl_remote.errors import RemoteError

if TYPE_CHECKING:
    import asyncio

__all__ = ["CANCELLED", "Entry", "Journal", "Outcome", "Replay", "begin"]

_VERSION = 1
_CREATE, _CALL = int(Kind.CREATE), int(Kind.CALL)
_NAMES = {_CREATE: "__init__", int(Kind.GET): "(read)", int(Kind.SET): "(write)", int(Kind.NAMES): "(names)"}
_DIGEST_BYTES = 16
CANCELLED = "(cancelled)"  # in place of an error's name


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        error: The error's name.
        digest: A digest of the pickled result.
        took_s: The time that it took, in seconds.
        streams: The numbers of the generators that it returned.
        part: The number of values, if it is a part of a generator's values before the last one.
    """

    error: str = ""
    digest: str = ""
    took_s: float = 0.0
    streams: tuple[int, ...] = ()
    part: int | None = None

    def equals(self, other: Outcome) -> bool:
        """Return whether both outcomes are the same."""
        return (self.error, self.digest) == (other.error, other.digest)


@dataclass(slots=True)
class Entry:
    """One message to an actor.

    Attributes:
        number: Its number; 0 is the constructor.
        name: The method.
        at: The time at which it began, Unix time in seconds.
        frames: The message.
        outcome: Its outcome; None if it did not end.
    """

    number: int
    name: str
    at: float
    frames: list[bytes] = field(repr=False)
    outcome: Outcome | None = None

    @property
    def kind(self) -> int:
        """The kind of the message."""
        return int(header_of(memoryview(self.frames[0]))[0])


class _Writer:
    """Writes a journal; callable from any thread."""

    def __init__(self, file: IO[bytes], host: ActorHost) -> None:
        self._file = file
        self._host = host
        self._lock = threading.Lock()
        self._number = 0
        self._begun: dict[int, tuple[int, float]] = {}
        self._values: set[str] = set()
        self._pid = os.getpid()
        record_values(self._note_value)
        self._here = threading.local()  # the `part` of the call that ends in this thread
        self._serial, self._dumps = host.handle, host._dumps_result
        self._start, self._finish, self._drop = host.start, host.finish, host.drop
        # Replaces the methods of this host only, so that actors without a journal pay nothing.
        for name in ("handle", "start", "finish", "drop", "_dumps_result"):
            setattr(host, name, getattr(self, name))

    def handle(self, frames: Sequence[memoryview]) -> list[Buffer]:
        """Process a message, and record its beginning and its reply."""
        self._here.part = None
        number, began = self._note_begin(frames), time.perf_counter()
        reply = self._serial(frames)
        self._note_end(number, reply, time.perf_counter() - began)
        return reply

    def start(self, run: Run) -> Any:
        """Record the beginning of a call and run it."""
        self._begun[id(run)] = self._note_begin(run.frames), time.perf_counter()
        return self._start(run)

    def finish(self, run: Run, value: Any, error: BaseException | None, send: Callable[[list[Buffer]], None]) -> None:
        """Pass a call's reply to `send`, and record it."""
        self._here.part = None
        number, began = self._begun.pop(id(run), (-1, 0.0))

        def note(reply: list[Buffer]) -> None:
            self._note_end(number, reply, time.perf_counter() - began)
            send(reply)

        self._finish(run, value, error, note)

    def drop(self, run: Run) -> list[Buffer]:
        """Return the reply for a cancelled call, and record that if the call has begun."""
        begun = self._begun.pop(id(run), None)
        if begun is not None:
            self._write_end(begun[0], Outcome(CANCELLED, took_s=round(time.perf_counter() - begun[1], 6)))
        return self._drop(run)

    def _dumps_result(self, value: object, name: str, references: list[object]) -> list[Buffer]:
        """Pickle a result, and note how many values it has if it is a part of a generator's."""
        self._here.part = part_size(name, value)
        return self._dumps(value, name, references)

    def _note_begin(self, frames: Sequence[memoryview]) -> int:
        kind, _, index, _ = header_of(frames[0])
        if kind == _CREATE:
            self._write({"random": 1}, [_random_states()])
            frames = _without_key(frames)
        name = _NAMES.get(kind, "")
        if not name:
            methods = self._host._methods
            name = methods[index] if 0 <= index < len(methods) else "(by name)"
        with self._lock:
            number, self._number = self._number, self._number + 1
        self._write({"began": number, "name": name, "at": round(time.time(), 6)}, frames)
        return number

    def _note_value(self, object_id: str, frames: Sequence[memoryview], kinds: Sequence[int]) -> None:
        if object_id not in self._values and os.getpid() == self._pid:  # a child that a method forks has the file, too
            self._values.add(object_id)
            self._write({"value": object_id, "kinds": kinds}, frames)

    def _note_end(self, number: int, reply: list[Buffer], took_s: float) -> None:
        try:
            outcome = outcome_of(reply, took_s)
        except Exception as error:  # an error of the user's own pickling: the call continues
            outcome = Outcome(digest=f"unknown: {class_name_of(type(error))}", took_s=took_s)
        streams = numbers_of(reply.references) if isinstance(reply, HoldingReply) else ()
        self._write_end(number, replace(outcome, streams=tuple(streams), part=self._here.part))

    def _write_end(self, number: int, outcome: Outcome) -> None:
        entry: dict[str, Any] = {
            "ended": number,
            "error": outcome.error,
            "digest": outcome.digest,
            "took": outcome.took_s,
        }
        if outcome.streams or outcome.part is not None:
            entry |= {"streams": outcome.streams, "part": outcome.part}
        self._write(entry, [])

    def _write(self, entry: dict[str, Any], frames: Sequence[Any]) -> None:
        line = json.dumps({**entry, "frames": [memoryview(frame).nbytes for frame in frames]}).encode()
        with self._lock, contextlib.suppress(OSError, ValueError):  # a full disk: the calls continue
            self._file.write(line + b"\n")
            for frame in frames:
                self._file.write(frame)
            self._file.flush()


def begin(host: ActorHost, folder: str, class_name: str, lease_id: str) -> Path:
    """Keep a journal of a host from now on; it must not have an object yet.

    Raises:
        OSError: The journal cannot be written.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = "".join(character if character.isalnum() else "_" for character in class_name)
    path = Path(folder) / f"{name}-{lease_id.partition('-')[2][:8] or os.getpid()}.journal"
    file = path.open("wb")
    header = {"journal": _VERSION, "class": class_name, "lease_id": lease_id, "python": sys.version.split()[0]}
    file.write(json.dumps(header).encode() + b"\n")
    _Writer(file, host)
    return path


def _without_key(frames: Sequence[memoryview]) -> list[Any]:
    """Return a message that makes an actor without the program's key of `multiprocessing`: a replay needs none."""
    kind, flags, index, call_id = header_of(frames[0])
    data, buffers = payload_of(flags, frames)
    creation = Creation(*serialize.loads(data))._replace(authkey=b"")
    return pack(kind, flags & ~int(Flag.SPLIT), index, call_id, [*serialize.dumps(tuple(creation)), *buffers])


def outcome_of(reply: Sequence[Buffer], took_s: float = 0.0) -> Outcome:
    """Return the outcome that a reply reports; errors are compared by name, because their texts may have addresses."""
    frames = [memoryview(frame) for frame in reply]
    kind, flags, _, _ = header_of(frames[0])
    payload, buffers = payload_of(flags, frames)
    if kind == Kind.FAILURE:
        return Outcome(error=Failure(*serialize.loads(payload, buffers)).type_name, took_s=round(took_s, 6))
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    parts: list[Any] = [payload, *buffers]
    if flags & Flag.NAMES and not flags & Flag.HANDLES:
        value, names = serialize.loads(payload, buffers)
        parts = [*serialize.dumps(value), repr(sorted(names)).encode()]  # the names of attributes have no order
    for part in parts:
        digest.update(part)
    return Outcome(digest=digest.hexdigest(), took_s=round(took_s, 6))


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal that was read.

    Attributes:
        class_name: The actor's class.
        lease_id: Its id.
        entries: Its messages, in the order in which they began.
        values: The frames of the values of `put` that it read from shared memory, and the kinds of these, by id.
        random_states: Pickle of the states of the random number generators before the constructor.
        whole_bytes: The size of the readable part.
        damaged_bytes: The size of what is behind it; 0 unless the process was killed while it wrote, the disk was full,
            or the file was changed.
    """

    class_name: str
    lease_id: str
    entries: list[Entry]
    values: dict[str, tuple[list[bytes], list[int]]]
    random_states: bytes
    whole_bytes: int
    damaged_bytes: int

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Return the journal in a file without running it; if its end is missing or damaged, with the entries before.

        Raises:
            RemoteError: It is not a journal.
        """
        entries: dict[int, Entry] = {}
        values: dict[str, tuple[list[bytes], list[int]]] = {}
        random_states = b""
        with path.open("rb") as file:
            header = _line(file)
            if header is None or header.get("journal") != _VERSION:
                raise RemoteError(f"{path} is not a journal of an actor")
            whole = file.tell()
            with contextlib.suppress(LookupError, TypeError, ValueError, OverflowError, MemoryError):  # a damaged line
                while (line := _line(file)) is not None:
                    frames = [file.read(size) for size in line["frames"]]
                    if [len(frame) for frame in frames] != line["frames"]:
                        break
                    if "random" in line:
                        random_states = frames[0]
                    elif "value" in line:
                        values[line["value"]] = frames, line["kinds"]
                    elif "began" in line:
                        entries[line["began"]] = Entry(line["began"], line["name"], line["at"], frames)
                    elif line["ended"] in entries:
                        streams, part = tuple(line.get("streams", ())), line.get("part")
                        entries[line["ended"]].outcome = Outcome(
                            line["error"], line["digest"], line["took"], streams, part
                        )
                    whole = file.tell()
            damaged = file.seek(0, os.SEEK_END) - whole
        return cls(header["class"], header["lease_id"], list(entries.values()), values, random_states, whole, damaged)


class Replay:
    """Runs a journal's messages in this process, on a new object.

    Args:
        journal: The journal. Its class, arguments and random states are unpickled, so it must be one to trust.

    Remote classes that a method uses make ordinary objects here; handles of other actors cannot be used.
    """

    def __init__(self, journal: Journal) -> None:
        _current.become_actor()
        if journal.random_states:
            _restore(pickle.loads(journal.random_states))
        self._values: list[ObjectRef[Any]] = [
            recorded(object_id, *stored) for object_id, stored in journal.values.items()
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host = ActorHost()
        self._host.construct = self._construct

    def carry_out(self, entry: Entry) -> tuple[Outcome, BaseException | None, Any]:
        """Run one message; return its outcome, the exception and the returned value."""
        frames = [memoryview(frame) for frame in entry.frames]
        replies: list[list[Buffer]] = []
        value, error = None, None
        as_recorded(*((entry.outcome.streams, entry.outcome.part) if entry.outcome is not None else ((), None)))
        if entry.kind == _CREATE:
            replies.append(self._host.handle(frames))
            reply = [memoryview(frame) for frame in replies[0]]
            kind, flags, _, _ = header_of(reply[0])
            if kind == Kind.FAILURE:
                error = rebuild(Failure(*serialize.loads(*payload_of(flags, reply))))
        else:
            carried = self._carried(self._host.accept(frames), replies.append)
            if self._loop is not None:
                value, error = self._loop.run_until_complete(carried)
            else:  # the coroutine never waits
                try:
                    carried.send(None)
                except StopIteration as end:
                    value, error = end.value
        return outcome_of(replies[0]), error, value

    async def _carried(self, run: Run, send: Callable[[list[Buffer]], None]) -> tuple[Any, BaseException | None]:
        value, error = None, None
        try:
            value = self._host.start(run)
            if self._loop is not None and inspect.isawaitable(value):
                value = await value
        except (Exception, SystemExit) as raised:  # as the actor does
            error = raised
        self._host.finish(run, value, error, send)
        return value, error

    def step_into(self, entry: Entry, run_call: Callable[..., Any]) -> Any:
        """Make one call through a debugger's `runcall`; return its result.

        Raises:
            RemoteError: The entry is not a call of a method.
        """
        if entry.kind != _CALL:
            raise RemoteError(f"entry {entry.number} is {entry.name}, which is not a call of a method")
        frames = [memoryview(frame) for frame in entry.frames]
        _, flags, index, _ = header_of(frames[0])
        name, args, kwargs = self._host._called(flags, index, frames)
        value = run_call(getattr(self._host._instance, name), *args, **kwargs)
        return self._await(value) if inspect.isawaitable(value) else value

    def _construct(self, concurrency: Concurrency, make: Callable[[], object]) -> object:
        if concurrency.how is not ConcurrencyMode.LOOP:
            return make()
        self._loop = new_loop()
        return construct_on(self._loop, make)

    def _await(self, value: Any) -> Any:
        async def awaited() -> Any:
            return await value

        loop = self._loop or new_loop()
        return loop.run_until_complete(awaited())


def _line(file: IO[bytes]) -> dict[str, Any] | None:
    """Return the next line; None at the end or if the rest is damaged."""
    try:
        found = json.loads(file.readline())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _random_states() -> bytes:
    import numpy  # here and below, because `xparl --help` loads this module: 0.2 s

    states: dict[str, Any] = {"random": random.getstate(), "numpy": numpy.random.get_state()}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return pickle.dumps(states)


def _restore(states: Mapping[str, Any]) -> None:
    import numpy

    random.setstate(states["random"])
    numpy.random.set_state(states["numpy"])
    if "torch" in states:
        torch: Any = importlib.import_module("torch")
        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))

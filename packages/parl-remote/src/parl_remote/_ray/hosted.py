"""The Ray actors that host users' objects, and the folder that they run in.

    HostedObject        one call at a time, in the order in which each caller sent them
    ConcurrentObject    several at a time: Ray delivers all calls at once, and threads or an event loop run them,
                        the same ones as in an actor of a native cluster
    Folder              at "ray" where the program runs or, with distributed_files, a copy of these files;
                        at ray:// everything is copied into one folder, which Ray packs and unpacks on its nodes

The object itself is made by the first message, so that waiting for resources and running the constructor can be
distinguished; when Ray restarts the process, it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from parl_remote import _current
from parl_remote._actor.host import ActorHost, HoldingReply
from parl_remote._actor.runners import Job
from parl_remote._data.ownership import working_dir
from parl_remote._debug_client import LocalCalls
from parl_remote._files.manifest import WORK, FolderLayout, here, lay_out
from parl_remote._files.program import own_code
from parl_remote._files.selection import select_files
from parl_remote._links.call_messages import header_of
from parl_remote._object_ref import ObjectRef
from parl_remote._ray.path import Client as PathClient
from parl_remote._ray.path import Message, RayPlace, Wire, extras_of, opened, packed, ray
from parl_remote._transport import Buffer

__all__ = ["ConcurrentObject", "Folder", "HostedObject", "Setup", "copied", "visible"]


@dataclass(frozen=True)
class Folder:
    """The settings of an actor's process.

    Attributes:
        working_dir: The working directory, absolute or relative to the program's files as unpacked by Ray.
        first: The first module paths, relative to the same.
        sys_path: The module paths, as in `actor.host.Creation`.
    """

    working_dir: str
    first: tuple[str, ...]
    sys_path: tuple[str | None, ...]

    @property
    def is_unpacked(self) -> bool:
        """Return whether Ray unpacks the folder, at a different path on each node."""
        return not os.path.isabs(self.working_dir)


def visible() -> Folder:
    """Return this process's own directory and module paths."""
    place = here()
    return Folder(place.working_dir, (), place.sys_path)


def copied(patterns: Sequence[str], *, with_code: bool) -> tuple[Folder, tempfile.TemporaryDirectory[str]]:
    """Return a copy of the files of `distributed_files`, which is removed with the directory object.

    Args:
        patterns: See `files.selection`.
        with_code: Whether the program's own modules are copied, too, because actors cannot see them.

    Raises:
        TypeError: The patterns are not a list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
        OSError: A file cannot be copied.
    """
    base = working_dir()
    selected = {f"{WORK}/{path}": file for path, file in select_files(patterns, base).items()}
    code = own_code("__main__") if with_code else []
    plan = lay_out(selected, code, base=base, sys_path=sys.path)
    directory = tempfile.TemporaryDirectory(prefix="parl-ray-", ignore_cleanup_errors=True)
    _copy(plan, Path(directory.name))
    if with_code:
        return Folder(WORK, plan.sys_path, (None,)), directory
    work = f"{directory.name}/{WORK}"
    return Folder(work, (), (*(os.path.join(base, entry) for entry in sys.path), work)), directory


def _copy(plan: FolderLayout, top: Path) -> None:
    for path, file in plan.files.items():
        place = top / path
        if file is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)


_CALL_NUMBER = struct.Struct("<I")
_NUMBER_AT = 4  # offset in the header, see `call_messages`


class Client(PathClient, _current.ActorMaker, Protocol):
    """The part of its own client that an actor's process needs."""

    def restored(self, extras: Message) -> list[ObjectRef[Any]]:
        """Make values that came beside a message available to references."""


@dataclass(frozen=True)
class Setup:
    """The settings of an actor's process.

    Attributes:
        folder: Its working directory and module paths.
        description: The description for processes that look the actor up by name.
        has_gpu: Whether it was given a GPU.
        lease_timeout_s: The time that making further actors waits for free resources.
        address: The address of its program's connection.
        client: Makes the actor's own side of the cluster; `RayClient`, which imports this module.
    """

    folder: Folder
    description: str
    has_gpu: bool
    lease_timeout_s: float | None
    address: str
    client: Callable[..., Client]


class _Hosted:
    """The common part of both kinds.

    Args:
        creation: The message that makes the object.
        setup: The settings of the process.
    """

    def __init__(self, creation: Wire, setup: Setup) -> None:
        self._creation = creation
        self._setup = setup
        os.environ["XPARL"] = "True"
        if not setup.has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        folder = setup.folder
        sys.path[:0] = [os.path.abspath(path) for path in folder.first]
        if folder.working_dir:
            with contextlib.suppress(OSError):  # a missing folder is reported when something in it is used
                os.chdir(folder.working_dir)
        passed_on = folder if folder.is_unpacked else None
        self._client = setup.client(setup.address, lease_timeout_s=setup.lease_timeout_s, folder=passed_on)
        _current.become_actor()
        _current.connect_when_needed(lambda: self._client)
        self._host = ActorHost()
        self._created: Wire | None = None
        if ray().get_runtime_context().was_current_actor_reconstructed:
            self._create()

    def place(self) -> RayPlace:
        """Return the actor's address, as soon as it has resources and a process."""
        return RayPlace(str(ray().get_runtime_context().get_actor_id()), isinstance(self, ConcurrentObject))

    def description(self) -> str:
        """Return the description for processes that look the actor up by name, once the object is made."""
        return self._setup.description

    def created(self) -> Wire:
        """Return the answer of the object's constructor."""
        return self._create()

    def _create(self) -> Wire:
        if self._created is None:
            with self._client.arriving(extras_of(self._creation)):
                self._created = self._packed(self._host.handle(opened(self._creation)))
            self._creation = b""
        return self._created

    def _packed(self, reply: list[Buffer]) -> Wire:
        return packed(reply, reply.references if isinstance(reply, HoldingReply) else (), self._client.stored)


class HostedObject(_Hosted):
    """The host of an object that runs one call at a time."""

    def handle(self, message: Wire) -> Wire:
        """Process a message and return its answer."""
        self._create()
        with self._client.arriving(extras_of(message)):
            return self._packed(self._host.handle(opened(message)))


class ConcurrentObject(_Hosted):
    """The host of an object that runs several calls at a time."""

    def __init__(self, creation: Wire, setup: Setup) -> None:
        super().__init__(creation, setup)
        self._calls = _Calls(self._host)
        self._last_number = 0

    async def place(self) -> RayPlace:  # type: ignore[override]  # all of a Ray actor's methods are of one kind
        """Return the actor's address."""
        return super().place()

    async def description(self) -> str:  # type: ignore[override]
        """Return the description for processes that look the actor up by name."""
        return super().description()

    async def created(self) -> Wire:  # type: ignore[override]
        """Return the answer of the object's constructor, which runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, self._create)

    async def handle(self, message: Wire) -> Wire:
        """Process a message and return its answer, concurrently with others."""
        if self._created is None:
            await self.created()
        frames = opened(message)
        if not self._calls.used:  # its constructor has failed; the host says what that means
            return self._packed(self._host.handle(frames))
        self._last_number = number = (self._last_number + 1) % 2**32  # callers number their own calls only
        frames[0] = memoryview(bytearray(frames[0]))
        _CALL_NUMBER.pack_into(frames[0], _NUMBER_AT, number)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Buffer]] = loop.create_future()

        def settle(reply: list[Buffer]) -> None:
            if not answer.done():
                answer.set_result(reply)

        def take(reply: list[Buffer]) -> None:
            loop.call_soon_threadsafe(settle, reply)

        extras = extras_of(message)
        if extras.values:
            await loop.run_in_executor(None, self._client.restored, extras)  # they may come from afar
        with self._client.arriving(extras):
            self._calls.start(frames, take)
            try:
                return self._packed(await answer)
            except asyncio.CancelledError:
                self._calls.stop(number)
                raise


class _Calls(LocalCalls):
    """Runs calls and passes their replies on unchanged."""

    def __init__(self, host: ActorHost) -> None:
        super().__init__(host, lambda _: None)
        self._takers: dict[int, Callable[[list[Buffer]], None]] = {}

    def start(self, frames: list[memoryview], take: Callable[[list[Buffer]], None]) -> None:
        """Run a call; `take` is called with its reply, in any thread."""
        run = self._host.accept(frames)
        self._takers[run.call_id] = take
        if self._runner is not None:
            self._runner.take(Job(run, self))

    def stop(self, number: int) -> None:
        """Drop the reply of a call."""
        self._takers.pop(number, None)
        if self._runner is not None:
            self._runner.cancel(self, number)

    def flush(self) -> None:
        """Pass each buffered reply to the function that waits for it."""
        while self._held:
            try:
                reply = self._held.popleft()
            except IndexError:  # another thread took the last one
                return
            take = self._takers.pop(header_of(reply[0])[3], None)
            if take is not None:
                take(reply)

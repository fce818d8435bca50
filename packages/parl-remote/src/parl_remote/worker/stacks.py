"""A worker's part for stack dumps: signals the actor, waits until it has printed, sends what it says.

DumpStack --> clear file, signal --> look every few hundredths of a second --> StackDump | Failed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parl_remote.actor.stack_dumps import StackFile, why_no_stack
from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.links.handshake import Link
from parl_remote.links.loop import Loop
from parl_remote.messages import Failed, Message
from parl_remote.messages.stacks import DumpStack, StackDump
from parl_remote.worker.actor_pool import PooledActor

__all__ = ["WorkerStacks"]

_LOOK_S = 0.03
_TIMEOUT_S = 3.0  # an actor that can answer does within milliseconds, on a busy host within tenths of a second


@dataclass(slots=True, eq=False)
class _Dump:
    """One actor that was asked, and who waits for it."""

    actor: PooledActor
    file: StackFile
    until: float
    size: int = 0
    asked: list[tuple[Link, int]] = field(default_factory=list)


class WorkerStacks:
    """Answers DumpStack; see `parts.Part`.

    Args:
        loop: The node's loop.
        find: An actor of this worker by its lease, None if it has no process (any more).
        signal: Has an actor sent the signal that makes it print.
    """

    def __init__(
        self, loop: Loop, find: Callable[[str], PooledActor | None], signal: Callable[[PooledActor], None]
    ) -> None:
        self._loop = loop
        self._find = find
        self._signal = signal
        self._dumps: dict[int, _Dump] = {}

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Ask an actor, or join those who have just asked it."""
        if not isinstance(message, DumpStack):
            raise RemoteProtocolError(f"{type(message).__name__} is no question about stacks")
        actor = self._find(message.lease_id)
        if actor is None:
            raise RemoteError(f"no actor runs on lease {message.lease_id} of this worker")
        dump = self._dumps.get(actor.number)
        if dump is None:
            dump = _Dump(actor, StackFile(actor.stats), self._loop.now() + _TIMEOUT_S)
            dump.file.clear()
            self._signal(actor)
            self._dumps[actor.number] = dump
            self._loop.call_later(_LOOK_S, lambda: self._look(dump))
        dump.asked.append((link, message.request_id))

    def closed(self, link: Link) -> None:
        """Whoever waits there does not any more."""
        for dump in self._dumps.values():
            dump.asked = [one for one in dump.asked if one[0] is not link]

    def close(self) -> None:
        """Nothing: files are opened only while they are read."""

    def _look(self, dump: _Dump) -> None:
        """Answer once there is something and it has stopped growing."""
        size = dump.file.size()
        if size and size == dump.size:
            text = dump.file.read()
            self._answer(dump, lambda number: StackDump(number, text))
        elif self._loop.now() >= dump.until:
            reason = f"the actor did not print its stack within {_TIMEOUT_S:g} s: {why_no_stack(dump.actor.pid)}"
            self._answer(dump, lambda number: Failed(number, reason))
        else:
            dump.size = size
            self._loop.call_later(_LOOK_S, lambda: self._look(dump))

    def _answer(self, dump: _Dump, make: Callable[[int], Message]) -> None:
        del self._dumps[dump.actor.number]
        for link, number in dump.asked:
            link.tell(make(number))

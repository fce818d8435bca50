"""A TCP relay in user space whose conditions can be changed while connections pass: slow, stuck, cut one way, reset.

    client --TCP--> Line --TCP--> target          IN is towards the target, OUT comes back from it
                     |
                     conditions, cut, blackhole, reset: any time, from any thread

It needs no rights, and both ends of it may lie in network namespaces. What waits at a cut is delivered after
`restore`, as TCP does with a cable that was pulled out and put back; what fell into a black hole is gone, and its
connection with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from parl_remote.testing.conditions import Conditions, Direction
from parl_remote.testing.namespaces import inside

__all__ = ["Line"]

_SEGMENT = 2**14  # what is read at once, and so delayed or held up as one
_MOST_UNDER_WAY = 64 * 2**20  # bytes on the way in one direction, then the sender waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST
_PERFECT = Conditions()
_CLOSING_S = 10.0
_DIAL_S = 5.0
_NEXT_TRY_S = 0.01


class Line:
    """A relay from an address of its own to a target.

    Args:
        to: The target, (host, port).
        listen: Where to listen, (host, port); port 0 is a free one.
        to_in: The network namespace in which the target is, None for this one.
        listen_in: The network namespace in which to listen, None for this one.
        seed: For what is random.

    Attributes:
        address: Where it listens, "host:port".

    Raises:
        OSError: It cannot listen there.
        FaultUnavailable: A namespace cannot be entered.
    """

    def __init__(
        self,
        to: tuple[str, int],
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        to_in: str | None = None,
        listen_in: str | None = None,
        seed: int = 0,
    ) -> None:
        self._to = to
        self._to_in = to_in
        self._listening = inside(listen_in, functools.partial(socket.create_server, listen))
        self._listening.setblocking(False)
        host, port = self._listening.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._dice = random.Random(seed)
        self._ways = {Direction.IN: _Way(), Direction.OUT: _Way()}
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="parl-line", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.address.rpartition(":")[2])

    @property
    def connections(self) -> int:
        """How many connections pass it now."""
        return len(self._connections)

    def passed(self, direction: Direction) -> int:
        """Bytes that were delivered in one direction so far."""
        return sum(way.passed for which, way in self._ways.items() if which in direction)

    def set(self, conditions: Conditions, direction: Direction = Direction.BOTH) -> None:
        """Have the line behave like this from now on.

        Args:
            conditions: How; `Conditions()` is a perfect line.
            direction: Which way.
        """
        for which, way in self._ways.items():
            if which in direction:
                way.conditions = conditions

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing through any more; connections stay open, as at a cable that was pulled out."""
        self._do(lambda: self._gates(direction, closed=True))

    def blackhole(self, direction: Direction = Direction.BOTH) -> None:
        """Take everything in and deliver nothing: senders see nothing wrong until they miss an answer."""
        for which, way in self._ways.items():
            way.swallows |= which in direction

    def restore(self) -> None:
        """End cuts and black holes; connections from which something was swallowed are reset, for they are damaged."""
        for way in self._ways.values():
            way.swallows = False
        self._do(self._restore)

    def reset(self) -> None:
        """End all connections that pass it now by a reset, as a router that has lost its tables does."""
        self._do(self._reset_all)

    def close(self) -> None:
        """End it with all its connections; a second call does nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_S)
        self._loop.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in the line's own thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()

    def _do(self, what: Callable[[], None]) -> None:
        """Have something done in the line's thread, and wait until it is."""
        done = threading.Event()

        def do() -> None:
            try:
                what()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait(_CLOSING_S)

    def _gates(self, direction: Direction, *, closed: bool) -> None:
        for which, way in self._ways.items():
            if which in direction:
                if closed:
                    way.gate.clear()
                else:
                    way.gate.set()

    def _restore(self) -> None:
        self._gates(Direction.BOTH, closed=False)
        for connection in [one for one in self._connections if one.damaged]:
            connection.reset()

    def _reset_all(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _accept(self) -> None:
        tasks = set()
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listening)
            except OSError:  # one that was closed before it was accepted, or no descriptor is free now
                await asyncio.sleep(_NEXT_TRY_S)
                continue
            task = self._loop.create_task(self._serve(accepted))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, near: socket.socket) -> None:
        """One connection, for as long as it lasts."""
        with near:
            await self._ways[Direction.IN].gate.wait()  # who dials over a cut cable gets no answer
            await self._ways[Direction.OUT].gate.wait()
            dial = functools.partial(socket.create_connection, self._to, _DIAL_S)
            try:
                far = await self._loop.run_in_executor(None, inside, self._to_in, dial)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return
            with far:
                connection = _Connection(near, far)
                for end in (near, far):
                    end.setblocking(False)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.add(connection)
                carrying = [
                    self._loop.create_task(self._carry(connection, near, far, Direction.IN)),
                    self._loop.create_task(self._carry(connection, far, near, Direction.OUT)),
                ]
                connection.tasks = carrying
                try:
                    await asyncio.wait(carrying)
                finally:
                    for task in carrying:
                        task.cancel()
                    self._connections.discard(connection)

    async def _carry(
        self, connection: _Connection, source: socket.socket, sink: socket.socket, direction: Direction
    ) -> None:
        """One direction of one connection: reads, and hands over to a writer that keeps the order."""
        way = self._ways[direction]
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        room = _Room(_MOST_UNDER_WAY)
        writer = self._loop.create_task(self._deliver(queue, room, sink, way))
        free_at = 0.0
        try:
            while True:
                await way.gate.wait()
                data = await self._loop.sock_recv(source, _SEGMENT)
                if way.swallows and data:
                    connection.damaged = True
                    continue
                due, free_at = self._due(way.conditions, len(data), free_at)
                await room.take(len(data))
                queue.put_nowait((due, data))
                if not data:
                    await writer
                    return
        except OSError:
            connection.reset()  # the one end broke, and so shall the other
        finally:
            writer.cancel()

    def _due(self, conditions: Conditions, size: int, free_at: float) -> tuple[float, float]:
        """When a segment arrives, and when the line is free for the next one."""
        now = time.monotonic()
        if conditions is _PERFECT:
            return now, now
        if conditions.bytes_per_s is not None:
            now = free_at = max(now, free_at) + size / conditions.bytes_per_s
        late = conditions.delay_s + conditions.jitter_s * self._dice.random()
        if conditions.loss and self._dice.random() < conditions.loss:
            late += conditions.retransmit_s
        return now + late, free_at

    async def _deliver(
        self, queue: asyncio.Queue[tuple[float, bytes]], room: _Room, sink: socket.socket, way: _Way
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                if (wait_s := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                await way.gate.wait()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                await self._loop.sock_sendall(sink, data)
                way.passed += len(data)
                room.give(len(data))

    async def _end(self) -> None:
        self._listening.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()


@dataclass
class _Way:
    """One direction of a line; the gate is closed at a cut."""

    conditions: Conditions = _PERFECT
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    swallows: bool = False
    passed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()


@dataclass(eq=False)
class _Connection:
    """One connection that passes."""

    near: socket.socket
    far: socket.socket
    damaged: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def reset(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        for task in self.tasks:
            task.cancel()


class _Room:
    """Bytes that may be under way; who wants more waits."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._left < size:
            self._freed.clear()
            await self._freed.wait()
        self._left -= size

    def give(self, size: int) -> None:
        self._left += size
        self._freed.set()

"""A TCP relay in user space whose conditions can be changed at runtime: slow, stalled, cut in one direction, reset.

    client --TCP--> Line --TCP--> target          IN is towards the target, OUT comes back from it
                     |
                     conditions, cut, blackhole, reset: any time, from any thread

It needs no privileges. Data held at a cut is delivered after `restore`, as with an unplugged cable that is plugged in
again. Data in a black hole is lost, and so is its connection. A line carries TCP, which repairs loss and order: a lost
segment and everything behind it arrive `retransmit_s` later, and duplicates and reordering have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Flag, auto

__all__ = ["Conditions", "Direction", "Line"]


_SEGMENT = 2**14  # bytes read at once, and so delayed or held up as one
_MOST_UNDER_WAY = 64 * 2**20  # bytes on the way in one direction, then the sender waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST
_CLOSING_S = 10.0
_DIAL_S = 5.0
_NEXT_TRY_S = 0.01


class Direction(Flag):
    """A direction of traffic of a `Line`: IN is towards the target, OUT comes from it, BOTH is either."""

    IN = auto()
    OUT = auto()
    BOTH = IN | OUT


@dataclass(frozen=True, slots=True)
class Conditions:
    """The quality of one direction of a line; the default is a perfect line.

    Attributes:
        delay_s: The added delay in seconds, from 0 to below 3600. If both directions have it, a round trip has it
            twice.
        jitter_s: The maximum of an additional random delay in seconds, uniformly distributed, from 0 to below 3600.
        loss: The share of packets that are lost, from 0 to below 1.
        duplicate: The share of packets that arrive twice, from 0 to 1; without effect on a `Line`, which carries TCP.
        reorder: The share of packets that are not delayed and overtake others, from 0 to 1; needs a delay. Without
            effect on a `Line`.
        bytes_per_s: The bandwidth in bytes per second, above 0; None for no limit.
        retransmit_s: The additional delay in seconds of a lost segment on a `Line`, from 0 to below 3600; the default
            is the minimum of Linux.

    Raises:
        ValueError: A value is out of its range, or `reorder` is given without a delay.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float | None = None
    retransmit_s: float = 0.2

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s", "retransmit_s"):
            if not 0 <= getattr(self, name) < 3600:
                raise ValueError(f"{name} must be seconds from 0 to below 3600, not {getattr(self, name)!r}")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not {getattr(self, name)!r}")
        if self.loss == 1:
            raise ValueError("a loss of 1 is a cut; use cut()")
        if self.reorder and not self.delay_s:
            raise ValueError("reorder needs a delay_s: a packet overtakes only what is held back")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"bytes_per_s must be above 0 or None, not {self.bytes_per_s!r}")


_PERFECT = Conditions()


class Line:
    """A TCP relay that listens on its own address and forwards to a target.

    Args:
        to: The target, (host, port).
        listen: The address to listen on, (host, port); port 0 chooses a free port.
        seed: The seed of the random delays and losses.

    Attributes:
        address: The address that the line listens on, "host:port".

    Raises:
        OSError: The line cannot listen on this address.
    """

    def __init__(
        self,
        to: tuple[str, int],
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        seed: int = 0,
    ) -> None:
        self._to = to
        self._listening = self._listen(listen)
        self._listening.setblocking(False)
        host, port = self._listening.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._dice = random.Random(seed)
        self._ways = {Direction.IN: _DirectionState(), Direction.OUT: _DirectionState()}
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="parl-line", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the line listens on."""
        return int(self.address.rpartition(":")[2])

    @property
    def connections(self) -> int:
        """The number of current connections."""
        return len(self._connections)

    def passed(self, direction: Direction) -> int:
        """Return the number of bytes delivered so far in a direction, or in both."""
        return sum(way.passed for which, way in self._ways.items() if which in direction)

    def set(self, conditions: Conditions, direction: Direction = Direction.BOTH) -> None:
        """Set the line's conditions from now on.

        Args:
            conditions: The new conditions; `Conditions()` is a perfect line.
            direction: The direction or directions to change.
        """
        for which, way in self._ways.items():
            if which in direction:
                way.conditions = conditions

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Hold all data; connections stay open, as with an unplugged cable."""
        self._do(lambda: self._gates(direction, closed=True))

    def blackhole(self, direction: Direction = Direction.BOTH) -> None:
        """Accept all data and drop it; a sender notices nothing until an answer is missing."""
        for which, way in self._ways.items():
            way.swallows |= which in direction

    def restore(self) -> None:
        """End cuts and black holes; reset connections that have lost data."""
        for way in self._ways.values():
            way.swallows = False
        self._do(self._restore)

    def reset(self) -> None:
        """Reset all current connections, as a router does that has lost its tables."""
        self._do(self._reset_all)

    def close(self) -> None:
        """Close the line and all its connections; a second call does nothing."""
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

    def _listen(self, address: tuple[str, int]) -> socket.socket:
        return socket.create_server(address)

    def _dial(self) -> socket.socket:
        return socket.create_connection(self._to, _DIAL_S)

    # -- in the line's own thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()

    def _do(self, what: Callable[[], None]) -> None:
        """Run a function in the line's thread, and wait for it."""
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
        """Serve one connection until it ends."""
        with near:
            await self._ways[Direction.IN].gate.wait()  # a connection over a cut line gets no answer
            await self._ways[Direction.OUT].gate.wait()
            try:
                far = await self._loop.run_in_executor(None, self._dial)
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
        """Forward one direction of a connection to a writer that keeps the order."""
        way = self._ways[direction]
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        budget = _ByteBudget(_MOST_UNDER_WAY)
        writer = self._loop.create_task(self._deliver(queue, budget, sink, way))
        free_at = 0.0
        try:
            while True:
                await way.gate.wait()
                data = await self._loop.sock_recv(source, _SEGMENT)
                if way.swallows and data:
                    connection.damaged = True
                    continue
                due, free_at = self._due(way.conditions, len(data), free_at)
                await budget.take(len(data))
                queue.put_nowait((due, data))
                if not data:
                    await writer
                    return
        except OSError:
            connection.reset()  # the one end broke, and so shall the other
        finally:
            writer.cancel()

    def _due(self, conditions: Conditions, size: int, free_at: float) -> tuple[float, float]:
        """Return when a segment arrives, and when the line is free for the next one."""
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
        self, queue: asyncio.Queue[tuple[float, bytes]], budget: _ByteBudget, sink: socket.socket, way: _DirectionState
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
                budget.give(len(data))

    async def _end(self) -> None:
        self._listening.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()


@dataclass
class _DirectionState:
    """One direction of a line; the gate is closed during a cut."""

    conditions: Conditions = _PERFECT
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    swallows: bool = False
    passed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()


@dataclass(eq=False)
class _Connection:
    """One connection through the line."""

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


class _ByteBudget:
    """A limit on the bytes in flight; a sender that exceeds it waits."""

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

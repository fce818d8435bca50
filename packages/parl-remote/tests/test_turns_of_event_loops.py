"""The limit of an event loop's reading in one turn: a bounded time for all connections, before tasks have theirs."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import Flag, Kind, pack
from parl_remote._links.loop import EventLoopReader, Loop
from parl_remote._program import answer_reader
from parl_remote._program.connection import Connection
from parl_remote._program.outbox import Outbox
from parl_remote._transport.unix import UnixChannel

CALLS = 100
PATIENCE_S = 60.0


def counting(counts: Counter[str], name: str) -> Callable[..., None]:
    wrapped = getattr(Connection, name)

    def counted(connection: Connection, *args: Any) -> None:
        counts[name] += 1
        wrapped(connection, *args)

    return counted


@pytest.mark.parametrize("actors", [1, 3])
def test_a_turn_reads_each_connection_once_and_until_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, actors: int
) -> None:
    clock = itertools.count(0.0, 0.6 * answer_reader._TURN_S)  # two looks at it, and the time is up
    monkeypatch.setattr(answer_reader, "time", SimpleNamespace(monotonic=clock.__next__))
    counts: Counter[str] = Counter()
    by_turn: list[Counter[str]] = []
    for name in ("take_message", "_read_in_event_loop"):
        monkeypatch.setattr(Connection, name, counting(counts, name))
    loop = Loop()
    ends: list[UnixChannel] = []
    futures: list[RemoteFuture[Any]] = []
    for _ in range(actors):
        ours, theirs = socket.socketpair()
        channel = UnixChannel(ours)
        connection = Connection(
            channel,
            background=lambda: loop,
            lost=lambda _: AssertionError("it is there"),
            on_names=lambda _: None,
        )
        outbox, end = Outbox(connection), UnixChannel(theirs)
        for number in range(1, CALLS + 1):
            futures.append(outbox.submit(Call(int(Kind.CALL), 0, 0, (), "call")))
            end.send(pack(Kind.RESULT, Flag.EMPTY, 0, number))
        ends += [channel, end]

    async def gather() -> None:
        running = asyncio.get_running_loop()

        def turn() -> None:
            by_turn.append(counts.copy())
            counts.clear()
            if not all(future._settled for future in futures):
                running.call_soon(turn)

        async def await_two(at: int) -> None:
            """The second one begins to be awaited when more has been read than was taken."""
            await futures[at]
            await futures[at + 1]

        running.call_soon(turn)
        await asyncio.gather(*map(await_two, range(0, len(futures), 2)))

    asyncio.run(gather())
    assert max(turn["_read_in_event_loop"] for turn in by_turn) == actors
    assert max(turn["take_message"] for turn in by_turn) == (2 if actors == 1 else actors), "they share the time"
    for one in ends:
        one.close()
    loop.close()


def test_a_handler_that_raises_while_a_reading_is_scheduled_does_not_end_the_reading() -> None:
    ours, theirs = socket.socketpair()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        loop, is_read = asyncio.get_running_loop(), asyncio.Event()
        reader = EventLoopReader(loop, ours.fileno(), is_read.set)
        reader.resume()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reader.read_soon()
        theirs.send(b"1")
        await asyncio.wait_for(is_read.wait(), PATIENCE_S)
        reader.close()

    asyncio.run(main())
    ours.close()
    theirs.close()

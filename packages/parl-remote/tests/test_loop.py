"""The event loop: sources, timers, and other threads that wake it."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from parl_remote._links.loop import EventLoopReader, Loop, SuspensionDetector
from parl_remote._transport import Received
from parl_remote._transport.memory import MemoryListener


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_source_is_served_when_something_comes(loop: Loop) -> None:
    listener = MemoryListener()
    seen: list[bytes] = []

    def take() -> None:
        seen.extend(bytes(event.frames[0]) for event in listener.poll() if isinstance(event, Received))
        if len(seen) == 2:
            loop.stop()

    loop.add(listener, take)
    channel = listener.connect()

    def speak() -> None:
        channel.send([b"1"])
        channel.send([b"2"])

    thread = threading.Thread(target=speak)
    thread.start()
    loop.run()
    thread.join()
    assert seen == [b"1", b"2"]


def test_a_source_with_something_pending_is_served_without_its_descriptor(loop: Loop) -> None:
    class ReadAhead(MemoryListener):
        left = 3

        def pending(self) -> bool:
            return self.left > 0

    source = ReadAhead()

    def take() -> None:
        source.left -= 1

    loop.add(source, take)
    for _ in range(3):
        loop.run_once(10.0)
    assert source.left <= 0


def test_a_removed_source_is_served_no_more(loop: Loop) -> None:
    listener = MemoryListener()
    loop.add(listener, pytest.fail)
    channel = listener.connect()
    loop.remove(listener)
    loop.remove(listener)
    channel.send([b"x"])
    loop.run_once(0.0)


def test_a_source_that_has_no_descriptor_any_more_is_removed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = MemoryListener()
    loop.add(listener, pytest.fail)
    channel = listener.connect()

    def closed() -> int:
        raise ValueError("I/O operation on closed epoll object")

    monkeypatch.setattr(listener, "fileno", closed)
    loop.remove(listener)
    channel.send([b"x"])
    loop.run_once(0.0)


def test_a_source_may_remove_another_that_is_ready_in_the_same_turn(loop: Loop) -> None:
    first, second = MemoryListener(), MemoryListener()
    served: list[str] = []

    def serve(name: str, other: MemoryListener) -> None:
        served.append(name)
        loop.remove(other)

    loop.add(first, lambda: serve("first", second))
    loop.add(second, lambda: serve("second", first))
    first.connect()
    second.connect()
    loop.run_once(10.0)
    assert len(served) == 1


def test_timers_fire_in_order_of_their_times_and_not_before() -> None:
    now = [100.0]
    loop = Loop(clock=lambda: now[0])
    fired: list[str] = []
    loop.call_at(103.0, lambda: fired.append("late"))
    loop.call_later(1.0, lambda: fired.append("early"))
    loop.call_later(1.0, lambda: fired.append("early too"))
    loop.run_once(0.0)
    assert fired == []
    now[0] = 101.0
    loop.run_once(0.0)
    assert fired == ["early", "early too"]
    now[0] = 200.0
    loop.run_once(0.0)
    assert fired[2:] == ["late"]


def test_a_cancelled_timer_does_not_fire() -> None:
    now = [0.0]
    loop = Loop(clock=lambda: now[0])
    timer = loop.call_later(1.0, pytest.fail)
    timer.cancel()
    timer.cancel()
    now[0] = 2.0
    loop.run_once(0.0)


def test_another_thread_wakes_a_waiting_loop(loop: Loop) -> None:
    ran: list[int] = []

    def act() -> None:
        ran.append(threading.get_ident())
        loop.stop()

    thread = threading.Thread(target=lambda: loop.call_soon(act))
    thread.start()
    loop.run()
    thread.join()
    assert ran == [threading.get_ident()]


def test_actions_given_within_an_action_wait_for_the_next_turn(loop: Loop) -> None:
    order: list[str] = []

    def outer() -> None:
        loop.call_soon(lambda: order.append("inner"))
        order.append("outer")

    loop.call_soon(outer)
    loop.run_once(0.0)
    assert order == ["outer"]
    loop.run_once(0.0)
    assert order == ["outer", "inner"]


def test_a_bug_in_a_handler_is_not_swallowed(loop: Loop) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    loop.call_soon(fail)
    with pytest.raises(ZeroDivisionError):
        loop.run()


def test_a_timer_for_any_year_does_not_stop_the_loop(loop: Loop) -> None:
    """A client may ask for resources with any timeout, and the system waits for 24 days at most."""
    loop.call_later(1e200, loop.stop)
    threading.Timer(0.0, lambda: loop.call_soon(loop.stop)).start()
    loop.run()


def test_a_connection_whose_reader_in_an_event_loop_is_closed_is_not_read_there_any_more() -> None:
    ours, theirs = socket.socketpair()
    read: list[bytes] = []

    async def main() -> None:
        reader = EventLoopReader(asyncio.get_running_loop(), ours.fileno(), lambda: read.append(ours.recv(1)))
        reader.resume()
        reader.close()
        await asyncio.sleep(0)
        reader.resume()  # for a task that awaits a call while another thread hangs up
        theirs.send(b"x")
        await asyncio.sleep(0)

    with ours, theirs:
        asyncio.run(main())
    assert read == []


def test_a_pulse_tells_for_how_long_its_process_was_stopped() -> None:
    pulse = SuspensionDetector(5.0, 100.0)
    assert [pulse.missed_s(now) for now in (105.0, 115.0, 126.0, 127.0)] == [0.0, 0.0, 11.0, 0.0]

"""Large frames through shared memory: copied once, and given back to the sender when no reader is left."""

import contextlib
import errno
import gc
import mmap
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorLost
from parl_remote._actor.process import ActorProcess
from parl_remote._data import large_frames
from parl_remote._data.calls import Call
from parl_remote._data.large_frames import LARGE, TICKETS, Mappings, Segments, Sharing, can_share, give_back_unused
from parl_remote._links.call_messages import Flag, Kind, header_of, pack
from parl_remote._links.loop import Loop
from parl_remote._program.connection import Connection
from parl_remote._transport import KEPT_OF_CUT, CutMessage
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed, RemoteProtocolError


def frame(size: int, value: int = 7) -> bytes:
    return bytes([value]) * size


@pytest.fixture
def segments() -> Iterator[Segments]:
    made = Segments()
    yield made
    made.close()


def place(segments: Segments, *contents: bytes) -> bytes:
    ticket = segments.place(contents)
    assert ticket is not None
    return ticket


def open_one(mappings: Mappings, ticket: bytes) -> memoryview:
    (view,) = mappings.open(ticket)
    return view


def test_a_frame_arrives_as_it_was_and_can_be_written_to(segments: Segments) -> None:
    view = open_one(Mappings(), place(segments, frame(LARGE + 3)))
    assert bytes(view) == frame(LARGE + 3)
    view[0] = 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", ["next", "close"])
def test_frames_whose_finalizer_was_interrupted_are_given_back(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    mappings = Mappings()
    ticket = place(segments, frame(LARGE, 1))
    with monkeypatch.context() as patches:
        patches.setattr(weakref.finalize, "__call__", interrupted)
        assert bytes(open_one(mappings, ticket)) == frame(LARGE, 1)  # and the view is gone
    if then == "close":
        before = len(segments_here())
        mappings.close()
        assert len(segments_here()) < before
    else:
        other = place(segments, frame(LARGE, 2))
        assert other != ticket
        open_one(mappings, other)
    assert place(segments, frame(LARGE, 3)) == ticket


def test_a_segment_is_used_again_once_its_frame_is_gone(segments: Segments) -> None:
    mappings = Mappings()
    first = place(segments, frame(LARGE, 1))
    assert bytes(open_one(mappings, first)) == frame(LARGE, 1)
    second = place(segments, frame(LARGE, 2))
    assert second == first, "another segment was made although the first was free"
    assert bytes(open_one(mappings, second)) == frame(LARGE, 2)
    third = place(segments, frame(LARGE, 3))  # by now the sender has mapped it
    assert third == first
    assert bytes(open_one(mappings, third)) == frame(LARGE, 3)


def test_frames_of_one_message_lie_in_one_segment_and_stay_together(segments: Segments) -> None:
    mappings = Mappings()
    before = len(segments_here())
    views = mappings.open(place(segments, frame(5, 1), frame(LARGE, 2), frame(1, 3)))
    assert len(segments_here()) == before + 2  # at both ends
    assert [bytes(view) for view in views] == [frame(5, 1), frame(LARGE, 2), frame(1, 3)]
    kept = np.frombuffer(views[2], np.uint8)
    del views
    mappings.open(place(segments, frame(5, 4), frame(LARGE, 4), frame(1, 4)))
    assert kept.tolist() == [3]


def test_a_message_that_is_read_while_its_connection_closes_keeps_no_memory(segments: Segments) -> None:
    mappings = Mappings()
    before = len(segments_here())
    mappings.close()
    assert bytes(open_one(mappings, place(segments, frame(LARGE, 1)))) == frame(LARGE, 1)
    assert len(segments_here()) == before + 1  # the sender's


def test_a_first_large_call_that_meets_the_end_of_its_connection_keeps_no_memory() -> None:
    near, far = (UnixChannel(end) for end in socket.socketpair())
    connection = Connection(
        near, background=Loop, lost=lambda _: ActorLost(), on_names=lambda _: None, shares_memory=True
    )
    before = len(segments_here())
    connection.hang_up()
    with pytest.raises(ChannelClosed):
        connection.submit(Call(Kind.CALL, 0, 0, [b"", frame(LARGE)]))
    assert len(segments_here()) == before
    far.close()


def test_a_segment_whose_frame_is_read_is_left_alone(segments: Segments) -> None:
    mappings = Mappings()
    kept = np.frombuffer(open_one(mappings, place(segments, frame(LARGE, 1))), np.uint8)
    part = kept[5:10]
    del kept
    mappings.open(place(segments, frame(LARGE, 2)))
    assert part.tolist() == [1] * 5


def test_a_forked_child_keeps_the_frames_that_it_was_forked_with(segments: Segments) -> None:
    mappings = Mappings()
    before = len(segments_here())
    for _ in range(20):
        view = open_one(mappings, place(segments, frame(LARGE, 1)))
        may_look, look = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(look)
            os.read(may_look, 1)
            os._exit(view[0] + view[-1])
        os.close(may_look)
        del view
        for _ in range(3):
            mappings.open(place(segments, frame(LARGE, 2)))
        os.close(look)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert len(segments_here()) <= before + 6


def test_a_message_of_any_size_has_a_segment_if_it_is_the_only_one(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_frames, "_MOST_BYTES", 2 * LARGE)
    mappings = Mappings()
    kept = open_one(mappings, place(segments, frame(10 * LARGE, 1)))
    assert segments.place([frame(LARGE)]) is None
    assert bytes(kept) == frame(10 * LARGE, 1)
    del kept
    assert bytes(open_one(mappings, place(segments, frame(20 * LARGE, 2)))) == frame(20 * LARGE, 2)


def test_frames_that_find_no_memory_are_refused_not_lost(segments: Segments) -> None:
    mappings = Mappings()
    kept = []
    while (ticket := segments.place([frame(LARGE)])) is not None:
        kept.append(open_one(mappings, ticket))
        assert len(kept) <= 100, "there must be a limit to what a receiver can keep"
    kept.clear()
    assert segments.place([frame(LARGE)]) is not None


def segments_here() -> list[str]:
    """This process's descriptors of segments, its own and those that it is sent."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed by another thread
            link = os.readlink(f"/proc/self/fd/{entry}")
            if link.startswith("/memfd:parl "):
                found.append(link)
    return found


def test_sizes_that_are_not_used_any_more_are_given_back(segments: Segments) -> None:
    before = len(segments_here())
    mappings = Mappings()
    for size in range(LARGE, 12 * LARGE, LARGE):
        mappings.open(place(segments, frame(size)))
    for _ in range(200):
        mappings.open(place(segments, frame(LARGE)))
    assert len(segments_here()) <= before + 3  # one segment, mapped at both ends


def test_memory_that_an_idle_connection_keeps_is_given_back(segments: Segments) -> None:
    mappings = Mappings()
    before = len(segments_here())
    mappings.open(place(segments, frame(50 * LARGE)))
    busy = open_one(mappings, place(segments, frame(LARGE, 5)))
    give_back_unused(3600.0)
    assert memory_here() > 50 * LARGE, "what was used just now is kept"
    give_back_unused(0.0)
    assert memory_here() < 50 * LARGE
    assert bytes(busy) == frame(LARGE, 5)
    del busy
    give_back_unused(0.0)
    mappings.open(place(segments, frame(LARGE)))
    assert len(segments_here()) == before + 2


def memory_here() -> int:
    """Bytes of shared memory that this process's segments take."""
    taken = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("/memfd:parl "):
                found = os.stat(f"/proc/self/fd/{entry}")
                taken[found.st_ino] = 512 * found.st_blocks
    return sum(taken.values())


def test_views_keep_their_memory_when_the_sender_lets_go() -> None:
    segments = Segments()
    view = open_one(Mappings(), place(segments, frame(LARGE)))
    segments.close()
    gc.collect()
    assert bytes(view) == frame(LARGE)


def test_nothing_stays_open_behind_a_closed_connection() -> None:
    before = len(segments_here())
    segments, mappings = Segments(), Mappings()
    for value in range(5):
        mappings.open(place(segments, frame(LARGE, value)))
    segments.close()
    del mappings
    assert len(segments_here()) == before


def test_nothing_is_placed_after_the_end(segments: Segments) -> None:
    """A call whose actor is lost at this moment finds the connection closed, and must not leave a segment behind."""
    place(segments, frame(LARGE))
    segments.close()
    before = len(segments_here())
    assert segments.place([frame(LARGE)]) is None
    assert len(segments_here()) == before


def test_segments_are_freed_with_the_process_that_did_not_close_them() -> None:
    before = len(segments_here())
    segments = Segments()
    place(segments, frame(LARGE))
    del segments
    assert len(segments_here()) == before


def test_a_ticket_of_a_sender_that_is_gone_says_so() -> None:
    segments = Segments()
    ticket = place(segments, frame(LARGE))
    segments.close()
    with pytest.raises(ChannelClosed, match="which held it, has ended"):
        Mappings().open(ticket)


@pytest.mark.parametrize("ticket", [b"", b"\0" * 24, b"\0" * 31, b"x" * 33])
def test_something_else_than_a_ticket_is_refused(ticket: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Mappings().open(ticket)


def test_a_ticket_for_more_than_the_segment_has_is_refused(segments: Segments) -> None:
    ticket = bytearray(place(segments, frame(LARGE)))
    ticket[-8:] = (2**40).to_bytes(8, "little")
    with pytest.raises(RemoteProtocolError, match="not in a segment"):
        Mappings().open(bytes(ticket))


def test_threads_that_send_at_once_do_not_get_into_each_others_frames(segments: Segments) -> None:
    mappings, taking, wrong = Mappings(), threading.Lock(), []

    def send(value: int) -> None:
        for _ in range(50):
            ticket = place(segments, frame(LARGE, value))
            with taking:
                view = open_one(mappings, ticket)
            if bytes(view) != frame(LARGE, value):
                wrong.append(value)

    threads = [threading.Thread(target=send, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_process_can_share_with_itself_and_not_with_one_that_is_not_there() -> None:
    assert can_share(os.getpid())
    assert not can_share(0)
    assert not can_share(2**22 + 1)  # above the largest process number that Linux gives


def test_only_large_frames_of_a_message_become_tickets() -> None:
    ours, theirs = Sharing(), Sharing()
    message = pack(Kind.RESULT, Flag.NAMES, 3, 9, [b"pickle", frame(LARGE), b"small"])
    moved = ours.to_shared_memory(message)
    assert sum(map(len, moved)) < 200
    opened = theirs.from_shared_memory([memoryview(part) for part in moved])
    assert [bytes(part) for part in opened[1:]] == [frame(LARGE), b"small"]
    assert header_of(opened[0]) == (Kind.RESULT, Flag.NAMES | TICKETS, 3, 9)
    ours.close()


def test_many_small_frames_become_one_ticket_and_few_stay() -> None:
    ours, theirs = Sharing(), Sharing()
    small = frame(LARGE // 8)
    message = pack(Kind.RESULT, 0, 3, 9, [b"pickle", *[small] * 8, b""])
    moved = ours.to_shared_memory(message)
    assert sum(map(len, moved)) < 200
    opened = theirs.from_shared_memory([memoryview(part) for part in moved])
    assert [bytes(part) for part in opened[1:]] == [*[small] * 8, b""]
    few = pack(Kind.RESULT, 0, 3, 9, [b"pickle", *[small] * 7])
    assert ours.to_shared_memory(few) is few
    ours.close()


@pytest.mark.parametrize("marks", [b"", b"\1", b"\0\0", b"\1\1\0"])
def test_marks_that_do_not_fit_are_refused(segments: Segments, marks: bytes) -> None:
    header = pack(Kind.RESULT, TICKETS, 0, 1, [b""])[0]
    message = [memoryview(part) for part in (header, b"small", place(segments, frame(LARGE)), marks)]
    with pytest.raises(RemoteProtocolError, match="marks for"):
        Sharing().from_shared_memory(message)


def test_a_message_without_large_frames_stays_as_it_is() -> None:
    message = pack(Kind.RESULT, 0, 0, 1, [b"pickle", b"small"])
    assert Sharing().to_shared_memory(message) is message


@parl_remote.remote_class(wait=False)
class Keeper:
    def __init__(self, first: "np.ndarray | None" = None) -> None:
        self.kept = [] if first is None else [first]

    def keep(self, array: np.ndarray) -> None:
        self.kept.append(array)

    def sums(self) -> list[int]:
        return [int(array.sum()) for array in self.kept]

    def make(self, value: int) -> np.ndarray:
        return np.full(LARGE, value, np.uint8)

    def same(self, array: np.ndarray) -> np.ndarray:
        return array

    def pid(self) -> int:
        return os.getpid()

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def scale(self, array: np.ndarray) -> np.ndarray:
        array *= 2
        return array


@pytest.fixture
def keeper(connect: Callable[..., None]) -> Keeper:
    connect(cpu_num=1)
    return Keeper()


def test_arrays_that_an_actor_keeps_do_not_change(keeper: Any) -> None:
    for value in range(60):  # more than there are segments
        keeper.keep(np.full(LARGE, value, np.uint8))
    assert keeper.sums().result() == [value * LARGE for value in range(60)]


def test_arrays_that_a_caller_keeps_do_not_change(keeper: Any) -> None:
    arrays = [future.result() for future in [keeper.make(value) for value in range(60)]]
    assert [int(array[0]) for array in arrays] == list(range(60))
    assert all((array == array[0]).all() for array in arrays)


def test_an_actor_may_write_into_its_argument_without_changing_the_callers(keeper: Any) -> None:
    mine = np.full(LARGE, 3, np.uint8)
    assert (keeper.scale(mine).result() == 6).all()
    assert (mine == 3).all()


@pytest.mark.parametrize("size", [10, 20_000, LARGE])
def test_results_are_the_callers_own_unless_they_were_read_only(keeper: Any, size: int) -> None:
    array = keeper.scale(np.ones(size, np.uint8)).result()
    array += 1
    assert (array == 3).all()
    array.flags.writeable = False
    assert not keeper.same(array).result().flags.writeable


def test_results_stay_when_their_actor_is_gone(keeper: Any) -> None:
    array = keeper.make(5).result()
    keeper.destroy()
    assert (array == 5).all()


def test_answers_that_are_not_taken_give_their_memory_back(keeper: Any) -> None:
    for _ in range(100):
        keeper.make(1).cancel()
    assert keeper.sums().result() == []
    assert (keeper.make(2).result() == 2).all()


SEGMENTS = 32  # of a connection in both directions; how many of them are needed depends on who is faster


def test_a_killed_actor_takes_its_segments_along(nothing_in_shm: None, keeper: Any) -> None:
    keeper.keep(np.ones(LARGE, np.uint8)).result()
    array = keeper.make(5).result()
    assert len(segments_here()) >= 2
    os.kill(keeper.pid().result(), signal.SIGKILL)
    with pytest.raises(parl_remote.ActorLost):
        keeper.sums().result()
    assert (array == 5).all()
    del array
    until = time.monotonic() + 60.0  # the thread that read of the end still holds its side of the connection
    while segments_here():
        assert time.monotonic() < until, segments_here()
        gc.collect()
        threading.Event().wait(0.005)


@pytest.mark.slow
def test_many_calls_with_arrays_leave_the_number_of_descriptors_as_it_was(keeper: Any) -> None:
    array = np.ones(LARGE, np.uint8)

    def call(times: int) -> None:
        for _ in range(times):
            futures = [keeper.scale(array) for _ in range(10)]
            assert all(int(future.result()[0]) == 2 for future in futures)

    call(20)
    here, there = len(os.listdir("/proc/self/fd")), keeper.descriptors().result()
    call(1000)
    assert len(os.listdir("/proc/self/fd")) <= here + SEGMENTS
    assert keeper.descriptors().result() <= there + SEGMENTS


def test_the_memory_of_a_message_that_was_not_sent_is_used_for_the_next_one() -> None:
    sharing = Sharing()
    frames: list[Any] = [*pack(Kind.CALL, 0, 0, 1, [b"", np.ones(LARGE, np.uint8).data])]
    unsent = sharing.to_shared_memory(frames)
    assert unsent[0][1] & TICKETS
    sharing.take_back(unsent)
    assert sharing.to_shared_memory(frames)[-2] == unsent[-2]
    sharing.take_back(frames)
    sharing.close()


@pytest.mark.parametrize("is_mapped", [False, True])
def test_the_memory_of_a_message_that_is_cut_is_used_for_the_next_one(is_mapped: bool) -> None:
    sender, receiver = Sharing(), Sharing()
    small, large = np.ones(LARGE - 1, np.uint8), np.ones(LARGE, np.uint8)
    frames: list[Any] = [*pack(Kind.CALL, 0, 0, 1, [b"", small.data, *[large.data] * 10])]
    if is_mapped:
        receiver.from_shared_memory([memoryview(frame) for frame in sender.to_shared_memory(frames)])
    sent = sender.to_shared_memory(frames)
    assert len(sent[-2]) > KEPT_OF_CUT
    receiver.discard([memoryview(frame)[:KEPT_OF_CUT] for frame in sent])
    assert sender.to_shared_memory(frames)[-2] == sent[-2]
    for one in (sender, receiver):
        one.close()


def test_the_memory_of_a_message_that_there_is_no_memory_to_map_is_used_for_the_next_one(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    ticket = place(segments, frame(LARGE))
    monkeypatch.setattr(mmap, "mmap", no_memory)
    with pytest.raises(OSError, match="Cannot allocate"):
        Mappings().open(ticket)
    monkeypatch.undo()
    assert place(segments, frame(LARGE)) == ticket


@pytest.mark.parametrize("at", ["caller", "actor"])
def test_of_a_cut_message_each_end_frees_the_memory(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (UnixChannel(end) for end in socket.socketpair())
    sender, receiver = Sharing(), Sharing()
    kind = Kind.RESULT if at == "caller" else Kind.CALL
    sent = sender.to_shared_memory([*pack(kind, 0, 0, 1, [b"", np.ones(LARGE, np.uint8).data])])
    message = CutMessage([len(frame) for frame in sent], [memoryview(frame)[:KEPT_OF_CUT] for frame in sent])
    if at == "caller":
        connection = Connection(
            near, background=Loop, lost=lambda _: ActorLost(), on_names=lambda _: None, shares_memory=True
        )
        connection.take_message(message)
    else:
        monkeypatch.setattr(near, "receive_ready", lambda: [message])
        caller: Any = SimpleNamespace(channel=near, sharing=receiver, outbox=SimpleNamespace(held=[], flush=bool))
        actor: Any = SimpleNamespace(_host=SimpleNamespace(refuse=lambda *_: []))
        actor._refuse = partial(ActorProcess._refuse, actor)
        ActorProcess._read(actor, caller)
    assert sender.to_shared_memory([*pack(kind, 0, 0, 1, [b"", np.ones(LARGE, np.uint8).data])])[-2] == sent[-2]
    for one in (near, far, sender, receiver):
        one.close()

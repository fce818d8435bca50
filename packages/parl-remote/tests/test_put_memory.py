"""Memory of `put`: released with the last reference to it, also when the process that had it is killed."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import _object_ref
from parl_remote._data.object_memory import FrameKind, MemoryGone, MemoryPool, ValueAddress, adopt, read, read_image
from parl_remote._object_ref import ObjectRef, put

SIZE = 2**20
WITHIN_S = 60.0  # memory that is free is kept for a second, to be used again


def held(inode: int) -> dict[int, int]:
    """The processes that have a value's file open or mapped, and how often."""
    found: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                links = [os.stat(entry).st_ino for entry in (process / "fd").iterdir() if _is_ours(entry)]
                maps = [
                    line.split()[4] for line in (process / "maps").read_text().splitlines() if "parl-object" in line
                ]
            except OSError:
                continue
            count = links.count(inode) + maps.count(str(inode))
            if count:
                found[int(process.name)] = count
    return found


def _is_ours(entry: Path) -> bool:
    try:
        return os.readlink(entry).startswith("/memfd:parl-object")
    except OSError:
        return False


def inode_of(ref: ObjectRef) -> int:
    assert ref._memory is not None
    return ref._memory.inode


def await_idle(pool: MemoryPool) -> None:
    """Wait until a pool has freed what nobody uses."""
    eventually(lambda: not pool.tidy())


def wait_until_gone(inode: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while left := held(inode):
        gc.collect()
        assert time.monotonic() < deadline, f"the value's memory is still held by processes {left}"
        time.sleep(0.02)  # the kernel has no event for that


pytestmark = pytest.mark.usefixtures("nothing_in_shm")


@parl_remote.remote_class(wait=False)
class Holder:
    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, value: Any) -> int:
        self.kept = value
        return os.getpid()

    def put_kept(self) -> ObjectRef[Any]:
        return put(self.kept)

    def part(self) -> float:
        value = self.kept.get() if isinstance(self.kept, ObjectRef) else self.kept
        return float(value[-1])

    def total(self) -> float:
        return float(self.kept.sum())

    def store(self) -> list[ObjectRef]:
        self.kept = put(np.full(SIZE, 4.0))
        return [self.kept]

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def holders(connect: Callable[..., None]) -> tuple[Holder, Holder]:
    connect(cpu_num=2)
    return Holder(), Holder()


# -- one process -------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool(lambda _: None)


def test_frames_come_back_as_they_were_and_aligned(pool: MemoryPool) -> None:
    frames = [b"pickle", b"", bytes(range(256)) * 100, b"x"]
    memory = pool.store(frames, [FrameKind.READ_ONLY] * 4)
    got, kinds = read(memory.place())
    assert [bytes(frame) for frame in got] == frames
    assert kinds == [0, 0, 0, 0]
    assert all(frame.readonly for frame in got)
    assert np.frombuffer(got[2], np.uint8).ctypes.data % 64 == 0
    memory.close()


def test_writes_to_own_frames_are_invisible_to_others(pool: MemoryPool) -> None:
    memory = pool.store([b"pickle", bytes(SIZE)], [FrameKind.READ_ONLY, FrameKind.OWN_COPY])
    mine, _ = read(memory.place())
    mine[1][0] = 9
    other, _ = read(memory.place())
    assert other[1][0] == 0
    memory.close()


def test_an_image_is_stored_elsewhere_as_it_was(pool: MemoryPool) -> None:
    memory = pool.store([b"pickle", bytes(SIZE)], [0, 1])
    elsewhere = MemoryPool(lambda _: None)
    copied = elsewhere.store_image(read_image(memory.place()))
    frames, kinds = read(copied.place())
    assert [bytes(frame) for frame in frames] == [b"pickle", bytes(SIZE)]
    assert kinds == [0, 1]


def test_memory_is_reused_only_without_readers(pool: MemoryPool) -> None:
    first = pool.store([bytes(SIZE)], [0])
    reader, _ = read(first.place())
    pool.give_back(first)
    second = pool.store([b"2" * SIZE], [0])
    assert second.inode != first.inode
    assert bytes(reader[0][:3]) == b"\0\0\0"
    reader.clear()
    pool.give_back(second)
    third = pool.store([b"3" * SIZE], [0])
    assert third.inode in {first.inode, second.inode}
    assert bytes(read(third.place())[0][0][:3]) == b"333"


def test_memory_is_reused_while_another_thread_learns_that_its_holder_has_ended(pool: MemoryPool) -> None:
    first, holder = pool.store([bytes(SIZE)], [0]), WeakSet[int]()
    pool.lend(first, holder)
    del holder
    gc.collect()
    pool._wakes.get_nowait()  # the thread has it, and waits for its turn
    assert pool.store([b"2" * SIZE], [0]).inode == first.inode


def test_a_place_of_what_was_there_before_is_refused(pool: MemoryPool) -> None:
    first = pool.store([bytes(SIZE)], [0])
    place = first.place()
    pool.give_back(first)
    assert pool.store([b"2" * SIZE], [0]).inode == place.inode
    with pytest.raises(MemoryGone, match="has freed it"):
        read(place)


def test_a_borrower_keeps_the_memory_from_being_used_again(pool: MemoryPool) -> None:
    first = pool.store([b"1" * SIZE], [0])
    borrowed = adopt(first.place())
    pool.give_back(first)
    assert pool.store([b"2" * SIZE], [0]).inode != first.inode
    assert bytes(read(borrowed.place())[0][0][:3]) == b"111"


@pytest.mark.parametrize(
    "place",
    [
        ValueAddress(2**22 + 1, 3, 1, 4096, 1),
        ValueAddress(os.getpid(), 1, 1, 4096, 1),
        ValueAddress(os.getpid(), 999, 1, 4096, 1),
    ],
)
def test_a_place_where_nothing_of_ours_is_leads_nowhere(place: ValueAddress) -> None:
    with pytest.raises(MemoryGone):
        adopt(place)


def test_idle_memory_is_freed(pool: MemoryPool) -> None:
    memory = pool.store([bytes(SIZE)], [0])
    inode = memory.inode
    pool.give_back(memory)
    del memory
    await_idle(pool)
    assert not held(inode)


# -- a cluster ---------------------------------------------------------------------------------------------------


def test_memory_goes_with_the_last_reference_and_the_last_array(holders: Any) -> None:
    first, second = holders
    ref = put(np.full(SIZE, 3.0))
    inode = inode_of(ref)
    pids = {first.keep(ref).result(), second.keep([ref]).result()}
    array = ref.get()[5:10]
    del ref
    assert set(held(inode)) == {os.getpid(), *pids}
    assert first.part().result() == 3.0
    first.keep(None).result()
    second.keep(None).result()
    await_idle(_object_ref._pool)  # what is there then is there because of the array
    eventually(lambda: set(held(inode)) == {os.getpid()})
    assert array[0] == 3.0
    del array
    wait_until_gone(inode)


@pytest.mark.slow
def test_killed_readers_let_go(holders: Any) -> None:
    ref = put(np.full(SIZE, 3.0))
    inode = inode_of(ref)
    pids = [holders[0].keep(ref).result(), holders[1].keep([ref]).result()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    del ref
    wait_until_gone(inode)


def test_a_value_outlives_the_actor_that_stored_it_when_that_is_killed(holders: Any) -> None:
    first, second = holders
    pid = first.keep(None).result()
    (ref,) = first.store().result()
    second.keep(ref).result()
    inode = inode_of(ref)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(parl_remote.ActorLost):
        first.part().result()
    assert second.part().result() == 4.0
    assert ref.get()[0] == 4.0
    second.keep(None).result()
    del ref
    wait_until_gone(inode)


def test_a_killed_program_leaves_nothing_behind(run_program: Callable[..., Any]) -> None:
    done = run_program(
        program="""
import os, signal
import numpy as np
import parl_remote as parl

@parl.remote_class
class Holder:
    def keep(self, value):
        self.kept = value

parl.connect(cpu_num=2)
holders = [Holder(), Holder()]
ref = parl.put(np.ones(10**6))
for holder in holders:
    holder.keep(ref)
holders[0].keep([ref])
print(ref._memory.inode, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until_gone(int(done.stdout))


@pytest.mark.slow
def test_what_is_shared_does_not_count_as_an_actors_memory(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    limited: Any = parl_remote.with_options(Holder, max_memory=50)()
    limited.keep(put(np.ones(20 * 2**20))).result()  # 160 MiB
    ends = time.monotonic() + 2.5  # the limit is looked at every second
    while time.monotonic() < ends:
        assert limited.total().result() == 20 * 2**20


def test_a_forked_child_reads_values_and_takes_none_away(shared_cluster: None) -> None:
    ref = put(np.full(SIZE, 2.0))
    child = os.fork()
    if child == 0:
        total = float(ref.get().sum())
        del ref
        gc.collect()
        os._exit(0 if total == 2.0 * SIZE else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ref.get()[-1] == 2.0


def test_threads_that_store_at_once_do_not_get_into_each_others_memory(shared_cluster: None) -> None:
    wrong: list[float] = []

    def store(value: float) -> None:
        wrong.extend(value for _ in range(30) if not (put(np.full(20_000, value)).get() == value).all())

    threads = [threading.Thread(target=store, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
def test_many_calls_leave_no_descriptor_and_no_mapping_behind(holders: Any) -> None:
    first, _ = holders
    weights = np.zeros(10_000)
    first.keep(put(weights)).result()
    before_there, before_here = first.descriptors().result(), len(os.listdir("/proc/self/fd"))
    ref = put(weights)
    futures = []
    for call in range(10_000):
        if call % 20 == 0:
            ref = put(weights)
        futures.append(first.keep(ref if call % 2 else [ref]))
        if len(futures) == 100:
            for future in futures:
                future.result()
            futures.clear()
    inode = inode_of(ref)
    first.keep(None).result()
    del ref
    wait_until_gone(inode)
    assert first.descriptors().result() <= before_there + 2
    assert len(os.listdir("/proc/self/fd")) <= before_here + 4


@pytest.mark.slow
def test_a_private_cluster_shares_memory_whatever_other_connections_of_the_process_do(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("1", ""):  # a connection opened under the first has told nothing to one opened under the second
        monkeypatch.setenv("PARL_FORCE_TCP", value)
        connect()
        holder: Any = Holder()
        pid = holder.keep(np.arange(SIZE)).result(WITHIN_S)
        assert holder.put_kept().result(WITHIN_S).get()[-1] == SIZE - 1  # before the actor connects to the cluster
        ref = put(np.arange(SIZE))
        assert holder.keep([ref]).result(WITHIN_S) == pid
        assert set(held(inode_of(ref))) == {os.getpid(), pid}
        parl_remote.disconnect()

"""`put` where memory cannot be shared: a value goes to each worker once, and is asked for where it stays."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import parl_remote
from parl_remote import _current
from parl_remote._object_ref import ObjectRef, put
from parl_remote._program.object_transfer import NodeObjects
from parl_remote.testing import LoopbackCluster

SIZE = 200_000
WITHIN_S = 60.0


@parl_remote.remote_class(wait=False)
class Reader:
    def __init__(self, first: Any = None) -> None:
        self.kept = first

    def describe(self, array: np.ndarray) -> tuple[float, bool]:
        return float(array.sum()), array.flags.writeable

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sum(self) -> float:
        kept = self.kept[0].get() if isinstance(self.kept, list) else self.kept
        return float(kept.sum())

    def store(self, value: float) -> ObjectRef:
        return put(np.full(SIZE, value))

    def where(self) -> str:
        return os.environ["PARL_RUN_DIR"] + str(os.getppid())

    def pass_on(self, other: "Reader", refs: list[ObjectRef]) -> tuple[float, bool]:
        result: tuple[float, bool] = parl_remote.submit(cast(Any, other).describe, refs[0]).result()
        return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(nodes=2, cpus=4) as made:
        yield made


@pytest.fixture
def connected(cluster: LoopbackCluster) -> Iterator[LoopbackCluster]:
    before = _current.clear()
    cluster.connect()
    yield cluster
    parl_remote.disconnect()
    if before is not None:
        _current.install(before)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of values as they are sent to workers."""
    sent: list[str] = []
    bring = NodeObjects._bring

    def bringing(self: NodeObjects, ref: ObjectRef, image: Any) -> None:
        bring(self, ref, image)
        sent.append(ref.id)

    monkeypatch.setattr(NodeObjects, "_bring", bringing)
    return sent


def two_hosts() -> tuple[Any, Any, Any]:
    """Two actors of one worker, and one of another."""
    readers: dict[str, list[Any]] = {}
    for _ in range(8):
        reader: Any = Reader()
        readers.setdefault(reader.where().result(), []).append(reader)
        if len(readers) == 2 and max(map(len, readers.values())) >= 2:
            one, other = sorted(readers.values(), key=len, reverse=True)
            return one[0], one[1], other[0]
    pytest.fail(f"all actors went to the same worker: {readers}")


def notes(cluster: LoopbackCluster, ref_id: str) -> list[Path]:
    """Return the workers' notes of a value that was transferred to them."""
    sockets = [Path(path) for node in cluster.nodes.values() for path in node.process.unix_sockets]
    directories = {path.parent for path in sockets if path.name == "node.sock"}
    assert len(directories) == len(cluster.nodes), sockets
    return [note for path in directories if (note := path / f"{ref_id}.at").is_symlink()]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        gc.collect()
        assert time.monotonic() < deadline, what
        time.sleep(0.02)  # another process has to do something, and says nothing about it


@pytest.mark.slow
def test_a_value_goes_to_each_worker_once(connected: LoopbackCluster, brought: list[str]) -> None:
    a, b, c = two_hosts()
    ref = put(np.ones(SIZE))
    for reader in (a, b, c, a, b, c):
        assert reader.describe(ref).result() == (SIZE, False)
    assert brought == [ref.id] * 2


def test_small_values_travel_in_the_reference(connected: LoopbackCluster, brought: list[str]) -> None:
    a, _, _ = two_hosts()
    assert a.describe(put(np.ones(5))).result() == (5, False)
    assert brought == []


def test_a_reference_within_something_is_brought_as_well_and_stays(connected: LoopbackCluster) -> None:
    a, _, _ = two_hosts()
    ref = put(np.ones(SIZE))
    a.keep([ref]).result()
    del ref
    gc.collect()
    assert a.kept_sum().result() == SIZE
    assert cast(Any, Reader([put(np.full(SIZE, 2.0))])).kept_sum().result() == 2 * SIZE


def test_what_an_actor_stores_can_be_read_here_after_its_end(connected: LoopbackCluster) -> None:
    a, _, c = two_hosts()
    ref = a.store(3.0).result()
    a.destroy()
    assert float(ref.get().sum()) == 3 * SIZE
    assert not ref.get().flags.writeable
    assert c.describe(ref).result() == (3 * SIZE, False)


def test_what_an_actor_stores_can_go_back_to_its_own_worker(connected: LoopbackCluster) -> None:
    a, b, _ = two_hosts()
    ref = a.store(3.0).result()
    a.destroy()
    assert b.describe(ref).result() == (3 * SIZE, False)
    assert ref.get()[0] == 3.0
    assert b.describe(ref).result() == (3 * SIZE, False)


def test_actors_pass_references_on_to_actors_of_other_workers(connected: LoopbackCluster) -> None:
    a, b, c = two_hosts()
    ref = put(np.ones(SIZE))
    assert a.pass_on(c, [ref]).result() == (SIZE, False)
    assert a.pass_on(b, [ref]).result() == (SIZE, False)


def test_a_worker_lets_go_when_the_reference_is_gone(connected: LoopbackCluster) -> None:
    a, _, c = two_hosts()
    ref = put(np.ones(SIZE))
    ref_id = ref.id
    a.describe(ref).result()
    c.describe(ref).result()
    assert len(notes(connected, ref_id)) == 2
    del ref
    wait_for(lambda: not notes(connected, ref_id), "a worker still has the value")


def test_a_worker_lets_go_when_the_program_is_gone(cluster: LoopbackCluster) -> None:
    before = _current.clear()
    try:
        cluster.connect()
        ref = put(np.ones(SIZE))
        reader: Any = Reader()
        reader.describe(ref).result()
        assert notes(cluster, ref.id)
        parl_remote.disconnect()
        wait_for(lambda: not notes(cluster, ref.id), "a worker still has the value")
        assert ref.get().sum() == SIZE
    finally:
        if before is not None:
            _current.install(before)


def test_a_value_is_brought_again_when_the_link_broke(connected: LoopbackCluster, brought: list[str]) -> None:
    a, _, _ = two_hosts()
    ref = put(np.ones(SIZE))
    a.describe(ref).result()
    assert notes(connected, ref.id)
    client: Any = _current.client()
    for node in client._objects._nodes.values():
        if node._link is not None:
            node._link.close()
    wait_for(lambda: not notes(connected, ref.id), "a worker still has the value")
    assert a.describe(ref).result() == (SIZE, False)
    assert brought == [ref.id] * 2


def test_a_value_that_is_gone_there_says_so(connected: LoopbackCluster) -> None:
    a, _, _ = two_hosts()
    ref = a.store(1.0).result()
    assert isinstance(ref._source, NodeObjects)
    ref._source._release(ref.id)
    a.destroy()
    with pytest.raises(parl_remote.ObjectLost, match="not on this node any more"):
        ref.get()


def test_a_call_does_not_wait_until_its_value_is_there(
    connected: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = two_hosts()
    begun, may_go_on, bring = threading.Event(), threading.Event(), NodeObjects._bring

    def slow(self: NodeObjects, ref: ObjectRef, image: Any) -> None:
        begun.set()
        assert may_go_on.wait(WITHIN_S)
        bring(self, ref, image)

    monkeypatch.setattr(NodeObjects, "_bring", slow)
    first = a.keep(put(np.ones(SIZE)))
    assert begun.wait(WITHIN_S)
    second = a.kept_sum()  # returned as well, and stays behind the first
    assert not first.done()
    assert not second.done()
    may_go_on.set()
    assert second.result(WITHIN_S) == SIZE
    assert first.done()


def test_a_value_that_cannot_be_brought_fails_its_call_alone(
    connected: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = two_hosts()

    def full(self: NodeObjects, ref: ObjectRef, image: Any) -> None:
        raise parl_remote.RemoteError("there is no memory left")

    monkeypatch.setattr(NodeObjects, "_bring", full)
    failing, following = a.keep(put(np.ones(SIZE))), a.keep(np.ones(3))
    with pytest.raises(parl_remote.RemoteError, match="no memory left"):
        failing.result(WITHIN_S)
    following.result(WITHIN_S)
    assert a.kept_sum().result(WITHIN_S) == 3
    monkeypatch.undo()
    assert a.describe(put(np.ones(SIZE))).result(WITHIN_S) == (SIZE, False)


def test_a_call_that_is_cancelled_while_its_value_travels_leaves_the_way_free(
    connected: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = two_hosts()
    begun, may_go_on = threading.Event(), threading.Event()

    def fails_late(self: NodeObjects, ref: ObjectRef, image: Any) -> None:
        begun.set()
        assert may_go_on.wait(WITHIN_S)
        raise parl_remote.RemoteError("there is no memory left")

    monkeypatch.setattr(NodeObjects, "_bring", fails_late)
    cancelled = a.keep(put(np.ones(SIZE)))
    assert begun.wait(WITHIN_S)
    following = a.keep(np.ones(3))
    assert cancelled.cancel()
    may_go_on.set()
    following.result(WITHIN_S)

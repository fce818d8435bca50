"""`put`: what a method gets, how references travel, and that nothing can be written to."""

import copy
import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote._object_ref import ObjectRef, put
from parl_remote.errors import NotConnected, ObjectLost, SerializationError

LARGE = 100_000  # elements; well above what travels in the reference

Record = np.dtype([("name", "S8"), ("at", "<f8", (2,))])

ARRAYS: dict[str, np.ndarray] = {
    "large": np.arange(LARGE, dtype=np.float64),
    "small": np.arange(5, dtype=np.int16),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(2.5),
    "fortran": np.asfortranarray(np.arange(LARGE).reshape(100, -1)),
    "strided": np.arange(2 * LARGE).reshape(-1, 4)[::3, 1:3],
    "backwards": np.arange(LARGE)[::-1],
    "broadcast": np.broadcast_to(np.arange(300), (400, 300)),
    "structured": np.array([(b"a", (1, 2)), (b"b", (3, 4))] * 9000, Record),
    "big endian": np.arange(LARGE, dtype=">i4"),
    "bool": np.arange(LARGE) % 3 == 0,
    "complex": np.arange(LARGE) * 1j,
    "text": np.array(["ab", "c"] * 20_000),
    "dates": np.arange("2026-01-01", "2026-02-01", dtype="datetime64[D]"),
    "objects": np.array([None, "text", (1, 2)], dtype=object),
    "subclass": np.ma.masked_array([1, 2, 3], [False, True, False]),
}


@parl_remote.remote_class(wait=False)
class Reader:
    def __init__(self, first: Any = None) -> None:
        self.kept = first

    def describe(self, array: Any, *, also: Any = None) -> tuple[Any, bool, bool]:
        given = array if also is None else also
        return given.copy(), given.flags.writeable, given.flags.f_contiguous

    def kinds(self, *args: Any, **kwargs: Any) -> list[str]:
        return [type(value).__name__ for value in (*args, *kwargs.values())]

    def take_apart(self, things: list[Any]) -> list[Any]:
        return [things[0].get().sum(), type(things[0]).__name__]

    def write(self, array: np.ndarray) -> None:
        array[0] = 1

    def add_to(self, array: np.ndarray) -> None:
        array += 1

    def make_writable(self, array: np.ndarray) -> None:
        array.flags.writeable = True

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sum(self) -> float:
        kept = self.kept.get() if isinstance(self.kept, ObjectRef) else self.kept
        return float(kept.sum())

    def store(self, size: int) -> ObjectRef:
        return put(np.ones(size))

    def wrap(self, ref_in_list: list[ObjectRef], room: int) -> ObjectRef:
        return put([ref_in_list[0], np.zeros(room)])

    def pass_on(self, other: "Reader", ref_in_list: list[ObjectRef]) -> Any:
        return other.describe(ref_in_list[0]).result()

    def change_own(self, array: np.ndarray) -> float:
        array[:] = 0
        return float(array.sum())

    def __add__(self, other: Any) -> str:
        return type(other).__name__


@pytest.fixture
def reader(anywhere: str) -> Reader:
    return Reader()


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_kind_arrive_as_they_were_and_read_only(reader: Any, name: str) -> None:
    array = ARRAYS[name]
    got, writeable, is_fortran = reader.describe(put(array)).result()
    assert type(got) is type(array)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)
    assert not writeable
    if array.flags.f_contiguous:
        assert is_fortran


@pytest.mark.parametrize("room", [1, LARGE], ids=["small", "large"])
def test_a_reference_within_a_value_outlives_the_actor_that_stored_both(anywhere: str, room: int) -> None:
    inner = put(ARRAYS["large"])
    wrapper: Any = Reader()
    outer = wrapper.wrap([inner], room).result()
    del inner
    parl_remote.kill(wrapper)
    last: Any = Reader()
    last.keep([outer]).result()
    np.testing.assert_array_equal(outer.get()[0].get(), ARRAYS["large"])
    (kept,) = last.kept
    np.testing.assert_array_equal(kept.get()[0].get(), ARRAYS["large"])


def test_the_same_is_true_for_get_in_the_program(shared_cluster: None) -> None:
    for array in ARRAYS.values():
        got = put(array).get()
        np.testing.assert_array_equal(got, array)
        assert not got.flags.writeable


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_writer_gets_the_error(reader: Any, size: int) -> None:
    ref = put(np.zeros(size))
    for method in (reader.write, reader.add_to):
        with pytest.raises(ValueError, match="read-only") as caught:
            method(ref).result()
        assert any("array.copy()" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="WRITEABLE"):
        reader.make_writable(ref).result()
    assert ref.get().sum() == 0


def test_an_ordinary_argument_is_the_actors_own(reader: Any) -> None:
    mine = np.ones(LARGE)
    assert reader.change_own(mine).result() == 0
    assert mine.sum() == LARGE


def test_later_changes_of_the_value_change_nothing(reader: Any) -> None:
    array = np.zeros(LARGE)
    ref = put(array)
    array[:] = 9
    assert ref.get().sum() == 0
    assert reader.describe(ref).result()[0].sum() == 0


def test_a_direct_argument_is_the_value_and_one_within_something_is_the_reference(reader: Any) -> None:
    ref = put(np.ones(LARGE))
    assert reader.kinds(ref, [ref], key=ref).result() == ["ndarray", "list", "ndarray"]
    assert reader.take_apart([ref]).result() == [LARGE, "ObjectRef"]
    assert reader.describe(None, also=ref).result()[0].sum() == LARGE


def test_constructors_and_special_methods_take_values(anywhere: str) -> None:
    reader: Any = Reader(put(np.ones(LARGE)))
    assert reader.kept_sum().result() == LARGE
    assert reader + put(np.ones(4)) == "ndarray"


@pytest.mark.parametrize("value", [None, 7, "text", b"bytes" * 50_000, {"a": [1, {2}]}, (), "t" * 200_000])
def test_values_without_arrays_are_stored_as_well(reader: Any, value: Any) -> None:
    ref = put(value)
    assert ref.get() == value
    assert reader.kinds(ref).result() == [type(value).__name__]


def test_weights_come_as_a_dictionary_of_read_only_arrays(reader: Any) -> None:
    weights = {f"layer{i}": np.full((100, 300), i, np.float32) for i in range(10)}
    got = put(weights).get()
    assert list(got) == list(weights)
    assert all(not array.flags.writeable and (array == weights[name]).all() for name, array in got.items())
    got["more"] = 1  # the dictionary is one's own
    assert reader.kinds(put(weights)).result() == ["dict"]


def test_get_does_not_copy(shared_cluster: None) -> None:
    ref = put({"a": np.zeros(LARGE), "same": (same := np.ones(LARGE)), "again": same})
    got = ref.get()
    assert not got["a"].flags.owndata
    assert got["same"] is got["again"]


def test_a_reference_can_be_returned_and_outlives_its_actor(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    maker: Any = Reader()
    reader: Any = Reader()
    ref = maker.store(LARGE).result()
    small = maker.store(2).result()
    maker.destroy()
    assert ref.get().sum() == LARGE
    assert small.get().sum() == 2
    assert reader.describe(ref).result()[0].sum() == LARGE


def test_actors_pass_references_on(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    first: Any = Reader()
    second: Any = Reader()
    got, writeable, _ = first.pass_on(second, [put(np.ones(LARGE))]).result()
    assert got.sum() == LARGE
    assert not writeable


def test_what_an_actor_keeps_does_not_change_when_others_are_stored(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    first: Any = Reader()
    second: Any = Reader()
    ref = put(np.full(LARGE, 0.0))
    first.keep(ref).result()
    for value in range(1, 30):  # of the same size, so that memory is used again
        ref = put(np.full(LARGE, float(value)))
        second.keep(ref).result()
        assert second.kept_sum().result() == value * LARGE
    assert first.kept_sum().result() == 0.0


def test_a_call_holds_what_it_was_given(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    reader: Any = Reader()
    futures = [reader.describe(put(np.full(LARGE, float(value)))) for value in range(20)]
    assert [future.result()[0][0] for future in futures] == list(range(20))


def test_a_reference_that_comes_home_is_the_one_that_left(shared_cluster: None) -> None:
    reader: Any = Reader()
    ref = put(np.ones(LARGE))
    reader.keep([ref]).result()
    (back,) = reader.kept
    assert back is ref
    assert pickle.loads(pickle.dumps(ref)) is ref
    assert copy.copy(ref) is ref
    assert copy.deepcopy([ref])[0] is ref


def test_handles_within_a_value_are_held(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    ref = put({"actor": Reader(np.ones(3))})  # this is the only handle
    assert ref.get()["actor"].kept_sum().result() == 3


def test_what_cannot_be_stored_is_named(shared_cluster: None) -> None:
    import threading

    with pytest.raises(SerializationError, match="value given to put"):
        put(threading.Lock())
    with pytest.raises(TypeError, match="stored already"):
        put(put(1))
    reader: Any = Reader()
    with pytest.raises(TypeError, match=r"put\(future.result\(\)\)"):
        put(reader.kinds(1))


def test_put_wants_a_connection() -> None:
    from parl_remote import _current

    before = _current.clear()
    try:
        with pytest.raises(NotConnected):
            put(1)
    finally:
        if before is not None:
            _current.install(before)


def test_without_descriptors_values_travel_in_their_references(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(cpu_num=1)
    reader: Any = Reader()

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    ref = put(np.ones(7 * LARGE))  # more than there is kept to be used again
    monkeypatch.undo()
    got, writeable, _ = reader.describe(ref).result()
    assert got.sum() == 7 * LARGE
    assert not writeable


def test_a_lost_value_says_so(shared_cluster: None) -> None:
    ref = put(np.ones(LARGE))
    make, passport = ref.__reduce_ex__(5)
    gone = make("object-0123456789abcdef", passport[1], (), passport[3], (2**22 + 1, *passport[4][1:]))
    assert gone != ref
    with pytest.raises(ObjectLost, match="is gone"):
        gone.get()
    found = make(gone.id, *passport[1:])  # a process that still has it sends it again
    assert found is gone
    assert found.get().sum() == LARGE


def test_references_say_what_they_are(shared_cluster: None) -> None:
    ref = put(np.ones(LARGE))
    assert ref.id in repr(ref)
    assert 8 * LARGE <= ref.nbytes < 8 * LARGE + 1000
    assert len({ref, pickle.loads(pickle.dumps(ref))}) == 1
    assert ref != put(np.ones(LARGE))


@pytest.mark.slow
def test_the_page_on_large_data_shows_a_block_that_workers_do_not_track(run_program: Callable[..., Any]) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "data.md"
    program = page.read_text().partition("### Blocks of")[2].partition("```python\n")[2].partition("```")[0]
    done = run_program(program=program)
    assert (done.stdout, done.stderr) == ("5\n", "")


@pytest.mark.slow
def test_the_page_on_large_data_shows_a_program_that_runs(run_program: Callable[..., Any]) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "data.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    check = "assert weights.get()['layer1'].sum() == 500 * 5000\n"
    done = run_program(program=program + check)
    assert done.returncode == 0, done.stderr

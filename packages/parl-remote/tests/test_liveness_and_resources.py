"""Signs of life, and amounts of what is shared out."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_remote._master.cluster_tables import Liveness
from parl_remote._resources import Resources

beats = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=50)


def test_a_peer_silent_beyond_the_limit_is_reported_once() -> None:
    one: Liveness[str] = Liveness(15.0)
    one.heard("a", 0.0)
    one.heard("b", 1.0)
    one.heard("a", 10.0)
    assert one.next_check() == 16.0
    assert one.expired(16.0) == []
    assert one.expired(16.1) == ["b"]
    assert one.expired(16.1) == []
    assert one.silent_s("a", 16.0) == 6.0


def test_a_forgotten_peer_is_not_reported_as_lost() -> None:
    one: Liveness[str] = Liveness(1.0)
    one.heard("a", 0.0)
    one.forget("a")
    one.forget("never seen")
    assert one.next_check() is None
    assert one.expired(100.0) == []


def test_after_a_suspension_a_peer_has_the_whole_limit_again() -> None:
    one: Liveness[str] = Liveness(15.0)
    one.heard("a", 0.0)
    one.heard("b", 1.0)
    one.restart_silence(100.0)
    assert one.next_check() == 115.0
    assert one.expired(115.0) == []
    assert sorted(one.expired(115.1)) == ["a", "b"]


@given(beats)
def test_exactly_the_silent_ones_expire_whatever_the_order_of_beats(beats: list[tuple[int, float]]) -> None:
    one: Liveness[int] = Liveness(3.0)
    last: dict[int, float] = {}
    now = 0.0
    for peer, pause in beats:
        now += pause
        one.heard(peer, now)
        last[peer] = now
    now += 2.0
    assert sorted(one.expired(now)) == sorted(peer for peer, heard in last.items() if now - heard > 3.0)


def test_a_limit_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Liveness(0.0)


thousandths = st.integers(0, 10**7).map(lambda n: round(n / 1000, 3))
vectors = st.builds(
    Resources,
    cpu=thousandths,
    gpu=thousandths,
    memory=st.integers(0, 2**45),
    labels=st.dictionaries(st.sampled_from(["a", "b"]), thousandths),
)


@given(vectors, vectors)
def test_what_is_given_back_is_what_was_taken(has: Resources, need: Resources) -> None:
    assert has + need - need == has
    assert (has + need).fits(need)


@given(vectors, vectors)
def test_what_fits_can_be_taken_and_what_does_not_cannot(has: Resources, need: Resources) -> None:
    if has.fits(need):
        assert has - need + need == has
    else:
        with pytest.raises(ValueError, match="0 or more"):
            has - need


@given(vectors)
def test_equal_vectors_are_one_key(one: Resources) -> None:
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    assert hash(copy) == hash(one)


def test_thirds_of_a_cpu_never_leave_a_rest() -> None:
    left = Resources(cpu=1)
    for _ in range(3):
        left -= Resources(cpu=0.333)
    assert left == Resources(cpu=0.001)


@pytest.mark.parametrize(
    ("kind", "amount", "complaint"),
    [("cpu", -1, "cpu must be"), ("gpu", float("nan"), "gpu must be"), ("cpu", 0.0001, "0.0001 is finer"),
     ("memory", -5, "memory must be"), ("cpu", 1e300, "cpu must be")],
)  # fmt: skip
def test_amounts_that_make_no_sense_are_refused(kind: str, amount: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Resources(**{kind: amount})  # type: ignore[arg-type]  # each kind takes its own number


def test_a_label_cannot_pose_as_a_cpu() -> None:
    with pytest.raises(ValueError, match="cannot be the name of a label"):
        Resources(labels={"cpu": 5})


def test_amounts_read_as_people_say_them() -> None:
    assert str(Resources(cpu=1.5, gpu=2, memory=2**30, labels={"license": 1})) == (
        "1.5 CPU, 2 GPU, 1024 MiB memory, 1 license"
    )
    assert str(Resources()) == "nothing"

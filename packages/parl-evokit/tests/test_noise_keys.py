"""Keys: never twice, in pairs, and two small integers on the wire."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from parl_evokit.errors import EvolutionError, InvalidKey
from parl_evokit.noise import CounterKeys, RandomKeys, check_key, join_key, split_key
from parl_evokit.noise._keys import Arm, arms_of, identity_in, identity_of_no_arm


@pytest.mark.parametrize("key", [0, 2, 3, 2**31 - 1, 2**31, 2**62 - 1])
def test_a_key_splits_into_two_small_integers_and_joins_again(key: int) -> None:
    high, low = split_key(key)
    assert max(high, low) < 2**31
    assert join_key((high, low)) == key


@pytest.mark.parametrize("halves", [(), (1,), (1, 2, 3), (-1, 5), (5, 2**31), (0, 1)])
def test_halves_that_are_no_key_are_refused(halves: tuple[int, ...]) -> None:
    with pytest.raises(InvalidKey):
        join_key(halves)


@pytest.mark.parametrize("source", [RandomKeys(), CounterKeys(7)])
def test_two_draws_in_a_row_are_the_halves_of_a_pair(source: RandomKeys | CounterKeys) -> None:
    for _ in range(20):
        even, odd = source.draw(), source.draw()
        assert even % 2 == 0
        assert odd == even + 1


@pytest.mark.parametrize("source", [RandomKeys(), CounterKeys(7)])
def test_after_an_update_a_new_pair_is_started(source: RandomKeys | CounterKeys) -> None:
    first = source.draw()
    source.start_pair()
    even, odd = source.draw(), source.draw()
    assert even % 2 == 0
    assert odd == even + 1
    assert first not in (even, odd)
    source.start_pair()
    assert source.draw() % 2 == 0


@pytest.mark.parametrize("source", [RandomKeys(mirrored=False), CounterKeys(7, mirrored=False)])
def test_without_mirrored_sampling_each_key_is_a_pair_of_its_own(source: RandomKeys | CounterKeys) -> None:
    keys = [source.draw() for _ in range(100)]
    assert len(set(keys)) == 100
    assert all(key % 2 == 0 for key in keys)


@pytest.mark.parametrize("source", [RandomKeys(), CounterKeys()])
def test_threads_never_draw_the_same_key(source: RandomKeys | CounterKeys) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: source.draw(), range(4000)))
    assert len(set(keys)) == 4000
    assert min(keys) >= 2


def test_counted_keys_repeat_in_each_run_and_differ_between_workers() -> None:
    runs = [[source.draw() for _ in range(10)] for source in (CounterKeys(3), CounterKeys(3), CounterKeys(4))]
    assert runs[0] == runs[1]
    assert not set(runs[0]) & set(runs[2])
    assert [split_key(key) for key in runs[0][:3]] == [(3, 2), (3, 3), (3, 4)]


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("source", [RandomKeys, CounterKeys])
def test_many_keys_are_ascending(source: type[RandomKeys | CounterKeys], mirrored: bool) -> None:
    keys = source(mirrored=mirrored).draw_many(50).tolist()
    assert keys == sorted(set(keys))


def test_random_keys_do_not_repeat_between_sources() -> None:
    first, second = RandomKeys(), RandomKeys()
    assert not {first.draw() for _ in range(1000)} & {second.draw() for _ in range(1000)}


def test_a_half_that_waited_in_the_parent_is_not_used_by_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    source = RandomKeys()
    even = source.draw()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert source.draw() != even + 1


def test_a_pickled_source_of_random_keys_does_not_carry_the_waiting_half() -> None:
    source = RandomKeys()
    even = source.draw()
    assert pickle.loads(pickle.dumps(source)).draw() != even + 1
    assert source.draw() == even + 1


def test_a_pickled_source_of_counted_keys_goes_on_where_it_was() -> None:
    source = CounterKeys(5)
    source.draw()
    copy = pickle.loads(pickle.dumps(source))
    assert copy.draw() == source.draw()


def test_a_worker_that_runs_out_of_keys_says_so() -> None:
    source = CounterKeys(1, first=2**31 - 1)
    source.draw()
    with pytest.raises(EvolutionError, match="worker 1 has used all its keys"):
        source.draw()
    with pytest.raises(InvalidKey, match=str(2**31)):
        CounterKeys(2**31)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 11])
@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("ahead", [0, 1])
def test_many_keys_at_once_are_what_as_many_draws_give(n: int, mirrored: bool, ahead: int) -> None:
    keys = RandomKeys(mirrored)
    drawn = [keys.draw() for _ in range(ahead)] + keys.draw_many(n).tolist() + [keys.draw() for _ in range(3)]
    assert len(set(drawn)) == ahead + n + 3
    assert all(check_key(key) and key != 0 for key in drawn)
    if mirrored:
        assert all(odd == even ^ 1 for even, odd in zip(drawn[::2], drawn[1::2], strict=False))
    else:
        assert not any(key % 2 for key in drawn)
    counted, one_by_one = CounterKeys(3, mirrored), CounterKeys(3, mirrored)
    assert counted.draw_many(n).tolist() == [one_by_one.draw() for _ in range(n)]
    assert counted.draw() == one_by_one.draw()


def test_an_identity_tells_its_arm_and_the_key_that_was_drawn() -> None:
    drawn = [2, 3, 2**61 + 2, 2**62 - 1]
    found = [identity_in(arm, key) for arm in Arm for key in drawn]
    assert [number >> 60 for number in found] == [0] * 4 + [1] * 4 + [2] * 4
    assert [number % 2**60 for number in found] == [key % 2**60 for key in drawn] * 3
    assert arms_of(np.array(found, np.uint64)).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_an_identity_of_no_arm_is_neither_none_nor_the_reserved_one() -> None:
    draws = iter([0, 1, 2, 2**60 - 1])
    assert identity_of_no_arm(lambda _: next(draws)) == 2
    assert identity_of_no_arm(lambda _: next(draws)) == 2**60 - 1

"""Samples are sorted before an update: none is lost, counted twice, or read with foreign noise in silence."""

import math
import random
from math import fsum

import numpy as np
import pytest

from parl_evokit._records import SamplingInfo
from parl_evokit._samples import Samples, SortedSamples, fresh_intake, sort_samples
from parl_evokit.errors import InvalidReward
from parl_evokit.noise import split_key

PRINT = 0xABCD


def info(key: int, model_iter_id: int = 10, fingerprint: int = PRINT) -> SamplingInfo:
    return SamplingInfo(split_key(key), model_iter_id, fingerprint)


def sort(*samples: tuple[SamplingInfo, float]) -> SortedSamples:
    infos, rewards = [i for i, _ in samples], [r for _, r in samples]
    return sort_samples(Samples.of(infos, rewards), model_iter_id=10, fingerprint=PRINT, max_age=3)


def test_each_unusable_sample_is_counted_under_its_reason() -> None:
    intake = sort(
        (info(2), 1.0),
        (info(4, 11), 1.0),
        (info(6, 6), 1.0),
        (info(8, 10, 99), 1.0),
        (info(10), math.nan),
        (info(12), math.inf),
        (info(14), 1e39),
        (SamplingInfo([5], 10, PRINT), 1.0),
        (SamplingInfo([0, 1], 10, PRINT), 1.0),
    )
    aside = intake.set_aside
    assert (aside.orphan, aside.too_old, aside.foreign, aside.not_finite, aside.bad_key) == (1, 1, 1, 3, 2)
    assert aside.total == 8
    assert intake.used == 1
    assert str(aside) == "1 too old, 1 orphan, 1 foreign, 3 not finite, 2 bad key"


def test_records_of_the_present_model_are_taken_without_their_columns() -> None:
    infos, rewards = [info(key) for key in (8, 2, 3, 1000, 9)], [0.0, 1e-60, 1e30, -2.5, 7.0]
    for one in infos:
        one.fill(one.noise_key, 10, PRINT)
    fresh, (whole,) = fresh_intake(infos, rewards, (10, PRINT)), sort(*zip(infos, rewards, strict=True)).groups
    assert fresh is not None
    (group,) = fresh.groups
    assert group.keys.tolist() == whole.keys.tolist() == [2, 3, 8, 9, 1000]
    assert group.rewards.tolist() == whole.rewards.tolist() == [0.0, 1e30, 0.0, 7.0, -2.5]
    for odd in (info(0), info(2), info(4, 11), info(6, 10, 0), SamplingInfo([5], 10, PRINT)):
        assert fresh_intake([*infos, odd], [*rewards, 1.0], (10, PRINT)) is None
    assert fresh_intake(infos, [*rewards[:4], 1e39], (10, PRINT)) is None
    assert fresh_intake([], [], (10, PRINT)) is None


def test_samples_are_grouped_by_age_youngest_first_with_keys_ascending() -> None:
    intake = sort((info(9, 7), 1.0), (info(8), 2.0), (info(4), 3.0), (info(5, 7), 4.0))
    assert [(group.age, group.keys.tolist(), group.rewards.tolist()) for group in intake.groups] == [
        (0, [4, 8], [3.0, 2.0]),
        (3, [5, 9], [4.0, 1.0]),
    ]


def test_samples_of_the_present_model_are_the_same_group_alone_and_among_others() -> None:
    present = [(info(6), 0.1), (info(3), math.pi), (info(2), -1e30)]
    (alone,) = sort(*present).groups
    among = sort(*present, (info(6, 9), 5.0)).groups[0]
    assert alone.age == among.age == 0
    assert alone.keys.tolist() == among.keys.tolist() == [2, 3, 6]
    assert alone.rewards.tobytes() == among.rewards.tobytes()


def test_several_rewards_of_one_sample_count_once_by_their_mean() -> None:
    intake = sort((info(2), 1.0), (info(2), 4.0), (info(2), 4.0), (info(3), 5.0))
    assert intake.groups[0].rewards.tolist() == [3.0, 5.0]
    assert intake.repeated == 2


def test_only_both_halves_of_one_model_make_a_pair() -> None:
    assert sort((info(2), 1.0), (info(3), 1.0), (info(4), 1.0), (info(7), 1.0), (info(8), 1.0)).pairs == 1
    assert sort((info(2), 1.0), (info(3, 9), 1.0)).pairs == 0
    assert sort((info(3), 1.0), (info(4), 1.0)).pairs == 0


def test_control_traffic_gives_rewards_but_no_samples() -> None:
    intake = sort((info(0), 5.0), (SamplingInfo((), 10, PRINT), 7.0), (info(2), 1.0))
    assert intake.control == [5.0, 7.0]
    assert intake.used == 1


def test_records_without_fingerprint_as_the_original_writes_them_are_taken() -> None:
    assert sort((info(2, 10, 0), 1.0)).used == 1


def test_the_outcome_does_not_depend_on_the_order() -> None:
    draw = random.Random(3)
    samples = [(info(draw.choice([2, 3, 4, 99]), draw.randrange(5, 12)), draw.gauss(0, 1)) for _ in range(60)]

    def outcome(order: list[tuple[SamplingInfo, float]]) -> str:
        intake = sort(*order)
        groups = [(group.age, group.keys.tobytes(), group.rewards.tobytes()) for group in intake.groups]
        return repr((groups, intake.set_aside, intake.repeated))

    assert {outcome(draw.sample(samples, 60)) for _ in range(10)} == {outcome(samples)}


def test_rewards_that_a_log_cannot_hold_count_as_what_it_would_hold() -> None:
    largest, smallest = 2.0**128 - 2.0**103, 2.0**-150
    given = [
        largest,
        -largest,
        math.nextafter(largest, 0),
        smallest,
        -smallest,
        math.nextafter(smallest, 1),
        -0.0,
        1e300,
    ]
    found = Samples.of([SamplingInfo() for _ in given], given).rewards.tolist()
    assert found == [math.inf, -math.inf, given[2], 0.0, 0.0, given[5], 0.0, math.inf]
    with np.errstate(over="ignore"):
        logged = np.array(given).astype(np.float32)
    assert np.isfinite(found).tolist() == np.isfinite(logged).tolist()
    assert np.signbit(found).tolist() == np.signbit(logged).tolist()


def test_there_must_be_one_reward_for_each_sample() -> None:
    with pytest.raises(InvalidReward, match="2 samples came with 1 rewards"):
        Samples.of([info(2), info(4)], [1.0])


def test_rewards_of_samples_join_as_one_by_one() -> None:
    """Against a plain loop: repeated rewards with and without tokens, of several models, in any order."""
    dice = np.random.default_rng(4)
    n = 3000
    samples = Samples(
        dice.integers(2, 400, n).astype(np.uint64),
        dice.integers(0, 3, n),
        np.full(n, PRINT, np.uint32),
        dice.normal(size=n).astype(np.float32),
        dice.integers(1, 4, n).astype(np.uint32),
        dice.integers(0, 5, n),
        dice.random(n) < 0.3,
    )
    rows: dict[tuple[int, int], list[tuple[int, float, int, bool]]] = {}
    for key, model, _, reward, count, time, token in zip(
        *(each.tolist() for each in vars(samples).values()), strict=True
    ):
        rows.setdefault((model, key), []).append((time, reward, count, token))
    joined = samples.joined()
    assert list(zip(joined.models.tolist(), joined.keys.tolist(), strict=True)) == sorted(rows)
    for sample, reward, count, token in zip(
        sorted(rows), joined.rewards.tolist(), joined.counts.tolist(), joined.tokens.tolist(), strict=True
    ):
        signed = [(time, value) for time, value, _, trusted in rows[sample] if trusted]
        assert token == bool(signed)
        if signed:
            assert reward == min(signed)[1]
        else:
            total = sum(number for _, _, number, _ in rows[sample])
            assert count == total
            assert reward == np.float32(fsum(value * number for _, value, number, _ in rows[sample]) / total)

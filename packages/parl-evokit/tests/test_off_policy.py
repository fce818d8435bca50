"""The reward of a candidate, estimated from other models' traffic: right on a shop whose truth is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parl_evokit import EvolutionError, LogWriter, RecordError, SamplingInfo, Tokens, read_log
from parl_evokit._records import Record, varint
from parl_evokit.log._frames import Header, frame
from parl_evokit.off_policy import Decisions, evaluate, read_decisions

TASTE = np.random.default_rng(7).standard_normal((3, 4))


def chances(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(scores)
    return powers / powers.sum(1, keepdims=True)


def clicks(contexts: NDArray[np.float32]) -> NDArray[np.float64]:
    """The probability of a click on each action."""
    return 1.0 / (1.0 + np.exp(1.0 - contexts @ TASTE))


def serving(contexts: NDArray[np.float32]) -> NDArray[np.float64]:
    return chances(0.3 * contexts @ TASTE[:, ::-1])


def candidate(contexts: NDArray[np.float32]) -> NDArray[np.float64]:
    return chances(1.5 * contexts @ TASTE)


def traffic(random: np.random.Generator, n: int) -> Decisions:
    contexts = random.standard_normal((n, 3)).astype(np.float32)
    p = serving(contexts)
    actions = (p.cumsum(1) < random.random((n, 1))).sum(1)
    rows = np.arange(n)
    rewards = (random.random(n) < clicks(contexts)[rows, actions]).astype(np.float64)
    return Decisions(contexts, actions, p[rows, actions], rewards)


def test_a_copy_without_headers_adds_no_decisions(tmp_path: Path) -> None:
    """Its rewards do not count either, so each of its decisions would have the default reward."""
    with LogWriter(tmp_path) as log:
        for number in range(1, 6):
            info = SamplingInfo([1, number], 0, 9)
            log.sampled(info, context=[1.0], action=0, propensity=0.5)
            log.reward(info, 5.0)
    (segment,) = tmp_path.iterdir()
    data = bytearray(segment.read_bytes())
    for place in (10, data.index(data[:10], 1) + 10):  # in both headers
        data[place] ^= 1
    (tmp_path / "copy.evl").write_bytes(data)
    assert read_decisions(tmp_path, default_reward=0.0).rewards.tolist() == [5.0] * 5


@pytest.mark.slow
def test_the_intervals_hold_the_truth_of_a_simulated_shop() -> None:
    random = np.random.default_rng(1)
    visitors = random.standard_normal((400_000, 3)).astype(np.float32)
    truth = float((candidate(visitors) * clicks(visitors)).sum(1).mean())
    held = {"ips": 0, "snips": 0, "dr": 0}
    widths = {"ips": 0.0, "snips": 0.0, "dr": 0.0}
    for _ in range(200):
        result = evaluate(traffic(random, 2000), candidate)
        for name in held:
            estimate = getattr(result, name)
            held[name] += estimate.low <= truth <= estimate.high
            widths[name] += estimate.high - estimate.low
        assert 100 < result.effective < 2000
    assert all(count >= 180 for count in held.values()), held
    assert widths["dr"] < widths["snips"] < widths["ips"]


def test_the_serving_policy_is_estimated_as_it_was() -> None:
    decisions = traffic(np.random.default_rng(2), 500)
    result = evaluate(decisions, serving)
    assert result.logged.value == result.snips.value == pytest.approx(decisions.rewards.mean())
    assert result.effective == pytest.approx(500)


def test_a_candidate_that_takes_actions_that_the_log_lacks_shows_in_the_mean_weight() -> None:
    """All else looks well: its decisions that the log does have are many, and of equal weight."""
    decisions = traffic(np.random.default_rng(5), 2000)
    chosen = candidate(decisions.contexts)
    elsewhere = np.column_stack([0.5 * chosen, np.full(2000, 0.5)])  # half of the time the fifth of four actions
    assert evaluate(decisions, candidate).mean_weight == pytest.approx(1.0, abs=0.1)
    result = evaluate(decisions, lambda _: elsewhere)
    assert result.mean_weight == pytest.approx(0.5, abs=0.05)
    assert result.effective == pytest.approx(evaluate(decisions, candidate).effective)


def test_a_condition_is_a_policy_that_chooses_one_action() -> None:
    decisions = traffic(np.random.default_rng(3), 500)
    chosen = np.arange(4) == candidate(decisions.contexts).argmax(1)[:, None]
    assert evaluate(decisions, lambda _: chosen) == evaluate(decisions, lambda _: chosen.astype(np.float64))


def test_decisions_travel_through_the_log(tmp_path: Path) -> None:
    decisions = traffic(np.random.default_rng(3), 60)
    with LogWriter(tmp_path, tokens=Tokens([bytes(32)])) as log:
        for n in range(60):
            token = log.sampled(
                SamplingInfo([7, n + 2], 1, 5),
                context=decisions.contexts[n],
                action=int(decisions.actions[n]),
                propensity=float(decisions.propensities[n]),
            )
            if n % 3:
                log.reward(token, decisions.rewards[n])
                log.reward(token, 99.0)  # delivered again, and changed
    found = read_decisions(tmp_path)
    rows = np.arange(60) % 3 > 0
    assert np.array_equal(found.contexts, decisions.contexts[rows])
    assert np.array_equal(found.actions, decisions.actions[rows])
    assert found.propensities == pytest.approx(decisions.propensities[rows])
    assert np.array_equal(found.rewards, decisions.rewards[rows])
    contents = read_log(tmp_path)
    assert (len(contents.infos), contents.pending) == (40, 20)


def test_a_decision_has_the_reward_that_an_update_would_take(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        several, by_key = SamplingInfo([7, 2], 1, 5), SamplingInfo([7, 3], 1, 5)
        for info in (several, by_key):
            log.sampled(info, context=[1.0], action=2, propensity=0.5)
        log.reward(several, 5.0)
        log.reward(several, 1.0)
        log.reward(SamplingInfo([7, 3]), 4.0)
        for number in range(3):  # control traffic that nothing tells apart
            anonymous = SamplingInfo([], 1, 5)
            log.sampled(anonymous, context=[9.0], action=0, propensity=0.5)
            log.reward(anonymous, float(number))
    found = read_decisions(tmp_path)
    assert found.rewards.tolist() == [3.0, 4.0]
    assert found.actions.tolist() == [2, 2]


def test_decisions_of_two_models_that_share_keys_and_numbers_are_two(tmp_path: Path) -> None:
    for fingerprint in (5, 6):
        with LogWriter(tmp_path) as log:
            info = SamplingInfo([7, 2], 1, fingerprint)
            log.sampled(info, context=[1.0], action=fingerprint, propensity=0.5)
            log.reward(info, float(fingerprint))
    found = read_decisions(tmp_path)
    assert sorted(zip(found.actions.tolist(), found.rewards.tolist(), strict=True)) == [(5, 5.0), (6, 6.0)]


def test_a_record_of_another_writer_that_is_no_decision_is_left_out(tmp_path: Path) -> None:
    tag, chance = b"\x4d", np.float32
    good = b"\x3a\x04" + chance(1.5).tobytes() + b"\x40\x01" + tag + chance(0.5).tobytes()
    bad = [
        good.replace(b"\x40\x01", b"\x40" + varint(2**63)),
        good.replace(chance(0.5).tobytes(), chance(0.0).tobytes()),
        good.replace(chance(1.5).tobytes(), chance(np.nan).tobytes()),
    ]
    header = frame(Header("0" * 32, 5).encode())
    records = []
    for number, fields in enumerate([good, *bad]):
        info = SamplingInfo([7, number], 1, 5)
        records += [frame(Record(info, 2.0).encode()), frame(Record(info).encode() + fields)]
    (tmp_path / "other.evl").write_bytes(header + header + b"".join(records))
    found = read_decisions(tmp_path)
    assert (found.actions.tolist(), found.rewards.tolist(), found.propensities.tolist()) == ([1], [2.0], [0.5])


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-6, 0.0), (1e20, 0.0), (1e3, 1.7e9)])
def test_estimates_do_not_depend_on_the_units_of_contexts(scale: float, offset: float) -> None:
    plain = traffic(np.random.default_rng(1), 400)
    chosen = candidate(plain.contexts)
    contexts = np.pad(plain.contexts.astype(np.float64) * scale, [(0, 0), (0, 1)]) + offset  # one is always the same
    other = replace(plain, contexts=contexts.astype(np.float32))
    results = [evaluate(decisions, lambda _: chosen).dr for decisions in (plain, other)]
    assert results[1].high - results[1].low == pytest.approx(results[0].high - results[0].low, rel=0.1)
    assert results[1].value == pytest.approx(results[0].value, abs=0.02)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 2.0, float("nan"), None, "0.9", 0.9j, np.complex64(0.5)])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(EvolutionError, match="level must be a number above 0 and below 1"):
        evaluate(traffic(np.random.default_rng(1), 10), candidate, level=level)


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_an_error_of_the_candidate_is_its_own(error: type[Exception]) -> None:
    def broken(contexts: NDArray[np.float32]) -> NDArray[np.float64]:
        raise error(f"contexts of {len(contexts)}")

    with pytest.raises(error, match=r"^contexts of 10$") as caught:
        evaluate(traffic(np.random.default_rng(1), 10), broken)
    assert not isinstance(caught.value, EvolutionError)


def returning(result: Any) -> Any:
    return lambda _: result


def test_what_is_no_decision_or_no_policy_is_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for bad in (
            {"action": -1},
            {"action": 1, "propensity": 0.0},
            {"action": 1, "propensity": 1.5},
            {"action": 1, "propensity": 1e39},
            {"action": 1, "propensity": 1e-300},  # 0 in a log, and then no decision of it can be used
            {"action": 1, "context": [0.5, float("nan")]},
            {"action": 1, "context": [1e300]},
        ):
            with pytest.raises(RecordError, match=r"an action must be|context must be"):
                log.sampled(SamplingInfo([1, 2], 1, 5), **bad)  # type: ignore[arg-type]
    decisions = traffic(np.random.default_rng(4), 20)
    results: list[Any] = [np.ones((20, 4)), np.ones((20, 1)), np.ones((9, 4)), np.ones(4), 0.5, None, "none", [[1], []]]
    for result in results:
        with pytest.raises(EvolutionError, match="a candidate"):
            evaluate(decisions, returning(result))
    with pytest.raises(EvolutionError, match="too few"):
        evaluate(read_decisions(tmp_path), candidate)


def test_visitors_who_send_nothing_count_with_the_reward_that_says_so(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for n in range(30):
            info = SamplingInfo([7, n + 2], 1, 5)
            log.sampled(info, context=[1.0], action=n % 2, propensity=0.5)
            if n % 3 == 0:
                log.reward(info, 1.0)
    assert read_decisions(tmp_path).rewards.tolist() == [1.0] * 10
    decisions = read_decisions(tmp_path, default_reward=0.0)
    assert sorted(decisions.rewards.tolist()) == [0.0] * 20 + [1.0] * 10
    with pytest.raises(EvolutionError, match="rewards are finite"):
        read_decisions(tmp_path, default_reward=float("nan"))


def test_rewards_without_a_fingerprint_belong_to_the_decision_with_their_key_and_model(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        for number in range(3):
            info = SamplingInfo([7, 2 + number], 1, 5)
            log.sampled(info, context=[1.0], action=number, propensity=0.5)
            log.reward(SamplingInfo(info.key, 1), float(number))
    found = read_decisions(tmp_path)
    assert sorted(found.rewards.tolist()) == [0.0, 1.0, 2.0]
    assert (found.rewards == found.actions).all()

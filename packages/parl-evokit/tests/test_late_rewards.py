"""Late rewards count for what they say: by weights that the update reports, and with a default where none comes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import ES, LogWriter, SamplingInfo, Tokens
from parl_evokit._records import Record
from parl_evokit._solver_dir import _checksum, read_summary
from parl_evokit.agent import ESAgent
from parl_evokit.log._frames import Header, frame
from parl_evokit.noise._keys import Arm

D, N = 20, 40


def left(stale: str, most: int, updates: int) -> tuple[float, int, set[str]]:
    """The distance from a target that remains where good samples are rewarded late, and how many steps were zero."""
    settings = {
        "optimizer": {"type": "ADAM", "base_lr": 0.05},
        "sampling": {"gaussian_sampling": {"std": 0.3}},
        "update": {"max_age": max(8, most), "stale": stale},
    }
    es = ES(np.zeros(D, np.float32), {"keys": "COUNTER", "solver": settings})
    random = np.random.default_rng(0)
    target = random.standard_normal(D) / np.sqrt(D)
    due: dict[int, list[tuple[SamplingInfo, float]]] = {}
    zero, rules = 0, set()
    for update in range(updates):
        infos = es.ask(N)
        rewards = -((es.candidates(infos) - target) ** 2).sum(1)
        dwell = 0.89 * (rewards - rewards.mean()) / rewards.std() + 0.46 * random.standard_normal(N)
        delays = np.rint(np.argsort(np.argsort(dwell)) / (N - 1) * most).astype(int)
        for delay, info, reward in zip(delays.tolist(), infos, rewards.tolist(), strict=True):
            due.setdefault(update + delay, []).append((info, reward))
        now = due.pop(update, [])
        if len(now) < 2:
            continue
        report = es.tell([info for info, _ in now], [reward for _, reward in now])
        zero += report.update_norm == 0.0
        rules.add(report.stale_rule)
        assert 0.0 < report.effective <= report.used
    return float(((es.mean - target) ** 2).sum()), zero, rules


@pytest.mark.slow
def test_where_good_samples_are_rewarded_late_the_default_learns_as_importance_weights_do() -> None:
    """Ranked among themselves, the early samples of a model have as many winners as the late ones."""
    grouped, default, weighted = (left(stale, 4, 150)[0] for stale in ("GROUPED", "AUTO", "IMPORTANCE"))
    assert default < 0.25 * grouped
    assert default < 1.5 * weighted


def test_delays_of_39_updates_leave_no_step_at_zero() -> None:
    remaining, zero, rules = left("AUTO", 39, 120)
    assert zero == 0
    assert remaining < 0.5
    assert rules <= {"", "IMPORTANCE", "POOLED"}


def test_large_models_are_pooled_where_models_differ_and_grouped_where_not() -> None:
    for shift, rule in ((0.0, "GROUPED"), (10.0, "POOLED")):
        es = ES(np.zeros(200, np.float32), {"keys": "COUNTER"})
        old = es.ask(10)
        es.tell(es.ask(4), [1.0, 2.0, 3.0, 4.0])
        fresh = es.ask(10)
        random = np.random.default_rng(1)
        rewards = random.standard_normal(20)
        rewards[:10] += shift
        assert es.tell([*old, *fresh], rewards).stale_rule == rule
    single = [es.ask(1)[0] for _ in range(3)]
    es.tell(es.ask(2), [1.0, 2.0])
    assert es.tell([*single, *es.ask(1)], [1.0, 2.0, 3.0, 4.0]).stale_rule == "POOLED"


def agent_of(**update: Any) -> ESAgent:
    update = {"reward_timeout_s": 100.0, "shaping": "CENTERED"} | update
    return ESAgent({"keys": "COUNTER", "solver": {"update": update}}, ({"w": np.zeros(8)}, lambda arrays, x: arrays))


def log_of(place: Path, agent: ESAgent, served: list[tuple[int, float | None]], name: str = "a") -> None:
    """A log of samples that were served at these seconds, with these rewards."""
    clone = agent.clone()
    head = frame(Header(name * 32, agent._ready("test")[0].sampler.fingerprint).encode())
    records = []
    for second, reward in served:
        info = clone.add_noise()
        records.append(Record(info, None, second * 10**6))
        if reward is not None:
            records.append(Record(info, reward, (second + 1) * 10**6))
    place.mkdir(exist_ok=True)
    (place / f"{name}.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))


@pytest.mark.parametrize(
    ("settings", "used", "timed_out", "mean"),
    [
        ({}, 5, 2, 1.2),
        ({"default_reward": -1.0}, 5, 2, 0.8),
        ({"censoring": "WORST"}, 5, 2, 1.6),
        ({"censoring": "DROP"}, 3, 0, 2.0),
        ({"reward_timeout_s": 0.0}, 3, 0, 2.0),
        ({"reward_timeout_s": 1e6}, 3, 0, 2.0),
    ],
)
def test_samples_whose_reward_does_not_come_count_as_the_settings_say(
    tmp_path: Path, settings: dict[str, Any], used: int, timed_out: int, mean: float
) -> None:
    agent = agent_of(**settings)
    log_of(tmp_path / "log", agent, [(1000, 1.0), (1000, None), (1001, None), (1150, 2.0), (1150, None), (1150, 3.0)])
    report, contents = agent.update_from_log(tmp_path / "log")
    assert (report.used, report.timed_out) == (used, timed_out)
    assert report.mean_reward == pytest.approx(mean)
    waiting = 3 if settings.get("reward_timeout_s") in {0.0, 1e6} else 1
    assert contents.pending == waiting


def test_the_worst_reward_is_one_that_counts(tmp_path: Path) -> None:
    agent = agent_of(censoring="WORST")
    foreign, twice, good, waiting = (agent.clone().add_noise() for _ in range(4))
    head = frame(Header("c" * 32, good.fingerprint).encode())
    rewarded = [(twice, 2.0, 10**9), (twice, -50.0, 10**9 + 1), (good, 3.0, 10**9)]
    records = [Record(waiting, None, 10**6), *(Record(info, reward, at, token=True) for info, reward, at in rewarded)]
    foreign.fingerprint ^= 1  # of another product in the same log
    records.append(Record(foreign, -1000.0, 10**9))
    (tmp_path / "c.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))
    report, _ = agent.update_from_log(tmp_path)
    assert (report.used, report.timed_out, report.set_aside.foreign, report.repeated) == (3, 1, 1, 1)
    assert report.mean_reward == pytest.approx((2.0 + 3.0 + 2.0) / 3)


def test_a_reward_that_comes_after_the_timeout_changes_nothing(tmp_path: Path) -> None:
    agent = agent_of()
    clone = agent.clone()
    late = clone.add_noise()
    head = frame(Header("c" * 32, late.fingerprint).encode())
    (tmp_path / "late.evl").write_bytes(head + head + frame(Record(late, None, 10**6).encode()))
    log_of(tmp_path, agent, [(500, 1.0), (500, 2.0)])
    assert agent.update_from_log(tmp_path)[0].timed_out == 1
    with LogWriter(tmp_path) as log:
        log.reward(late, 5.0)
        log.reward(clone.add_noise(), 1.0)
        log.reward(clone.add_noise(), 2.0)
    report, _ = agent.update_from_log(tmp_path)
    assert (report.used, report.set_aside.used) == (2, 1)


@pytest.mark.parametrize(("reward", "only_tokens"), [(float("nan"), False), (float("inf"), False), (7.0, True)])
def test_a_sample_waits_on_where_its_only_reward_does_not_count(
    tmp_path: Path, reward: float, only_tokens: bool
) -> None:
    agent = agent_of(only_tokens=only_tokens)
    clone = agent.clone()
    odd, *others = [clone.add_noise() for _ in range(3)]
    records = [Record(odd, None, 10**9), Record(odd, reward, 10**9 + 1)]
    records += [Record(info, 1.0, 10**9 + 2, token=True) for info in others]
    head = frame(Header("d" * 32, odd.fingerprint).encode())
    (tmp_path / "d.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))
    report, contents = agent.update_from_log(tmp_path)
    assert (report.used, report.set_aside.total, contents.pending) == (2, 1, 1)
    log_of(tmp_path, agent, [(2000, None)], "e")
    with LogWriter(tmp_path, tokens=Tokens([bytes(32)])) as log:
        for token in [log.sampled(clone.add_noise()) for _ in range(2)]:
            log.reward(token, 2.0)
    report, contents = agent.update_from_log(tmp_path)
    assert (report.used, report.timed_out) == (4, 2)
    assert (report.stale, contents.pending) == ({1: 1}, 0)


def test_a_clock_that_is_ahead_does_not_let_everything_time_out(tmp_path: Path) -> None:
    import time

    agent = agent_of()
    now = int(time.time())
    log_of(tmp_path, agent, [(now, 1.0), (now, None), (now, 2.0), (now + 10**6, 3.0)])
    report, contents = agent.update_from_log(tmp_path)
    assert (report.used, report.timed_out, contents.pending) == (3, 0, 1)


def test_samples_of_a_clock_that_is_behind_wait_from_the_update_before(tmp_path: Path) -> None:
    agent = agent_of()  # with a timeout of 100 s
    log_of(tmp_path, agent, [(10_000, 1.0), (10_000, 2.0)], "a")
    agent.update_from_log(tmp_path)
    log_of(tmp_path, agent, [(10_050, 1.0), (10_050, 2.0)], "b")
    log_of(tmp_path, agent, [(3000, None)], "c")
    report, contents = agent.update_from_log(tmp_path)
    assert (report.used, report.timed_out, contents.pending) == (2, 0, 1)
    log_of(tmp_path, agent, [(10_110, 1.0), (10_110, 2.0)], "d")
    report, contents = agent.update_from_log(tmp_path)
    assert (report.used, report.timed_out, contents.pending) == (3, 1, 0)


def test_a_first_update_goes_by_the_times_of_the_records(tmp_path: Path) -> None:
    agent = agent_of()
    log_of(tmp_path, agent, [(10_000, 1.0), (10_000, 2.0), (3000, None)])
    assert agent.update_from_log(tmp_path)[0].timed_out == 1


def test_a_sample_that_waits_does_not_stand_for_one_of_another_model_with_its_key(tmp_path: Path) -> None:
    agent = agent_of()
    log_of(tmp_path, agent, [(10_000, 1.0), (10_000, 2.0), (10_000, None)], "a")
    (waiting,) = agent.update_from_log(tmp_path)[1].waiting.infos()
    log_of(tmp_path, agent, [(10_050, 1.0), (10_050, 2.0)], "b")
    waiting.model_iter_id += 1
    head = frame(Header("c" * 32, waiting.fingerprint).encode())
    (tmp_path / "c.evl").write_bytes(head + head + frame(Record(waiting, None, 3000 * 10**6).encode()))
    report, contents = agent.update_from_log(tmp_path)
    assert (report.timed_out, contents.pending) == (0, 2)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_replay_lets_samples_wait_as_the_original_update_did(tmp_path: Path, recorded: bool) -> None:
    """Earlier versions went by the times of the records, and wrote no `since_us`."""
    agent, log = agent_of(), tmp_path / "log"
    log_of(log, agent, [(10_000, 1.0), (10_000, 2.0)], "a")
    agent.update_from_log(log)
    agent.save(tmp_path / "first")
    log_of(log, agent, [(10_050, 1.0), (10_050, 2.0)], "b")
    log_of(log, agent, [(3000, None)], "c")
    agent.update_from_log(log)
    agent.save(tmp_path / "second")
    summary = read_summary(tmp_path / "second")
    assert summary["since_us"] == 10_001 * 10**6
    if not recorded:
        del summary["since_us"]
        summary["checksum"] = _checksum(summary)
        (tmp_path / "second" / "solver.json").write_text(json.dumps(summary), encoding="utf-8")
    before = ESAgent()
    before.load_config({"keys": "COUNTER", "solver": {"update": {"reward_timeout_s": 100.0, "shaping": "CENTERED"}}})
    before.load_inference_model(tmp_path / "first", model=({"w": np.zeros(8)}, lambda arrays, x: arrays))
    before.load_solver(tmp_path / "first")
    report, contents = before.replay_log(log, tmp_path / "second")
    assert (report.timed_out, contents.pending) == ((0, 1) if recorded else (1, 0))
    assert (report.parameters_sha256 == summary["parameters_sha256"]) == recorded


def test_an_update_with_timeouts_can_be_replayed(tmp_path: Path) -> None:
    agent = agent_of()
    agent.save(tmp_path / "old")
    log_of(tmp_path / "log", agent, [(1000, 1.0), (1000, None), (1150, 2.0), (1150, None)])
    report, _ = agent.update_from_log(tmp_path / "log")
    agent.save(tmp_path / "new")
    log_of(tmp_path / "log", agent, [(5000, 1.0)], "b")
    before = agent_of()
    assert before.replay_log(tmp_path / "log", tmp_path / "new")[0].parameters_sha256 == report.parameters_sha256


def test_who_never_answers_counts_although_the_model_is_too_old_before_the_timeout(tmp_path: Path) -> None:
    agent = agent_of(reward_timeout_s=1e6, max_age=2)
    counts = []
    for number in range(4):
        log_of(
            tmp_path / "log", agent, [(1000 + number, 1.0), (1000 + number, 2.0), (1000 + number, None)], "abcd"[number]
        )
        report, contents = agent.update_from_log(tmp_path / "log")
        counts.append((report.used, report.timed_out, report.stale, contents.expired))
    assert counts == [(2, 0, {}, 0), (2, 0, {}, 0), (3, 1, {2: 1}, 0), (3, 1, {2: 1}, 0)]


def test_who_never_answers_counts_also_where_a_rollback_makes_two_models_too_old(tmp_path: Path) -> None:
    """An update that rolls back raises the number by two: it is the last one for the samples of two models."""
    update = {"max_age": 2, "reward_timeout_s": 1e6}
    guard = {"rollback": True, "control_share": 0.3, "holdout_share": 0.3, "min_control": 10}
    settings = {"keys": "COUNTER", "solver": {"update": update, "guard": guard}}
    agent = ESAgent(settings, ({"w": np.zeros(8)}, lambda arrays, x: arrays))
    random, clone = np.random.default_rng(1), agent.clone()
    silent: dict[int, int] = {}
    for number in range(4):
        with LogWriter(tmp_path / "log") as log:
            for _ in range(300):
                info = clone.add_noise()
                log.sampled(info)
                if random.random() < 0.5:
                    worse = number == 3 and info.identity >> 60 == Arm.PRESENT
                    log.reward(info, random.normal() - 9.0 * worse)
                else:
                    silent[number] = silent.get(number, 0) + 1
        report, contents = agent.update_from_log(tmp_path / "log")
        assert bool(report.rolled_back) == (number == 3)
        assert contents.expired == 0
    assert report.timed_out == silent[1] + silent[2]
    assert report.model_iter_id == 5
    assert contents.pending == silent[3]


def test_who_may_still_answer_does_not_count_in_a_rollback_without_a_step(tmp_path: Path) -> None:
    """Too few samples: the number rises by one only, so another update can use those without a reward."""
    update = {"max_age": 2, "reward_timeout_s": 1e6, "min_samples": 10}
    guard = {"rollback": True, "control_share": 0.45, "holdout_share": 0.45, "min_control": 10}
    settings = {"keys": "COUNTER", "solver": {"update": update, "guard": guard}}
    agent = ESAgent(settings, ({"w": np.zeros(8)}, lambda arrays, x: arrays))
    random, clone = np.random.default_rng(1), agent.clone()
    silent = 0
    for number in range(2):
        answered = 0
        with LogWriter(tmp_path / "log") as log:
            for served in range(300):
                info = clone.add_noise()
                if number and info.noise_key and served > 100:
                    continue
                log.sampled(info)
                if (not info.noise_key or not number) and random.random() < 0.5:
                    answered += 1
                    log.reward(info, random.normal() - 9.0 * (number and info.identity >> 60 == Arm.PRESENT))
                else:
                    silent += 1
        report, contents = agent.update_from_log(tmp_path / "log")
    assert (bool(report.rolled_back), report.model_iter_id, report.used) == (True, 2, 0)
    assert (report.set_aside.too_few, report.control + report.holdout) == (0, answered)
    assert (report.timed_out, contents.pending) == (0, silent)


@pytest.mark.parametrize(("settings", "second", "timed_out"), [({}, 1050, 0), ({}, 1150, 1), ({"max_age": 2}, 1150, 1)])
def test_who_may_still_answer_is_waited_for_although_only_the_present_model_counts(
    tmp_path: Path, settings: dict[str, Any], second: int, timed_out: int
) -> None:
    agent = agent_of(**{"max_age": 0} | settings)
    log_of(tmp_path / "log", agent, [(1000, 1.0), (1000, None), (second, 2.0), (second, None)])
    assert agent.update_from_log(tmp_path / "log")[0].timed_out == timed_out


def test_samples_without_a_time_do_not_time_out(tmp_path: Path) -> None:
    agent = agent_of(max_age=1)
    log_of(tmp_path / "log", agent, [(0, None), (1000, 1.0), (1000, 2.0)])
    reports = [agent.update_from_log(tmp_path / "log")[0]]
    log_of(tmp_path / "log", agent, [(1001, 1.0), (1001, 2.0)], "b")
    reports.append(agent.update_from_log(tmp_path / "log")[0])
    assert [report.timed_out for report in reports] == [0, 0]


def test_samples_of_another_model_in_the_log_neither_wait_nor_time_out(tmp_path: Path) -> None:
    agent, settings = agent_of(), {"keys": "COUNTER"}
    other = ESAgent(settings, ({"w": np.zeros(9)}, lambda arrays, x: arrays))
    log_of(tmp_path / "log", agent, [(1000, 1.0), (1000, 2.0), (1150, 3.0)])
    log_of(tmp_path / "log", other, [(1000, None), (1149, None), (1000, 5.0)], "b")
    report, contents = agent.update_from_log(tmp_path / "log")
    assert (report.used, report.timed_out, report.set_aside.foreign, report.set_aside.total) == (3, 0, 1, 1)
    assert (contents.pending, contents.expired) == (0, 0)


def test_samples_of_models_that_are_too_old_when_they_are_read_do_not_time_out(tmp_path: Path) -> None:
    agent = agent_of(max_age=1)
    log_of(tmp_path / "one", agent, [(1000, None), (1000, None)], "z")
    for number in range(2):
        log_of(tmp_path / "two", agent, [(1000, 1.0), (1000, 2.0)], "ab"[number])
        agent.update_from_log(tmp_path / "two")
    log_of(tmp_path / "two", agent, [(1150, 1.0), (1150, 2.0)], "c")
    report, contents = agent.update_from_log([tmp_path / "one", tmp_path / "two"])
    assert (report.used, report.timed_out, report.set_aside.total, contents.expired) == (2, 0, 0, 2)


@pytest.mark.parametrize("stale", ["AUTO", "IMPORTANCE"])
@pytest.mark.parametrize("distance", [10.0, 34.0, 38.0, 100.0])
def test_samples_however_far_from_the_present_model_are_weighed(stale: str, distance: float) -> None:
    """A weight may be a float64 number whose square is none."""
    settings = {"optimizer": {"base_lr": 1.0}, "sampling": {"gaussian_sampling": {"std": 1.0}}}
    es = ES(np.zeros(4), {"keys": "COUNTER", "solver": {**settings, "update": {"stale": stale}}})
    late = es.ask(8)
    es.tell(es.ask(8), range(8))
    es._sampler = replace(es.sampler, parameters=np.array([distance, 0.0, 0.0, 0.0], np.float32))
    report = es.tell(late, range(8))
    assert report.used == 8
    assert report.stale_rule == ("POOLED" if stale == "AUTO" else "IMPORTANCE")
    assert np.isfinite(es.mean).all()

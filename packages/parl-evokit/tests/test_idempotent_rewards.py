"""A reward counts once, however often it is delivered, and what was never issued does not count."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import AsyncESAgent, InvalidToken, LogWriter, NothingToUpdate, SamplingInfo, Tokens, mlp, read_log
from parl_evokit._records import Record
from parl_evokit._samples import decode, decode_spans
from parl_evokit.agent import ESAgent
from parl_evokit.errors import RecordError
from parl_evokit.log._frames import Header, frame

SECRET = bytes(32)


def agent_of(place: Path, **update: Any) -> AsyncESAgent:
    config = {
        "keys": "COUNTER",
        "solver": {"optimizer": {"type": "ADAM", "base_lr": 0.05}, "update": update, "guard": {"control_share": 0.3}},
        "async_es": {"model_warehouse": str(place / "warehouse"), "max_to_keep": 50},
    }
    return AsyncESAgent(({"w": np.ones(10, np.float32)}, lambda arrays, x: arrays["w"] @ x), config)


def serve(agent: AsyncESAgent, log: Path, n: int = 20) -> list[str]:
    clone = agent.clone()
    with LogWriter(log, tokens=Tokens([SECRET])) as writer:
        return [writer.sampled(clone.add_noise()) for _ in range(n)]


def deliver(log: Path, tokens: list[str], times: int = 1, factor: float = 1.0) -> None:
    for _ in range(times):
        with LogWriter(log, tokens=Tokens([SECRET])) as writer:
            for number, token in enumerate(tokens):
                writer.reward(token, factor * number)


def test_messages_that_are_delivered_again_before_their_update_change_no_bit(tmp_path: Path) -> None:
    digests = set()
    for times in (1, 2, 5):
        place = tmp_path / str(times)
        agent = agent_of(place)
        tokens = serve(agent, place / "log")
        deliver(place / "log", tokens, times)
        report, _ = agent.update_from_log(place / "log")
        assert report.used + report.control == 20
        assert report.repeated == 20 * (times - 1)
        digests.add(report.parameters_sha256)
    assert len(digests) == 1


def test_a_token_takes_its_first_reward(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    tokens = serve(agent, tmp_path / "log")
    deliver(tmp_path / "log", tokens)
    deliver(tmp_path / "log", tokens, factor=100.0)
    assert agent.update_from_log(tmp_path / "log")[0].best_reward <= 19.0


def test_messages_that_are_delivered_again_after_their_update_are_counted_and_do_nothing(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    tokens = serve(agent, tmp_path / "log")
    deliver(tmp_path / "log", tokens)
    agent.update_from_log(tmp_path / "log")
    deliver(tmp_path / "log", tokens, 3)
    with pytest.raises(NothingToUpdate, match="60 used"):
        agent.update_from_log(tmp_path / "log")
    fresh = serve(agent, tmp_path / "log")
    deliver(tmp_path / "log", fresh)
    report, contents = agent_of(tmp_path).update_from_log(tmp_path / "log")  # another process
    assert (report.used + report.control, report.set_aside.used, report.stale) == (20, 60, {})
    assert contents.pending == 0


def test_rewards_of_bare_records_count_once_too(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(10)]
    with LogWriter(tmp_path / "log") as log:
        for _ in range(2):
            for number, info in enumerate(infos):
                log.reward(info, float(number))
        agent.update_from_log(tmp_path / "log")
        for number, info in enumerate(infos):
            log.reward(info, float(number))
            log.sampled(info)
    with pytest.raises(NothingToUpdate, match="10 used"):
        agent.update_from_log(tmp_path / "log")


def test_rewards_with_the_key_alone_count_once_too(tmp_path: Path) -> None:
    agent = ESAgent({"keys": "COUNTER", "solver": {"update": {"max_age": 2}}}, mlp([3, 2]))
    old: list[SamplingInfo] = []
    counts = []
    for _ in range(4):
        clone = agent.clone()
        infos = [clone.add_noise() for _ in range(10)]
        with LogWriter(tmp_path) as writer:
            for info in infos:
                writer.sampled(info)
            for info in infos + old:
                writer.reward(SamplingInfo(info.key), 1.0)
        old = infos
        report, _ = agent.update_from_log(tmp_path)
        counts.append((report.used, report.set_aside.used, report.set_aside.total))
    assert counts == [(10, 0, 0), *[(10, 10, 10)] * 3]


def test_a_record_that_it_was_served_which_comes_after_its_reward_is_not_waited_for(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    clone = agent.clone()
    first, second = ([clone.add_noise() for _ in range(8)] for _ in range(2))
    with LogWriter(tmp_path / "log") as log:
        for info in first:
            log.reward(info, 1.0)
        agent.update_from_log(tmp_path / "log")
        for info in first:
            log.sampled(info)
        for number, info in enumerate(second):
            log.reward(info, float(number))
    assert agent.update_from_log(tmp_path / "log")[1].pending == 0


def test_a_use_is_forgotten_only_when_its_model_is_too_old_to_count(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, max_age=2)
    tokens = serve(agent, tmp_path / "log")
    deliver(tmp_path / "log", tokens)
    agent.update_from_log(tmp_path / "log")
    for age in range(1, 5):
        deliver(tmp_path / "log", tokens)
        deliver(tmp_path / "log", serve(agent, tmp_path / "log"))
        report, _ = agent.update_from_log(tmp_path / "log")
        assert (report.set_aside.used, report.set_aside.too_old) == ((20, 0) if age <= 2 else (0, 20))
    assert len(list((tmp_path / "warehouse" / "model_iter_id-5").glob("used-*.npy"))) == 2


def test_uses_replace_those_of_another_run_that_were_as_many(tmp_path: Path) -> None:
    directory, keys = tmp_path / "model", []
    for run in ("first", "second"):
        agent = ESAgent({}, mlp([3, 2]))
        infos = [agent.clone().add_noise() for _ in range(10)]
        with LogWriter(tmp_path / run) as writer:
            for info in infos:
                writer.reward(info, 1.0)
        agent.update_from_log(tmp_path / run)
        agent.save(directory)
        keys.append(sorted(info.noise_key for info in infos))
    assert keys[0] != keys[1]
    assert np.load(directory / "used-1.npy").tolist() == keys[1]


def test_a_use_that_was_forgotten_counts_no_second_time_where_max_age_is_raised(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, max_age=1)
    rounds = []
    for _ in range(4):
        rounds.append(serve(agent, tmp_path / "log"))
        deliver(tmp_path / "log", rounds[-1])
        agent.update_from_log(tmp_path / "log")
    patient = agent_of(tmp_path, max_age=8)
    for _ in range(3):  # also once the solver has been saved with the new setting
        for tokens in rounds:
            deliver(tmp_path / "log", tokens)
        deliver(tmp_path / "log", new := serve(patient, tmp_path / "log"))
        report, _ = patient.update_from_log(tmp_path / "log")
        assert report.used + report.control == len(new)
        assert (report.set_aside.too_old, report.set_aside.used) == (60, 20)
        patient = agent_of(tmp_path, max_age=8)


def test_rewards_for_what_was_not_issued_are_refused_counted_and_reported(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, only_tokens=True)
    tokens = serve(agent, tmp_path / "log")
    forged = Tokens([bytes(31) + b"\1"]).issue(agent.clone().add_noise())
    with LogWriter(tmp_path / "log", tokens=Tokens([SECRET])) as log:
        for token in (forged, tokens[0][:-1] + ("-" if tokens[0][-1] != "-" else "_"), "", "x" * 56):
            with pytest.raises(InvalidToken):
                log.reward(token, 1e9)
    clone = agent.clone()
    with LogWriter(tmp_path / "log") as log:  # a writer without the secret
        for _ in range(7):
            log.reward(clone.add_noise(), 1e9)
    deliver(tmp_path / "log", tokens)
    report, _ = agent.update_from_log(tmp_path / "log")
    assert report.best_reward <= 19.0
    assert report.set_aside.untrusted == 7
    assert report.refused == {"malformed": 2, "unknown_secret": 1, "forged": 1}
    assert '"untrusted":7' in (tmp_path / "warehouse" / "model_iter_id-1" / "history.jsonl").read_text()


def test_thirty_forged_of_480_records_turn_a_round_and_tokens_stop_it(tmp_path: Path) -> None:
    """The reward of the true task is w @ target; the forger chooses keys whose noise goes against it."""
    target = np.random.default_rng(0).standard_normal(10).astype(np.float32)

    def gain(place: Path, trusted: bool) -> float:
        agent = agent_of(place, only_tokens=trusted, shaping="CENTERED")
        before = agent.parameters()["w"] @ target
        strategy, clone = agent._ready("test")[0], agent.clone()
        with LogWriter(place / "log", tokens=Tokens([SECRET])) as log:
            for _ in range(450):
                info = clone.add_noise()
                log.reward(log.sampled(info), float(clone.parameters()["w"] @ target))
        infos = strategy.ask(3000)
        worst = sorted(infos, key=lambda info: float(strategy.candidate(info) @ target))[:30]
        with LogWriter(place / "log") as log:
            for info in worst:
                log.reward(info, 1000.0)
        agent.update_from_log(place / "log")
        return float(agent.parameters()["w"] @ target - before)

    assert gain(tmp_path / "open", trusted=False) < 0.0 < gain(tmp_path / "closed", trusted=True)


def test_a_segment_that_is_gone_is_forgotten_and_its_return_counts_nothing(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    deliver(tmp_path / "log", serve(agent, tmp_path / "log"))
    agent.update_from_log(tmp_path / "log")
    old = list((tmp_path / "log").glob("*.evl"))
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    for path in old:
        path.unlink()
    for _ in range(20):
        deliver(tmp_path / "log", serve(agent, tmp_path / "log", 12))
        agent.update_from_log(tmp_path / "log")
    assert len(agent._progress.ledger) == 40  # two segments a round; the first two are forgotten
    assert agent._progress.missing == {}
    for path in (tmp_path / "backup").glob("*.evl"):
        shutil.copy(path, tmp_path / "log")
    deliver(tmp_path / "log", serve(agent, tmp_path / "log", 12))
    report, _ = agent.update_from_log(tmp_path / "log")
    assert report.used + report.control == 12
    assert report.set_aside.too_old == 20


def test_a_segment_that_is_missing_for_a_while_is_not_forgotten(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    deliver(tmp_path / "log", serve(agent, tmp_path / "log"))
    agent.update_from_log(tmp_path / "log")
    for _ in range(3):
        deliver(tmp_path / "other", serve(agent, tmp_path / "other", 12))
        agent.update_from_log(tmp_path / "other")
    assert set(agent._progress.missing.values()) == {1}
    deliver(tmp_path / "other", serve(agent, tmp_path / "other", 12))
    agent.update_from_log([tmp_path / "log", tmp_path / "other"])
    assert agent._progress.missing == {}


def test_a_solver_of_format_1_is_still_read(tmp_path: Path) -> None:
    import json

    from parl_evokit import _solver_dir

    agent = ESAgent({"keys": "COUNTER"}, mlp([3, 2]))
    agent.save(tmp_path / "model")
    path = tmp_path / "model" / "solver.json"
    summary = json.loads(path.read_text())
    for name in ("missing", "used", "now_us", "since_us"):
        del summary[name]
    summary["format"] = 1
    summary["checksum"] = _solver_dir._checksum(summary)
    path.write_text(json.dumps(summary))
    again = ESAgent()
    again.load_config({"keys": "COUNTER"})
    again.load_inference_model(tmp_path / "model", model=mlp([3, 2]))
    again.load_solver(tmp_path / "model")
    assert again.model_iter_id == 0


def test_records_with_every_field_are_read_by_columns_and_one_by_one_alike(tmp_path: Path) -> None:
    infos = [SamplingInfo([0, 0], 3, 9, identity=77), SamplingInfo([5, 6], 3, 9), SamplingInfo([5, 7], 3)]
    records = [
        Record(info, reward, time_us, token=token)
        for info in infos
        for reward in (None, 1.5)
        for time_us in (0, 1, 1_800_000_000_000_000)
        for token in (False, True)
        if reward is not None or not token
    ]
    head = frame(Header("f" * 32, 9).encode())
    (tmp_path / "a.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))
    contents = read_log(tmp_path)
    assert sorted(contents.samples.times.tolist()) == sorted(r.time_us for r in records if r.reward is not None)
    assert int(contents.samples.tokens.sum()) == 9
    assert contents.latest_us == 1_800_000_000_000_000
    assert contents.infos == [SamplingInfo([5, 6], 3, 9), SamplingInfo([5, 7], 3, 9), infos[0]]


def test_decisions_are_read_by_columns_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        Record(SamplingInfo([5, n], 3, 9), reward, time_us, token=reward is not None, context=context, action=action)
        for n, (reward, time_us, context, action) in enumerate(
            (reward, time_us, context, action)
            for reward in (None, 1.5)
            for time_us in (0, 1_800_000_000_000_000)
            for context in (b"", bytes(4), bytes(40), bytes(4000))
            for action in (0, 7, 2**31 - 1)
        )
    ]
    payloads = [record.encode() for record in records]
    cut = [payload[:-place] for payload in payloads[:24] for place in (1, 2, 5, 6, 9, 30)]
    longer = [payload.replace(b"\x3a\x28", b"\x3a\xff\xff\xff\xff\x7f") for payload in payloads]
    broken = [payload for payload in cut + longer if payload not in payloads]

    def one_by_one(payload: bytes) -> Record | None:
        try:
            return Record.decode(payload)
        except RecordError:
            return None

    wanted = [one_by_one(payload) for payload in broken]
    starts = np.cumsum([0, *map(len, broken)])
    found = decode_spans(b"".join(broken), starts[:-1], starts[1:], np.zeros(len(broken), np.uint32))
    assert list(found.unreadable) == [row for row, record in enumerate(wanted) if record is None]
    assert found.unreadable
    assert len(found.rewarded) == sum(record is not None and record.reward is not None for record in wanted)

    monkeypatch.setattr(Record, "decode", lambda _: pytest.fail("it was decoded one by one"))
    decoded = decode(payloads, 9)
    assert len(decoded.rewarded) == len(decoded.served) == len(records) // 2
    assert decoded.served.infos() == [record.info for record in records if record.reward is None]
    assert decoded.rewarded.infos() == [record.info for record in records if record.reward is not None]
    assert decoded.rewarded.rewards.tolist() == [1.5] * len(decoded.rewarded)
    assert decoded.rewarded.tokens.all()

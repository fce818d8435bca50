"""Years of logs: what has been used may go, opening does not grow with history, and an operator sees what goes on."""

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from parl_evokit import (
    AsyncESAgent,
    ESAgent,
    EvolutionError,
    InvalidToken,
    LogError,
    LogWriter,
    SamplingInfo,
    StorageError,
    Tokens,
    _solver_dir,
    mlp,
    off_policy,
    read_log,
)
from parl_evokit._records import Record
from parl_evokit._solver_dir import history_line
from parl_evokit.cli import main
from parl_evokit.log import _segments
from parl_evokit.log._frames import Header, find_frames, frame, is_header, scan
from parl_evokit.log._segments import compact, prune
from parl_evokit.metrics import Metrics, exposition, page


def agent_of(place: Path) -> AsyncESAgent:
    config = {
        "keys": "COUNTER",
        "solver": {"guard": {"control_share": 0.1}},
        "async_es": {"model_warehouse": str(place / "warehouse")},
    }
    return AsyncESAgent(({"w": np.ones(4, np.float32)}, lambda arrays, x: arrays["w"] @ x), config)


@pytest.fixture
def agent(tmp_path: Path) -> AsyncESAgent:
    """An agent after three updates, with a log of six segments that are used and one that is not."""
    agent = agent_of(tmp_path)
    for update in range(4):
        clone = agent.clone()
        for _ in range(2 if update < 3 else 1):
            with LogWriter(tmp_path / "log", tokens=Tokens([bytes(32)])) as log:
                for number in range(12):
                    log.reward(log.sampled(clone.add_noise()), float(number))
                with pytest.raises(InvalidToken):
                    log.reward("x" * 56, 1.0)
        if update < 3:
            agent.update_from_log(tmp_path / "log")
    return agent


def evokit(*arguments: object, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == expect, result.output + result.stderr
    return result


def test_segments_that_are_used_can_go_and_learning_goes_on(agent: AsyncESAgent, tmp_path: Path) -> None:
    log, model = tmp_path / "log", tmp_path / "warehouse" / "model_iter_id-3"
    told = json.loads(evokit("log", "prune", log, "--model_dir", model, "--dry-run", "--json").output)
    assert (told["removed"], told["kept"]) == (6, 1)
    assert len(list(log.glob("*.evl"))) == 7
    assert (
        json.loads(evokit("log", "prune", log, "--model_dir", model, "--older-than-days=1", "--json").output)["removed"]
        == 0
    )
    evokit("log", "prune", log, "--model_dir", model)
    assert len(list(log.glob("*.evl"))) == 1
    report, _ = agent.update_from_log(log)
    assert report.used + report.control == 12


def test_a_torn_end_and_a_file_that_cannot_be_read_do_not_stop_retention(agent: AsyncESAgent, tmp_path: Path) -> None:
    log, model = tmp_path / "log", tmp_path / "warehouse" / "model_iter_id-3"
    used = sorted(log.glob("*.evl"), key=lambda path: path.stat().st_mtime)[0]
    with used.open("ab") as file:
        file.write(b"\xe5\x4b\x20\x00torn")  # what a writer leaves that is killed in the middle of a record
    (log / "other.evl").mkdir()  # cannot be read as a file
    told = json.loads(evokit("log", "prune", log, "--model_dir", model, "--json").output)
    assert (told["removed"], told["kept"]) == (6, 2)
    assert not used.exists()


def test_segments_that_are_used_can_be_archived_as_one(agent: AsyncESAgent, tmp_path: Path) -> None:
    log, model, archive = tmp_path / "log", tmp_path / "warehouse" / "model_iter_id-3", tmp_path / "archive"
    before = read_log(log)
    result = json.loads(evokit("log", "compact", log, "--model_dir", model, "--to", archive, "--json").output)
    assert (result["removed"], result["kept"], len(result["archives"])) == (6, 1, 1)
    both = read_log([log, archive])
    assert (both.infos, both.rewards, both.refused) == (before.infos, before.rewards, before.refused)
    with pytest.raises(LogError, match="is one of the logs"):
        compact([log], {}, log)


def used_log(place: Path, segments: int) -> tuple[Path, dict[str, int]]:
    """Return a log of so many segments of two records, and the ledger of one who has used them."""
    clone = agent_of(place).clone()
    for _ in range(segments):
        with LogWriter(place / "log") as log:
            for number in range(2):
                log.reward(clone.add_noise(), float(number))
    return place / "log", read_log(place / "log").ledger


def test_two_who_archive_at_once_write_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, ledger = used_log(tmp_path, 6)
    rename = Path.rename
    seen: list[Path] = []

    def other_first(path: Path, target: Path) -> Path:
        if path.suffix == ".evl" and not seen:
            seen.append(path)
            assert compact([log], ledger, tmp_path / "archive").records == 12
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", other_first)
    assert compact([log], ledger, tmp_path / "archive").records == 0
    assert len(read_log(tmp_path / "archive").samples) == 12
    assert list(log.iterdir()) == []


def test_an_archive_whose_writer_was_killed_has_each_record_once_after_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, ledger = used_log(tmp_path, 6)
    unlink = Path.unlink
    gone: list[Path] = []

    def killed(path: Path, missing_ok: bool = False) -> None:
        if len(gone) == 2:
            raise KeyboardInterrupt
        gone.append(path)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            compact([log], ledger, tmp_path / "archive")
    done = compact([log], ledger, tmp_path / "archive")
    assert (len(done.segments), done.records) == (4, 0)
    assert len(read_log(tmp_path / "archive").samples) == 12
    assert list(log.iterdir()) == []


def test_copies_of_a_segment_are_archived_once(tmp_path: Path) -> None:
    log, ledger = used_log(tmp_path, 1)
    (segment,) = log.iterdir()
    (log / "copy.evl").write_bytes(segment.read_bytes())
    assert compact([log], ledger, tmp_path / "archive").records == 2
    assert len(read_log(tmp_path / "archive").samples) == 2


def test_copies_in_two_logs_are_archived_once_with_what_either_has_whole(tmp_path: Path) -> None:
    log, ledger = used_log(tmp_path, 1)
    (segment,) = log.iterdir()
    data = segment.read_bytes()
    places = find_frames(data).places
    other = tmp_path / "other"
    other.mkdir()
    for path, place in ((segment, places[-1]), (other / segment.name, places[-2])):  # another record is damaged in each
        damaged = bytearray(data)
        damaged[place + 10] ^= 1
        path.write_bytes(damaged)
    done = compact([log, other], ledger, tmp_path / "archive")
    assert (done.records, len(done.segments), done.kept) == (2, 2, 0)
    assert len(read_log(tmp_path / "archive").samples) == 2


def test_a_copy_of_what_a_killed_run_has_archived_is_not_archived_again(tmp_path: Path) -> None:
    log, ledger = used_log(tmp_path, 1)
    (segment,) = log.iterdir()
    other, staged = tmp_path / "other", log / f"archiving-{'5' * 32}"
    staged.mkdir()
    other.mkdir()
    (other / "copy.evl").write_bytes(segment.read_bytes())
    segment.rename(staged / segment.name)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / f"archive-{'5' * 12}.evl").write_bytes(b"written")
    done = compact([log, other], ledger, tmp_path / "archive")
    assert (done.records, len(done.segments)) == (0, 2)
    assert [*log.iterdir(), *other.iterdir()] == []


STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def killed_at(step: int, place: Path, work: Callable[[], object]) -> bool:
    """Run this in a process that is killed before its `step`-th access to a file there; return whether it was."""
    child = os.fork()
    if not child:
        seen = itertools.count(1)

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            if event in STEPS and str(arguments[0]).startswith(str(place)) and next(seen) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(look)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in {0, signal.SIGKILL}
    return status != 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is killed")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_copies_are_archived_once_wherever_a_run_is_killed(tmp_path: Path) -> None:
    source, ledger = used_log(tmp_path / "source", 2)
    for step in itertools.count(1):
        place = tmp_path / str(step)
        logs = [place / name for name in ("a", "b", "c")]
        for log in logs:
            shutil.copytree(source, log)
        killed = killed_at(step, place, partial(compact, logs, ledger, place / "archive"))
        compact(logs, ledger, place / "archive")
        frames = [scan(path.read_bytes()).payloads for path in (place / "archive").iterdir()]
        assert sum(not is_header(payload) for payloads in frames for payload in payloads) == 4, step
        assert [path for log in logs for path in log.iterdir()] == []
        if not killed:
            break
    assert step > 20


def test_an_archive_that_cannot_be_written_leaves_all_logs_as_they_were(tmp_path: Path) -> None:
    source, ledger = used_log(tmp_path / "source", 2)
    logs = [tmp_path / name for name in ("a", "b", "c")]
    for log in logs:
        shutil.copytree(source, log)
    before = {path: path.read_bytes() for log in logs for path in log.iterdir()}
    (tmp_path / "archive").write_text("a file", encoding="utf-8")
    with pytest.raises(StorageError, match="no segment was removed"):
        compact(logs, ledger, tmp_path / "archive")
    assert {path: path.read_bytes() for log in logs for path in log.iterdir()} == before


@pytest.mark.parametrize("command", ["prune", "compact"])
def test_segments_with_records_of_another_model_stay(agent: AsyncESAgent, tmp_path: Path, command: str) -> None:
    other = ESAgent({"solver": {"update": {"max_age": 20}}}, mlp([4, 2]))
    for clones in ((agent.clone(), other.clone()), (other.clone(),), (agent.clone(),)):
        with LogWriter(tmp_path / "log") as log:
            for number in range(6):
                for clone in clones:
                    log.reward(clone.add_noise(), float(number))
    shared = sorted((tmp_path / "log").glob("*.evl"), key=lambda path: path.stat().st_mtime_ns)[-3:-1]
    agent.update_from_log(tmp_path / "log")
    newest = tmp_path / "warehouse" / "model_iter_id-4"
    to = ["--to", tmp_path / "archive"] if command == "compact" else []
    told = json.loads(evokit("log", command, tmp_path / "log", "--model_dir", newest, *to, "--json").output)
    assert (told["removed"], told["kept"]) == (8, 2)
    assert sorted((tmp_path / "log").glob("*.evl")) == sorted(shared)
    assert other.update_from_log(tmp_path / "log")[0].used == 12


def test_what_a_killed_run_has_begun_to_write_does_not_stay(tmp_path: Path) -> None:
    log, ledger = used_log(tmp_path, 2)
    staged, archive = log / f"archiving-{'5' * 32}", tmp_path / "archive"
    staged.mkdir()
    for path in log.glob("*.evl"):
        path.rename(staged / path.name)
    archive.mkdir()
    (archive / f".archive-{'5' * 12}.evl.0123456789abcdef.tmp").write_bytes(b"begun")
    assert compact([log], ledger, archive).records == 4
    assert [path.name for path in archive.iterdir()] == [f"archive-{'5' * 12}.evl"]


@pytest.mark.parametrize("read", ["read_log", "prune", "read_decisions"])
def test_what_is_pruned_while_a_log_is_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    log, ledger = used_log(tmp_path, 3)
    files, real = sorted(log.iterdir()), _segments.stretch_of

    def pruned(path: Path, start: int, stop: int) -> bytes:
        files[1].unlink(missing_ok=True)
        return real(path, start, stop)

    for module in (_segments, off_policy):
        monkeypatch.setattr(module, "stretch_of", pruned)
    if read == "read_log":
        assert len(read_log(log).samples) == 4
    elif read == "prune":
        assert len(prune([log], ledger).segments) == 2
    else:
        assert len(off_policy.read_decisions(log).rewards) == 0


def test_a_segment_that_is_written_to_stays(agent: AsyncESAgent, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "open") as log:
        log.reward(agent.clone().add_noise(), 1.0)
        ledger = read_log(tmp_path / "open").ledger
        assert prune([tmp_path / "open"], ledger).segments == []
    assert len(prune([tmp_path / "open"], ledger).segments) == 1


def test_segments_that_are_read_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(tmp_path)
    clone = agent.clone()
    for _ in range(50):
        with LogWriter(tmp_path / "log") as log:
            log.reward(clone.add_noise(), 1.0)
    ledger = read_log(tmp_path / "log").ledger
    opened: list[Path] = []
    real = _segments.stretch_of

    def noting(path: Path, start: int, stop: int) -> bytes:
        opened.append(path)
        return real(path, start, stop)

    monkeypatch.setattr(_segments, "stretch_of", noting)
    assert read_log(tmp_path / "log", ledger).infos == []
    assert opened == []
    with LogWriter(tmp_path / "log") as log:
        log.reward(clone.add_noise(), 1.0)
    assert len(read_log(tmp_path / "log", ledger).infos) == 1
    assert len(opened) == 1


def test_a_segment_ends_at_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clone = agent_of(tmp_path).clone()
    with LogWriter(tmp_path / "log", max_seconds=60.0) as log:
        for second in (0, 30, 59, 61, 62, 200):
            monkeypatch.setattr(time, "monotonic", lambda second=second: now + second)
            log.reward(clone.add_noise(), 1.0)
    assert len(list((tmp_path / "log").glob("*.evl"))) == 3


def test_the_stats_of_a_log_tell_what_is_in_it(agent: AsyncESAgent, tmp_path: Path) -> None:
    found = json.loads(evokit("log", "stats", tmp_path / "log", "--json").output)
    assert (found["segments"], found["rewards"], found["waiting"], found["models"]) == (7, 84, 0, [0, 3])
    assert found["refused"] == {"malformed": 7}
    assert agent.model_iter_id == 3


def test_the_stats_of_a_log_tell_when_its_samples_were_served(tmp_path: Path) -> None:
    samples = [SamplingInfo([1, number], 0, 9) for number in range(1, 4)]
    records = [Record(info, None, (1000 + 10 * place) * 10**6) for place, info in enumerate(samples)]
    records += [Record(info, 1.0) for info in samples]  # as `reward` notes them for a record: without a time
    head = frame(Header("s" * 32, 9).encode())
    (tmp_path / "s.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))
    found = json.loads(evokit("log", "stats", tmp_path, "--json").output)
    assert (found["rewards"], found["waiting"], found["first"], found["last"]) == (3, 0, 1000.0, 1020.0)
    records = [Record(info, 1.0) for info in samples]
    (tmp_path / "s.evl").write_bytes(head + head + b"".join(frame(record.encode()) for record in records))
    found = json.loads(evokit("log", "stats", tmp_path, "--json").output)
    assert (found["rewards"], found["first"], found["last"]) == (3, None, None)
    assert "first: -\nlast: -\n" in evokit("log", "stats", tmp_path).output


def test_the_metrics_tell_of_the_last_update_and_of_all(agent: AsyncESAgent, tmp_path: Path) -> None:
    lines = dict(
        line.rsplit(" ", 1) for line in evokit("metrics", "--model_dir", tmp_path / "warehouse").output.splitlines()
        if not line.startswith("#")
    )  # fmt: skip
    assert float(lines["evokit_model_iter_id"]) == agent.model_iter_id == 3
    assert float(lines['evokit_refused_tokens_total{reason="malformed"}']) == 6
    assert abs(float(lines["evokit_last_update_timestamp_seconds"]) - time.time()) < 3600
    assert 'evokit_mean_reward{arm="noise"}' in lines


def test_report_and_metrics_tell_of_damaged_segments(agent: AsyncESAgent, tmp_path: Path) -> None:
    clone = agent.clone()
    with LogWriter(tmp_path / "log") as log:
        for number in range(6):
            log.reward(clone.add_noise(), float(number))
    (tmp_path / "log" / "bad.evl").write_bytes(bytes(range(256)) * 20)
    report, _ = agent.update_from_log(tmp_path / "log")
    assert report.quarantined == ("bad.evl",)
    assert "evokit_quarantined_segments_total 1\n" in evokit("metrics", "--model_dir", tmp_path / "warehouse").output


def test_a_report_of_a_long_history_says_that_it_begins_later(
    agent: AsyncESAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "warehouse" / "model_iter_id-4"
    agent.update_from_log(tmp_path / "log")
    assert "<p>4 updates;" in page(directory, time.time(), 3600.0)
    monkeypatch.setattr(_solver_dir, "_KEPT", 3)
    agent.save(directory)
    assert "<p>the newest 3 updates;" in page(directory, time.time(), 3600.0)


def test_prometheus_client_has_the_same_metrics(agent: AsyncESAgent, tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client", reason="metrics in a process need prometheus_client")
    registry = client.CollectorRegistry()
    metrics = Metrics(registry)
    metrics.observe(*agent.update_from_log(tmp_path / "log"))
    told = client.generate_latest(registry).decode()
    assert "evokit_model_iter_id 4.0" in told
    assert 'evokit_refused_tokens_total{reason="malformed"} 1.0' in told
    assert "evokit_quarantined_segments_total 0.0" in told


def test_a_registry_has_the_metrics_of_one_object() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry)
    with pytest.raises(EvolutionError, match="a registry for each model"):
        Metrics(registry)
    Metrics(prometheus_client.CollectorRegistry())


def test_an_arm_without_rewards_has_no_mean_in_prometheus_client() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    metrics, es = Metrics(registry), ESAgent({"solver": {"guard": {"control_share": 0.5}}}, mlp([4, 2]))
    for number in range(2):
        infos = [info for info in es.clone().draw(40) if number == 0 or info.noise_key]
        metrics.observe(es.update(infos, np.arange(float(len(infos)))))
        found = registry.get_sample_value("evokit_mean_reward", {"arm": "control"})
        assert (found is None) == (number == 1)


def test_the_page_is_one_file_and_begins_with_the_alarm_when_updates_have_stopped(
    agent: AsyncESAgent, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    evokit("report", "--model_dir", tmp_path / "warehouse", "--out", out)
    text = out.read_text(encoding="utf-8")
    assert text.count("<svg") >= 4
    assert "have stopped" not in text
    assert "http://" not in text
    model = tmp_path / "warehouse" / f"model_iter_id-{agent.model_iter_id}"
    os.utime(model / "solver.json", (1, 1))
    evokit("report", "--model_dir", tmp_path / "warehouse", "--out", out)
    assert "have stopped" in out.read_text(encoding="utf-8")
    assert "have stopped" in page(model, time.time(), 10.0)
    assert "evokit_last_update_timestamp_seconds 1\n" in exposition(model)


@pytest.mark.parametrize("change", ["newest line forged", "newest line removed", "oldest line removed"])
@pytest.mark.parametrize("command", ["report", "metrics"])
def test_no_figures_are_shown_of_a_history_that_was_changed(
    agent: AsyncESAgent, tmp_path: Path, command: str, change: str
) -> None:
    history = tmp_path / "warehouse" / f"model_iter_id-{agent.model_iter_id}" / "history.jsonl"
    first, second, last = history.read_text().splitlines(keepends=True)
    forged = last.replace('"mean_reward":5.5', '"mean_reward":99.5')
    assert forged != last
    kept = {"newest line forged": [first, second, forged], "newest line removed": [first, second]}
    history.write_text("".join(kept.get(change, [second, last])))
    out = ["--out", tmp_path / "report.html"] if command == "report" else []
    assert "history" in evokit(command, "--model_dir", tmp_path / "warehouse", *out, expect=4).stderr


def test_a_page_that_is_kept_says_of_which_time_it_is(tmp_path: Path) -> None:
    model = tmp_path / "model"
    ESAgent({"solver": {}}, mlp([4, 2])).save(model)
    moment = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()
    os.utime(model / "solver.json", (moment, moment))
    text = page(model, moment + 5400.0, 1e9)
    assert "the last one at 2026-03-01 12:00 UTC, 1.5 hours before this page (2026-03-01 13:30 UTC)" in text


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    ESAgent({"solver": {}}, mlp([4, 2])).save(tmp_path / "model")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    else:
        (tmp_path / "pipe").mkdir()
    long = tmp_path / ("a" * 300)
    for out in (tmp_path / "absent" / "page.html", tmp_path / "model", Path(), tmp_path / "pipe", long):
        error = evokit("report", "--model_dir", tmp_path / "model", "--out", out, expect=1).stderr
        assert error.startswith(f"error: {out} cannot be written: ")


def test_a_page_is_written_to_the_file_that_a_link_names(tmp_path: Path) -> None:
    ESAgent({"solver": {}}, mlp([4, 2])).save(tmp_path / "model")
    target, link = tmp_path / "target.html", tmp_path / "link"
    target.touch()
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("links need a privilege here")
    evokit("report", "--model_dir", tmp_path / "model", "--out", link)
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_is_named_with_whatever_reason_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("not seekable")  # which has a text but no strerror

    ESAgent({"solver": {}}, mlp([4, 2])).save(tmp_path / "model")
    monkeypatch.setattr("parl_evokit.cli._main.atomic_write", fails)
    error = evokit("report", "--model_dir", tmp_path / "model", "--out", "page.html", expect=1).stderr
    assert error == "error: page.html cannot be written: not seekable\n"


def test_a_directory_without_a_model_is_reported_in_a_line_as_by_other_commands(tmp_path: Path) -> None:
    for command in ("report", "metrics"):
        assert evokit(command, "--model_dir", tmp_path, expect=4).stderr.count("\n") == 1


def test_without_locks_only_segments_of_an_age_go(
    agent: AsyncESAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_lock(_: int) -> bool:
        raise OSError("no locks available")

    with LogWriter(tmp_path / "open") as log:
        log.reward(agent.clone().add_noise(), 1.0)
        ledger = read_log(tmp_path / "open").ledger
        monkeypatch.setattr(_segments, "try_lock", try_lock)
        assert prune([tmp_path / "open"], ledger).segments == []
        for path in (tmp_path / "open").iterdir():
            os.utime(path, (0.0, 0.0))
        assert prune([tmp_path / "open"], ledger).segments == []
        assert len(prune([tmp_path / "open"], ledger, older_than_days=1.0, dry_run=True).segments) == 1


def test_counters_do_not_fall_when_the_history_drops_its_oldest_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_solver_dir, "_KEPT", 30)
    agent = ESAgent({"keys": "COUNTER"}, mlp([3, 2]))
    counts = []
    for update in range(80):
        clone = agent.clone()
        agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, np.nan if update < 20 else 4.0])
        if update % 10 == 9:
            agent.save(tmp_path / "m")
            agent = ESAgent()
            agent.load_config({"keys": "COUNTER"})
            agent.load_inference_model(tmp_path / "m", model=mlp([3, 2]))
            agent.load_solver(tmp_path / "m")
            (line,) = [line for line in exposition(tmp_path / "m").splitlines() if 'reason="not_finite"' in line]
            counts.append(int(line.split()[-1]))
    assert counts == [10, *[20] * 7]
    assert len((tmp_path / "m" / "history.jsonl").read_text().splitlines()) == 30


class _Watched(list[str]):
    """Lines that count how often they are read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[str]:
        for line in super().__iter__():
            self.reads += 1
            yield line

    def __reversed__(self) -> Iterator[str]:
        for line in super().__reversed__():
            self.reads += 1
            yield line


def test_an_update_reads_only_the_newest_line_of_the_history() -> None:
    agent = ESAgent({"keys": "COUNTER"}, mlp([3, 2]))
    clone = agent.clone()
    report = agent.update([clone.add_noise() for _ in range(4)], [1.0, 2.0, 3.0, 4.0])
    lines = _Watched(history_line(report, []) for _ in range(500))
    history_line(report, lines)
    assert lines.reads <= 2

"""A fault at any write of an update: nothing is lost, no lock stays held, and the next update goes on."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parl_evokit import AsyncESAgent, EvolutionError, LogWriter, NothingToUpdate, Tokens, read_log, update_lock
from parl_evokit._records import Record, SamplingInfo
from parl_evokit._report import vector_digest
from parl_evokit.log._frames import Header, frame

CALLS = {
    "open", "write", "flush", "fsync", "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate",
    "scandir", "listdir", "stat", "fstat", "read",
}  # fmt: skip


def config(place: Path) -> dict[str, Any]:
    return {
        "keys": "COUNTER",
        "solver": {"optimizer": {"type": "ADAM"}},
        "async_es": {"model_warehouse": str(place / "warehouse"), "max_to_keep": 1},
    }


def agent_of(place: Path) -> AsyncESAgent:
    import numpy as np

    return AsyncESAgent(({"w": np.ones(4, np.float32)}, lambda arrays, x: arrays["w"] @ x), config(place), wait_s=0.0)


def sample(agent: AsyncESAgent, place: Path, n: int = 6) -> None:
    clone = agent.clone()
    with LogWriter(place / "log", tokens=Tokens([bytes(32)])) as log:
        for number in range(n):
            log.reward(log.sampled(clone.add_noise()), float(number))
        log.sampled(clone.add_noise())


@contextmanager
def failing(at: int, number: int) -> Iterator[Callable[[], int]]:
    """Let the call number `at` into the system raise this error; provides how many there were."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call" and getattr(argument, "__name__", "") in CALLS:
            owner = type(getattr(argument, "__self__", None)).__name__
            if owner in {"dict", "list", "str", "BytesIO", "StringIO"}:
                return
            count += 1
            if count == at:
                raise OSError(number, os.strerror(number))

    sys.setprofile(profile)
    try:
        yield lambda: count
    finally:
        sys.setprofile(None)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the calls of one system")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "stride"), [(errno.ENOSPC, 2), (errno.EROFS, 5), (errno.EMFILE, 5)])
def test_a_fault_at_any_call_of_an_update_loses_nothing(tmp_path: Path, number: int, stride: int) -> None:
    place = tmp_path / "whole"
    agent = agent_of(place)
    sample(agent, place)
    digest = agent.update_from_log(place / "log")[0].parameters_sha256
    point, failed = 1 - stride, 0
    while True:
        point += stride
        place = tmp_path / f"{number}-{point}"
        agent = agent_of(place)
        sample(agent, place)
        with failing(point, number) as calls:
            try:
                report, _ = agent.update_from_log(place / "log")
            except EvolutionError:
                report = None
        with update_lock(place / "warehouse"):  # it is free
            pass
        if report is None:
            failed += 1
            assert agent.model_iter_id == 0
            try:
                agent.update_from_log(place / "log")
            except NothingToUpdate:  # the fault came when the new model had its name already
                assert agent.model_iter_id == 1
        assert vector_digest(agent.parameters()["w"]) == digest
        assert agent_of(place).model_iter_id == 1
        left = [path for path in place.rglob("*") if ".tmp" in path.name]
        agent.warehouse.expire()
        assert not [path for path in place.rglob("*") if ".tmp" in path.name and path.is_dir()], left
        if calls() < point:
            break
    assert failed > 20


def test_a_read_only_log_can_be_learned_from(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    sample(agent, tmp_path)
    bad = tmp_path / "log" / "bad.evl"
    bad.write_bytes(b"\xff" * 5000)
    for path in (tmp_path / "log").iterdir():
        path.chmod(0o444)
    (tmp_path / "log").chmod(0o555)
    try:
        report, contents = agent.update_from_log(tmp_path / "log")
        assert report.used == 6
        assert [segment.path for segment in contents.quarantined] == [bad]
        assert agent.model_iter_id == 1
    finally:
        (tmp_path / "log").chmod(0o755)


def segment(name: str, first: int, n: int, fingerprint: int) -> bytes:
    head = frame(Header(name * 32, fingerprint).encode())
    infos = (SamplingInfo([2**30 + first + number, 2 * number], 0, fingerprint) for number in range(n))
    return head + head + b"".join(frame(Record(info, float(info.key[1])).encode()) for info in infos)


def test_bad_segments_are_moved_aside_once_the_model_is_saved_and_learning_goes_on(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    log = tmp_path / "log"
    log.mkdir()
    fingerprint = agent._ready("test")[0].sampler.fingerprint
    for number in range(40):
        (log / f"good{number}.evl").write_bytes(segment(f"{number:032x}"[-1], 1000 * number, 50, fingerprint))
    good = {path.name: path for path in log.iterdir()}
    headless = bytearray(segment("h", 10**6, 50, fingerprint))
    headless[10] ^= 0xFF
    headless[headless.index(b"\xe5\x4b", 2) + 10] ^= 0xFF
    (log / "headless.evl").write_bytes(headless)
    half = bytearray(segment("i", 2 * 10**6, 50, fingerprint))
    for place in range(300, 700):
        half[place] ^= 0xFF
    (log / "half.evl").write_bytes(half)
    (log / "noise.evl").write_bytes(bytes(range(256)) * 20)
    report, contents = agent.update_from_log(log)
    aside = {segment.path.name for segment in contents.quarantined}
    assert aside == {"headless.evl", "half.evl", "noise.evl"}
    assert {path.name for path in (log / "quarantine").glob("*.evl")} == aside
    assert {path.name for path in log.glob("*.evl")} == set(good)
    assert report.used > 16 * 50 - 1
    sample(agent, tmp_path)
    assert agent.update_from_log(log)[0].used == 6


def test_damage_counts_over_what_is_read_and_the_good_records_of_a_bad_segment_count(tmp_path: Path) -> None:
    for number in range(16):
        (tmp_path / f"{number}.evl").write_bytes(segment(f"{number:x}", 1000 * number, 200, 5))
    path = tmp_path / "3.evl"
    data = bytearray(path.read_bytes())
    for place in range(1000, 1600, 20):
        data[place] ^= 0xFF
    path.write_bytes(data)
    contents = read_log(tmp_path)  # a tenth of one file, under a hundredth of all
    assert 16 * 200 - 35 < len(contents.infos) < 16 * 200
    assert [segment.path for segment in contents.quarantined] == [path]
    assert [segment.problem for segment in contents.quarantined] == [""]
    strict = read_log(tmp_path, max_damage=0.001)
    assert len(strict.infos) == 15 * 200
    assert "more than max_damage=0.001" in strict.quarantined[0].problem


def test_a_segment_that_its_writer_still_has_open_stays_where_it_is(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    sample(agent, tmp_path)
    clone = agent.clone()
    with LogWriter(tmp_path / "open") as log:
        for number in range(6):
            log.reward(clone.add_noise(), float(number))
        (path,) = (tmp_path / "open").glob("*.evl")
        data = bytearray(path.read_bytes())
        data[len(data) - 70] ^= 0xFF
        path.write_bytes(data)
        _, contents = agent.update_from_log([tmp_path / "log", tmp_path / "open"], max_damage=0.05)
        assert [segment.path for segment in contents.quarantined] == [path]
        assert path.exists()
        log.reward(clone.add_noise(), 1.0)
    assert len(read_log(path, contents.ledger).infos) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills and forks")
def test_random_faults_lose_no_reward_and_use_none_twice(tmp_path: Path) -> None:
    """The hour-long form is `hatch run test:long soak_evolution`."""
    program = Path(__file__).parents[3] / "benchmarks" / "soak" / "evolution.py"
    command = [sys.executable, str(program), "--seconds", "8", "--place", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["twice"]) == (0, 0)
    assert found["rewards acknowledged"] > 0

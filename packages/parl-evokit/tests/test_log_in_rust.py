"""The page of the log is enough: a program in Rust that was written from it alone reads our logs, and we read its."""

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from parl_evokit import ESAgent, LogWriter, mlp, read_log

PROGRAM = Path(__file__).with_name("rust_log_program.rs")
COUNT = 20_000


@pytest.fixture(scope="module")
def evl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("rustc") is None or subprocess.run(["rustc", "--version"], capture_output=True).returncode:
        pytest.skip("there is no compiler of Rust")
    program = tmp_path_factory.mktemp("rust") / "evl"
    subprocess.run(["rustc", "--edition", "2021", "-D", "warnings", "-O", PROGRAM, "-o", program], check=True)
    return program


def agent() -> ESAgent:
    return ESAgent({"solver": {"optimizer": {"type": "ADAM"}}}, mlp([4, 2]))


@pytest.mark.slow
def test_a_log_that_was_written_in_rust_is_read_and_learned_from(evl: Path, tmp_path: Path) -> None:
    own = agent()
    mark = own.clone().add_noise().fingerprint
    subprocess.run([evl, "write", tmp_path / "any-name.evl", str(mark), str(COUNT)], check=True)
    contents = read_log(tmp_path)
    keys = [(n + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 2 | 2 for n in range(COUNT)]
    found = dict(zip(contents.samples.keys.tolist(), contents.samples.rewards.tolist(), strict=True))
    assert found == {key: float(np.float32(n / 4)) for n, key in enumerate(keys) if n % 3}
    assert sorted(contents.waiting.keys.tolist()) == sorted(keys[::3])
    assert contents.damaged_bytes == 0
    report, _ = own.update_from_log(tmp_path)
    assert report.used == COUNT - len(keys[::3])
    assert report.set_aside.total == 0


@pytest.mark.slow
def test_a_log_of_ours_is_read_in_rust_damaged_or_not(evl: Path, tmp_path: Path) -> None:
    clone, wanted = agent().clone(), []
    with LogWriter(tmp_path / "log", fsync_every=10_000) as log:
        for n in range(COUNT):
            info = clone.add_noise(evaluate=n % 10 == 0)
            log.sampled(info)
            log.reward(info, n / 8)
            same = [str(info.noise_key), str(info.model_iter_id), str(info.fingerprint)]
            wanted += [[*same, "-"], [*same, f"{n / 8:g}"]]

    def rows(path: Path) -> list[list[str]]:
        said = subprocess.run([evl, "read", path], check=True, capture_output=True, text=True)
        return [line.split() for line in said.stdout.splitlines()]

    (segment,) = (tmp_path / "log").glob("*.evl")
    assert [[*row[:3], row[3] if row[3] == "-" else f"{float(row[3]):g}"] for row in rows(segment)] == wanted

    damaged, draw = bytearray(segment.read_bytes()), random.Random(1)
    for _ in range(20):
        damaged[draw.randrange(300, len(damaged))] ^= 1 << draw.randrange(8)
    copy = tmp_path / segment.name
    copy.write_bytes(damaged)
    contents, found = read_log(copy), rows(copy)
    assert len(found) == sum(report.records for report in contents.segments)
    assert 2 * COUNT - 40 <= len(found) < 2 * COUNT
    assert int(found[-1][5]) == contents.damaged_bytes

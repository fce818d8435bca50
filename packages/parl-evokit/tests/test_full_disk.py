"""A full disk while saving or logging: a clear error, what was there stays, and it works again when there is room."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parl_evokit import InvalidToken, LogWriter, SamplingInfo, StorageError, Tokens, read_log
from parl_evokit.agent import ESAgent
from parl_evokit.errors import LogError

SIZE = 100_000


def make() -> ESAgent:
    return ESAgent({"keys": "COUNTER"}, ({"w": np.zeros(SIZE)}, lambda arrays, x: arrays["w"].sum()))


def fill(disk: Path, leave: int) -> Path:
    """Leave so many bytes."""
    room = os.statvfs(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - leave))
    return ballast


def updated(agent: ESAgent) -> ESAgent:
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    return agent


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy 1 leaves its zip file open
def test_a_model_that_does_not_fit_leaves_the_old_one(small_disk: Path) -> None:
    agent = make()
    agent.save(small_disk / "model")
    before = {path.name: path.read_bytes() for path in (small_disk / "model").iterdir()}
    ballast = fill(small_disk, 150_000)
    updated(agent)
    with pytest.raises(StorageError, match=r"/model cannot be written: .*No space left.*; it is unchanged"):
        agent.save(small_disk / "model")
    with pytest.raises(StorageError, match=r"/model cannot be written: .*No space left.*; it is unchanged"):
        agent.save_inference_model(small_disk / "model")
    assert {path.name: path.read_bytes() for path in (small_disk / "model").iterdir()} == before
    assert sorted(os.listdir(small_disk)) == ["ballast", "model"]
    ballast.unlink()
    agent.save(small_disk / "model")
    restored = ESAgent()
    restored.load_config({"keys": "COUNTER"})
    restored.load_inference_model(small_disk / "model", ({"w": np.zeros(SIZE)}, lambda arrays, x: x))
    restored.load_solver(small_disk / "model")
    assert restored.model_iter_id == 1


def test_a_log_that_does_not_fit_says_so_and_keeps_what_is_in_it(small_disk: Path) -> None:
    with LogWriter(small_disk / "log", fsync_every=0) as log:
        log.reward(SamplingInfo([1, 2], 0, 9), 1.0)
        ballast = fill(small_disk, 0)

        def many() -> None:
            for number in range(10_000):
                log.reward(SamplingInfo([2, number], 0, 9), 1.0)

        with pytest.raises(LogError, match=r"disk full|No space left"):
            many()
        ballast.unlink()
        log.reward(SamplingInfo([3, 4], 0, 9), 1.0)
    infos = read_log(small_disk / "log", max_damage=1.0).infos
    assert infos[0] == SamplingInfo([1, 2], 0, 9)
    assert infos[-1] == SamplingInfo([3, 4], 0, 9)


def test_a_torn_record_that_cannot_be_cut_off_costs_no_later_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def torn(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[:9])

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    infos = [SamplingInfo([2**28 + number, 1], 0, 9) for number in range(3)]
    with LogWriter(tmp_path / "log") as log:
        log.reward(infos[0], 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            patch.setattr(os, "ftruncate", fails)
            with pytest.raises(LogError, match="only 9 of"):
                log.reward(infos[1], 1.0)
        log.reward(infos[2], 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            with pytest.raises(LogError, match="only 9 of"):
                log.reward(infos[1], 1.0)
    assert read_log(tmp_path / "log", max_damage=1.0).infos == [infos[0], infos[2]]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_log_that_cannot_be_ended_well_holds_neither_its_file_nor_the_lock_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = LogWriter(tmp_path / "log", tokens=Tokens([bytes(32)], lifetime_s=60))
    log.sampled(SamplingInfo([1, 2], 0, 9))
    for _ in range(2):  # the second within a second is counted when the log ends
        with pytest.raises(InvalidToken):
            log.reward("no token", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(LogError):
            log.close()
    (segment,) = (tmp_path / "log").iterdir()
    with segment.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    log.sampled(SamplingInfo([3, 4], 0, 9))
    log.close()
    assert read_log(tmp_path / "log").pending == 2


def test_a_limit_on_files_is_as_good_as_a_full_disk(tmp_path: Path) -> None:
    make().save(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from parl_evokit import StorageError\n"
        "from test_full_disk import make, updated\n"
        "agent = updated(make())\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({SIZE}, {SIZE}))\n"
        "try:\n    agent.save(sys.argv[1])\n"
        "except StorageError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=240, check=True)
    model = re.escape(str(tmp_path / "model"))
    assert re.fullmatch(rf"{model} cannot be written: .*File too large; it is unchanged\n", done.stdout), done
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert os.listdir(tmp_path) == ["model"]

"""Two updates at once on one directory: one works, the other waits or says who does."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_evokit import LogWriter, SolverError, StorageError, UpdateLocked, _directories, mlp, update_lock
from parl_evokit._directories import clear_leftovers, open_directory, replacing, try_lock
from parl_evokit.agent import ESAgent

HOLDER = """
import sys
from parl_evokit import update_lock
with update_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock of `model`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "model")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_names_the_holder(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    who = rf"model is being updated by pid {holder.pid} on {os.uname().nodename} since 20.* UTC"
    with pytest.raises(UpdateLocked, match=who), update_lock(tmp_path / "model"):
        pass


@pytest.mark.parametrize("wait_s", [float("nan"), -1.0])
def test_a_wait_that_is_no_time_is_refused(tmp_path: Path, wait_s: float) -> None:
    with pytest.raises(ValueError, match=f"wait_s must be 0 or more, not {wait_s}"), update_lock(tmp_path, wait_s):
        pass


def test_the_second_waits_until_the_first_is_done(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    said: list[str] = []

    def waiting(text: str) -> None:
        said.append(text)
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()

    with update_lock(tmp_path / "model", 60.0, waiting):
        assert json.loads((tmp_path / "model.lock").read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert f"pid {holder.pid}" in said[0]
    assert os.listdir(tmp_path) == []


def test_a_killed_holder_holds_nothing(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    assert (tmp_path / "model.lock").exists()
    with update_lock(tmp_path / "model"):
        pass
    assert os.listdir(tmp_path) == []


def test_two_names_of_one_directory_are_one_lock(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "current").symlink_to("model")
    with update_lock(tmp_path / "model"), pytest.raises(UpdateLocked), update_lock(tmp_path / "current"):
        pass


def test_many_waiting_threads_proceed_one_after_the_other(tmp_path: Path) -> None:
    inside, most, done = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, done
        with update_lock(tmp_path / "model", 60.0):
            inside += 1
            most = max(most, inside)
            inside -= 1
            done += 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, done) == (1, 8)
    assert os.listdir(tmp_path) == []


def test_two_updates_of_one_directory_at_once_count_every_record_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"solver": {"optimizer": {"type": "ADAM"}}}')
    agent = ESAgent(tmp_path / "config.json", mlp([4, 3, 2]))
    clone = agent.clone()
    with LogWriter(tmp_path / "log") as log:
        for number in range(6):
            log.reward(clone.add_noise(), float(number))
    agent.save(tmp_path / "model")
    arguments = ["--log-path=log", "--model-dir=model", "--updated-model-dir=model", "--config-path=config.json"]
    command = [sys.executable, "-m", "parl_evokit", "offline-update", *arguments, "--json"]
    pair = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in "ab"]
    told = [json.loads(process.communicate(timeout=240)[0]) for process in pair]
    assert sorted(process.returncode for process in pair) == [0, 3]
    assert sorted(answer.get("used", 0) for answer in told) == [0, 6]
    after = ESAgent()
    after.load_config(tmp_path / "config.json")
    after.load_inference_model(tmp_path / "model", model=mlp([4, 3, 2]))
    after.load_solver(tmp_path / "model")
    assert after.model_iter_id == 1


def test_what_dead_writers_left_is_cleared_away_and_what_living_ones_have_stays(tmp_path: Path) -> None:
    dead, living = tmp_path / "model.tmp-0123456789ab", tmp_path / "model.tmp-ba9876543210"
    strange, other = tmp_path / "model.tmp-backup", tmp_path / "other.tmp-0123456789ab"
    for directory in (dead, living, strange, other):
        directory.mkdir()
        (directory / "file").write_text("x")
    descriptor = open_directory(living)
    assert try_lock(descriptor)
    with replacing(tmp_path / "model") as fresh:
        (fresh / "file").write_text("new")
    os.close(descriptor)
    assert sorted(os.listdir(tmp_path)) == ["model", living.name, strange.name, other.name]


def test_a_model_whose_writer_died_between_two_renames_comes_back(tmp_path: Path) -> None:
    for name, text in (("model.tmp-0123456789ab-old", "old"), ("model.tmp-0123456789ab", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    clear_leftovers(tmp_path, "model")
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "file").read_text() == "old"


def test_an_agent_does_not_write_over_an_update_that_it_has_not_seen(tmp_path: Path) -> None:
    def opened() -> ESAgent:
        agent = ESAgent()
        agent.load_config({"keys": "COUNTER"})
        agent.load_inference_model(tmp_path / "model", model=mlp([4, 3, 2]))
        agent.load_solver(tmp_path / "model")
        return agent

    def updated(agent: ESAgent) -> ESAgent:
        clone = agent.clone()
        agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
        return agent

    ESAgent({"keys": "COUNTER"}, mlp([4, 3, 2])).save(tmp_path / "model")
    first, second = opened(), opened()
    updated(first).save(tmp_path / "model")
    updated(first).save(tmp_path / "model")
    with pytest.raises(SolverError, match="has been updated by another process since this agent loaded"):
        updated(second).save(tmp_path / "model")
    with pytest.raises(SolverError, match="has been updated by another process"):
        second.save_solver(tmp_path / "model")
    assert opened().model_iter_id == 2
    second.save(tmp_path / "elsewhere")


def test_a_new_agent_does_not_write_over_a_solver_that_has_seen_more_updates(tmp_path: Path) -> None:
    def new() -> ESAgent:
        return ESAgent({"keys": "COUNTER"}, mlp([4, 3, 2]))

    def updated(agent: ESAgent) -> ESAgent:
        clone = agent.clone()
        agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
        return agent

    updated(new()).save(tmp_path / "model")
    before = (tmp_path / "model" / "solver.json").read_bytes()
    for save in (new().save, new().save_solver):
        with pytest.raises(SolverError, match="has the solver of model 1, and this agent has model 0"):
            save(tmp_path / "model")
    assert (tmp_path / "model" / "solver.json").read_bytes() == before
    updated(updated(new())).save(tmp_path / "model")  # as when an update is repeated, nothing is lost
    (tmp_path / "model" / "solver.json").unlink()
    new().save(tmp_path / "model")


def test_a_lock_that_cannot_name_its_holder_is_held_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        held = update_lock(tmp_path / "model")
        with held, pytest.raises(UpdateLocked, match="another process"), update_lock(tmp_path / "model"):
            pass
    with update_lock(tmp_path / "model"):
        pass


def test_a_lock_whose_file_fails_after_its_opening_is_not_left_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, path: Path) -> bool:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(_directories, "is_same_file", broken)
        with pytest.raises(StorageError), update_lock(tmp_path / "model"):
            pass
    with update_lock(tmp_path / "model"):
        pass

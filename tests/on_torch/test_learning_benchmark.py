"""The learning benchmark runs what is missing, once, and writes what came out."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)  # half a dozen programs that import the framework

STEPS = {
    "ppo-cartpole": 100_096,  # whole rollouts
    "a2c-cartpole": 500_000,
    "iql-pendulum": 10_000,
    "dqn-cartpole": 100_000,
    "ddqn-cartpole": 100_000,
    "dqn-acrobot": 100_000,
    "sac-halfcheetah": 110_000,
}
FOLDER = Path(__file__).parents[2] / "benchmarks" / "learning"


def call(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), "--results", str(results), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"learning_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module("report", monkeypatch)


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module("one_run", monkeypatch)


def result(gate: str, seed: int, value: float, **more: Any) -> dict[str, Any]:
    return {
        "gate": gate,
        "backend": "torch",
        "seed": seed,
        "steps": STEPS[gate],
        "returns": [value] * 3,
        "curve": [[5, 1.0], [10, value]],
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "source": "by hand",
        **more,
    }


def write(folder: Path, *results: dict[str, Any]) -> None:
    for one in results:
        path = folder / one["gate"] / f"{one['backend']}-{one['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one))


@pytest.mark.slow
def test_a_run_that_is_there_is_not_repeated_and_one_that_is_missing_is(tmp_path: Path) -> None:
    small = ("--gates", "policy_gradient-cartpole", "--share", "0.01")
    first = call(tmp_path, *small, "--seeds", "1")
    assert first.returncode == 0, first.stderr
    done = tmp_path / "policy_gradient-cartpole" / "torch-0.json"
    found = json.loads(done.read_text())
    assert (found["steps"], found["seed"], len(found["returns"])) == (10, 0, 3)
    stamp = done.stat().st_mtime_ns
    second = call(tmp_path, *small, "--seeds", "2")
    assert "1/1 policy_gradient-cartpole, torch, seed 1" in second.stdout
    assert done.stat().st_mtime_ns == stamp
    assert sorted(path.name for path in done.parent.iterdir()) == ["torch-0.json", "torch-1.json"]
    assert (tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    failed = call(tmp_path, "--gates", "offline_q-cartpole", "--seeds", "1", "--share", "nonsense")
    assert failed.returncode != 0
    missing = call(tmp_path, "--gates", "offline_q-cartpole", "--seeds", "1", "--backend", "paddle", "--share", "0.001")
    assert missing.returncode == 1
    assert "failed, see above:\n  offline_q-cartpole, paddle, seed 0" in missing.stdout
    assert not list(tmp_path.glob("*/*.json*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_the_runner_and_leave_no_half_file(tmp_path: Path, number: signal.Signals) -> None:
    if number is signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored by whoever started the tests, and children inherit that")
    arguments = ["--gates", "policy_gradient-cartpole", "--seeds", "2", "--jobs", "2", "--results", str(tmp_path)]
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        for _ in range(2):
            assert "policy_gradient-cartpole, torch, seed" in runner.stdout.readline()
        runs = psutil.Process(runner.pid).children()
        assert len(runs) == 2
        runner.send_signal(number)
        assert runner.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
        assert not psutil.wait_procs(runs, timeout=240)[1]
    assert not list(tmp_path.glob("*/*.json*")) + list(tmp_path.glob("*/*.part"))


@pytest.mark.slow
def test_what_another_process_is_at_is_left_to_it_and_a_claim_of_a_dead_one_counts_nothing(
    tmp_path: Path, one_run: Any
) -> None:
    small = ("--gates", "policy_gradient-cartpole", "--seeds", "1", "--share", "0.01")
    claim = tmp_path / "policy_gradient-cartpole" / "torch-0.claim"
    claim.parent.mkdir()
    with one_run.claimed(claim) as mine:
        assert mine
        other = call(tmp_path, *small)
        assert other.returncode == 0, other.stderr
        assert "left to another process that is at them:\n  policy_gradient-cartpole, torch, seed 0" in other.stdout
        assert [path.name for path in claim.parent.iterdir()] == [claim.name]
    claim.touch()  # as a killed process leaves it
    assert call(tmp_path, *small).returncode == 0
    assert [path.name for path in claim.parent.iterdir()] == ["torch-0.json"]


def test_time_left_is_estimated_from_results_and_from_how_far_a_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = module("progress", monkeypatch)
    write(tmp_path, *(result("a2c-cartpole", seed, 500.0, wall_s=wall_s) for seed, wall_s in enumerate([90.0, 110.0])))
    runs = [progress.Run("a2c-cartpole", "torch", seed) for seed in (2, 3)]
    assert progress.Progress(runs, tmp_path, jobs=2).seconds_left() == (100.0, False)
    runs.append(progress.Run("ppo-cartpole", "torch", 0))
    assert progress.Progress(runs, tmp_path, jobs=1).seconds_left() == (200.0, True)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1_030.0)
    runs[2].outcome, runs[2].began, runs[2].progress = progress.Outcome.RUNNING, 1_000.0, 0.25
    assert progress.Progress(runs, tmp_path, jobs=1).seconds_left() == (290.0, False)


def test_gates_are_judged_by_the_lower_bound_and_a_missed_one_says_so(tmp_path: Path, report: Any) -> None:
    write(tmp_path, *(result("ppo-cartpole", seed, 500.0) for seed in range(3)))
    write(tmp_path, *(result("a2c-cartpole", seed, value) for seed, value in enumerate([500.0, 500.0, 100.0])))
    write(tmp_path, *(result("iql-pendulum", seed, -200.0, data_return=-300.0) for seed in range(2)))
    write(tmp_path, result("ddqn-cartpole", 0, 400.0), result("sac-halfcheetah", 0, 1.0))
    write(tmp_path, *(result("ppo-cartpole", seed, 450.0, backend="paddle") for seed in range(3)))
    write(tmp_path, result("dqn-acrobot", 0, -80.0, steps=999))
    table = report.write(tmp_path)
    ppo = "500.0 [500.0, 500.0] | passed (>= 475), with 3 of 5 seeds | 450.0 [450.0, 450.0] | MISSED (>= 475) |"
    assert f"| PPO, CartPole-v1 | {ppo}\n" in table
    assert "MISSED (>= 475)" in line(table, "A2C, CartPole-v1")
    assert "passed (data: -300.0)" in line(table, "IQL, Pendulum-v1")
    assert "open (dqn-cartpole has not run)" in line(table, "DDQN, CartPole-v1")
    assert "reported only" in line(table, "SAC, HalfCheetah-v5")
    assert "open (runs of 999 steps, the gate has 100,000)" in line(table, "DQN, Acrobot-v1")
    assert "- passed: 2 of 7 rows\n- MISSED: A2C, CartPole-v1 on torch; PPO, CartPole-v1 on paddle\n" in table
    assert "; TD3, Pendulum-v1; " in table.split("- not run: ")[1].splitlines()[0]
    write(tmp_path, *(result("dqn-cartpole", seed, 450.0) for seed in range(2)))
    assert "MISSED (not below dqn-cartpole)" in line(report.write(tmp_path), "DDQN, CartPole-v1")
    assert (tmp_path / "TABLE.md").read_text().startswith("Returns are those of the weights at the end of training")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["TABLE.md", "curves.png"]


def line(table: str, task: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {task} |"))


@pytest.mark.parametrize("content", ["", '{"gate": "dqn-c', "[]", "{}", '{"gate": "dqn-cartpole", "seed": "one"}'])
def test_what_is_no_result_is_named_left_out_and_not_taken_for_done(
    content: str, tmp_path: Path, report: Any, one_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, result("dqn-cartpole", 0, 500.0))
    broken = tmp_path / "dqn-cartpole" / "torch-1.json"
    broken.write_text(content)
    assert [one["seed"] for one in report.read(tmp_path)["dqn-cartpole", "torch"]] == [0]
    assert f"{broken} is no result of a run: " in capsys.readouterr().err
    assert not one_run.is_done(broken)
    assert one_run.is_done(broken.with_name("torch-0.json"))


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "2"])
def test_a_share_that_is_none_is_refused(share: str, tmp_path: Path) -> None:
    refused = call(tmp_path, f"--share={share}", "--only-report")
    assert refused.returncode == 2
    assert f"must be above 0 and at most 1, got {share}" in refused.stderr


def test_a_result_names_its_commit_and_whether_more_than_results_was_changed(tmp_path: Path, one_run: Any) -> None:
    def git(*command: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)

    assert one_run.commit_of(tmp_path) is None
    folder = tmp_path / "benchmark"
    (folder / "results").mkdir(parents=True)
    table, code = folder / "results" / "TABLE.md", tmp_path / "code.py"
    table.write_text("one")
    code.write_text("one")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    commit = one_run.commit_of(folder)
    assert re.fullmatch("[0-9a-f]{12}", commit)
    table.write_text("two")
    assert one_run.commit_of(folder) == commit
    code.write_text("two")
    assert one_run.commit_of(folder) == f"{commit}-dirty"

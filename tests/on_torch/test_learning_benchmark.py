"""The learning benchmark runs what is missing, once, and writes what came out."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from parl_core.training.recipes import find_recipe

pytestmark = pytest.mark.timeout(900)  # half a dozen programs that import the framework

STEPS = {
    "ppo-cartpole": 100_096,  # whole rollouts
    "a2c-cartpole": 500_000,
    "bc-pendulum": 10_000,
    "iql-pendulum": 10_000,
    "dqn-cartpole": 100_000,
    "ddqn-cartpole": 100_000,
    "dqn-acrobot": 100_000,
    "sac-halfcheetah": 110_000,
}
TASKS = {
    "ppo-cartpole": ("PPO", "CartPole-v1"),
    "a2c-cartpole": ("A2C", "CartPole-v1"),
    "bc-pendulum": ("BC", "Pendulum-v1"),
    "iql-pendulum": ("IQL", "Pendulum-v1"),
    "dqn-cartpole": ("DQN", "CartPole-v1"),
    "ddqn-cartpole": ("DDQN", "CartPole-v1"),
    "dqn-acrobot": ("DQN", "Acrobot-v1"),
    "sac-halfcheetah": ("SAC", "HalfCheetah-v5"),
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


def numbers(gate: str) -> dict[str, Any]:
    """The numbers of a gate's recipe, as a result has them."""
    algorithm, env = TASKS[gate]
    found: dict[str, Any] = json.loads(json.dumps(find_recipe(algorithm, env).as_json()))
    if gate == "sac-halfcheetah":
        found["loop"] = {**found["loop"], "total_steps": STEPS[gate]}
    return found


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
        "commit": "0123456789ab",
        "recipe": numbers(gate),
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
    first = call(tmp_path, *small, "--seeds", "100")
    assert first.returncode == 0, first.stderr
    done = tmp_path / "policy_gradient-cartpole" / "torch-100.json"
    found = json.loads(done.read_text())
    assert (found["steps"], found["seed"], len(found["returns"])) == (10, 100, 3)
    assert (found["recipe"]["algorithm"], found["recipe"]["loop"]["total_steps"]) == ({"lr": 0.001}, 10)
    assert set(found["machine"]) == {"cpu", "cores", "system"}
    stamp = done.stat().st_mtime_ns
    second = call(tmp_path, *small, "--seeds", "100", "101")
    assert "1/1 policy_gradient-cartpole, torch, seed 101" in second.stdout
    assert done.stat().st_mtime_ns == stamp
    assert sorted(path.name for path in done.parent.iterdir()) == ["torch-100.json", "torch-101.json"]


@pytest.mark.slow
def test_a_result_is_repeated_from_its_own_record_and_compared(tmp_path: Path) -> None:
    assert call(tmp_path, "--gates", "bc-cartpole", "--share", "0.005", "--seeds", "100", "101").returncode == 0
    row = tmp_path / "bc-cartpole"
    command = [sys.executable, "-m", "parl_core.cli", "verify"]

    def verify(path: Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*command, str(path)], check=False, capture_output=True, text=True, timeout=400, env=env)

    for path in (row / "torch-100.json", row / "torch"):
        found = verify(path)
        assert found.returncode == 0, found.stderr
        assert "the same returns" in found.stdout
    for file in row.glob("*.json"):
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "returns": [value + 400.0 for value in found["returns"]]}))
    wrong = verify(row / "torch-100.json")
    assert wrong.returncode == 1
    assert "OUTSIDE" in wrong.stdout
    nothing = verify(tmp_path / "elsewhere" / "torch")
    assert nothing.returncode == 1
    assert "neither the result of a run nor a row" in nothing.stderr


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    failed = call(tmp_path, "--gates", "offline_q-cartpole", "--seeds", "100", "--share", "nonsense")
    assert failed.returncode != 0
    missing = call(
        tmp_path, "--gates", "offline_q-cartpole", "--seeds", "100", "--backend", "paddle", "--share", "0.001"
    )
    assert missing.returncode == 1
    assert "failed, see above:\n  offline_q-cartpole, paddle, seed 100" in missing.stdout
    assert not list(tmp_path.glob("*/*.json*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_the_runner_and_leave_no_half_file(tmp_path: Path, number: signal.Signals) -> None:
    if number is signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored by whoever started the tests, and children inherit that")
    arguments = [
        "--gates",
        "policy_gradient-cartpole",
        "--seeds",
        "100",
        "101",
        "--jobs",
        "2",
        "--results",
        str(tmp_path),
    ]
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline().startswith("2 runs of about")
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
    small = ("--gates", "policy_gradient-cartpole", "--seeds", "100", "--share", "0.01")
    claim = tmp_path / "policy_gradient-cartpole" / "torch-100.claim"
    claim.parent.mkdir()
    with one_run.claimed(claim) as mine:
        assert mine
        other = call(tmp_path, *small)
        assert other.returncode == 0, other.stderr
        assert "in progress in another process:\n  policy_gradient-cartpole, torch, seed 100" in other.stdout
        assert [path.name for path in claim.parent.iterdir()] == [claim.name]
    claim.touch()  # as a killed process leaves it
    assert call(tmp_path, *small).returncode == 0
    assert [path.name for path in claim.parent.iterdir()] == ["torch-100.json"]


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


@pytest.mark.slow
def test_gates_are_judged_by_the_lower_bound_and_a_failed_one_says_so(tmp_path: Path, report: Any) -> None:
    write(tmp_path, *(result("ppo-cartpole", 100 + seed, 500.0) for seed in range(3)))
    write(tmp_path, *(result("a2c-cartpole", 100 + seed, value) for seed, value in enumerate([500.0, 500.0, 100.0])))
    write(tmp_path, result("iql-pendulum", 100, -200.0), result("ddqn-cartpole", 100, 400.0))
    write(tmp_path, result("sac-halfcheetah", 100, 1.0))
    write(tmp_path, *(result("ppo-cartpole", 100 + seed, 450.0, backend="paddle") for seed in range(3)))
    write(tmp_path, result("dqn-acrobot", 100, -80.0, steps=999))
    table = report.write(tmp_path)
    ppo = "500.0 [500.0, 500.0] | passed (>= 475), with 3 of 10 seeds | 450.0 [450.0, 450.0] | FAILED (>= 475), with"
    assert f"| PPO, CartPole-v1 | {ppo} 3 of 5 seeds | none known |\n" in table
    assert "FAILED (>= 475)" in line(table, "A2C, CartPole-v1")
    assert "| Adam, not RMSProp; an entropy bonus of 0.01" in line(table, "A2C, CartPole-v1")
    assert "open (bc-pendulum has not run)" in line(table, "IQL, Pendulum-v1")
    assert "open (dqn-cartpole has not run)" in line(table, "DDQN, CartPole-v1")
    assert "reported only" in line(table, "SAC, HalfCheetah-v5, 110,000 steps")
    assert "open (runs of 999 steps, the gate has 100,000)" in line(table, "DQN, Acrobot-v1")
    assert "- passed: 1 of 7 rows\n- FAILED: A2C, CartPole-v1 on torch; PPO, CartPole-v1 on paddle\n" in table
    assert "; TD3, Pendulum-v1; " in table.split("- not run: ")[1].splitlines()[0]
    assert (tmp_path / "TABLE.md").read_text().startswith("Returns are measured with the weights at the end")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["TABLE.md", "curves.png"]


def test_more_variance_does_not_help_a_row_to_be_not_below_another(tmp_path: Path, report: Any) -> None:
    write(tmp_path, *(result("dqn-cartpole", 100 + seed, 490.0 + seed) for seed in range(5)))
    write(tmp_path, *(result("ddqn-cartpole", 100 + seed, 480.0 + seed) for seed in range(5)))
    passed = line(report.write(tmp_path), "DDQN, CartPole-v1")
    assert "passed (not below dqn-cartpole by more than 25: difference [-12." in passed
    spread = [500.0, 500.0, 500.0, 128.0, 341.0]  # whose interval overlaps with the other row's
    write(tmp_path, *(result("ddqn-cartpole", 100 + seed, value) for seed, value in enumerate(spread)))
    assert "FAILED (not below dqn-cartpole" in line(report.write(tmp_path), "DDQN, CartPole-v1")


def test_a_row_of_logged_data_has_to_be_above_the_clone_of_its_log(tmp_path: Path, report: Any) -> None:
    write(tmp_path, *(result("bc-pendulum", 100 + seed, -165.0 - seed) for seed in range(4)))
    write(tmp_path, *(result("iql-pendulum", 100 + seed, -165.0 + seed) for seed in range(4)))
    assert "passed (above bc-pendulum: difference [" in line(report.write(tmp_path), "IQL, Pendulum-v1")
    write(tmp_path, *(result("iql-pendulum", 100 + seed, -165.0 - seed) for seed in range(4)))
    assert "FAILED (above bc-pendulum: difference [" in line(report.write(tmp_path), "IQL, Pendulum-v1")


def test_rows_have_clean_commits_report_seeds_and_the_numbers_of_now(tmp_path: Path, report: Any) -> None:
    write(tmp_path, result("ppo-cartpole", 100, 500.0), result("ppo-cartpole", 101, 9.0, commit="0123456789ab-dirty"))
    write(tmp_path, result("ppo-cartpole", 102, 9.0, commit=None), result("ppo-cartpole", 0, 7.0))
    write(tmp_path, result("ppo-cartpole", 103, 8.0, recipe={**numbers("ppo-cartpole"), "num_envs": 4}))
    table = report.write(tmp_path)
    runs, earlier = table.split("## Earlier results")
    assert "| 100,096 | 100 | 500.0 |" in line(runs.split("## Runs")[1], "PPO, CartPole-v1")
    assert "| 0, 103 | 7.0, 8.0 |" in line(earlier, "PPO, CartPole-v1")
    assert "not known or was not clean: 2 results." in earlier
    assert "9.0" not in table


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
    assert f"{broken} is not a result of a run: " in capsys.readouterr().err
    assert not one_run.is_done(broken)
    assert one_run.is_done(broken.with_name("torch-0.json"))
    write(tmp_path, result("dqn-cartpole", 2, 500.0, recipe={}))
    assert not one_run.is_done(broken.with_name("torch-2.json"))


def test_words_and_settings_younger_than_a_record_make_no_other_numbers(tmp_path: Path, one_run: Any) -> None:
    recorded = numbers("dqn-cartpole")
    younger = {name: value for name, value in recorded["loop"].items() if name != "report_every"}
    write(
        tmp_path,
        result("dqn-cartpole", 100, 1.0, recipe={**recorded, "source": "said otherwise", "deviations": ["none"]}),
        result("dqn-cartpole", 101, 1.0, recipe={**recorded, "loop": younger}),
        result("dqn-cartpole", 102, 1.0, recipe={**recorded, "loop": {**recorded["loop"], "batch_size": 32}}),
        result("dqn-cartpole", 103, 1.0, recipe={**recorded, "loop": {**recorded["loop"], "unknown": 32}}),
    )
    done = [one_run.is_done(tmp_path / "dqn-cartpole" / f"torch-{seed}.json") for seed in range(100, 104)]
    assert done == [True, True, False, False]


def test_a_row_of_a_variant_has_its_own_numbers_name_and_number_of_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = module("gates", monkeypatch).GATES
    plain = gates["dqn-acrobot"].recipe
    assert gates["dqn_dueling-acrobot"].recipe == replace(plain, sizes={**plain.sizes, "dueling": True})
    assert gates["dqn_n_step-acrobot"].recipe == replace(plain, loop=replace(plain.loop, n_step=3))
    assert gates["dqn_prioritized-acrobot"].recipe.loop.prioritized is not None
    assert len({gate.title for gate in gates.values()}) == len(gates)
    long = gates["sac-halfcheetah-1m"]
    assert long.title == "SAC, HalfCheetah-v5, 1,000,000 steps"
    assert (long.seeds("torch"), long.seeds("paddle"), long.recipe.steps) == ((100,), (), 1_000_000)


def test_a_row_stands_beside_the_same_recipe_in_stable_baselines3(tmp_path: Path, report: Any) -> None:
    write(tmp_path, *(result("ppo-cartpole", 100 + seed, 490.0 + seed) for seed in range(4)))
    write(tmp_path, *(result("ppo-cartpole", 100 + seed, 470.0 + seed, backend="sb3") for seed in range(4)))
    write(tmp_path, result("a2c-cartpole", 100, 470.0, backend="sb3"))
    table = report.write(tmp_path)
    beside = table.split("## Beside Stable-Baselines3")[1].split("## Runs")[0]
    ours, theirs = "491.5 [490.0, 493.0] (4)", "471.5 [470.0, 473.0] (4)"
    assert line(beside, "PPO, CartPole-v1").startswith(f"| PPO, CartPole-v1 | {ours} | {theirs} | [")
    assert line(beside, "A2C, CartPole-v1") == "| A2C, CartPole-v1 | - | 470.0 [470.0, 470.0] (1) | - |"
    assert "- passed: 1 of 1 rows" in table


@pytest.mark.parametrize(
    "share", ["0", "nan", *(pytest.param(share, marks=pytest.mark.slow) for share in ("-1", "inf", "2"))]
)
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

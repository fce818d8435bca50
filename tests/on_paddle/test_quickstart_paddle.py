"""The quickstart on paddle: the same program, chosen by its flag, with remote actors and the fresh process.

Ctrl-C and the rest are tested once, with torch, because nothing of it depends on the backend.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"


def run(*arguments: str) -> str:
    finished = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


@pytest.mark.slow
def test_a_smoke_run_on_paddle_saves_an_agent_that_a_fresh_process_evaluates_to_the_same_return(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    arguments = ["--backend", "paddle", "--smoke", "--episodes", "5", "--runs", str(runs)]
    output = run(str(EXAMPLE / "train.py"), *arguments)
    evaluated = re.search(r"Mean return of 5 evaluation episodes: ([\d.]+)", output)
    restored = re.search(r"Restored in a fresh process: ([\d.]+) \(the same\)", output)
    assert evaluated, output
    assert restored, output
    assert evaluated[1] == restored[1]
    (folder,) = runs.iterdir()
    for name in ("agent.ckpt", "best.ckpt", "learning-curve.png", "updates.csv", "evaluations.csv"):
        assert (folder / name).stat().st_size > 0


@pytest.mark.slow
def test_the_manuals_quickstart_runs_on_paddle() -> None:
    output = run(str(EXAMPLE / "reinforce.py"), "--backend", "paddle", "--episodes", "100")
    assert len(re.findall(r"Episode \d+, Reward Sum [\d.]+\.", output)) == 10
    assert len(re.findall(r"Test reward: [\d.]+", output)) == 1


@pytest.mark.slow
def test_the_command_trains_on_paddle_what_it_then_evaluates(tmp_path: Path) -> None:
    command = ["-m", "parl_core.cli", "train", "ppo", "CartPole-v1", "--steps", "2048", "--runs", str(tmp_path)]
    folder = run(*command, "--backend", "paddle").splitlines()[0]
    output = run("-m", "parl_core.cli", "evaluate", folder, "--episodes", "3")
    assert re.search(r"CartPole-v1: mean return [\d.]+, deviation [\d.]+, 3 episodes", output)

"""Examples with checkpoints of their own: killed and resumed, they end as if they had never stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core import backends
from parl_core.checkpoint import CheckpointStore

EXAMPLES = Path(__file__).parents[2] / "examples"
BACKEND = backends.current().name

# Far more than a run takes; a busy machine is slow.
SECONDS_TO_RUN = 300

SELF_PLAY = ("--generations", "4", "--steps", "256", "--games", "4", "--env-num", "4")
POPULATION = ("--members", "4", "--rounds", "4", "--steps", "512")
ALPHAZERO = (
    *("--total-games", "16", "--games", "4", "--simulations", "4", "--updates", "3", "--batch-size", "16"),
    *("--rollouts", "4", "--match-games", "4", "--match-every", "1000", "--save-every", "0"),
)

# Runs a program that is killed in the middle of writing its third checkpoint.
KILLED = """
import os, runpy, signal, sys

os_rename, renamed = os.rename, []

def rename(source, target):
    if ".writing-" in str(source):
        renamed.append(target)
        if len(renamed) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    os_rename(source, target)

os.rename = rename
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(program: str, *arguments: str, folder: Path, killed: bool = False) -> None:
    found = subprocess.run(
        [sys.executable, *(["-c", KILLED] if killed else []), str(EXAMPLES / program / "train.py"), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_TO_RUN,
        check=False,
    )
    assert found.returncode == (-signal.SIGKILL if killed else 0), found.stdout


def last_checkpoint(folder: Path) -> tuple[int, dict[str, Any], bytes]:
    """Step, state and agent's file."""
    found = CheckpointStore(folder / "checkpoints").read_latest()
    assert found is not None
    return found.step, found.state, found.agent.read_bytes()


def same(one: Any, other: Any) -> bool:
    """Return whether two states have the same bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other)


def killed_and_whole(program: str, *arguments: str, folder: Path) -> tuple[Path, Path]:
    """Run a program twice, once killed and resumed, and return the folders of both runs."""
    arguments = ("--backend", BACKEND, *arguments)
    run(program, *arguments, "--runs", "killed", folder=folder, killed=True)
    (killed,) = (folder / "killed").iterdir()
    assert len(CheckpointStore(killed / "checkpoints").steps()) == 2
    assert not (killed / "agent.ckpt").exists()
    run(program, "--resume", str(killed), folder=folder)
    run(program, *arguments, "--runs", "whole", folder=folder)
    (whole,) = (folder / "whole").iterdir()
    assert [path.name for path in (folder / "killed").iterdir()] == [killed.name]
    return killed, whole


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS_TO_RUN)
@pytest.mark.parametrize("game", ["connect_four", pytest.param("rps", marks=pytest.mark.long)])
def test_killed_self_play_continues_with_the_same_bits(game: str, tmp_path: Path) -> None:
    killed, whole = killed_and_whole("self_play", "--game", game, *SELF_PLAY, folder=tmp_path)
    results = json.loads((killed / "results.json").read_text())
    assert [row["generation"] for row in results["generations"]] == [1, 2, 3, 4]
    assert results == json.loads((whole / "results.json").read_text())
    assert (killed / "agent.ckpt").read_bytes() == (whole / "agent.ckpt").read_bytes()
    assert same(last_checkpoint(killed), last_checkpoint(whole))


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS_TO_RUN)
def test_a_killed_population_continues_with_the_same_bits(tmp_path: Path) -> None:
    killed, whole = killed_and_whole("population", *POPULATION, folder=tmp_path)
    results = json.loads((killed / "results.json").read_text())
    assert [len(member["history"]) for member in results] == [4] * 4
    assert any(len({rate for _, rate, _ in member["history"]}) > 1 for member in results)  # of the copies
    assert results == json.loads((whole / "results.json").read_text())
    assert (killed / "agent.ckpt").read_bytes() == (whole / "agent.ckpt").read_bytes()
    assert same(last_checkpoint(killed), last_checkpoint(whole))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS_TO_RUN)
def test_a_killed_alphazero_continues_with_the_same_bits(tmp_path: Path) -> None:
    killed, whole = killed_and_whole("alphazero", *ALPHAZERO, folder=tmp_path)
    found: list[list[Any]] = []
    for folder in (killed, whole):
        step, state, agent = last_checkpoint(folder)
        progress = state["others"]["progress"]
        for row in (progress, *progress["rows"]):  # what a clock says
            for name in ("seconds", "matched", "minutes"):
                row.pop(name, None)
        found.append([step, state, agent])
    assert found[0][0] == 4 * 3
    assert [row["games"] for row in found[0][1]["others"]["progress"]["rows"]] == [0, 16]
    assert same(*found)
    assert (killed / "agent.ckpt").read_bytes() == (whole / "agent.ckpt").read_bytes()

"""A disk that is full, or allows no larger file, while a run saves: what is left, what is said, and going on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.checkpoint import CheckpointStore
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError
from parl_core.training import Callback, Checkpoints, OffPolicySettings, Run, train_off_policy


class Wide:
    """Acts and learns with one matrix, as large as a checkpoint needs to be to fill a small disk."""

    FIGURES = ("loss",)
    gamma = 0.9
    training = True
    obs_ndim = None

    def __init__(self) -> None:
        self.weights = np.zeros((4, 5_000))
        self.rng = np.random.default_rng(3)

    @property
    def alg(self) -> Any:
        return self

    def sample(self, obs: Any, **_: Any) -> Any:
        return (obs @ self.weights[:, :2] + self.rng.normal(size=(len(obs), 2))).argmax(axis=1)

    def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminal: Any, **_: Any) -> float:
        del next_obs, terminal
        self.weights += 0.01 * obs.T @ np.tile(np.stack([reward, action * reward], axis=1), 2_500)
        self.weights /= max(1.0, float(np.abs(self.weights).max()))
        return float(self.weights.sum())

    def save(self, path: Path) -> None:
        path.write_bytes(self.weights.tobytes())

    def restore(self, path: Path) -> None:
        self.weights = np.frombuffer(path.read_bytes()).reshape(4, -1).copy()


class At50(Callback):
    """Does something once half of the run is over."""

    def __init__(self, what: Any) -> None:
        self._what, self._done = what, False

    def on_update(self, update: Any) -> None:
        if update.step >= 50 and not self._done:
            self._done = True
            self._what()


def learn(run: Run, *callbacks: Callback) -> Wide:
    agent = Wide()
    settings = OffPolicySettings(100, learning_starts=10, batch_size=4, memory_size=60, report_every=10)
    with make_vector_env("CartPole-v1", 2) as envs:
        train_off_policy(agent, envs, settings, callbacks=callbacks, checkpoints=Checkpoints(run, 20, keep=1), seed=4)
    return agent


def check_stopped_at_60(error: str, folder: Path) -> None:
    assert "the checkpoint of step 60 could not be written" in error
    assert "The newest complete one is that of step 40; training stops here" in error
    assert f"then continue with: Run.resume('{folder}')" in error
    assert CheckpointStore(folder / "checkpoints").steps() == [40]
    assert not [path for path in folder.rglob("*") if ".writing" in path.name or path.suffix == ".part"]


def check_goes_on(folder: Path, tmp_path: Path) -> None:
    with Run.resume(folder) as run:
        resumed = learn(run)
    with Run.at(tmp_path / "whole") as run:
        np.testing.assert_array_equal(resumed.weights, learn(run).weights)


def test_a_full_disk_ends_the_run_at_the_checkpoint_before(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"

    def fill() -> None:
        room = os.statvfs(small_disk)
        ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - 100_000))  # less than the weights take

    with pytest.raises(CheckpointError, match="No space left on device") as failed, Run.at(small_disk / "run") as run:
        learn(run, At50(fill))
    check_stopped_at_60(str(failed.value), small_disk / "run")
    assert "Free space on that disk" in str(failed.value)
    ballast.unlink()
    check_goes_on(small_disk / "run", tmp_path)


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from test_full_disk_of_runs import At50, learn
from parl_core.training import Run

with Run.at(sys.argv[2]) as run:
    learn(run, At50(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))))
"""


def test_a_limit_on_the_size_of_files_does_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(Path(__file__).parent), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "File too large" in ended.stderr
    check_stopped_at_60(ended.stderr, folder)
    check_goes_on(folder, tmp_path)

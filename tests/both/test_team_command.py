"""`parl train` with environments of several agents of MPE."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parl_core import backends
from parl_core.cli._commands import parl
from parl_core.training.trained import Trained

pytest.importorskip("mpe2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pygame, which MPE draws with
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("mappo", ("--set", "n_steps=25", "--set", "network.groups=independent")),
        ("maddpg", ("--set", "learning_starts=40", "--set", "batch_size=16", "--set", "train_every=20")),
        ("qmix", ("--set", "learning_starts=40", "--set", "batch_size=2", "--set", "network.memory_size=8")),
    ],
)
def test_an_algorithm_is_trained_on_simple_spread_and_evaluated(
    tmp_path: Path, algorithm: str, options: tuple[str, ...]
) -> None:
    folder = str(tmp_path / "run")
    small = ("--steps", "100", "--set", "num_envs=2", "--env-option", "N=2", *options)
    where = ("--backend", backends.current().name, "--run", folder)
    trained = CliRunner().invoke(parl, ("train", algorithm, "mpe2:simple_spread_v3", *small, *where))
    assert trained.exit_code == 0, trained.output
    assert Trained.read(tmp_path / "run").make_env().observation_space["alive"].shape == (2,)
    resumed = CliRunner().invoke(parl, ("resume", folder, "--steps", "150"))
    assert resumed.exit_code == 0, resumed.output
    played = CliRunner().invoke(parl, ("evaluate", folder, "--episodes", "2", "--json"))
    assert played.exit_code == 0, played.output
    found = json.loads(played.output)
    assert np.isfinite(found["mean"])
    assert len(found["agent_means"]) == 2
    assert np.mean(found["agent_means"]) == pytest.approx(found["mean"], rel=1e-4)
    shown = CliRunner().invoke(parl, ("evaluate", folder, "--episodes", "1"))
    assert "mean return of each agent: -" in shown.output

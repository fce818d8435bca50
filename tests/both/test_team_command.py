"""`parl train` with environments of several agents of MPE."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parl_core import backends
from parl_core.cli._commands import parl

pytest.importorskip("mpe2")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pygame, which MPE draws with
@pytest.mark.timeout(300)
def test_mappo_is_trained_on_simple_spread_and_evaluated(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    small = ("--steps", "100", "--set", "num_envs=2", "--set", "n_steps=25", "--set", "network.groups=independent")
    where = ("--backend", backends.current().name, "--run", folder)
    trained = CliRunner().invoke(parl, ("train", "mappo", "mpe2:simple_spread_v3", *small, *where))
    assert trained.exit_code == 0, trained.output
    resumed = CliRunner().invoke(parl, ("resume", folder, "--steps", "150"))
    assert resumed.exit_code == 0, resumed.output
    played = CliRunner().invoke(parl, ("evaluate", folder, "--episodes", "2", "--json"))
    assert played.exit_code == 0, played.output
    assert np.isfinite(json.loads(played.output)["mean"])

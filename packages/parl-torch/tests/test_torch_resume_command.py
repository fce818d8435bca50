"""`parl train` in portions and `parl resume`, on the command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parl_core.checkpoint import CheckpointStore
from parl_core.cli._commands import parl


def run(*arguments: str) -> Result:
    return CliRunner().invoke(parl, arguments)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_in_portions_leaves_the_same_files_as_one(tmp_path: Path) -> None:
    asked = ["train", "ppo", "CartPole-v1", "--backend", "torch", "--steps", "1100", "--checkpoint-every", "300"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(*asked, "--run", str(whole)).exit_code == 0
    assert run(*asked, "--run", str(parts), "--stop-after", "500").exit_code == 0
    done = run("resume", str(parts))
    assert done.exit_code == 0, done.output
    assert (parts / "last.ckpt").read_bytes() == (whole / "last.ckpt").read_bytes()
    assert (parts / "best.ckpt").read_bytes() == (whole / "best.ckpt").read_bytes()
    again = run("resume", str(parts))
    assert again.exit_code == 1
    assert f"parl resume {parts} --steps" in again.output
    more = run("resume", str(parts), "--steps", "1300")
    assert more.exit_code == 0, more.output
    assert CheckpointStore(parts / "checkpoints").steps()[-1] >= 1300
    assert run("evaluate", str(parts), "--episodes", "1", "--last").exit_code == 0

"""The `parl` command, as far as it goes without a backend; training with it is tested with each backend."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parl_core import backends
from parl_core.cli.commands import parl


def run(*arguments: str) -> Result:
    return CliRunner().invoke(parl, arguments)


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "installed", lambda: ())


@pytest.mark.parametrize("arguments", [(), ("train",), ("train", "ppo"), ("evaluate",), ("list",)])
def test_every_subcommand_explains_itself(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "Usage: parl" in result.output


@pytest.mark.usefixtures("no_backend")
def test_without_a_backend_the_list_says_how_to_install_one() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "pip install parl-torch" in result.output
    assert "preset ppo CartPole-v1" in result.output


@pytest.mark.usefixtures("no_backend")
def test_without_a_backend_training_is_refused_in_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    result = run("train", "ppo", "CartPole-v1", "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 1
    assert "no backend is installed" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    result = run("evaluate", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path} has no agent.json" in result.output


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"algorithm": "PPO"')
    result = run("evaluate", str(tmp_path))
    assert result.exit_code == 1
    assert "does not describe an agent" in result.output


def test_wrong_numbers_are_refused_with_the_usage() -> None:
    result = run("train", "ppo", "CartPole-v1", "--steps", "0")
    assert result.exit_code == 2
    assert "--steps" in result.output

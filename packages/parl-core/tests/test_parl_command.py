"""The `parl` command, as far as it goes without a backend; training with it is tested with each backend."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from parl_core import backends
from parl_core.cli.commands import parl
from parl_core.training.trained import make_flat_env


def run(*arguments: str) -> Result:
    return CliRunner().invoke(parl, arguments)


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "installed", lambda: ())


@pytest.mark.parametrize("arguments", [(), ("train",), ("train", "ppo"), ("train", "sac"), ("evaluate",), ("list",)])
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
    assert "preset sac Pendulum-v1" in result.output


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


def test_a_seed_out_of_range_is_refused_with_the_usage() -> None:
    for arguments in (("train", "ppo", "CartPole-v1"), ("evaluate", ".")):
        result = run(*arguments, "--seed", "-1")
        assert result.exit_code == 2
        assert "--seed" in result.output


def test_an_environment_that_does_not_exist_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithms = SimpleNamespace(__all__=["PPO"])
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="none", algorithms=algorithms))
    result = run("train", "ppo", "NoSuchThing-v0", "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 1
    assert result.output.startswith("Error: Environment `NoSuchThing` doesn't exist")
    assert not (tmp_path / "runs").exists()


def test_a_description_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "agent.json").mkdir()
    result = run("evaluate", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: [Errno 21] Is a directory")


@pytest.mark.parametrize(("env_id", "size"), [("CartPole-v1", 4), ("FrozenLake-v1", 16), ("Blackjack-v1", 45)])
def test_environments_of_the_command_observe_one_row_of_numbers(env_id: str, size: int) -> None:
    env = make_flat_env(env_id)
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (size,)
    env.close()


def test_a_description_with_an_unknown_algorithm_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithms = SimpleNamespace(__all__=["DQN", "PPO"])
    monkeypatch.setattr(backends, "set_backend", lambda name: None)
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="torch", algorithms=algorithms))
    (tmp_path / "agent.json").write_text(
        '{"algorithm": "TD7", "env": "CartPole-v1", "backend": "torch", "hidden": [8]}'
    )
    result = run("evaluate", str(tmp_path))
    assert result.exit_code == 1
    assert "the torch backend has no algorithm 'TD7'; it has DQN, PPO" in result.output

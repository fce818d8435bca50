"""The `parl` command, as far as it goes without a backend; training with it is tested with each backend."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner, Result

from parl_core import backends
from parl_core.cli._commands import parl
from parl_core.errors import HyperparameterError
from parl_core.training import trained
from parl_core.training.recipe_run import RecipeRun
from parl_core.training.trained import make_flat_env


def run(*arguments: str) -> Result:
    return CliRunner().invoke(parl, arguments)


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "installed", lambda: ())


@pytest.mark.parametrize(
    "arguments", [(), ("train",), ("train", "ppo"), ("train", "sac"), ("resume",), ("evaluate",), ("list",)]
)
def test_every_subcommand_explains_itself(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "Usage: parl" in result.output


@pytest.mark.usefixtures("no_backend")
def test_without_a_backend_the_list_says_how_to_install_one() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "pip install parl-torch" in result.output
    assert "recipe ppo CartPole-v1" in result.output
    assert "recipe sac Pendulum-v1" in result.output


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


def test_images_and_masks_of_the_command_stay_what_they_are() -> None:
    image = gymnasium.spaces.Box(0, 255, (8, 8), np.uint8)
    mask = gymnasium.spaces.Dict(action_mask=gymnasium.spaces.MultiBinary(2), seen=gymnasium.spaces.Discrete(3))
    for space in (image, gymnasium.spaces.Tuple([image, gymnasium.spaces.Discrete(2)]), mask):
        env = SimpleNamespace(observation_space=space)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trained, "make_env", lambda *_, env=env: env)
            assert make_flat_env("any") is env


def test_texts_are_refused_in_words() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "make_env", lambda *_: SimpleNamespace(observation_space=gymnasium.spaces.Text(3)))
        with pytest.raises(HyperparameterError, match=r"the observation is Text\(.*tokens of a fixed number"):
            make_flat_env("any")


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


def test_a_folder_that_exists_is_refused_with_the_command_to_go_on(tmp_path: Path) -> None:
    result = run("train", "ppo", "CartPole-v1", "--run", str(tmp_path))
    assert result.exit_code == 1
    assert (
        f"{tmp_path} exists, and nothing in it is overwritten. Go on with that run: parl resume {tmp_path}"
        in result.output
    )


def test_what_is_no_run_of_the_command_cannot_be_resumed_by_it(tmp_path: Path) -> None:
    result = run("resume", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path} has no run.json" in result.output
    result = run("resume", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "is no folder of a run" in result.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7, "written_by": "parl-core 9.9"}, "has version 7, written by parl-core 9.9"),
        ({"format": "other"}, "does not describe a run"),
        ({"seed": None, "settings": {"gamma": 0.5}}, "gamma was 0.5 and is 0.98"),
    ],
)
def test_a_run_of_a_newer_version_or_of_other_settings_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    asked = RecipeRun("PPO", "CartPole-v1", "torch", steps=1000)
    asked.write(tmp_path)
    assert RecipeRun.read(tmp_path) == asked
    description = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**description, **change}))
    result = run("resume", str(tmp_path))
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize(("algorithm", "env"), [("PPO", "CartPole-v1"), ("DQN", "Acrobot-v1"), ("SAC", "Hopper-v5")])
def test_what_was_asked_for_is_found_again(algorithm: str, env: str, tmp_path: Path) -> None:
    asked = RecipeRun(algorithm, env, "paddle", seed=3, goal=1.5, checkpoint_every=100).extended(77)
    asked.write(tmp_path)
    assert RecipeRun.read(tmp_path) == asked
    assert asked.total_steps == 77


@pytest.mark.parametrize(
    ("steps", "num_envs", "n_steps", "total"), [(50, 8, 6, 48), (3, 3, 1, 3), (1, 1, 1, 1), (20_000, 8, 2048, 20_000)]
)
def test_a_budget_below_one_rollout_shortens_it(steps: int, num_envs: int, n_steps: int, total: int) -> None:
    asked = RecipeRun("PPO", "MountainCar-v0", "torch", steps=steps)
    recipe = asked.recipe
    assert (recipe.num_envs, recipe.loop.n_steps, recipe.loop.total_steps) == (num_envs, n_steps, total)
    assert asked.total_steps == total


@pytest.mark.parametrize("goal", ["nan", "inf"])
def test_a_goal_that_is_no_number_is_refused_with_the_usage(goal: str, tmp_path: Path) -> None:
    result = run("train", "ppo", "CartPole-v1", "--goal", goal, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert f"{goal} is no finite number" in result.output
    assert not (tmp_path / "runs").exists()

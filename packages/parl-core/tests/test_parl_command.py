"""The `parl` command, as far as it goes without a backend; training with it is tested with each backend."""

import errno
import json
import math
import os
import re
import subprocess
import sys
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner, Result

from parl_core import backends, cli
from parl_core.cli import _commands as commands
from parl_core.cli import _train
from parl_core.cli._commands import parl
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training import _recipe_run, trained
from parl_core.training._recipe_run import RecipeRun
from parl_core.training.recipes import RECIPES
from parl_core.training.run import Run
from parl_core.training.settings import settings_of, with_settings
from parl_core.training.trained import make_flat_env


def run(*arguments: str) -> Result:
    return CliRunner().invoke(parl, arguments)


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "installed", lambda: ())


@pytest.mark.parametrize(
    "arguments",
    [(), *((name,) for name in ("train", "resume", "settings", "evaluate", "play", "plot", "tune", "list", "verify"))],
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
def test_the_list_has_the_scores_that_were_measured_and_says_where_there_is_none() -> None:
    told = run("list").output.splitlines()
    assert any("recipe ppo CartPole-v1" in line and "500 [500, 500] (10)" in line for line in told)
    assert any("recipe dqn LunarLander-v3" in line and "not measured" in line for line in told)
    presets = json.loads(run("list", "--json").output)["presets"]
    pairs = {(one["algorithm"], one["env"]) for one in presets if "-v" in one["env"]}
    assert len(pairs) >= 25
    for family in ("ALE/", "HalfCheetah", "MinAtar/", "MiniGrid-", "dm_control/"):
        assert any(env.startswith(family) for _, env in pairs), family
    for one in presets:
        if one["score"] is not None:
            assert one["score"]["source"].startswith("benchmarks/learning/results/")


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


def test_meanings_of_settings_end_outside_of_parentheses() -> None:
    lines = run("settings", "dqn", "CartPole-v1").output.splitlines()
    meanings = {line.split()[0]: line for line in lines}
    assert "(`torch.compile`; on CUDA with graphs)" in meanings["compile"]
    assert "; the number is from Fujimoto et al. 2018), until" in meanings["sync_every"]
    assert "default" not in meanings["tau"]


def test_a_module_that_is_missing_is_named_with_its_option() -> None:
    result = run("settings", "ppo", "CartPole-v1", "--env-module", "no.such")
    assert result.exit_code == 1
    assert result.output == (
        "Error: --env-module no.such cannot be imported: No module named 'no'; start the command in its folder, or "
        "add that to PYTHONPATH\n"
    )


@pytest.mark.parametrize("module", ["my_envs.py", "./my_envs", "/home/me/my_envs", ".my_envs"])
def test_a_path_of_a_module_is_refused(module: str) -> None:
    result = run("settings", "ppo", "CartPole-v1", "--env-module", module)
    assert result.exit_code == 1
    assert f"{module} is no name of a module: write it as in `import my.envs`" in result.output


@pytest.mark.parametrize(("name", "option"), [("seed", "seed"), ("goal", "goal"), ("total_steps", "steps")])
def test_an_option_that_is_set_as_a_setting_is_named(name: str, option: str) -> None:
    recipe = RECIPES["PPO", "CartPole-v1"]
    with pytest.raises(HyperparameterError, match=f"no setting '{name}', but an option: --{option}"):
        with_settings("PPO", recipe, {name: "3"})


def test_a_wrong_value_of_an_environment_is_refused_with_its_options() -> None:
    with pytest.raises(HyperparameterError, match=r"CartPole-v1 cannot be made with max_episode_steps=0 \(Expect"):
        make_flat_env("CartPole-v1", options={"max_episode_steps": 0})


@pytest.mark.parametrize("root_exists", [False, True])
def test_a_file_that_cannot_be_imported_leaves_no_folder(root_exists: bool, tmp_path: Path, no_backend: None) -> None:
    (tmp_path / "agent.ckpt").write_bytes(b"nothing")
    runs = tmp_path / "runs"
    if root_exists:
        runs.mkdir()
    result = run("import", str(tmp_path / "agent.ckpt"), "CartPole-v1", "--runs", str(runs))
    assert result.exit_code == 1
    assert (runs.exists(), runs.exists() and bool(list(runs.iterdir()))) == (root_exists, False)


def test_seeds_that_go_on_out_of_range_are_refused_with_the_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithms = SimpleNamespace(__all__=["PPO"])
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="none", algorithms=algorithms))
    seeds = ("--seeds", "2", "--seed", "2147483647")
    result = run("train", "ppo", "CartPole-v1", *seeds, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert "goes on to 2147483648" in result.output
    assert not (tmp_path / "runs").exists()


def test_sizes_of_layers_beside_their_width_are_refused_in_one_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithms = SimpleNamespace(__all__=["PPO"])
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="none", algorithms=algorithms))
    what: dict[str, Any] = {"algorithm": "ppo", "env": "CartPole-v1", "env_options": {}}
    for given in ({"network.hidden": "16,8", "network.width": "32"}, {"depth": "3", "hidden": "16,8"}):
        with pytest.raises(HyperparameterError, match=r"--set has .*hidden=16,8 and .*: leave one out"):
            _train.asked_by(**what, given=given)
    file = tmp_path / "both.toml"
    file.write_text("[settings]\nnetwork.hidden = [16, 8]\nnetwork.width = 32\n")
    with pytest.raises(HyperparameterError, match=r"both\.toml has network\.hidden=16,8 and network\.width=32"):
        _train.asked_by(**what, config=file, given={})
    file.write_text("[settings]\nnetwork.hidden = [16, 8]\n")
    asked = _train.asked_by(**what, config=file, given={"network.width": "32"})
    assert asked.recipe.sizes["hidden"] == (32, 32)


def test_an_environment_that_does_not_exist_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithms = SimpleNamespace(__all__=["PPO"])
    monkeypatch.setattr(backends, "current", lambda: SimpleNamespace(name="none", algorithms=algorithms))
    result = run("train", "ppo", "NoSuchThing-v0", "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 1
    assert result.output.startswith("Error: Environment `NoSuchThing` doesn't exist")
    assert result.output.endswith("--env-module MODULE, or the name MODULE:NoSuchThing-v0\n")
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
        with pytest.raises(HyperparameterError, match=r"the observation is Text\(.*a fixed number of tokens"):
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


def test_a_run_without_weights_yet_cannot_be_exported_and_says_when_they_are_written(tmp_path: Path) -> None:
    trained.Trained("PPO", "CartPole-v1", "torch").write(tmp_path)
    for option, name in ((), "best.ckpt"), (("--last",), "last.ckpt"):
        result = run("export", str(tmp_path), *option)
        assert result.exit_code == 1
        assert f"{tmp_path / name} does not exist yet: it is written at the first evaluation" in result.output


def test_a_folder_that_exists_is_refused_with_the_command_to_go_on(tmp_path: Path) -> None:
    result = run("train", "ppo", "CartPole-v1", "--run", str(tmp_path))
    assert result.exit_code == 1
    assert (
        f"{tmp_path} exists, and nothing in it is overwritten. Continue that run: parl resume {tmp_path}"
        in result.output
    )


def test_the_command_to_go_on_quotes_a_path_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    result = run("train", "ppo", "CartPole-v1", "--run", str(tmp_path / "two words"))
    assert f"parl resume '{tmp_path}/two words'" in result.output


OF_HOME = """
import gymnasium
gymnasium.register("home/Pole-v0", "gymnasium.envs.classic_control:CartPoleEnv")
"""


@pytest.mark.parametrize("read", [RecipeRun.read, trained.Trained.read])
def test_the_module_of_a_run_is_found_from_another_folder(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere, folder = (tmp_path / name for name in ("home", "elsewhere", "run"))
    for path in (home, elsewhere, folder):
        path.mkdir()
    (home / "envs_of_home.py").write_text(OF_HOME)

    def forget() -> None:
        sys.modules.pop("envs_of_home", None)
        gymnasium.registry.pop("home/Pole-v0", None)

    with monkeypatch.context() as at_home:
        at_home.setattr(sys, "path", [*sys.path])
        at_home.chdir(home)
        asked = RecipeRun("PPO", "home/Pole-v0", "torch", module="envs_of_home", module_folder=str(home))
        asked.write(folder)
        asked.trained().write(folder)
        forget()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ImportError, match="No module named 'envs_of_home'; start the command in its folder"):
        trained.import_named("envs_of_home")
    read(folder)
    trained.import_named("envs_of_home")
    forget()


def test_a_module_may_have_a_name_that_only_importlib_can_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-envs.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert trained.folder_of_module("CartPole-v1", "my-envs") == str(tmp_path)
    trained.import_named("my-envs")
    assert sys.modules.pop("my-envs").__file__ == str(tmp_path / "my-envs.py")


@pytest.mark.parametrize("read", [RecipeRun.read, trained.Trained.read])
def test_the_module_of_a_run_is_that_of_its_folder_among_several_of_its_name(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere, importable, folder = (tmp_path / name for name in ("home", "elsewhere", "importable", "run"))
    for path in (home, elsewhere, importable, folder):
        path.mkdir()
        (path / "envs_of_home.py").write_text(OF_HOME)

    def forget() -> None:
        sys.modules.pop("envs_of_home", None)
        gymnasium.registry.pop("home/Pole-v0", None)

    monkeypatch.setattr(sys, "path", [str(importable), *sys.path])
    monkeypatch.chdir(home)
    found = trained.folder_of_module("home/Pole-v0", "envs_of_home")
    assert found == str(home)
    asked = RecipeRun("PPO", "home/Pole-v0", "torch", module="envs_of_home", module_folder=found)
    asked.write(folder)
    asked.trained().write(folder)
    for place in (elsewhere, home):
        forget()
        monkeypatch.setattr(sys, "path", [str(importable), *(one for one in sys.path if one != str(home))])
        monkeypatch.chdir(place)
        read(folder)
        trained.import_named("envs_of_home")
        assert sys.modules["envs_of_home"].__file__ == str(home / "envs_of_home.py")
    assert trained.folder_of_module("home/Pole-v0", "envs_of_home") == str(home)
    assert trained.folder_of_module("CartPole-v1", "") == trained.folder_of_module("CartPole-v1", "numpy") == ""
    forget()


@pytest.mark.parametrize("read", [RecipeRun.read, trained.Trained.read])
@pytest.mark.parametrize("inside", [False, True])
def test_code_that_came_with_a_run_is_not_imported(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, inside: bool
) -> None:
    folder = tmp_path / "run"
    (folder / "shared").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", before := [*sys.path])
    named = str(tmp_path / "elsewhere" / ".." / "run" / "shared") if inside else "shared"
    asked = RecipeRun("PPO", "CartPole-v1", "torch", module="envs_of_run", module_folder=named)
    (folder / "shared" / "envs_of_run.py").write_text("raise AssertionError('this must not be run')")
    (folder / "run.json").write_text(json.dumps({**vars(asked), "format": "parl-run", "version": 1, "settings": {}}))
    trained.Trained("PPO", "CartPole-v1", "torch", module="envs_of_run", module_folder=named).write(folder)
    with pytest.raises(CheckpointError, match="code that may have come with a run is not imported"):
        read(folder)
    assert sys.path == before


def test_what_is_no_run_of_the_command_cannot_be_resumed_by_it(tmp_path: Path) -> None:
    result = run("resume", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path} has no run.json" in result.output
    result = run("resume", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "is not a folder of a run" in result.output


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


@pytest.mark.parametrize(
    ("aside", "why"),
    [
        ((), "ended before its first checkpoint"),
        (
            ("damaged-000000000020-a", "damaged-000000000040-b"),
            r"has damaged checkpoints only \(damaged-000000000020-a, damaged-000000000040-b\)",
        ),
    ],
)
def test_a_run_without_a_checkpoint_is_refused_before_anything_is_made(
    aside: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecipeRun, "made", lambda _: pytest.fail("an agent was made"))
    for name in aside:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    message = f"{why}.*: parl train --config {tmp_path}"
    with pytest.raises(CheckpointError, match=message), Run.resume(tmp_path) as folder:
        RecipeRun("PPO", "CartPole-v1", "torch").train(folder)


def test_a_run_that_is_older_than_a_setting_goes_on_where_that_is_at_its_default(tmp_path: Path) -> None:
    asked = RecipeRun("DQN", "Acrobot-v1", "torch", steps=1000)
    asked.write(tmp_path)
    description = json.loads((tmp_path / "run.json").read_text())
    for name in ("evaluate_every", "n_step", "log", "source"):
        assert name in description["settings"]
    older = {name: value for name, value in description["settings"].items() if name not in ("n_step", "log")}
    (tmp_path / "run.json").write_text(json.dumps({**description, "settings": {**older, "source": "in other words"}}))
    assert RecipeRun.read(tmp_path) == asked
    del older["batch_size"]  # whose default the recipe does not have
    (tmp_path / "run.json").write_text(json.dumps({**description, "settings": older}))
    with pytest.raises(CheckpointError, match="batch_size was"):
        RecipeRun.read(tmp_path)


@pytest.mark.parametrize(("algorithm", "env"), [("PPO", "CartPole-v1"), ("DQN", "Acrobot-v1"), ("SAC", "Hopper-v5")])
def test_what_was_asked_for_is_found_again(algorithm: str, env: str, tmp_path: Path) -> None:
    asked = RecipeRun(algorithm, env, "paddle", seed=3, goal=1.5, checkpoint_every=100).extended(77)
    asked.write(tmp_path)
    assert RecipeRun.read(tmp_path) == asked
    assert asked.total_steps == 77


@pytest.mark.parametrize(
    ("steps", "num_envs", "n_steps", "total"), [(50, 8, 7, 56), (3, 3, 1, 3), (1, 2, 1, 2), (20_000, 8, 2048, 20_000)]
)
def test_a_budget_below_one_rollout_shortens_it(steps: int, num_envs: int, n_steps: int, total: int) -> None:
    asked = RecipeRun("PPO", "MountainCar-v0", "torch", steps=steps)
    recipe = asked.recipe
    assert (recipe.num_envs, recipe.loop.n_steps, recipe.loop.total_steps) == (num_envs, n_steps, total)
    assert asked.total_steps == total


@pytest.mark.parametrize(
    ("given", "num_envs", "n_steps", "total"),
    [({"n_steps": 32}, 8, 32, 50), ({"num_envs": "16"}, 16, 4, 64), ({"num_envs": 64}, 64, 1, 64)],
)
def test_a_rollout_of_a_given_size_is_completed(given: dict[str, Any], num_envs: int, n_steps: int, total: int) -> None:
    recipe = RecipeRun("PPO", "MountainCar-v0", "torch", steps=50, given=given).recipe
    assert (recipe.num_envs, recipe.loop.n_steps, recipe.loop.total_steps) == (num_envs, n_steps, total)


def test_shorter_rollouts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    asked = RecipeRun("MAPPO", "climbing", "torch", steps=500)
    _train._warn_of_a_short_run(asked)
    assert "n_steps is 16, not 25, and training ends after 512 steps" in capsys.readouterr().err
    for other in (replace(asked, steps=900), replace(asked, given={"n_steps": 30}), replace(asked, steps=None)):
        _train._warn_of_a_short_run(other)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["DQN", "ApeX"])
def test_a_short_run_says_when_updates_begin(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = RecipeRun(algorithm, "CartPole-v1", "torch", steps=100)
    usual = replace(asked, steps=None).recipe.loop.learning_starts
    _train._warn_of_a_short_run(asked)
    assert f"learning_starts is 50, not {usual}" in capsys.readouterr().err
    for other in (replace(asked, given={"learning_starts": "20"}), replace(asked, steps=2 * usual)):
        _train._warn_of_a_short_run(other)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("goal", ["nan", "inf"])
def test_a_goal_that_is_no_number_is_refused_with_the_usage(goal: str, tmp_path: Path) -> None:
    result = run("train", "ppo", "CartPole-v1", "--goal", goal, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert f"{goal} is not a finite number" in result.output
    assert not (tmp_path / "runs").exists()


def test_settings_are_listed_with_type_value_and_meaning(tmp_path: Path) -> None:
    result = run("settings", "ppo", "CartPole-v1")
    assert result.exit_code == 0, result.output
    assert re.search(r"^lr +0\.001 +number or schedule +Learning rate", result.output, re.MULTILINE)
    listed = json.loads(run("settings", "sac", "--json").output)
    assert listed["env"] == "Pendulum-v1"
    assert listed["settings"]["batch_size"] == {"value": "256", "type": "whole number", "text": ANY}
    listed = json.loads(run("settings", "mappo", "--json").output)["settings"]
    assert (listed["clip"]["value"], listed["entropy_coef"]["value"]) == ("0.2", "0.01")  # the algorithm's own
    assert re.search(r"\nclip +0\.2 ", run("settings", "mappo").output)
    assert "clip" not in tomllib.loads(run("settings", "mappo", "--toml").output)["settings"]
    written = tomllib.loads(run("settings", "dqn", "CartPole-v1", "--toml").output)
    assert written["settings"]["lr"] == "linear(0.0005, 0.0, 100000)"
    asked = RecipeRun("DQN", "CartPole-v1", "torch", given={"lr": written["settings"]["lr"]})
    assert asked.recipe == RecipeRun("DQN", "CartPole-v1", "torch").recipe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cluster", "nonsense"), "'nonsense' is not HOST:PORT"),
        (("--cluster", "host:"), "'host:' is not HOST:PORT"),
        (("--cluster", ":8010"), "':8010' is not HOST:PORT"),
        (("--cluster", "host:0"), "'host:0' is not HOST:PORT"),
        (("--cluster", "host:65536"), "'host:65536' is not HOST:PORT"),
        (("--jobs", "3"), "--jobs is the number of parallel runs of --seeds"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_with_the_usage(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run("train", "ppo", "CartPole-v1", *arguments, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "runs").exists()


def test_configurations_that_are_missing_or_misspelt_say_so(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert f"--config {path}: there is no such file" in run("train", "--config", str(path)).output
    path.write_text('algorithm = "ppo"\nenv = "CartPole-v1"\nstep = 3\n')
    assert "step; did you mean steps? It has algorithm" in run("train", "--config", str(path)).output


def test_none_is_an_option_of_an_environment_in_a_configuration_too(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('env_options = { limit = "none", name = "a", noise = inf }')
    assert _train._read_config(path)["env_options"] == {"limit": None, "name": "a", "noise": math.inf}


@pytest.mark.parametrize(("chosen", "meant"), [((), "torch"), (("--backend", "paddle"), "paddle")])
def test_runs_of_a_group_go_on_with_the_chosen_backend(
    chosen: tuple[str, ...], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecipeRun("PPO", "CartPole-v1", "torch").write(tmp_path)
    (tmp_path / "seeds.json").write_text("[3, 4]")
    asked: list[RecipeRun] = []
    monkeypatch.setattr(_train.backends, "set_backend", lambda name: None)
    monkeypatch.setattr(_train, "_train_seeds", lambda _, one, *__, **___: asked.append(one))
    result = run("resume", str(tmp_path), *chosen)
    assert result.exit_code == 0, result.output
    assert [one.backend for one in asked] == [meant]


def test_a_reader_that_has_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(commands, "columns", closed)
    monkeypatch.setattr(commands.click, "echo", closed)
    assert "Broken pipe" not in run("list").output


def test_the_folder_of_several_seeds_is_no_agent_and_names_those_inside(tmp_path: Path) -> None:
    (tmp_path / "several" / "seed-3").mkdir(parents=True)
    (tmp_path / "several" / "seed-3" / "agent.json").write_text("{}")
    result = run("evaluate", str(tmp_path / "several"))
    assert result.exit_code == 1
    assert "give one of the runs inside, such as" in result.output
    assert "seed-3" in result.output


def test_logged_data_for_an_algorithm_that_steps_environments_are_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"PPO learns in the environment.*leave out --data.*bc"):
        _ = RecipeRun("PPO", "CartPole-v1", "torch", data="log.npz").recipe


@pytest.mark.parametrize("algorithm", sorted({name for name, _ in RECIPES}))
def test_the_listed_settings_of_every_algorithm_are_a_file_that_changes_nothing(algorithm: str, tmp_path: Path) -> None:
    listed = run("settings", algorithm, "--toml")
    assert listed.exit_code == 0, listed.output
    (tmp_path / "run.toml").write_text(listed.output)
    read = _train._read_config(tmp_path / "run.toml")
    recipe = _recipe_run.preset(algorithm, read["env"])
    changed = with_settings(algorithm, recipe, read["given"])
    before, after = settings_of(algorithm, recipe), settings_of(algorithm, changed)
    assert {name: one.value for name, one in after.items()} == {name: one.value for name, one in before.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm = ", "is not a TOML file"),
        ('algorithm = "ppo"\nenv = "CartPole-v1"\nstepss = 3', "stepss"),
        ('env = "CartPole-v1"', "ALGORITHM is missing"),
        ("algorithm = 3", "algorithm is a text, got 3"),
        ('steps = "many"', "steps is a whole number, got 'many'"),
        ("seed = true", "seed is a whole number, got True"),
        ("settings = 3", "settings is a table, got 3"),
    ],
)
def test_a_wrong_configuration_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    result = run("train", "--config", str(tmp_path / "run.toml"), "--runs", str(tmp_path / "runs"))
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert not (tmp_path / "runs").exists()


class Still:
    """An agent that always pushes to the left."""

    training = False

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def predict(self, obs: Any) -> Any:
        return np.zeros(len(obs), np.int64)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    description = trained.Trained("PPO", "CartPole-v1", "torch")
    description.write(tmp_path)
    monkeypatch.setattr(backends, "set_backend", lambda name: None)

    def load(self: Any, path: Path, render_mode: str | None = None) -> Any:
        assert path.name == "best.ckpt"
        return Still(), lambda: self.make_env(render_mode)

    monkeypatch.setattr(trained.Trained, "load", load)
    return tmp_path


@pytest.mark.timeout(300)
def test_a_video_of_each_episode_is_written(still: Path, tmp_path: Path) -> None:
    for module in ("moviepy", "pygame"):
        pytest.importorskip(module)
    target = tmp_path / "new" / "agent.mp4"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that draw and encode
        warnings.filterwarnings("error", ".*Overwriting existing videos")
        result = run("play", str(still), "--video", str(target), "--episodes", "2")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in target.parent.iterdir()) == ["agent-0.mp4", "agent-1.mp4"]
    assert (tmp_path / "new" / "agent-0.mp4").read_bytes()[4:8] == b"ftyp"


def test_the_needs_of_a_window_are_reported_before_anything_is_loaded(
    still: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(variable, raising=False)
    result = run("play", str(still))
    assert result.exit_code == 1
    assert "there is no display for a window (DISPLAY is not set): use --video FILE.mp4" in result.output


def test_a_video_has_the_name_of_what_it_is(still: Path, tmp_path: Path) -> None:
    result = run("play", str(still), "--video", str(tmp_path / "agent.gif"))
    assert result.exit_code == 2
    assert "its name must end in .mp4" in result.output


def test_the_needs_of_videos_are_reported_before_anything_is_loaded(
    still: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recipe_run, "find_spec", lambda name: None)
    result = run("play", str(still), "--video", "agent.mp4")
    assert result.exit_code == 1
    assert 'videos are written by moviepy: pip install "parl-core[video]"' in result.output


def test_the_command_runs_on_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "argv", ["parl", "--version"])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in list(os.environ):
        if name.endswith("_NUM_THREADS"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(commands, "parl", lambda: seen.append(os.environ["OMP_NUM_THREADS"]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        cli.main()
    assert seen == ["1"]


def test_options_of_environments_are_typed_and_unknown_ones_named() -> None:
    asked = ("settings", "sac", "CartPole-v1", "--env-option")
    refused = CliRunner().invoke(parl, (*asked, "gravity=9"))
    assert "CartPole-v1 cannot be made with gravity=9" in refused.output
    assert "its options are sutton_barto_reward, render_mode" in refused.output
    with pytest.raises(HyperparameterError, match=r"two_step cannot be made with M=5.*its options are "):
        make_flat_env("two_step", options={"M": 5})
    assert make_flat_env("CartPole-v1", options={"sutton_barto_reward": True}).unwrapped._sutton_barto_reward is True


def test_a_team_of_a_package_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_teams").mkdir()
    (tmp_path / "own_teams" / "even.py").write_text(
        "from parl_core.env.matrix_games import GAMES\n\n\ndef parallel_env():\n    return GAMES['climbing']()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    assert make_flat_env("own_teams:even").agents == make_flat_env("climbing").agents
    with pytest.raises(ImportError, match="which is not installed"):
        make_flat_env("own_team:even")
    with pytest.raises(HyperparameterError, match=r"'twostep' names no .*: did you mean two_step\?"):
        make_flat_env("twostep")


@pytest.mark.usefixtures("no_backend")
def test_an_interrupted_command_ends_in_one_line_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        error = KeyboardInterrupt()
        error.add_note("The search is in runs/tune-ppo.")
        raise error

    monkeypatch.setattr(commands, "read_scores", interrupted)
    result = run("list")
    assert (result.exit_code, result.output) == (130, "\nInterrupted. The search is in runs/tune-ppo.\n")


def test_ctrl_c_while_the_command_is_imported_ends_it_in_one_line() -> None:
    program = """
import signal, sys

class Presses:
    def find_spec(self, name, *_):
        if name == "parl_core.cli._train":
            signal.raise_signal(signal.SIGINT)

from parl_core.cli import main
sys.meta_path.insert(0, Presses())
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\nInterrupted: nothing has begun.\n")

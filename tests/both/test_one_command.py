"""`parl` from one end to the other: every algorithm, settings, configurations, several seeds, what was trained."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner, Result

from parl_core import backends
from parl_core.checkpoint import CheckpointStore
from parl_core.cli._commands import parl
from parl_core.cli._train import asked_by
from parl_core.env.normalize import NormalizeVector
from parl_core.errors import DatasetError
from parl_core.offline import OfflineDataset
from parl_core.training import Callback, Run, Update, _recipe_run, _seeds, checkpoints, record_episodes, trained
from parl_core.training._recipe_run import RecipeRun
from parl_core.training._seeds import RunInActor, train_seeds
from parl_core.training.trained import Trained
from parl_remote.testing import LoopbackCluster

BACKEND = backends.current().name

OWN_ENVIRONMENTS = '''
import gymnasium
import numpy as np


class Signal(gymnasium.Env):
    """One step an episode: the action that is seen is the right one."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.right], {}

    def step(self, action):
        return np.zeros(3, np.float32), float(action == self.right), True, False, {}


gymnasium.register("own/Signal-v0", Signal)


class Camera(gymnasium.Env):
    """A picture and a number, and the action is a number."""

    observation_space = gymnasium.spaces.Dict(
        picture=gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        speed=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def seen(self):
        picture = self.np_random.integers(0, 256, (8, 8, 3)).astype(np.uint8)
        return {"picture": picture, "speed": self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)}

    def step(self, action):
        return self.seen(), float(action[0]), bool(self.np_random.random() < 0.2), False, {}


gymnasium.register("own/Camera-v0", Camera)
'''


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(parl, arguments)
    assert result.exit_code == 0, result.output
    return result


SMALL = ("--set", "network.width=8", "--backend", BACKEND)
ON_POLICY = ("--steps", "64", *SMALL)
SMALL_MEMORY = ("--set", "network.memory=gru", "--set", "network.memory_size=8", "--backend", BACKEND)
OFFLINE = ("--steps", "4", "--set", "batch_size=8", *SMALL)


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("policygradient", "CartPole-v1", ON_POLICY),
        ("a2c", "Pendulum-v1", (*ON_POLICY, "--set", "normalize=true")),
        ("ppo", "CartPole-v1", (*ON_POLICY, "--set", "novelty=rnd", "--set", "novelty.hidden=8")),
        ("qrdqn", "Acrobot-v1", ("--steps", "40", "--set", "quantiles=5", "--set", "batch_size=8", *SMALL)),
        ("discrete-sac", "CartPole-v1", ("--steps", "40", "--set", "batch_size=8", *SMALL)),
        ("apex", "CartPole-v1", ("--steps", "400", "--actors", "0", "--set", "batch_size=8", *SMALL)),
        ("c51", "Acrobot-v1", ("--steps", "40", "--set", "atoms=5", "--set", "batch_size=8", *SMALL)),
        ("rainbow", "CartPole-v1", ("--steps", "40", "--set", "noisy=0.3", "--set", "batch_size=8", *SMALL)),
        ("impala", "CartPole-v1", ("--steps", "40", "--actors", "0", "--set", "n_steps=2", *SMALL)),
        ("mappo", "two_step", ("--steps", "64", "--set", "num_envs=2", "--set", "n_steps=8", *SMALL_MEMORY)),
        ("ippo", "climbing", (*ON_POLICY, "--set", "num_envs=2", "--set", "n_steps=8", "--actors", "1")),
        ("coma", "penalty", (*ON_POLICY, "--set", "num_envs=2", "--set", "n_steps=8", "--set", "gae_lambda=0.5")),
        ("qmix", "two_step", ("--steps", "120", "--set", "batch_size=4", *SMALL)),
        ("vdn", "cued_two_step", ("--steps", "120", "--set", "learning_starts=20", *SMALL_MEMORY)),
        ("maddpg", "penalty", ("--steps", "120", "--set", "learning_starts=20", "--set", "batch_size=8", *SMALL)),
        pytest.param("iql", "Pendulum-v1", OFFLINE, marks=pytest.mark.slow),
        ("bc", "CartPole-v1", OFFLINE),
        pytest.param(
            "decision-transformer",
            "Pendulum-v1",
            ("--steps", "4", "--set", "hidden=8", "--backend", BACKEND),
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.timeout(600)
def test_every_kind_of_algorithm_is_trained_and_found_again(
    algorithm: str, env: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run("train", algorithm, env, *options, "--run", str(folder))
    ways: list[list[str]] = [[]] if algorithm == "decision-transformer" else [[], ["--stochastic"]]
    for how in ways:
        played = run("evaluate", str(folder), "--episodes", "1", "--max-steps", "20", "--json", *how).output
        assert np.isfinite(json.loads(played)["mean"])
    assert (folder / "metrics.jsonl").exists()


@pytest.mark.timeout(600)
def test_a_run_is_repeated_from_its_own_folder_with_the_same_weights(tmp_path: Path) -> None:
    first, again, other = tmp_path / "first", tmp_path / "again", tmp_path / "other"
    asked = ("--set", "lr=linear(1e-3, 0)", "--set", "decay=false", "--seed", "3")
    run("train", "ppo", "CartPole-v1", *ON_POLICY, *asked, "--run", str(first))
    run("train", "--config", str(first), "--run", str(again))
    assert (again / "last.ckpt").read_bytes() == (first / "last.ckpt").read_bytes()
    written = json.loads((first / "run.json").read_text())
    assert written["settings"]["sizes"]["hidden"] == [8, 8]
    assert "numpy" in written["repeat_with"]["versions"]
    config = tmp_path / "run.toml"
    config.write_text(
        f'algorithm = "ppo"\nenv = "CartPole-v1"\nsteps = 64\nseed = 3\nbackend = "{BACKEND}"\n'
        '[settings]\nlr = "linear(1e-3, 0)"\ndecay = false\nnetwork.width = 8\n'
    )
    run("train", "--config", str(config), "--run", str(other))
    assert (other / "last.ckpt").read_bytes() == (first / "last.ckpt").read_bytes()
    drawn = [run("evaluate", str(first), "--episodes", "3", "--stochastic", "--json").output for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_run_resumed_with_more_steps_goes_on_learning(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run("train", "bc", "CartPole-v1", *OFFLINE, "--run", folder)
    weights = []
    for more in ((), ("--steps", "8")):
        if more:
            run("resume", folder, *more)
        agent = Trained.read(Path(folder)).make_agent()
        agent.restore(Path(folder) / "last.ckpt")
        weights.append(agent.get_weights())
    assert any(np.any(weights[0][name] != weights[1][name]) for name in weights[0])


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let videos be recorded without the packages that draw and write them."""
    monkeypatch.setattr(gymnasium.wrappers, "RecordVideo", lambda env, *_how, **_named: env)
    monkeypatch.setattr("parl_core.training.evaluation.find_spec", lambda _name: True)
    monkeypatch.setattr(_recipe_run, "check_rendering", lambda *_asked: None)


def test_the_agent_of_a_video_sees_normalised_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    seen: list[Any] = []

    agents: Any = backends.current().Agent
    predict = agents.predict

    def watched(agent: Any, obs: Any, *more: Any, **named: Any) -> Any:
        seen.append(np.array(obs))
        return predict(agent, obs, *more, **named)

    monkeypatch.setattr(agents, "predict", watched)
    asked = ("--set", "normalize=true", "--set", "evaluate_every=32", "--videos", "1")
    run("train", "ppo", "Pendulum-v1", *ON_POLICY, *asked, "--run", str(tmp_path / "run"))
    of_videos = np.concatenate([obs for obs in seen if len(obs) == 1])
    assert len(of_videos) >= 200
    assert np.abs(np.hypot(of_videos[:, 0], of_videos[:, 1]) - 1.0).max() > 0.1, "cosine and sine as they are"


def test_a_decision_transformer_is_shown_in_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    told = ("--steps", "4", "--set", "hidden=8", "--backend", BACKEND, "--videos", "1")
    log, folder = tmp_path / "log.npz", tmp_path / "run"
    steps = 400
    OfflineDataset(
        np.zeros((steps, 4), np.float32),
        np.arange(steps) % 2,
        np.ones(steps, np.float32),
        np.zeros((steps, 4), np.float32),
        np.arange(steps) % 10 == 9,
        np.zeros(steps, np.bool_),
    ).save(log)
    run("train", "decision-transformer", "CartPole-v1", *told, "--data", str(log), "--run", str(folder))


def test_a_run_that_was_trained_on_a_gpu_is_loaded_without_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("train", "ppo", "CartPole-v1", *ON_POLICY, "--device", "cpu", "--run", str(folder))
    description = folder / Trained.DESCRIPTION
    described = json.loads(description.read_text())
    assert described["arguments"]["device"] == "cpu"
    described["arguments"]["device"] = "cuda:7"
    description.write_text(json.dumps(described))
    run("evaluate", str(folder), "--episodes", "1")
    run("export", str(folder), "--observations", "10")


def test_a_run_on_a_gpu_is_resumed_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    asked = ("--set", "num_envs=2", "--set", "n_steps=16", "--stop-after", "32", "--device", "cpu")
    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(checkpoints, "_device_of", lambda _: "cuda:7")
        run("train", "ppo", "CartPole-v1", *ON_POLICY, *asked, "--run", str(folder))
    description = folder / RecipeRun.FILE
    description.write_text(description.read_text().replace('"device": "cpu"', '"device": "cuda:7"'))
    on_the_cpu = f"parl resume {folder} --device cpu"
    refused = CliRunner().invoke(parl, ["resume", str(folder)])
    assert refused.exit_code == 1
    assert f"one on cuda:7, which is not there; to continue on the CPU, type {on_the_cpu}" in refused.output
    description.write_text(description.read_text().replace('"device": "cuda:7"', '"device": "auto"'))
    with monkeypatch.context() as not_chosen:
        not_chosen.delenv("PARL_DEVICE", raising=False)
        not_chosen.setattr(checkpoints, "_device_of", lambda _: "cpu")
        refused = CliRunner().invoke(parl, ["resume", str(folder)])
    assert refused.exit_code == 1
    assert f"a run on cuda:7, and no GPU was found here; to continue on the CPU, type {on_the_cpu}" in refused.output
    caplog.clear()
    assert "64 steps were taken" in run("resume", str(folder), "--device", "cpu").output
    assert [record.getMessage() for record in caplog.records if "cuda:7" in record.getMessage()] == [
        "The run began on cuda:7 and continues on cpu, which rounds differently and draws other random numbers"
    ]
    assert RecipeRun.read(folder).given["device"] == "cpu"


def test_the_discount_of_normalised_rewards_may_be_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discounts = []

    class Watched(NormalizeVector):
        def __init__(self, envs: Any, **options: Any) -> None:
            discounts.append(options["gamma"])
            super().__init__(envs, **options)

    monkeypatch.setattr(_recipe_run, "NormalizeVector", Watched)
    asked = ("--set", "normalize=true", "--set", "gamma=0")
    run("train", "ppo", "Pendulum-v1", *ON_POLICY, *asked, "--run", str(tmp_path / "run"))
    assert discounts == [0.0]


@pytest.mark.timeout(600)
def test_environments_of_ones_own_are_registered_by_their_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_environments.py").write_text(OWN_ENVIRONMENTS)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    run(
        "train",
        "dqn",
        "own/Signal-v0",
        "--env-module",
        "own_environments",
        "--steps",
        "40",
        *SMALL,
        "--run",
        str(folder),
    )
    assert (Trained.read(folder).module, Trained.read(folder).module_folder) == ("own_environments", str(tmp_path))
    assert RecipeRun.read(folder).module_folder == str(tmp_path)
    assert "own/Signal-v0: mean return" in run("evaluate", str(folder), "--episodes", "2").output


@pytest.mark.timeout(600)
def test_pictures_beside_actions_that_are_numbers_are_trained_evaluated_and_resumed_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_environments.py").write_text(OWN_ENVIRONMENTS)
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "run")
    run("train", "ppo", "own/Camera-v0", "--env-module", "own_environments", *ON_POLICY, "--run", folder)
    assert not Trained.read(Path(folder)).normalized
    assert "own/Camera-v0: mean return" in run("evaluate", folder, "--episodes", "2").output
    run("resume", folder, "--steps", "128")


class Frames(gymnasium.Env[Any, Any]):
    """Stacked frames of an Atari game, but small ones, and without the game."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 12, 12), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}


@pytest.mark.timeout(600)
def test_a_network_with_a_memory_learns_an_atari_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "make_atari", lambda *_, **__: Frames())
    asked = ("learning_starts=12", "batch_size=4", "sequence_length=4", "burn_in=1", "memory_size=50")
    options = [part for one in asked for part in ("--set", one)]
    folder = tmp_path / "run"
    run("train", "dqn", "ALE/Pong-v5", "--steps", "24", *options, *SMALL_MEMORY, "--run", str(folder))
    losses = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if "loss" in line]
    assert losses


@pytest.mark.timeout(600)
def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    out = run("train", "ppo", "CartPole-v1", *ON_POLICY, "--json", "--run", str(tmp_path / "run")).stdout
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events][-2:] == ["end", "run"]
    assert events[-1]["path"] == str(tmp_path / "run")


def test_observed_choices_are_logged_as_flattened_ones(tmp_path: Path) -> None:
    def flat() -> Any:
        return gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1"))

    logs = tmp_path / "flat.npz", tmp_path / "choices.npz"
    found = record_episodes(flat, lambda rng: lambda _: int(rng.integers(4)), 60)
    found.save(logs[0])
    columns = {**found.whole(), "obs": found.obs.argmax(1), "next_obs": found.next_obs.argmax(1)}
    OfflineDataset.from_arrays(columns).save(logs[1])
    asked = ("train", "offlineq", "FrozenLake-v1", "--backend", BACKEND, "--steps", "2", "--set", "batch_size=8")
    result = CliRunner().invoke(parl, [*asked, "--data", str(logs[1]), "--runs", str(tmp_path / "runs")])
    assert result.exit_code == 1, result.output
    assert "observations of shape [], FrozenLake-v1 those of Box(" in result.output
    assert "which has Discrete(16) as gymnasium.spaces.flatten gives it" in result.output
    run(*asked, "--data", str(logs[0]), "--run", str(tmp_path / "run"))


class Dashboard(gymnasium.Env[Any, Any]):
    """An image beside a number."""

    observation_space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=gymnasium.spaces.Box(-1.0, 1.0, (1,))
    )
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), float(action), bool(self.np_random.random() < 0.2), False, {}


gymnasium.register("own/Dashboard-v0", Dashboard)


def test_observations_with_an_image_are_logged_as_flattened_ones(tmp_path: Path) -> None:
    def policy(rng: np.random.Generator) -> Any:
        return lambda _: int(rng.integers(3))

    log, folder = tmp_path / "flat.npz", tmp_path / "run"
    with pytest.raises(DatasetError, match="FlattenObservation makes arrays of numbers") as raised:
        record_episodes(Dashboard, policy, 60)
    assert len(str(raised.value)) < 400
    record_episodes(lambda: gymnasium.wrappers.FlattenObservation(Dashboard()), policy, 60).save(log)
    asked = ("train", "bc", "own/Dashboard-v0", "--steps", "2", "--set", "batch_size=8", "--data", str(log))
    run(*asked, "--run", str(folder))
    run("evaluate", str(folder), "--episodes", "2")


def test_a_run_that_was_killed_while_it_ended_gets_its_last_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sizes = (*SMALL, "--set", "n_steps=8", "--set", "evaluate_every=64")
    run("train", "ppo", "CartPole-v1", "--steps", "64", *sizes, "--run", str(folder))
    log, picture = folder / "metrics.jsonl", folder / "learning-curve.png"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))
    picture.unlink()
    run("resume", str(folder))
    assert picture.exists()
    found = log.read_text().splitlines(keepends=True)
    assert (found[:-1], json.loads(found[-1])["reason"]) == (lines[:-1], "64 steps were taken")
    again = CliRunner().invoke(parl, ["resume", str(folder)])
    assert again.exit_code == 1
    assert "has taken 64 steps, and 64 were asked for" in again.output


def test_a_run_keeps_its_budget_where_it_is_resumed_with_fewer_steps_than_it_has_taken(tmp_path: Path) -> None:
    group = tmp_path / "group"
    folder = group / "seed-0"
    sizes = (*SMALL, "--set", "n_steps=8", "--set", "evaluate_every=64")
    run("train", "ppo", "CartPole-v1", "--steps", "128", "--stop-after", "64", *sizes, "--run", str(folder))
    asked = RecipeRun.read(folder)
    asked.write(group)
    (group / _seeds.SEEDS_FILE).write_text("[0]")
    path = folder / "metrics.jsonl"
    portion = path.read_text()
    killed = "".join(portion.splitlines(keepends=True)[:-1])
    for log, resumed in itertools.product((portion, killed), (folder, group)):
        path.write_text(log)
        refused = CliRunner().invoke(parl, ["resume", str(resumed), "--steps", "32"])
        assert refused.exit_code == 1
        assert "has taken 64 of 128 steps, and 32 were asked for" in refused.output
        assert (RecipeRun.read(resumed), path.read_text()) == (asked, log)
    run("resume", str(folder))
    assert json.loads(path.read_text().splitlines()[-1])["reason"] == "128 steps were taken"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # processes that import a framework take minutes on a busy machine
def test_seeds_are_trained_side_by_side_and_a_group_is_taken_up_again(tmp_path: Path) -> None:
    group = tmp_path / "group"
    asked = (
        "train",
        "ppo",
        "CartPole-v1",
        "--steps",
        "128",
        *SMALL,
        "--set",
        "n_steps=8",
        "--set",
        "evaluate_every=64",
        "--seeds",
        "2",
    )
    first = run(*asked, "--jobs", "1", "--seed", "5", "--run", str(group), "--stop-after", "64")
    assert "interquartile mean of 2 runs" in first.output
    assert "the portion of 64 steps is done" in first.output
    assert (group / "curves.png").exists()
    assert [RecipeRun.read(group / f"seed-{seed}").seed for seed in (5, 6)] == [5, 6]
    resumed = run("resume", str(group)).output
    assert resumed.count("128 steps were taken") == 2
    assert run("resume", str(group), "--steps", "192").output.count("192 steps were taken") == 2
    assert run("resume", str(group), "--json").output.count("192 steps were taken") >= 2


def test_a_run_of_a_group_goes_on_from_its_checkpoint_and_without_one_begins_anew(tmp_path: Path) -> None:
    folder, given = tmp_path / "seed-0", {"num_envs": 2, "n_steps": 8, "network.width": 4}
    asked = RecipeRun("PPO", "CartPole-v1", BACKEND, steps=32, given=given)
    folder.mkdir()
    asked.write(folder)  # and then it was killed
    values = {name: value for name, value in vars(asked).items() if name != "recipe"}
    for more, total in (({}, 32), ({}, 32), ({"extended_to": 64}, 64)):
        assert RunInActor().train({**values, **more}, str(folder), {}) == f"{total} steps were taken"
    assert len((folder / "updates.csv").read_text().splitlines()) == 1 + 64 // 16


def test_a_run_of_a_group_that_took_its_budget_has_ended_whatever_ended_it(tmp_path: Path) -> None:
    """Its last rollout was completed: 32 steps, with a portion of 20 steps and a budget of 30."""
    folder, given = tmp_path / "seed-0", {"num_envs": 2, "n_steps": 8, "network.width": 4}
    values = {"algorithm": "PPO", "env": "CartPole-v1", "backend": BACKEND, "steps": 30, "given": given}
    first = RunInActor().train(values, str(folder), {"max_steps": 20})
    assert first == "the portion of 20 steps is done"
    assert RunInActor().train(values, str(folder), {}) == first


@pytest.mark.slow
@pytest.mark.parametrize("merged", [False, True])
def test_a_run_whose_output_is_not_read_any_more_ends_with_a_checkpoint(tmp_path: Path, merged: bool) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "parl_core.cli", "train", "ppo", "CartPole-v1", *SMALL]
    command += ["--steps", str(10**7), *([] if merged else ["--json"]), "--run", str(folder)]
    errors = subprocess.STDOUT if merged else subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as training:
        assert training.stdout is not None
        assert training.stdout.readline()
        training.stdout.close()
        assert training.wait(200.0) == 130
        assert merged or (training.stderr is not None and b"parl resume" in training.stderr.read())
    assert CheckpointStore(folder / "checkpoints").steps()


class PressesOnce(Callback):
    """Presses Ctrl-C as soon as every run of a group has written figures."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.left = list(folders)

    def on_update(self, update: Update) -> None:
        if self.left and all((folder / "updates.csv").exists() for folder in self.left):
            self.left.clear()
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_interrupted_runs_of_a_group_end_with_checkpoints_that_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_seeds, "SECONDS_OF_A_ROUND", 200.0)
    given = {"num_envs": 2, "n_steps": 8, "network.width": 4}
    asked = RecipeRun("PPO", "CartPole-v1", BACKEND, steps=10**7, checkpoint_every=10**7, given=given)
    folders = [tmp_path / "group" / f"seed-{seed}" for seed in (3, 4)]
    with pytest.raises(SystemExit) as ended, Run.at(tmp_path / "group") as run:
        train_seeds(asked, run, (3, 4), jobs=2, watcher=PressesOnce(folders))
    assert ended.value.code == 130
    told = capsys.readouterr().err
    for folder in folders:
        (step,) = CheckpointStore(folder / "checkpoints").steps()
        assert f"checkpoint of step {step}; continue all with: parl resume {tmp_path / 'group'}" in told
        assert f"{folder / 'last.ckpt'}: " in told


def test_a_tracker_that_is_not_installed_is_named_before_the_runs_of_several_seeds_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    asked = ("train", "ppo", "CartPole-v1", "--seeds", "2", "--track", "mlflow", "--run", str(tmp_path / "group"))
    result = CliRunner().invoke(parl, asked)
    assert result.exit_code == 1
    assert result.output.startswith('Error: MLflow needs mlflow-skinny: pip install "parl-core[track]"')
    assert not list(tmp_path.iterdir())


def test_an_impossible_training_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    for arguments, message in (
        (("ppo", "CartPole-v1", "--set", "lrr=1"), "did you mean lr?"),
        (("ppoo", "CartPole-v1"), "did you mean ppo?"),
        (("cql", "MountainCarContinuous-v0"), "give --data FILE.npz"),
        (("sac", "CartPole-v1"), "SAC on CartPole-v1"),
        (("rnd", "CartPole-v1"), "parl train ppo CartPole-v1 --set novelty=rnd"),
        (("bootstrappedddpg", "Pendulum-v1"), "there is no recipe of BootstrappedDDPG"),
        (("dqn", "CartPole-v1", "--videos", "1"), "pip install"),
        (("dqn", "Acrobot-v1", "--set", "hindsight=0.8"), "hindsight=0.8 is for environments"),
        (("rainbow", "CartPole-v1", "--set", "hindsight=0.8"), "hindsight=0.8 is for environments"),
        (("ppo", "CartPole-v1", "--set", "sequence_length=4"), "sequence_length=4 is for models with a memory"),
        (("qmix", "two_step", "--set", "n_step=3"), "QMIX has no use for n_step"),
    ):
        found = CliRunner().invoke(parl, ["train", *arguments, "--backend", BACKEND, "--runs", str(tmp_path / "runs")])
        assert found.exit_code == 1, found.output
        assert message in found.output
        assert not (tmp_path / "runs").exists()


def test_a_file_of_logged_data_is_found_from_any_folder() -> None:
    what: Any = {"given": {}, "env_options": {}, "algorithm": "bc", "env": "CartPole-v1", "backend": BACKEND}
    assert asked_by(**what, data="log.npz").data == str(Path("log.npz").absolute())
    assert asked_by(**what, data="minari:a/b-v0").data == "minari:a/b-v0"


def test_logged_data_that_do_not_fit_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("obs,action")
    for name, obs_size, action in (
        ("wide_obs", 4, np.zeros((300, 1))),
        ("wide_action", 3, np.zeros((300, 2))),
        ("choices", 3, np.zeros(300, int)),
        ("few", 3, np.zeros((5, 1))),
    ):
        obs, zeros = np.zeros((len(action), obs_size)), np.zeros(len(action))
        columns = {"obs": obs, "action": action, "reward": zeros, "next_obs": obs, "terminal": zeros}
        OfflineDataset.from_arrays(columns).save(tmp_path / f"{name}.npz")
    for algorithm, name, message in (
        ("td3_bc", "missing", "missing.npz does not exist: check the path"),
        ("td3_bc", "text", "text.npz is not a readable .npz file"),
        ("td3_bc", "wide_obs", "wide_obs.npz has observations of shape [4], Pendulum-v1 those of Box("),
        ("td3_bc", "wide_action", "wide_action.npz: action must have shape [n, 1]"),
        ("rebrac", "choices", "choices.npz: action must hold numbers of shape [n, act_dim]"),
        ("td3_bc", "few", "few.npz has 5 transitions, batch_size is 256"),
    ):
        for more in ((), ("--seeds", "2")):
            asked = ["train", algorithm, "Pendulum-v1", "--data", str(tmp_path / f"{name}.npz"), "--backend", BACKEND]
            found = CliRunner().invoke(parl, [*asked, "--runs", str(tmp_path / "runs"), *more])
            assert found.exit_code == 1, found.output
            assert found.output.startswith("Error: ")
            assert message in found.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # processes that import a framework take minutes on a busy machine
def test_a_search_goes_on_where_it_stopped_and_its_best_settings_can_be_trained(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study, folder = tmp_path / "study", tmp_path / "run"
    search = ("--search", "lr=1e-4..1e-2", "--search", "network.width=4|8", "--study", str(study), "--workers", "1")
    asked = (
        "tune",
        "ppo",
        "CartPole-v1",
        "--steps",
        "128",
        "--backend",
        BACKEND,
        "--set",
        "n_steps=8",
        *search,
        "--json",
    )
    for count in (1, 2):
        found = json.loads(run(*asked, "--trials", "1").output)
        assert (found["trials"], found["failed"]) == (count, 0)
    assert set(found["best"]) == {"lr", "network.width"}
    run("train", "--config", found["file"], "--backend", BACKEND, "--run", str(folder))
    assert RecipeRun.read(folder).given["lr"] == found["best"]["lr"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_environments_on_a_cluster_are_those_of_this_process(tmp_path: Path) -> None:
    common = ("train", "ppo", "CartPole-v1", "--steps", "512", "--seed", "3", "--backend", BACKEND)
    with LoopbackCluster(nodes=1, cpus=8) as cluster:
        there = ("--cluster", cluster.address)
        for name, where in (("here", ()), ("two", (*there, "--actors", "2")), ("one each", there)):
            program = [sys.executable, "-m", "parl_core.cli", *common, "--run", str(tmp_path / name), *where]
            subprocess.run(program, env={**os.environ, **cluster.environment}, check=True, timeout=180)
    here, two, each = ((tmp_path / name / "last.ckpt").read_bytes() for name in ("here", "two", "one each"))
    assert here == two == each

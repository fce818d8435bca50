"""`evokit loop` and `evokit replay`, `--json` of every command, models by name, and exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parl_evokit import ESAgent, LogWriter, mlp, update_lock
from parl_evokit.cli import main
from parl_evokit.errors import EvolutionError
from parl_evokit.models._find import built_in

PNG = b"\x89PNG\r\n"
MINE = """
import numpy
from parl_evokit import mlp
def env():
    return lambda agent, seed: float(numpy.sum(agent.predict([1.0, 0.5, 0.1 * (seed % 7)])))
def model():
    return ({"w": mlp([3, 1]).parameters()[:3]}, lambda arrays, x: arrays["w"] @ x)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a configuration and an environment of the user's own."""
    (tmp_path / "config.json").write_text('{"solver": {"optimizer": {"type": "ADAM", "base_lr": 0.1}}}')
    (tmp_path / "loop_code.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loop_code", raising=False)
    return tmp_path


def evokit(*arguments: str, expect: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == expect, result.output
    return result.stdout


def told(*arguments: str, expect: int = 0) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    (line,) = evokit(*arguments, "--json", expect=expect).splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer


LOOP = ["loop", "--config_path=config.json", "--env=loop_code:env", "--model=mlp:3-2-1:logits", "--episodes=6"]
DIRECTORIES = ["--model-dir=model_warehouse/model_dir_1", "--updated-model-dir=model_warehouse/model_dir_2"]
UPDATE = ["--log-path=sampling_log", *DIRECTORIES, "--config-path=config.json"]


def test_the_loop_learns_draws_and_goes_on_where_it_stopped(place: Path) -> None:
    pytest.importorskip("matplotlib")
    first = told(*LOOP, "--rounds=12", "--evaluate-every=4", "--evaluate-episodes=2", "--picture=a.png")
    assert (first["rounds"], first["model_iter_id"]) == (12, 12)
    assert [number for number, _ in first["evaluated"]] == [4, 8, 12]
    assert first["evaluated"][-1][1] > first["evaluated"][0][1]
    assert (place / "a.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in (place / "model_warehouse").iterdir()) == sorted(
        f"model_dir_{number}" for number in range(13)
    )
    more = told(*LOOP[:3], "--episodes=6", "--rounds=2", "--picture=-")  # the solver remembers the model
    assert (more["rounds"], more["model_iter_id"], more["picture"]) == (2, 14, None)


def test_the_loop_ends_at_its_target_and_shows_a_bar(place: Path) -> None:
    result = CliRunner().invoke(main, [*LOOP, "--rounds=50", "--evaluate-every=1", "--target=-1e9", "--picture=-"])
    assert result.exit_code == 0
    assert "model 1: sampled" in result.stdout
    assert "model 1: sampled" in result.stderr


def test_the_loop_waits_until_cma_has_its_population(place: Path) -> None:
    (place / "config.json").write_text(
        '{"solver": {"type": "CMA_ES", "sampling": {"cma_sampling": {"population": 10}}}}'
    )
    assert told(*LOOP, "--rounds=4", "--picture=-")["model_iter_id"] == 2


def test_the_loop_begins_with_weights_of_the_users_own_model(place: Path) -> None:
    arguments = [*LOOP[:3], "--model=loop_code:model", "--rounds=1", "--picture=-"]
    assert "put the initial weights of your model into" in told(*arguments, expect=2)["message"]
    (place / "model_warehouse" / "model_dir_0").mkdir(parents=True)
    from parl_evokit.models import adapt

    adapt(({"w": mlp([3, 1]).parameters()[:3]}, lambda arrays, x: x)).save(place / "model_warehouse" / "model_dir_0")
    assert told(*arguments)["model_iter_id"] == 1


def test_a_replay_gives_the_same_digest_and_says_where_it_does_not(place: Path) -> None:
    evokit(*LOOP, "--rounds=4", "--picture=-")
    answer = told("replay", *UPDATE)
    assert answer["same"] is True
    assert answer["parameters_sha256"] == answer["expected_sha256"]
    other = [argument.replace("model_dir_2", "model_dir_3") for argument in UPDATE]
    assert told("replay", *other, expect=4)["same"] is False
    history = place / "model_warehouse" / "model_dir_2" / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole.replace('"used":6', '"used":7', 1))
    assert "does not follow line 1" in told("replay", *UPDATE, expect=4)["message"]
    history.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert "was written with 2 lines" in told("replay", *UPDATE, expect=4)["message"]
    history.unlink()
    assert "has no history" in told("replay", *UPDATE, expect=4)["message"]
    history.write_text(whole)
    told("log", "compact", "--model_dir=model_warehouse/model_dir_4", "--to=archive", "sampling_log")
    message = told("replay", *UPDATE, "--log_path=archive", expect=4)["message"]
    assert "the logs lack 1 of the segments that the update has read" in message


def test_every_command_prints_one_json_object(place: Path) -> None:
    evokit(*LOOP, "--rounds=2", "--picture=-")
    (place / "other").mkdir()
    mlp([4, 20, 2], activation="linear").save(place / "other")
    assert told("init-solver", "--model-dir=other", "--config-path=config.json")["parameters"] == 142
    common = ["--log-path=log", "--model-dir=model_warehouse/model_dir_2", "--config-path=config.json"]
    played = told("online-sampling", *common, "--env=loop_code:env", "--episodes=4")
    assert (played["model_iter_id"], len(played["rewards"])) == (2, 4)
    updated = told("offline-update", *common, "--updated-model-dir=model_warehouse/model_dir_3")
    assert (updated["used"], updated["pending"], updated["damaged"]) == (4, 0, 0)
    older = told("offline-update", "--log-path=log", *UPDATE[1:2], *common[2:], "--updated-model-dir=x", expect=4)
    assert (older["error"], older["report"]["set_aside"]["orphan"]) == ("NothingToUpdate", 4)
    assert len(told("log", "show", "log")["samples"]) == 4
    assert told("log", "verify", "log")["segments"][0]["records"] == 4
    assert told("log", "convert", "log", "raw")["samples"] == 4
    assert told("config", "check", "config.json")["solver"] == "BASIC_ES"
    assert "optimizer" in told("config", "convert", "config.json")["prototxt"]
    assert told("config", "check", "nowhere.json", expect=2)["error"] == "ConfigError"


def test_a_raw_log_is_a_new_file(place: Path) -> None:
    evokit(*LOOP, "--rounds=1", "--picture=-")
    common = ["--log-path=raw", "--model-dir=model_warehouse/model_dir_1", "--config-path=config.json"]
    evokit("online_sampling", *common, "--env=loop_code:env", "--raw", "--episodes=5")
    before = (place / "raw").read_bytes()
    for again in (
        ["online_sampling", *common, "--env=loop_code:env", "--raw"],
        ["log", "convert", "sampling_log", "raw"],
    ):
        assert "raw exists already" in told(*again, expect=4)["message"]
    assert (place / "raw").read_bytes() == before
    assert len(told("log", "show", "raw")["samples"]) == 5
    assert told("offline-update", *common, "--updated-model-dir=next")["used"] == 5


@pytest.mark.slow
def test_episodes_are_played_by_several_processes(place: Path) -> None:
    evokit(*LOOP, "--rounds=1", "--picture=-")
    common = ["--log-path=log", "--model-dir=model_warehouse/model_dir_1", "--config-path=config.json"]
    command = [sys.executable, "-m", "parl_evokit", "online-sampling", *common, "--env=loop_code:env", "--json"]
    done = subprocess.run([*command, "--workers=2"], capture_output=True, text=True, timeout=240, check=True)
    assert len(json.loads(done.stdout)["rewards"]) == 10
    assert len(told("log", "show", "log")["samples"]) == 10


def test_an_update_that_another_holds_exits_with_6_and_its_holder(place: Path) -> None:
    evokit(*LOOP, "--rounds=2", "--picture=-")
    with update_lock(place / "model_warehouse" / "model_dir_2"):
        answer = told("offline-update", *UPDATE, "--wait=0", expect=6)
    assert "model_dir_2 is being updated by pid" in answer["message"]


def test_what_cannot_be_written_exits_with_1(place: Path) -> None:
    evokit(*LOOP, "--rounds=2", "--picture=-")
    (place / "file").write_text("no directory")
    arguments = [argument.replace("model_warehouse/model_dir_2", "file/x") for argument in UPDATE]
    assert told("offline-update", *arguments, expect=1)["error"] == "StorageError"


def test_a_model_of_the_users_own_is_asked_for_and_a_built_in_one_remembered(place: Path) -> None:
    own = ({"w": mlp([3, 1]).parameters()[:3]}, lambda arrays, x: arrays["w"] @ x)
    ESAgent(place / "config.json", own).save(place / "own")
    with LogWriter("log"):
        pass
    arguments = ["--log-path=log", "--model-dir=own", "--config-path=config.json", "--env=loop_code:env"]
    message = told("online-sampling", *arguments, expect=4)["message"]
    assert "files contain no code: give --model package.module:function" in message
    assert told("online-sampling", *arguments, "--model=loop_code:model")["episodes"] == 10
    ESAgent(place / "config.json", mlp([3, 1], activation="relu", softmax=False, bias=False)).save(place / "built")
    summary = json.loads((place / "built" / "solver.json").read_text())
    assert summary["model"] == "mlp:3-1:relu:logits:nobias"
    agent = ESAgent()
    agent.load_config(place / "config.json")
    agent.load_inference_model(place / "built")
    agent.load_solver(place / "built")
    assert agent.param_size() == 3
    (place / "nothing").mkdir()
    message = told("init-solver", "--model-dir=nothing", "--config-path=config.json", expect=4)["message"]
    assert "holds neither a program of paddle nor weights of a built-in model" in message


def test_names_of_built_in_models_make_them_and_others_do_not() -> None:
    for model in (mlp([4, 20, 2], activation="linear"), mlp([2, 3], softmax=False), mlp([5, 4, 3, 2], bias=False)):
        assert model.built_in is not None
        made = built_in(model.built_in)
        assert made is not None
        assert made.layout == model.layout
        assert (made.parameters() == model.parameters()).all()
        assert made.built_in == model.built_in
    assert built_in("cartpole") is not None
    assert built_in("package.module:function") is None
    for name in ("mlp:4", "mlp:4-x", "mlp:4-2:fast", "mlp:4-0", "mlp:4-2:tanh:relu"):
        with pytest.raises(EvolutionError, match="is not a model: a perceptron's name is"):
            built_in(name)


def test_both_spellings_of_every_option_and_command_are_there() -> None:
    for command, options in {
        "init_solver": ["--model_dir", "--model-dir", "--config_path", "--config-path"],
        "online-sampling": ["--log_path", "--log-path", "--model", "--env", "--episodes", "--workers"],
        "offline_update": ["--updated_model_dir", "--updated-model-dir", "--max_damage", "--max-damage", "--json"],
        "loop": ["--evaluate_every", "--evaluate-every", "--picture"],
        "replay": ["--updated_model_dir", "--log-path"],
    }.items():
        shown = evokit(command, "--help")
        assert all(option in shown for option in options), shown

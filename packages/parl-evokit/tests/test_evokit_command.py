"""The PARL 1.x manual's online programs as commands, with their options, and what exit codes say."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parl_evokit import ESAgent, LogWriter, SamplingInfo, mlp, read_log
from parl_evokit.cli import main
from parl_evokit.log import write_raw

CONFIG = Path(__file__).with_name("documented_config.prototxt")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("gymnasium", reason="the built-in environment needs gymnasium")
    first = tmp_path / "model_warehouse" / "model_dir_0"
    first.mkdir(parents=True)
    mlp([4, 20, 2], activation="linear", seed=1).save(first)
    (tmp_path / "config.prototxt").write_text(CONFIG.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evokit(*arguments: str, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == expect, result.output
    return result


def init_solver() -> list[str]:
    return ["init_solver", "--model_dir=./model_warehouse/model_dir_0", "--config_path=config.prototxt"]


def online_sampling(epoch: int) -> list[str]:
    return [
        "online_sampling",
        "--log_path=./sampling_log",
        f"--model_dir=./model_warehouse/model_dir_{epoch}",
        "--config_path=./config.prototxt",
    ]


def offline_update(epoch: int) -> list[str]:
    return [
        "offline_update",
        "--log_path=./sampling_log",
        f"--model_dir=./model_warehouse/model_dir_{epoch}",
        f"--updated_model_dir=./model_warehouse/model_dir_{epoch + 1}",
        "--config_path=./config.prototxt",
    ]


@pytest.mark.slow
def test_the_documented_loop_learns(workplace: Path) -> None:
    # Keys and episodes are drawn anew in each run; six runs needed 45 to 95 rounds, and the loop ends at the target.
    settings = ["--rounds=2000", "--target=200", "--evaluate-every=5", "--evaluate-episodes=5", "--picture=-"]
    told = json.loads(evokit("loop", "--config_path=config.prototxt", *settings, "--json").stdout)
    assert told["evaluated"][-1][1] >= 200.0


def test_an_update_without_new_samples_changes_nothing_and_exits_with_3(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    evokit(*offline_update(0))
    assert "nothing to update" in evokit(*offline_update(1), expect=3).output
    assert not (workplace / "model_warehouse" / "model_dir_2").exists()


def test_the_same_update_twice_gives_the_same_bytes(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    evokit(*offline_update(0))
    updated = workplace / "model_warehouse" / "model_dir_1"
    first = {file.name: file.read_bytes() for file in updated.iterdir()}
    evokit(*offline_update(0))
    assert {file.name: file.read_bytes() for file in updated.iterdir()} == first


def test_damage_is_reported_kept_and_exits_with_4_when_verified(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0), "--episodes=40")
    (segment,) = (workplace / "sampling_log").iterdir()
    evokit("log", "verify", "sampling_log")
    data = bytearray(segment.read_bytes())
    data[-100] ^= 0xFF
    segment.write_bytes(data)
    assert "damaged in 1 places" in evokit("log", "verify", "sampling_log", expect=4).output
    assert "more than max_damage" in evokit(*offline_update(0), expect=4).output
    result = evokit(*offline_update(0), "--max-damage=0.1")
    assert "39 samples" in result.output
    assert segment.with_name(segment.name + ".damaged").exists()
    noise = workplace / "sampling_log" / "noise.evl"
    noise.write_bytes(bytes(2000))
    verified = evokit("log", "verify", "sampling_log", expect=4).output
    assert "noise.evl: 0 records, 2000 bytes damaged in 1 places" in verified
    assert "it is ignored: it is completely damaged\n" in verified
    shown = evokit("log", "show", "sampling_log")
    assert len(shown.stdout.splitlines()) == 39
    assert f"{2000 + (segment.parent / (segment.name + '.damaged')).stat().st_size} damaged bytes" in shown.stderr


def test_an_update_names_what_it_moves_aside_and_goes_on(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    log = workplace / "sampling_log"
    (log / "noise.evl").write_bytes(bytes(2000))
    result = evokit(*offline_update(0))
    assert "10 samples" in result.output
    assert "noise.evl: 2000 damaged bytes skipped, kept in sampling_log/noise.evl.damaged" in result.stderr
    reason = "it is completely damaged"
    assert f"sampling_log/noise.evl: {reason}; moved to sampling_log/quarantine/noise.evl\n" in result.stderr
    assert (log / "noise.evl.damaged").read_bytes() == bytes(2000)
    assert (log / "quarantine" / "noise.evl").read_bytes() == bytes(2000)
    assert not (log / "noise.evl").exists()


def test_damage_that_can_be_neither_kept_nor_moved_does_not_end_a_command_whose_model_is_written(
    workplace: Path,
) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    log = workplace / "sampling_log"
    (log / "noise.evl").write_bytes(bytes(2000))
    (log / "noise.evl.damaged").mkdir()
    (log / "quarantine").write_text("in the way")
    result = evokit(*offline_update(0), "--json")
    assert json.loads(result.stdout)["quarantined"] == [str(Path("sampling_log/noise.evl"))]
    assert "which cannot be kept" in result.stderr
    assert "stays, because it is still written or cannot be moved" in result.stderr
    assert (log / "noise.evl").read_bytes() == bytes(2000)


def test_a_solver_that_has_seen_updates_is_not_made_again(workplace: Path) -> None:
    update = [argument.replace("model_dir_1", "model_dir_0") for argument in offline_update(0)]
    evokit(*init_solver())
    evokit(*init_solver())
    evokit(*online_sampling(0))
    evokit(*update)
    assert "has the solver of model 1" in evokit(*init_solver(), expect=4).output
    assert "0 samples could be used" in evokit(*update, expect=3).output


def test_samples_of_another_model_exit_with_4(workplace: Path) -> None:
    evokit(*init_solver())
    write_raw(workplace / "foreign", [SamplingInfo([1, 2], 0, 99), SamplingInfo([1, 3], 0, 99)], [1.0, 2.0])
    arguments = [argument.replace("./sampling_log", "foreign") for argument in offline_update(0)]
    assert "2 foreign" in evokit(*arguments, expect=4).output


def test_logs_are_shown_and_converted_both_ways(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    shown = evokit("log", "show", "sampling_log").output
    assert len(shown.splitlines()) == 10
    assert set(json.loads(shown.splitlines()[0])) == {"key", "model_iter_id", "fingerprint", "reward"}
    assert "10 samples" in evokit("log", "convert", "sampling_log", "raw").output
    evokit("log", "convert", "raw", "segments")
    assert evokit("log", "show", "raw").output == shown == evokit("log", "show", "segments").output


def test_configurations_are_checked_and_converted(workplace: Path) -> None:
    evokit("config", "check", "config.prototxt")
    converted = evokit("config", "convert", "config.prototxt").output
    (workplace / "converted.prototxt").write_text(converted)
    assert evokit("config", "convert", "converted.prototxt").output == converted
    (workplace / "wrong.prototxt").write_text("solver { optimiser { } }")
    assert "did you mean optimizer?" in evokit("config", "check", "wrong.prototxt", expect=2).output


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("write", online_sampling(0)),
        ("write", ["log", "convert", "raw", "segments"]),
        ("fsync", ["secret", "new", "secret"]),
        ("fsync", ["report", "--model_dir=model_warehouse/model_dir_0"]),
    ],
)
@pytest.mark.parametrize("part", [0, 5])
def test_a_full_disk_exits_with_1(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, call: str, command: list[str], part: int
) -> None:
    evokit(*init_solver())
    write_raw(workplace / "raw", [SamplingInfo([1, 2])], [1.0])

    def full(descriptor: int, data: bytes = b"") -> int:
        if part and call == "write":
            return real(descriptor, data[:part])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        evokit(*command, expect=1)


def test_a_model_does_not_go_where_the_log_is(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    update = [argument.replace("./model_warehouse/model_dir_1", "sampling_log") for argument in offline_update(0)]
    assert "sampling_log is one of the logs" in evokit(*update, expect=4).output
    assert [path.suffix for path in (workplace / "sampling_log").iterdir()] == [".evl"]


def test_rewards_that_only_come_again_are_nothing_new(workplace: Path) -> None:
    evokit(*init_solver())
    evokit(*online_sampling(0))
    evokit(*offline_update(0))
    used = read_log("sampling_log")
    with LogWriter("sampling_log") as log:
        for info, reward in zip(used.infos, used.rewards, strict=True):
            log.reward(info, reward)
    assert "used" in evokit(*offline_update(1), expect=3).stderr


def test_missing_things_are_reported_with_their_exit_code(workplace: Path) -> None:
    assert "evokit init-solver" in evokit(*online_sampling(0), expect=4).output
    evokit(*init_solver())
    assert "package.module:function" in evokit(*online_sampling(0), "--env=nothing", expect=2).output
    assert "cannot be imported" in evokit(*online_sampling(0), "--model=no.such:thing", expect=2).output
    assert "Missing option" in evokit("init-solver", expect=2).output
    assert "neither a log's directory nor a file" in evokit("log", "show", "nowhere", expect=4).output


def test_a_users_own_model_and_environment_are_imported_by_name(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "mine.py").write_text(
        "from parl_evokit import mlp\n"
        "def model():\n    return mlp([3, 1], softmax=False)\n"
        "def env():\n    return lambda agent, seed: float(agent.predict([1.0, 2.0, 3.0])[0])\n"
    )
    monkeypatch.syspath_prepend(workplace)
    directory = workplace / "mine"
    directory.mkdir()
    mlp([3, 1], softmax=False).save(directory)
    common = ["--model-dir=mine", "--config-path=config.prototxt", "--model=mine:model"]
    evokit("init-solver", *common)
    evokit("online-sampling", "--log-path=mine-log", *common, "--env=mine:env", "--episodes=6")
    output = evokit("offline-update", "--log-path=mine-log", *common, "--updated-model-dir=mine").output
    assert "model 1: 6 samples (3 pairs)" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["log"],
        ["log", "show"],
        ["log", "show", "nowhere"],
        ["offline-update", "--nonsense"],
        ["init-solver", "--model_dir", "x"],
        ["online-sampling", "--log_path", "l", "--model_dir", "m", "--config_path", "c", "--episodes", "many"],
        ["report", "--model_dir", "nowhere"],
        ["secret", "rotate", "nowhere"],
        ["config", "check", "nowhere.prototxt"],
    ],
)
def test_every_commands_error_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in {1, 2, 4}
    lines = result.stderr.splitlines()
    if arguments != ["log"]:  # a group alone shows its help
        assert len(lines) == 1
        assert lines[0].startswith("error: ")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["init-solver", "--model_dir=m", "--config_path=c", "--wait"],
        ["offline-update", "--log_path=l", "--model_dir=m", "--updated_model_dir=u", "--config_path=c", "--wait"],
        ["offline-update", "--log_path=l", "--model_dir=m", "--updated_model_dir=u", "--config_path=c", "--max-damage"],
        ["replay", "--log_path=l", "--model_dir=m", "--updated_model_dir=u", "--config_path=c", "--max-damage"],
        ["loop", "--config_path=c", "--wait"],
        ["loop", "--config_path=c", "--target"],
        ["log", "prune", "l", "--model_dir=m", "--older-than-days"],
        ["log", "compact", "l", "--model_dir=m", "--to=a", "--older-than-days"],
        ["report", "--model_dir=m", "--stale-after-hours"],
    ],
)
def test_a_number_that_is_not_finite_is_refused_before_anything_is_done(
    arguments: list[str], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *others, option = arguments
    (line,) = evokit(*others, f"{option}={number}", expect=2).stderr.splitlines()
    assert line.startswith(f"error: Invalid value for '{option.replace('-', '_').replace('__', '--', 1)}'")
    assert not list(tmp_path.iterdir())


def test_the_built_in_environment_says_which_extra_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    from parl_evokit import EvolutionError
    from parl_evokit.environments import NamedEpisode

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(EvolutionError, match=r"pip install parl-evokit\[loop\]"):
        NamedEpisode("cartpole").open()


USERS_CODE = """
def raises(): raise RuntimeError("first\\nsecond")
def no_function(): return 5
def episode(agent, seed): return 1.0
def no_number(): return lambda agent, seed: "x"
def fails(): return lambda agent, seed: {}["inside"]
def too_large(): return lambda agent, seed: 10**400
def nothing(): return lambda agent, seed: float("nan")
def wants_more(more): ...
"""


@pytest.fixture
def users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mlp([4, 20, 2], activation="linear", seed=1).save(tmp_path / "model")
    (tmp_path / "config.prototxt").write_text("solver { update { min_samples: 2 } }", encoding="utf-8")
    (tmp_path / "users_code.py").write_text(USERS_CODE, encoding="utf-8")
    (tmp_path / "users_slip.py").write_text("def f(:", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    evokit("init-solver", "--model_dir=model", "--config_path=config.prototxt")
    return tmp_path


SAMPLING = ["online-sampling", "--log_path=log", "--model_dir=model", "--config_path=config.prototxt"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_code:raises", "users_code:raises raised RuntimeError: first second ("),
        ("users_code:no_function", "users_code:no_function raised TypeError: "),
        (
            "users_code:episode",
            "users_code:episode must be a function without arguments that returns a function (agent, seed): missing",
        ),
        ("users_code:no_number", "users_code:no_number did not return a reward: a reward must be a number: not 'x'"),
        ("users_code:fails", "users_code:fails raised KeyError: 'inside' ("),
        ("users_slip:f", "users_slip:f cannot be imported: invalid syntax"),
    ],
)
def test_an_environment_that_fails_is_one_line_that_says_where(users_code: Path, name: str, message: str) -> None:
    (line,) = evokit(*SAMPLING, f"--env={name}", expect=2).stderr.splitlines()
    assert line.startswith(f"error: {message}")
    if message.endswith("("):
        assert "users_code.py, line " in line


def test_rewards_beyond_all_floats_are_set_aside(users_code: Path) -> None:
    evokit(*SAMPLING, "--env=users_code:too_large")
    update = ["offline-update", "--updated_model_dir=model", *SAMPLING[1:]]
    assert "10 not finite" in evokit(*update, expect=4).stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_code:raises", "users_code:raises raised RuntimeError: first second ("),
        ("users_code:wants_more", "users_code:wants_more raised TypeError: "),
        ("users_slip:f", "users_slip:f cannot be imported: invalid syntax"),
        ("mlp:99999999-99999999", "mlp:99999999-99999999 raised "),
    ],
)
def test_a_model_that_fails_is_one_line_that_says_where(users_code: Path, name: str, message: str) -> None:
    result = evokit("init-solver", "--model_dir=model", "--config_path=config.prototxt", f"--model={name}", expect=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")


def test_json_has_null_for_a_mean_that_is_no_number(users_code: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    told = json.loads(evokit(*SAMPLING, "--env=users_code:nothing", "--json").stdout, parse_constant=refuse)
    assert told["mean_reward"] is None
    assert told["rewards"] == [None] * 10
    for line in evokit("log", "show", "log").stdout.splitlines():
        assert json.loads(line, parse_constant=refuse)["reward"] is None


def test_converted_logs_keep_every_reward_of_control_traffic_without_an_identity(tmp_path: Path) -> None:
    clone = ESAgent({}, mlp([3, 2])).clone()
    with LogWriter(tmp_path / "log") as log:
        for number in range(4):
            log.reward(clone.add_noise(), float(number))
            log.reward(clone.add_noise(evaluate=True), float(number % 2))
    evokit("log", "convert", str(tmp_path / "log"), str(tmp_path / "raw"))
    evokit("log", "convert", str(tmp_path / "raw"), str(tmp_path / "segments"))
    for name in ("log", "raw", "segments"):
        report, _ = ESAgent({}, mlp([3, 2])).update_from_log(tmp_path / name)
        assert (report.used, report.control, report.control_mean) == (4, 4, 0.5)


def test_blocks_without_end_are_no_configuration(tmp_path: Path) -> None:
    for name in ("deep.json", "deep.toml"):
        (tmp_path / name).write_text("a=" * name.endswith("toml") + "[" * 100_000, encoding="utf-8")
        assert "nested too deeply" in evokit("config", "check", str(tmp_path / name), expect=2).stderr


def test_no_command_at_all_shows_the_help() -> None:
    for arguments in ([], ["log"]):
        shown = CliRunner().invoke(main, arguments).output.splitlines()
        assert shown[0].startswith("Usage: ")
        assert "Commands:" in shown


def test_a_loop_whose_picture_has_no_place_does_not_begin(users_code: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    for picture, reason in (("nowhere/curve.png", "there is no directory nowhere"), ("model", "it is a directory")):
        settings = ["--rounds=1", "--env=users_code:nothing", f"--picture={picture}"]
        assert reason in evokit("loop", "--config_path=config.prototxt", *settings, expect=2).stderr
    assert not (users_code / "sampling_log").exists()
